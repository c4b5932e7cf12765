"""Objects and programs that make a bare cluster usable: gVisor's class, storage, network policies, test tools."""

import hashlib
import json
from pathlib import Path
from typing import Any

from e2e.cluster import oci
from e2e.cluster.caches import workplace
from e2e.cluster.layout import MAX_NODES, Layout, Node
from e2e.cluster.locks import exclusive
from e2e.cluster.node import TOOLS_IMAGE
from e2e.cluster.shell import run

STORAGE_NAMESPACE = "local-path-storage"
_STORAGE_CONFIG = "local-path-config"
_BUSYBOX = Path("/bin/busybox")
_SOURCES = Path(__file__).parent / "tools"
_SETUP = '#!/bin/sh\nset -eu\nmkdir -m 0770 -p "$VOL_DIR"\n'
_TEARDOWN = '#!/bin/sh\nset -eu\nrm -rf "$VOL_DIR"\n'


def tools_archive(cache: Path) -> Path:
    """Build an image of the pause program, a network probe and busybox: sandbox, volume helper and test pod in one.

    Returns:
        path of the OCI archive in the cache; its name carries a digest of the sources.
    """
    sources = sorted(_SOURCES.glob("*.c"))
    digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in [*sources, Path(__file__)])).hexdigest()[:16]
    archive = cache / "tools" / f"tools-{digest}.tar"
    if archive.is_file():
        return archive
    with exclusive(archive.parent / "lock"), workplace(archive.parent, "tools") as folder:
        programs = {"bin/busybox": _BUSYBOX, **{source.stem: _compiled(source, folder) for source in sources}}
        applets = run([_BUSYBOX, "--list"]).split()
        links = {f"bin/{name}": "busybox" for name in applets if name != "busybox"}
        partial = folder / "tools.tar"
        layer = oci.Layer(programs, {**links, "bin/probe": "/probe"}, folders=("bin", "tmp", "etc", "var"))
        oci.write_archive(partial, TOOLS_IMAGE, layer, {"Entrypoint": ["/pause"], "Env": ["PATH=/bin"]})
        partial.rename(archive)
    return archive


def _compiled(source: Path, folder: Path) -> Path:
    """Compile a C program that needs no file but itself."""
    program = folder / source.stem
    run(["gcc", "-static", "-Os", "-Wall", "-Werror", "-o", program, source])
    return program


def objects() -> list[dict[str, Any]]:
    """Return what is applied to every cluster: RuntimeClass, default StorageClass, the provisioner's namespace."""
    return [
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "gvisor"},
            "handler": "runsc",
        },
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": "local-path",
                "annotations": {
                    "storageclass.kubernetes.io/is-default-class": "true",
                    # a volume of type hostPath would be left alone by fsGroup
                    "defaultVolumeType": "local",
                },
            },
            "provisioner": "rancher.io/local-path",
            "volumeBindingMode": "WaitForFirstConsumer",
            "reclaimPolicy": "Delete",
        },
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": STORAGE_NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "local-path", "namespace": STORAGE_NAMESPACE},
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": _STORAGE_CONFIG, "namespace": STORAGE_NAMESPACE},
            "data": {"setup": _SETUP, "teardown": _TEARDOWN},
        },
    ]


def node_object(node: Node) -> dict[str, Any]:
    """Return the Node, made before its kubelet starts so that the pod range is ours to choose."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": {"kubernetes.io/hostname": node.name}},
        "spec": {"podCIDR": node.pod_range, "podCIDRs": [node.pod_range]},
    }


def storage_files(layout: Layout) -> tuple[Path, Path]:
    """Write the provisioner's configuration and helper pod; return both paths.

    Nodes that may still join are in it: the provisioner reads it again every half minute only, and a claim on a node
    that it doesn't know of waits for longer than that.
    """
    paths = [
        {"node": layout.node(number).name, "paths": [str(layout.node(number).folder / "volumes")]}
        for number in range(1, MAX_NODES + 1)
    ]
    config, helper = layout.state / "storage.json", layout.state / "storage-helper.json"
    config.write_text(json.dumps({"nodePathMap": paths}))
    container = {"name": "helper", "image": TOOLS_IMAGE, "imagePullPolicy": "IfNotPresent"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "helper"}, "spec": {"containers": [container]}}
    helper.write_text(json.dumps(pod))
    return config, helper


def storage_argv(program: Path, layout: Layout, config: Path, helper: Path) -> list[str]:
    """Command line of local-path-provisioner, as a process beside the node."""
    return [
        str(program),
        "start",
        f"--config={config}",
        f"--kubeconfig={layout.kubeconfig}",
        f"--helper-image={TOOLS_IMAGE}",
        f"--helper-pod-file={helper}",
        f"--configmap-name={_STORAGE_CONFIG}",
        f"--namespace={STORAGE_NAMESPACE}",
        "--service-account-name=local-path",
    ]
