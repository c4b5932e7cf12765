"""How a process of a local run is kept in: pure builders of the command line, and the grade that people are told.

With bubblewrap the sandbox has a read-only system, no network but its own loopback, process ids of its own, and of this
machine's files only what is named here: no home folder, no other temporary files. Without it a run is an ordinary
process, and its grade says so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

VOLUME = "/workspace"
RUN = "/run/moorage"
SYSTEM = ("/usr",)
LINKED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SETTINGS = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/group",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/pki",
    "/etc/ssl",
    "/opt",
)


def grade(*, isolated: bool) -> str:
    """What keeps an agent in, as people are told (W8)."""
    if isolated:
        return "bubblewrap: no network, and of this machine's files only the system's and its own"
    return "none: an ordinary process with your rights (`moorage doctor` says how to have more)"


@dataclass(frozen=True)
class Places:
    """What one sandbox needs of this machine's disk. `shared` is read-only: a mirror whose objects are borrowed."""

    volume: Path
    control: Path
    socket: Path
    shared: Path | None = None


def bubblewrap(places: Places, env: Mapping[str, str]) -> list[str]:
    """The command line up to the program; `control` holds token and termination log and appears at /run/moorage."""
    argv = ["bwrap", "--die-with-parent", "--new-session", "--as-pid-1", "--unshare-all", "--clearenv"]
    argv += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run"]  # noqa: S108  inside the sandbox
    for path in (*SYSTEM, *SETTINGS):
        argv += ["--ro-bind-try", path, path]
    argv += _links()
    for path in python_places():
        argv += ["--ro-bind", path, path]
    argv += ["--bind", str(places.volume), VOLUME, "--bind", str(places.control), RUN]
    argv += ["--bind", str(places.socket), f"{RUN}/gateway.sock"]
    if places.shared is not None:
        argv += ["--ro-bind", str(places.shared), str(places.shared)]
    for name, value in env.items():
        argv += ["--setenv", name, value]
    return [*argv, "--chdir", VOLUME, "--"]


def _links() -> Iterator[str]:
    """/bin and its like: links on merged systems, folders elsewhere."""
    for name in LINKED:
        path = Path(name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), name)
        elif path.is_dir():
            yield from ("--ro-bind", name, name)


def python_places() -> list[str]:
    """Where this Python and this package are, so that the runner starts inside; nothing below /usr is repeated."""
    wanted = {sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parents[2])}
    wanted |= {str(Path(sys.executable).resolve().parents[1])}
    below = {path for path in wanted if not path.startswith("/usr")}
    return sorted(path for path in below if not any(path != other and path.startswith(f"{other}/") for other in below))


def environment(*, gateway: str, token: str, volume: str, log: str, shared: Path | None) -> dict[str, str]:
    """What the runner is told (see moorage.runner.settings)."""
    told = {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/tmp",  # noqa: S108  inside the sandbox; the agent gets one of its own
        "MOORAGE_GATEWAY_URL": gateway,
        "MOORAGE_TOKEN_FILE": token,
        "MOORAGE_VOLUME": volume,
        "MOORAGE_TERMINATION_LOG": log,
        "MOORAGE_LIFELINE": "stdin",
    }
    return {**told, "MOORAGE_ALTERNATES": str(shared)} if shared else told


def program() -> Sequence[str]:
    """The runner."""
    return [sys.executable, "-m", "moorage.runner"]
