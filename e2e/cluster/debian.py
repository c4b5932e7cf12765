"""Debian packages that the cluster needs, installed only where a program is missing."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.cluster.shell import run_logged

# package → a file that shows it is there (a bare name is looked up on PATH)
CLUSTER_PACKAGES = {
    "runc": "runc",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "iptables": "iptables",
    "ipset": "ipset",
    "conntrack": "conntrack",
    "socat": "socat",
    "iproute2": "ip",
    "procps": "sysctl",
    "util-linux": "nsenter",
    "busybox-static": "/var/lib/dpkg/info/busybox-static.list",
    "gcc": "gcc",
    "libc6-dev": "/usr/include/stdio.h",
    "git": "git",
}
IMAGE_PACKAGES = {"mmdebstrap": "mmdebstrap", "buildah": "buildah"}


def missing(packages: dict[str, str]) -> list[str]:
    """Return the packages whose telling file isn't there."""
    return [package for package, sign in packages.items() if not _present(sign)]


def install(packages: Iterable[str], console: Console, log: Path) -> None:
    """Install packages with apt.

    Raises:
        HarnessError: this isn't Debian or a derivative; the message names what to install by other means.
    """
    wanted = sorted(packages)
    if not wanted:
        return
    if shutil.which("apt-get") is None:
        raise HarnessError(f"install what Debian calls {', '.join(wanted)}, then try again (there is no apt-get here)")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    with console.step(f"install {', '.join(wanted)}"):
        run_logged(["apt-get", "update"], log, env=quiet)
        run_logged(["apt-get", "install", "-y", "--no-install-recommends", *wanted], log, env=quiet)


def _present(sign: str) -> bool:
    return Path(sign).exists() if sign.startswith("/") else shutil.which(sign) is not None
