"""What the followers of one run share: its journal is read once for all of them, and its latest events are held.

Overflow policy of the ring: whoever still needs an event that has left it reads that from the journal, page by page,
until it has come up to the ring. Nothing is lost to a slow reader, and it costs nobody else more than its pages. One
that would rather be up to date (`live`) is told what it has missed, and goes on from the ring. The end is no part of
the ring: everybody is told it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from moorage.api.sse import HEARTBEAT, Event
from moorage.api.streaming import Gap, StreamKind
from moorage.gateway.events import Source, end_event, gap_event
from moorage.gateway.gate import Gate
from moorage.gateway.http import Cut
from moorage.gateway.ledger import Run
from moorage.gateway.ring import Place, Ring
from moorage.gateway.signals import Bell, rung_within


class Feed:
    """One kind of stream of one run, as long as anybody follows it."""

    def __init__(self, gate: Gate, run: Run, source: Source) -> None:
        self.source = source
        self.ring = Ring(run.state.offset + 1, gate.deps.settings.stream_ring_bytes)
        self.bell = Bell()
        self.end: Event | None = None
        self.failure: BaseException | None = None
        self.readers = 0
        self._gate, self._run = gate, run
        self._work = asyncio.create_task(self._read_on())
        self._work.add_done_callback(self._over)

    async def close(self) -> None:
        """Nobody follows any more."""
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)

    def _over(self, work: asyncio.Task[None]) -> None:
        """What failed is told to the readers, who come back with their cursors."""
        error = None if work.cancelled() else work.exception()
        if error is not None:
            self.failure = error
            self._gate.deps.log.warning("feed_failed", run_uid=self._run.uid, reason=type(error).__name__)
            self.bell.ring()

    async def _read_on(self) -> None:
        """Until the run has ended."""
        while self.end is None:
            rung = self._run.bell.arm()
            await self._read()
            self.bell.ring()
            if self.end is None:
                await rung_within(rung, self._gate.deps.settings.keep_alive_ms)

    async def _read(self) -> None:
        """The end counts once all records before it are in the ring."""
        end = end_event((await self._gate.ledger.open(self._run.uid)).state)
        async with aclosing(self.source.read(self.ring.until)) as entries:
            async for seq, event in entries:
                self.ring.add(seq, event)
        self.end = end


class Feeds:
    """The feeds that are followed now, by run and kind of stream. `catching_up` is held by whoever reads a journal for
    one reader alone.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate, self._settings = gate, gate.deps.settings
        self._live: dict[tuple[str, str], Feed] = {}
        self.catching_up = asyncio.Semaphore(self._settings.stream_catch_ups)

    @property
    def live(self) -> tuple[Feed, ...]:
        """Those that are followed now."""
        return tuple(self._live.values())

    async def follow(
        self, run: Run, source: Source, first: int, *, live: bool, follow: bool
    ) -> AsyncGenerator[bytes, None]:
        """Events from the offset `first` on until the run's end, and signs of life; without `follow` only those that
        there are by now, and READY. Raise Cut where reading fails.
        """
        head = run.state.offset
        async with self._joined(run, source) as feed:
            place = Place(first)
            while True:
                rung = feed.bell.arm()
                if place.next < feed.ring.since:
                    sent, place = await self._behind(feed, place, live=live)
                else:
                    sent, place = feed.ring.after(place, self._settings.stream_chunk_bytes)
                if sent:
                    yield sent
                elif feed.end is not None:
                    yield feed.end.encoded()
                    return
                elif not follow and place.next > head:
                    yield Event(StreamKind.READY, b"{}", max(head, first - 1)).encoded()
                    return
                elif feed.failure is not None:
                    raise Cut(type(feed.failure).__name__)
                elif not await rung_within(rung, self._settings.keep_alive_ms):
                    yield HEARTBEAT

    @asynccontextmanager
    async def _joined(self, run: Run, source: Source) -> AsyncIterator[Feed]:
        """The feed that others follow already, unless that has failed."""
        key = run.uid, source.kind
        feed = self._live.get(key)
        if feed is None or feed.failure is not None:
            feed = self._live[key] = Feed(self._gate, run, source)
        feed.readers += 1
        try:
            yield feed
        finally:
            feed.readers -= 1
            if not feed.readers:
                if self._live.get(key) is feed:
                    del self._live[key]
                await feed.close()

    async def _behind(self, feed: Feed, place: Place, *, live: bool) -> tuple[bytes, Place]:
        """For who needs what has left the ring: a page of the journal, or for a live reader what it has missed."""
        if live and place.total is not None:
            missed = Gap(
                reason="Behind",
                first=place.next,
                last=feed.ring.since - 1,
                size=feed.ring.missed(place),
                full=f"/v1/runs/{feed.source.uid}/logs",
            )
            return gap_event(missed).encoded(), Place(feed.ring.since)
        async with self.catching_up:
            self._gate.deps.metrics.stream_catch_ups.inc()
            return await self._page(feed, place.next)

    async def _page(self, feed: Feed, first: int) -> tuple[bytes, Place]:
        """Events from the journal, at most up to the ring."""
        taken, size, following = [], 0, feed.ring.since
        async with aclosing(feed.source.read(first)) as entries:
            async for seq, event in entries:
                if seq >= feed.ring.since:
                    break
                if event is not None:
                    taken.append(event.encoded())
                    size += len(taken[-1])
                if size >= self._settings.stream_page_bytes:
                    following = seq + 1
                    break
        return b"".join(taken), Place(following)
