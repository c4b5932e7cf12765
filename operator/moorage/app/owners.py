"""Who owns a local run: the process that holds the lock on its file, for as long as that process lives.

A local run has no Lease: the kernel lets go of the lock in the moment in which its holder dies, however it dies, so a
free lock on a file that is there means that the run was interrupted. Children don't inherit it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

SOCKET = "gateway.sock"
SOCKET_PATH_BYTES = 107  # what Linux's sockaddr_un holds, its closing NUL apart
UNBORN = "."  # begins the name of a file that isn't locked yet


@dataclass(frozen=True)
class Owner:
    """What an owner leaves for whoever finds its run interrupted, and for this user's other processes while it lives.

    `socket`: the folder of its gateway's socket; `key` opens that gateway to them, and dies with it.
    """

    pid: int
    manifest: Path
    socket: Path
    key: str = field(default="", repr=False)


@dataclass
class Owned:
    """A run that this process owns, until it is done with it or lets it go; `last` is what its last owner left."""

    uid: str
    path: Path
    descriptor: int | None
    last: Owner | None = None

    def tell(self, owner: Owner) -> None:
        """Leave word for a successor; not synced, since without it no more than a hint is lost."""
        told = {"pid": owner.pid, "manifest": str(owner.manifest), "socket": str(owner.socket), "key": owner.key}
        if self.descriptor is not None:
            os.ftruncate(self.descriptor, 0)
            os.pwrite(self.descriptor, json.dumps(told).encode(), 0)

    def done(self) -> None:
        """The run's end was told: nobody has to look for it any more."""
        if self.descriptor is not None:
            self.path.unlink(missing_ok=True)
        self.let_go()

    def let_go(self) -> None:
        """Leave the run to whoever comes next; harmless once it is done with."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class Owners:
    """One file per run that has not been told as ended, named by its UID."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Nobody else looks through the runs meanwhile: a look takes each free lock, and would seem to own it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            await asyncio.to_thread(fcntl.flock, descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def known(self) -> list[str]:
        """UIDs of all runs with an owner, dead or alive."""
        there = self._folder.iterdir() if self._folder.is_dir() else ()
        return sorted(each.name for each in there if not each.name.startswith(UNBORN))

    def alive(self, uid: str) -> bool:
        """Whether somebody owns it at this moment. Asked by one who is `alone`: nobody is kept from taking it."""
        try:
            descriptor = os.open(self._folder / uid, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(descriptor)

    def living(self, uid: str) -> Owner | None:
        """Who owns it at this moment, where somebody does and has said so. Asked by one who is `alone`."""
        if not self.alive(uid):
            return None
        descriptor = os.open(self._folder / uid, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _read(descriptor)
        finally:
            os.close(descriptor)

    def clear_unborn(self) -> None:
        """Remove what was left by those who died between making a file and owning a run."""
        there = self._folder.iterdir() if self._folder.is_dir() else ()
        for each in [each.name for each in there if each.name.startswith(UNBORN)]:
            if owned := self.take(each):
                owned.done()

    def take(self, uid: str, *, wait: bool = False) -> Owned | None:
        """Own that run, new or interrupted; None while somebody else does, unless that is waited for."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / uid
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not _locked(descriptor, wait=wait):
                os.close(descriptor)
                return None
            if _is_at(descriptor, path):
                return Owned(uid, path, descriptor, _read(descriptor))
            os.close(descriptor)  # its last owner removed it before we had the lock

    def new(self, uid: str, owner: Owner) -> Owned:
        """Own a run that is about to begin: nobody who looks finds its file before it is locked."""
        owned = self.take(f"{UNBORN}{uid}", wait=True)  # for no more than a moment, for one who clears up
        if owned is None:
            raise AssertionError("unreachable")
        born = Owned(uid, self._folder / uid, owned.descriptor)
        born.tell(owner)
        owned.path.rename(born.path)
        return born


def new_socket() -> Path:
    """Where a gateway may listen: a name that nobody can guess, and short, as socket paths have to be.

    A temporary folder of the user's that is too deep for a socket's path is passed over for the system's.
    """
    name = f"moorage-{secrets.token_hex(8)}"
    users = Path(tempfile.gettempdir()) / name
    return users if len(os.fsencode(users / SOCKET)) <= SOCKET_PATH_BYTES else Path("/tmp") / name  # noqa: S108  unguessable, made for this user alone


def clear_socket(owned: Owned) -> None:
    """Remove the socket of a dead owner's gateway, and nothing else."""
    folder = owned.last.socket if owned.last else None
    if folder is not None and folder.is_dir() and {each.name for each in folder.iterdir()} <= {SOCKET}:
        shutil.rmtree(folder, ignore_errors=True)


def _locked(descriptor: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
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
        return Owner(int(told["pid"]), Path(told["manifest"]), Path(told["socket"]), str(told.get("key", "")))
    except (ValueError, KeyError, TypeError):
        return None
