"""The harness itself: what every other case takes for granted."""

import json
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from e2e.cluster import sbom
from e2e.cluster.backend import Backend
from e2e.cluster.layout import METADATA_ADDRESS, PUBLIC_ADDRESS
from e2e.cluster.paths import cache_root
from e2e.pods import SERVER_PORT, address, apply, eventually, isolate, pod, reaches, server, settles, wait_ready


def test_a_restricted_gvisor_pod_writes_to_its_volume(cluster: Backend, namespace: str) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "work"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    apply(cluster, namespace, claim, pod("sandbox", "exec sleep 3600", claim="work"))
    wait_ready(cluster, namespace, "sandbox")
    command = "cd /volume && dmesg | head -1 > kernel && id -u > uid && cat kernel uid"
    written = cluster.kubectl("exec", "-n", namespace, "sandbox", "--", "sh", "-c", command)
    assert "gVisor" in written
    assert written.splitlines()[-1] == "1000"


@pytest.mark.parametrize("runtime", ["gvisor", None])
def test_a_policy_refuses_what_a_pod_without_one_reaches(cluster: Backend, namespace: str, runtime: str | None) -> None:
    apply(cluster, namespace, server(), pod("client", "exec sleep 3600", runtime=runtime))
    wait_ready(cluster, namespace, "server", "client")
    api = cluster.kubectl("get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")
    targets = {
        "another pod": (address(cluster, namespace, "server"), SERVER_PORT),
        "the API server's Service": (api, 443),
        "a public address": (PUBLIC_ADDRESS, 80),
        "the metadata address": (METADATA_ADDRESS, 80),
    }

    def reached() -> set[str]:
        return {name for name, target in targets.items() if reaches(cluster, namespace, "client", *target)}

    assert settles(reached, to=set(targets), within_s=60) == set(targets)
    isolate(cluster, namespace, "client")
    assert settles(reached, to=set(), within_s=60) == set()


def test_a_policy_lets_in_whom_it_names_and_nobody_else(cluster: Backend, namespace: str) -> None:
    clients = [pod(name, "exec sleep 3600") for name in ("friend", "stranger")]
    apply(cluster, namespace, server(), *clients)
    wait_ready(cluster, namespace, "server", "friend", "stranger")
    target = (address(cluster, namespace, "server"), SERVER_PORT)
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "friends"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "server"}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [{"podSelector": {"matchLabels": {"app": "friend"}}}],
                    "ports": [{"port": SERVER_PORT, "protocol": "TCP"}],
                }
            ],
        },
    }
    apply(cluster, namespace, policy)
    assert eventually(lambda: not reaches(cluster, namespace, "stranger", *target))
    assert eventually(lambda: reaches(cluster, namespace, "friend", *target))


def test_what_is_in_our_images_is_told_of_the_images_that_run_here(tmp_path: Path):
    """Read from the very archives that the nodes have (`make sbom`)."""
    wanted = {"base": {"pkg:pypi/moorage", "pkg:pypi/pytest", "pkg:deb/debian/git"}, "control": {"pkg:pypi/kopf"}}
    for folder, packages in wanted.items():
        archive = max((cache_root() / "images").glob(f"{folder}-*.tar"), key=lambda path: path.stat().st_mtime)
        text = sbom.write(archive, tmp_path).read_text()
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
        found = {each["purl"].partition("@")[0] for each in json.loads(text)["components"] if "purl" in each}
        assert packages <= found
