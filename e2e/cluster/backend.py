"""Which cluster to use: the one built from source, kind's, or the user's own; all behind one small interface."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from e2e.cluster import helm, images
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.cluster.layout import Layout
from e2e.cluster.paths import cache_root, state_root
from e2e.cluster.programs import Programs
from e2e.cluster.shell import run, run_logged, succeeds
from e2e.cluster.source import SourceCluster

DEFAULT_NAME = "moorage"
KIND_IMAGE = "kindest/node:v1.34.0"


class Backend(Protocol):
    """What the suite and the demo need of any cluster."""

    def up(self, nodes: int = 1) -> None:
        """Bring it up, or find it up."""

    def down(self) -> None:
        """Take it away, if it is ours."""

    def kubeconfig(self) -> Path:
        """Path of an admin's kubeconfig."""

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as admin."""

    def kubectl_argv(self, *arguments: str) -> list[str]:
        """Return the command that `kubectl` would run, for programs that stay attached to it."""

    def build_images(self) -> list[Path]:
        """Build the project's images where something changed; return their archives."""

    def load_images(self, archives: Sequence[Path]) -> None:
        """Put the images of archives on every node that lacks them."""

    def deploy(self, *settings: str) -> None:
        """Install or upgrade the chart; `settings` are further ``--set`` values of Helm's (``key=value``)."""


@dataclass(frozen=True)
class CurrentCluster:
    """The cluster of the user's current context; never chosen by itself, never taken down."""

    env: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def up(self, nodes: int = 1) -> None:
        """Check that it answers and has enough nodes."""
        ready = json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
        if len(ready) < nodes:
            raise HarnessError(f"the current context has {len(ready)} nodes, {nodes} are asked for")

    def down(self) -> None:
        """Leave it alone."""

    def kubeconfig(self) -> Path:
        """The first file of KUBECONFIG, or the usual one."""
        first = self.env.get("KUBECONFIG", "").split(":")[0]
        return Path(first) if first else Path.home() / ".kube" / "config"

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run the user's kubectl."""
        return run(self.kubectl_argv(*arguments), stdin=stdin)

    def kubectl_argv(self, *arguments: str) -> list[str]:
        """Name the user's kubectl; its context is the user's."""
        return ["kubectl", *arguments]

    def build_images(self) -> list[Path]:
        """Build nothing: nodes that aren't ours take images from a registry, where the user has put them."""
        return []

    def load_images(self, archives: Sequence[Path]) -> None:
        """Do nothing, as `build_images` says."""

    def deploy(self, *settings: str) -> None:
        """Install the chart with the user's helm; MOORAGE_HELM_SET names the images (``key=value,key=value``).

        Raises:
            HarnessError: no images are named.
        """
        chosen = [each for each in self.env.get("MOORAGE_HELM_SET", "").split(",") if each]
        if not chosen:
            raise HarnessError(
                "push the images to a registry that your cluster reads, and name them: "
                "MOORAGE_HELM_SET=image.repository=…,sandbox.image.repository=…"
            )
        helm.install(Path("helm"), None, [*chosen, *settings])


@dataclass(frozen=True)
class KindCluster:
    """A cluster of kind's: needs a Docker engine, the kind program and its node image.

    Its nodes carry no gVisor: runs ask for another runtime class there, or the node image brings ``runsc``.
    """

    name: str
    state: Path
    console: Console

    def up(self, nodes: int = 1) -> None:
        """Create the cluster unless it is there."""
        if self.name in run(["kind", "get", "clusters"]).split():
            return
        self.state.mkdir(parents=True, exist_ok=True)
        roles = [{"role": "control-plane"}, *({"role": "worker"} for _ in range(nodes - 1))]
        config = self.state / "kind.json"
        config.write_text(json.dumps({"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": roles}))
        argv = ["kind", "create", "cluster", "--name", self.name, "--image", KIND_IMAGE, "--wait", "120s"]
        with self.console.step("kind create cluster"):
            run_logged([*argv, "--config", config, "--kubeconfig", self.kubeconfig()], self.state / "kind.log")

    def down(self) -> None:
        """Delete the cluster and its state."""
        run(["kind", "delete", "cluster", "--name", self.name])
        shutil.rmtree(self.state, ignore_errors=True)

    def kubeconfig(self) -> Path:
        """A kubeconfig of its own, so that the user's current context stays."""
        return self.state / "admin.kubeconfig"

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run the user's kubectl against this cluster."""
        return run(self.kubectl_argv(*arguments), stdin=stdin)

    def kubectl_argv(self, *arguments: str) -> list[str]:
        """Name the user's kubectl and this cluster's kubeconfig."""
        return ["kubectl", f"--kubeconfig={self.kubeconfig()}", *arguments]

    def build_images(self) -> list[Path]:
        """Build with Docker, on the public base image."""
        cache = cache_root()
        return images.build_all(images.Docker(), cache, self.console)

    def load_images(self, archives: Sequence[Path]) -> None:
        """Load archives on all nodes."""
        for archive in archives:
            run(["kind", "load", "image-archive", archive, "--name", self.name])

    def deploy(self, *settings: str) -> None:
        """Install the chart with the user's helm."""
        helm.install(Path("helm"), self.kubeconfig(), [*helm.DEV_IMAGES, *settings])


def choose(console: Console | None = None, name: str = DEFAULT_NAME, env: Mapping[str, str] = os.environ) -> Backend:
    """Pick the back end: what ``MOORAGE_CLUSTER`` says, else what is up already, else kind where it can work.

    Raises:
        HarnessError: ``MOORAGE_CLUSTER`` names something else.
    """
    built = source(console, name, env)
    kind = KindCluster(name, state_root(f"{name}-kind", env), built.console)
    wanted = env.get("MOORAGE_CLUSTER")
    if wanted == "current":
        return CurrentCluster(env)
    if wanted not in {None, "", "kind", "source"}:
        raise HarnessError(f"MOORAGE_CLUSTER={wanted}: use current, kind or source")
    if wanted == "kind" or (not wanted and not built.layout.state.exists() and (kind.state.exists() or kind_works())):
        return kind
    return built


def source(
    console: Console | None = None, name: str = DEFAULT_NAME, env: Mapping[str, str] = os.environ
) -> SourceCluster:
    """Return the cluster built from source, up or not."""
    return SourceCluster(Layout(name, state_root(name, env)), Programs(cache_root(env)), console or Console())


def kind_works() -> bool:
    """Whether kind, kubectl and a Docker engine are here, and the node image is present or can be pulled."""
    if not all(map(shutil.which, ("kind", "kubectl", "docker"))) or not succeeds(["docker", "info"]):
        return False
    present = succeeds(["docker", "image", "inspect", KIND_IMAGE])
    return present or succeeds(["docker", "pull", "--quiet", KIND_IMAGE])
