"""What the gateways that share a store tell each other (M5, F4). None of it is a fact, and all of it may get lost: a
wake-up that doesn't come costs at most a keep-alive period, since whoever waits looks at the store then.

A gateway goes by a name. Whether the one of that name lives is asked here, and decided by no clock but the store's
server's own timers. One that may have been taken for gone takes a new name: who is gone stays gone.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Protocol

from moorage.core.run.observed import Heartbeat

CLAIM_AGAIN_S = 1.0
Heard = Callable[[str | None], None]
"""Told the uid of a run that changed; None: any may have changed, since something may have been missed."""


def new_name() -> str:
    """A gateway's name: 63 random bits in hexadecimal, so that it is a key of PostgreSQL's advisory locks too."""
    return f"{secrets.randbits(63):016x}"


class Peers(Protocol):
    """The other gateways of a store, as one of them sees them."""

    @property
    def me(self) -> str:
        """This process's name at this moment; records of what it has under way carry it."""

    @property
    def shared(self) -> bool:
        """Whether others may write to the store: what memory holds of a run is then compared with it at each door."""

    @property
    def back_at(self) -> int:
        """When this process was last cut off from the store, or frozen, for so long that it heard no heartbeat (ms);
        now, while it is.
        """

    def listen(self, heard: Heard) -> None:
        """Have `heard` called for whatever any gateway of the store writes from now on."""

    def still(self, name: str) -> bool:
        """Whether this process goes by that name, and nobody can have taken it for gone: else it sends nothing off."""

    async def gone(self, name: str) -> bool:
        """Whether the gateway of that name has ended, or was cut off or frozen, for good. To be sure of it takes a few
        seconds. Raise StoreUnavailable where nobody can say.
        """

    def claim(self, what: str) -> AbstractAsyncContextManager[bool]:
        """True for one at a time, of all in all gateways, until the end. Given back when its holder dies or is cut off.

        It saves work and keeps records short; what must not happen twice is refused by journal and target themselves.
        Raise StoreUnavailable.
        """

    def hear(self, run_uid: str, beat: Heartbeat) -> None:
        """Let all know of a heartbeat, within seconds. `progress_at` is now: it stays where the progress is the old."""

    def forget(self, run_uid: str) -> None:
        """The run has ended."""

    async def heartbeat(self, run_uid: str) -> Heartbeat | None:
        """The last heartbeat that any gateway heard, None when nothing was. Raise StoreUnavailable."""


@contextmanager
def once(claims: set[str], what: str) -> Iterator[bool]:
    """Whether nobody in this process has it; until the end it is in `claims`."""
    granted = what not in claims
    claims.add(what)
    try:
        yield granted
    finally:
        if granted:
            claims.discard(what)


def merged(before: Heartbeat | None, beat: Heartbeat) -> Heartbeat:
    """The later heartbeat; no progress is as old as it was."""
    same = before is not None and (before.epoch, before.progress_seq) == (beat.epoch, beat.progress_seq)
    return replace(beat, progress_at=before.progress_at) if same and before is not None else beat


@asynccontextmanager
async def claimed(peers: Peers, what: str) -> AsyncIterator[None]:
    """The claim, once nobody else has it. Raise StoreUnavailable."""
    while True:
        async with peers.claim(what) as granted:
            if granted:
                yield
                return
        await asyncio.sleep(CLAIM_AGAIN_S)


class Alone:
    """The one gateway of its store: whoever was there before it has ended."""

    shared, back_at = False, 0

    def __init__(self) -> None:
        self.me = new_name()
        self._beats: dict[str, Heartbeat] = {}
        self._claims: set[str] = set()

    def listen(self, heard: Heard) -> None:
        """There is nobody to hear of."""

    def still(self, name: str) -> bool:
        """See the port."""
        return name == self.me

    async def gone(self, name: str) -> bool:
        """See the port."""
        return name != self.me

    @asynccontextmanager
    async def claim(self, what: str) -> AsyncIterator[bool]:
        """See the port."""
        with once(self._claims, what) as granted:
            yield granted

    def hear(self, run_uid: str, beat: Heartbeat) -> None:
        """See the port."""
        self._beats[run_uid] = merged(self._beats.get(run_uid), beat)

    def forget(self, run_uid: str) -> None:
        """See the port."""
        self._beats.pop(run_uid, None)

    async def heartbeat(self, run_uid: str) -> Heartbeat | None:
        """See the port."""
        return self._beats.get(run_uid)
