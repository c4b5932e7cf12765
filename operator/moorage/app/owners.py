"""Who owns a local run: the process that holds the lock on its file, for as long as that process lives.

A local run has no Lease: the kernel lets go of the lock in the moment in which its holder dies, however it dies, so a
free lock on a file that is there means that the run was interrupted. Children don't inherit it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Owner:
    """What an owner leaves for whoever finds its run interrupted. `socket`: the folder of its gateway's socket."""

    pid: int
    manifest: Path | None = None
    socket: Path | None = None


@dataclass(frozen=True)
class Owned:
    """A run that this process owns; `last` is what its last owner left."""

    uid: str
    path: Path
    descriptor: int
    last: Owner | None = None

    def tell(self, owner: Owner) -> None:
        """Leave word for a successor; not synced, since without it no more than a hint is lost."""
        told = {"pid": owner.pid, "manifest": _text(owner.manifest), "socket": _text(owner.socket)}
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, json.dumps(told).encode(), 0)

    def done(self) -> None:
        """The run's end was told: nobody has to look for it any more."""
        self.path.unlink(missing_ok=True)
        os.close(self.descriptor)

    def let_go(self) -> None:
        """Leave the run to whoever comes next."""
        os.close(self.descriptor)


class Owners:
    """One file per run that has not been told as ended, named by its UID."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def known(self) -> list[str]:
        """UIDs of all runs with an owner, dead or alive."""
        return sorted(each.name for each in self._folder.iterdir()) if self._folder.is_dir() else []

    def take(self, uid: str) -> Owned | None:
        """Own that run, new or interrupted; None while somebody else does."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / uid
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not _locked(descriptor):
                os.close(descriptor)
                return None
            if _is_at(descriptor, path):
                return Owned(uid, path, descriptor, _read(descriptor))
            os.close(descriptor)  # its last owner removed it before we had the lock

    @contextlib.contextmanager
    def holding(self, uid: str, owner: Owner) -> Iterator[Owned]:
        """Own a new run; an error leaves it as interrupted."""
        owned = self.take(uid)
        if owned is None:
            raise AssertionError(f"a fresh UID has an owner: {uid}")
        try:
            owned.tell(owner)
            yield owned
        except BaseException:
            owned.let_go()
            raise


def clear_socket(owned: Owned) -> None:
    """Remove the socket of a dead owner's gateway."""
    last = owned.last
    if last is not None and last.socket is not None and (last.socket / "gateway.sock").is_socket():
        shutil.rmtree(last.socket, ignore_errors=True)


def _text(path: Path | None) -> str | None:
    return str(path) if path else None


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _read(descriptor: int) -> Owner | None:
    """None where nothing was left, or only half of it."""
    try:
        told = json.loads(os.pread(descriptor, 1 << 16, 0))
        manifest, socket = told["manifest"], told["socket"]
        return Owner(int(told["pid"]), Path(manifest) if manifest else None, Path(socket) if socket else None)
    except (ValueError, KeyError, TypeError):
        return None
