"""Installs the chart, and removes it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.paths import CHECKOUT
from e2e.cluster.shell import run

RELEASE = "moorage"
NAMESPACE = "moorage-system"


def image_settings(image: Callable[[str], str]) -> list[str]:
    """Return the chart values that name the images; `image` names each as the nodes know it (``repository:tag``)."""
    values = []
    for prefix, name in (("image", "control"), ("sandbox.image", "sandbox-base")):
        repository, _, tag = image(name).rpartition(":")
        values += [f"{prefix}.repository={repository}", f"{prefix}.tag={tag}"]
    return values


@dataclass(frozen=True)
class Helm:
    """Helm against one cluster.

    Args:
        program: path or name of helm.
        kubeconfig: the cluster; the user's current context when None.
        caches: where helm keeps what it would put into the user's home; the home itself when None.
        timeout_s: how long everything may take to become ready, or to go.
        namespace: the release's.
        values: what every install is given, as ``key=value``.
    """

    program: Path
    kubeconfig: Path | None = None
    caches: Path | None = None
    timeout_s: int = 120
    namespace: str = NAMESPACE
    values: tuple[str, ...] = ()

    def install(self, settings: Sequence[str]) -> None:
        """Install or upgrade the chart and wait until it is ready; `settings` are further values, which outrank."""
        values = [f"--set={setting}" for setting in (*self.values, *settings)]
        chart = str(CHECKOUT / "charts" / "moorage")
        self._run("upgrade", "--install", RELEASE, chart, "--create-namespace", "--wait", *values)

    def test(self) -> None:
        """Run the chart's own test."""
        self._run("test", RELEASE)

    def uninstall(self) -> None:
        """Remove the release, if it is there, and wait until its objects are gone."""
        self._run("uninstall", RELEASE, "--ignore-not-found", "--wait")

    def _run(self, *arguments: str) -> None:
        target = [f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig else []
        options = [f"--namespace={self.namespace}", f"--timeout={self.timeout_s}s", *target]
        run([self.program, *arguments, *options], env=self._env())

    def _env(self) -> dict[str, str]:
        if self.caches is None:
            return {}
        kinds = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "KUBECACHEDIR")
        return {kind: str(self.caches / kind.lower()) for kind in kinds}
