"""Installs the chart."""

from collections.abc import Sequence
from pathlib import Path

from e2e.cluster.paths import CHECKOUT
from e2e.cluster.shell import run

RELEASE = "moorage"
NAMESPACE = "moorage-system"
DEV_IMAGES = (
    "image.repository=localhost/moorage/control",
    "image.tag=dev",
    "sandbox.image.repository=localhost/moorage/sandbox-base",
    "sandbox.image.tag=dev",
)


def install(program: Path, kubeconfig: Path | None, settings: Sequence[str], *, timeout_s: int = 120) -> None:
    """Install or upgrade the chart and wait until it is ready.

    Args:
        program: path or name of helm.
        kubeconfig: cluster to install on; the user's current context when None.
        settings: values as ``key=value``.
        timeout_s: how long everything may take to become ready.
    """
    target = [f"--kubeconfig={kubeconfig}"] if kubeconfig else []
    argv = ["upgrade", "--install", RELEASE, str(CHECKOUT / "charts" / "moorage"), f"--namespace={NAMESPACE}"]
    values = [f"--set={setting}" for setting in settings]
    run([program, *argv, "--create-namespace", "--wait", f"--timeout={timeout_s}s", *target, *values])
