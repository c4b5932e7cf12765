"""The back ends behind one small interface, and the one that is used here."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from e2e.cluster import choice, helm, images
from e2e.cluster.console import Console
from e2e.cluster.current import CurrentCluster
from e2e.cluster.kind import KindCluster
from e2e.cluster.layout import Layout
from e2e.cluster.paths import cache_root, state_root
from e2e.cluster.programs import Programs
from e2e.cluster.source import SourceCluster

DEFAULT_NAME = "moorage"


class Backend(Protocol):
    """What the suite and the demo need of any cluster."""

    def up(self, nodes: int = 1) -> None:
        """Bring it up, or find it up."""

    def down(self) -> None:
        """Take it away; of a cluster that isn't ours, what we made there."""

    def kubeconfig(self) -> Path:
        """Path of an admin's kubeconfig."""

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as admin."""

    def kubectl_argv(self, *arguments: str) -> list[str]:
        """Return the command that `kubectl` would run, for programs that stay attached to it."""

    def image(self, name: str) -> str:
        """Name under which the nodes know one of the project's images (``control``, ``sandbox-base``)."""

    def build_images(self, wanted: Sequence[images.Image] = images.IMAGES) -> list[Path]:
        """Build images of the project where something changed; return their archives."""

    def load_images(self, archives: Sequence[Path]) -> None:
        """Put the images of archives where every node finds them."""

    def deploy(self, *settings: str) -> None:
        """Install or upgrade the chart; `settings` are further ``--set`` values of Helm's (``key=value``)."""

    def helm(self, namespace: str = helm.NAMESPACE) -> helm.Helm:
        """Helm for a release in a namespace, with the values that name the images."""


def choose(console: Console | None = None, name: str | None = None, env: Mapping[str, str] = os.environ) -> Backend:
    """Pick the back end: what ``MOORAGE_CLUSTER`` says, else what is up already, else what this machine can have.

    Raises:
        HarnessError: ``MOORAGE_CLUSTER`` names something else, or no cluster can be had.
    """
    built = source(console, name, env)
    kind = KindCluster(built.layout.name, state_root(f"{built.layout.name}-kind", env), built.programs, built.console)
    standing: dict[choice.Kind, Path] = {"source": built.layout.state, "kind": kind.state}
    up: list[choice.Kind] = [each for each, state in standing.items() if state.exists()]
    wanted, lacking = env.get("MOORAGE_CLUSTER", ""), choice.source_lacks()
    chosen = choice.pick(wanted, up, lacking, None) or choice.pick(wanted, up, lacking, choice.kind_lacks())
    backends: dict[choice.Kind | None, Backend] = {
        "current": CurrentCluster(env, built.console),
        "kind": kind,
        "source": built,
    }
    return backends[chosen]


def source(
    console: Console | None = None, name: str | None = None, env: Mapping[str, str] = os.environ
) -> SourceCluster:
    """Return the cluster built from source, up or not."""
    cluster = name or env.get("MOORAGE_CLUSTER_NAME") or DEFAULT_NAME
    return SourceCluster(Layout(cluster, state_root(cluster, env)), Programs(cache_root(env)), console or Console())
