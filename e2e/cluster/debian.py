"""Debian packages that the cluster needs, installed only where a program is missing."""

import shutil
from pathlib import Path

from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.cluster.locks import exclusive
from e2e.cluster.shell import run_logged

# package → a file that shows it is there (a bare name is looked up on PATH)
C_PACKAGES = {"gcc": "gcc", "libc6-dev": "/usr/include/stdio.h"}
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
    "git": "git",
    **C_PACKAGES,
}
IMAGE_PACKAGES = {
    "mmdebstrap": "mmdebstrap",
    "buildah": "buildah",
    "debian-archive-keyring": "/usr/share/keyrings/debian-archive-keyring.gpg",
}
TEST_PACKAGES = {"bubblewrap": "bwrap"}
NPM_PACKAGES = {"npm": "npm"}
POSTGRES_PACKAGES = {"postgresql": "/var/lib/dpkg/info/postgresql.list", "util-linux": "setpriv"}

INSTALLED = "installed-packages"


def missing(packages: dict[str, str]) -> list[str]:
    """Return the packages whose telling file isn't there."""
    return [package for package, sign in packages.items() if not _present(sign)]


def ensure(packages: dict[str, str], console: Console, cache: Path) -> None:
    """Install what is missing, with apt; one harness at a time, since apt's own locks make a second one fail.

    Raises:
        HarnessError: this isn't Debian or a derivative; the message names what to install by other means.
    """
    if not missing(packages):
        return
    with exclusive(cache / "apt.lock"):
        wanted = missing(packages)
        if wanted and shutil.which("apt-get") is None:
            names = ", ".join(wanted)
            raise HarnessError(f"install what Debian calls {names}, then try again (there is no apt-get here)")
        if wanted:
            _install(wanted, console, cache / "logs" / "apt.log")
            with (cache / INSTALLED).open("a") as record:
                record.writelines(f"{package}\n" for package in wanted)


def _install(packages: list[str], console: Console, log: Path) -> None:
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    patient = ("-o", "DPkg::Lock::Timeout=300")
    with console.step(f"install {', '.join(packages)}"):
        run_logged(
            ["dpkg", "--configure", "-a"], log, env=quiet, shares_locks=False
        )  # an apt that was killed leaves packages half-way
        run_logged(["apt-get", *patient, "update"], log, env=quiet, shares_locks=False)
        run_logged(
            ["apt-get", *patient, "install", "-y", "--no-install-recommends", *packages],
            log,
            env=quiet,
            shares_locks=False,
        )


def _present(sign: str) -> bool:
    return Path(sign).exists() if sign.startswith("/") else shutil.which(sign) is not None
