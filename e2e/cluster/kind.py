"""A cluster of kind's, with gVisor put into its nodes: for machines with a Docker engine where none can be built.

Our own checks have no Docker engine to run this on (docs/not-run-here.md); what can be decided without one is pure and
tested.
"""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import addons, choice, helm, images
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.cluster.programs import Programs
from e2e.cluster.shell import run, run_logged

_CONFIG = "/etc/containerd/config.toml"
_RUNSC_CONFIG = "/etc/containerd/runsc.toml"
_RUNTIME_PLUGIN = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}


def gvisor_patch(config: str) -> str:
    """Return what to append to a node's containerd configuration so that it has the runtime ``runsc``.

    Returns:
        the tables; an empty string when they are there.

    Raises:
        HarnessError: the configuration is of a version whose layout isn't known.
    """
    found = re.search(r"^version\s*=\s*(\d+)", config, re.MULTILINE)
    version = int(found[1]) if found else 1
    if version not in _RUNTIME_PLUGIN:
        raise HarnessError(f"the node's {_CONFIG} is of version {version}: gVisor is added to versions 2 and 3 only")
    table = f"plugins.'{_RUNTIME_PLUGIN[version]}'.containerd.runtimes.runsc"
    if table in config:
        return ""
    return f"""
[{table}]
  runtime_type = "io.containerd.runsc.v1"
[{table}.options]
  TypeUrl = "io.containerd.runsc.v1.options"
  ConfigPath = "{_RUNSC_CONFIG}"
"""


@dataclass(frozen=True)
class KindCluster:
    """A cluster of kind's: needs a Docker engine, the programs of `choice.KIND_PROGRAMS` and the node image."""

    name: str
    state: Path
    programs: Programs
    console: Console

    def up(self, nodes: int = 1) -> None:
        """Create the cluster unless it is there, and put gVisor into its nodes.

        Raises:
            HarnessError: something is missing; the message names all of it.
        """
        if lacking := choice.kind_lacks():
            raise HarnessError(f"a cluster of kind's lacks: {'; '.join(lacking)}")
        if self.name not in run(["kind", "get", "clusters"]).split():
            self._create(nodes)
        with self.console.step("gVisor on the nodes"):
            for each in run(["kind", "get", "nodes", "--name", self.name]).split():
                self._add_gvisor(each)
            (runtime_class,) = [each for each in addons.objects() if each["kind"] == "RuntimeClass"]
            self.kubectl("apply", "-f", "-", stdin=json.dumps(runtime_class))

    def down(self) -> None:
        """Delete the cluster, its images in the engine and its state."""
        run(["kind", "delete", "cluster", "--name", self.name])
        run(["docker", "image", "rm", "--force", *(image.name for image in images.ALL_IMAGES)])
        shutil.rmtree(self.state, ignore_errors=True)

    def kubeconfig(self) -> Path:
        """A kubeconfig of its own, so that the user's current context stays."""
        return self.state / "admin.kubeconfig"

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run the user's kubectl against this cluster."""
        return run(self.kubectl_argv(*arguments), stdin=stdin)

    def kubectl_argv(self, *arguments: str) -> list[str]:
        """Name the user's kubectl and this cluster's kubeconfig."""
        return ["kubectl", f"--kubeconfig={self.kubeconfig()}", f"--cache-dir={self.state / 'caches'}", *arguments]

    def image(self, name: str) -> str:
        """Name of one of the project's images."""
        return images.local_name(name)

    def build_images(self, wanted: Sequence[images.Image] = images.IMAGES) -> list[Path]:
        """Build with Docker, on the public base image."""
        return images.build_all(images.Docker(), self.programs.cache, self.console, wanted)

    def load_images(self, archives: Sequence[Path]) -> None:
        """Load archives on all nodes."""
        for archive in archives:
            run(["kind", "load", "image-archive", archive, "--name", self.name])

    def deploy(self, *settings: str) -> None:
        """Install the chart with the user's helm."""
        self.helm().install(settings)

    def helm(self, namespace: str = helm.NAMESPACE) -> helm.Helm:
        """The user's helm against this cluster."""
        values = tuple(helm.image_settings(self.image))
        return helm.Helm(Path("helm"), self.kubeconfig(), self.state / "caches", namespace=namespace, values=values)

    def _create(self, nodes: int) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        roles = [{"role": "control-plane"}, *({"role": "worker"} for _ in range(nodes - 1))]
        config = self.state / "kind.json"
        config.write_text(json.dumps({"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": roles}))
        argv = ["kind", "create", "cluster", "--name", self.name, "--image", choice.KIND_IMAGE, "--wait", "120s"]
        with self.console.step("kind create cluster"):
            run_logged([*argv, "--config", config, "--kubeconfig", self.kubeconfig()], self.state / "kind.log")

    def _add_gvisor(self, node: str) -> None:
        """Copy gVisor's programs into a node (a container) and tell its containerd."""
        patch = gvisor_patch(run(["docker", "exec", node, "cat", _CONFIG]))
        if not patch:
            return
        for program in choice.GVISOR_PROGRAMS:
            run(["docker", "cp", self._program(program), f"{node}:/usr/local/bin/{program}"])
        runsc = '[runsc_config]\nplatform = "systrap"\n'
        run(["docker", "exec", "-i", node, "sh", "-c", f"cat > {_RUNSC_CONFIG}"], stdin=runsc)
        run(["docker", "exec", "-i", node, "sh", "-c", f"cat >> {_CONFIG}"], stdin=patch)
        run(["docker", "exec", node, "systemctl", "restart", "containerd"])

    def _program(self, name: str) -> Path:
        """Path of one of gVisor's programs: the machine's own, else built from source."""
        if found := shutil.which(name):
            return Path(found)
        self.programs.build(["gvisor"], self.console)
        return self.programs.path(name)
