"""What the gateways that share a store tell each other (M5, F4). None of it is a fact, and all of it may get lost: a
wake-up that doesn't come costs at most a keep-alive period, since whoever waits looks at the store then.

A gateway is known by a name of its own, for as long as its process lives. Whether another one lives is asked here, and
decided by no clock but the store's server's own timers.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Protocol

from moorage.core.run.observed import Heartbeat

Heard = Callable[[str | None], None]
"""Told the uid of a run that changed; None: any may have changed, since something may have been missed."""


def new_name() -> str:
    """A gateway's name: 63 random bits in hexadecimal, so that it is a key of PostgreSQL's advisory locks too."""
    return f"{secrets.randbits(63):016x}"


class Peers(Protocol):
    """The other gateways of a store, as one of them sees them."""

    @property
    def me(self) -> str:
        """This process's name; records of what it has under way carry it."""

    @property
    def shared(self) -> bool:
        """Whether others may write to the store: what memory holds of a run is then compared with it at each door."""

    @property
    def back_at(self) -> int:
        """When this process was last cut off from the store, or frozen, for so long that it heard no heartbeat (ms)."""

    @property
    def sure(self) -> bool:
        """Whether the others take this process for alive: what isn't sure sends nothing off."""

    def listen(self, heard: Heard) -> None:
        """Have `heard` called for whatever any gateway of the store writes from now on."""

    async def gone(self, name: str) -> bool:
        """Whether that gateway's process has ended, or is cut off. It takes a few seconds to be sure of it.

        Always so for one of which nothing is known. Raise StoreUnavailable where nobody can say.
        """

    def claim(self, what: str) -> AbstractAsyncContextManager[bool]:
        """True for one of all gateways at a time, until the end. Given back when its holder dies or is cut off.

        It saves work and keeps records short; what must not happen twice is refused by journal and target themselves.
        Raise StoreUnavailable.
        """

    def hear(self, run_uid: str, beat: Heartbeat) -> None:
        """Let all know of a heartbeat, within seconds. `progress_at` is now: it stays where the progress is the old."""

    def forget(self, run_uid: str) -> None:
        """The run has ended."""

    async def heartbeat(self, run_uid: str) -> Heartbeat | None:
        """The last heartbeat that any gateway heard, None when nothing was. Raise StoreUnavailable."""


def merged(before: Heartbeat | None, beat: Heartbeat) -> Heartbeat:
    """The later heartbeat; no progress is as old as it was."""
    same = before is not None and (before.epoch, before.progress_seq) == (beat.epoch, beat.progress_seq)
    return replace(beat, progress_at=before.progress_at) if same and before is not None else beat


class Alone:
    """The one gateway of its store: whoever was there before it has ended."""

    shared, sure, back_at = False, True, 0

    def __init__(self) -> None:
        self.me = new_name()
        self._beats: dict[str, Heartbeat] = {}

    def listen(self, heard: Heard) -> None:
        """There is nobody to hear of."""

    async def gone(self, name: str) -> bool:
        """See the port."""
        return name != self.me

    @asynccontextmanager
    async def claim(self, what: str) -> AsyncIterator[bool]:  # noqa: ARG002  the port's signature
        """See the port."""
        yield True

    def hear(self, run_uid: str, beat: Heartbeat) -> None:
        """See the port."""
        self._beats[run_uid] = merged(self._beats.get(run_uid), beat)

    def forget(self, run_uid: str) -> None:
        """See the port."""
        self._beats.pop(run_uid, None)

    async def heartbeat(self, run_uid: str) -> Heartbeat | None:
        """See the port."""
        return self._beats.get(run_uid)
