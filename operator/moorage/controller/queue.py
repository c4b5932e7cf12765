"""The work queue: level-triggered, one key at a time never twice at once, and a key that fails waits alone.

`add` only says that a key deserves a look. A key added while it is being worked on is worked on once more afterwards;
added ten times it is worked on once. Nothing is remembered about why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from random import Random
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
BACKOFF_BASE_MS = 100
BACKOFF_CAP_MS = 60_000
Failed = Callable[[K, Exception], None]


class WorkQueue(Generic[K]):
    """`work` returns in how many milliseconds to look again (None: only when added). It may raise: see `expected`."""

    def __init__(
        self,
        work: Callable[[K], Awaitable[int | None]],
        *,
        workers: int,
        chance: Random,
        failed: Failed[K],
    ) -> None:
        self._work, self._workers, self._chance, self._failed = work, workers, chance, failed
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._queued: set[K] = set()
        self._running: dict[K, float] = {}
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}

    def add(self, key: K) -> None:
        """Look at `key` soon."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._running:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.put_nowait(key)

    def add_after(self, key: K, delay_ms: int) -> None:
        """Look at `key` in that time, unless something asks for it earlier."""
        loop = asyncio.get_running_loop()
        at = loop.time() + delay_ms / 1000
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= at:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(at, self._due, key)

    def forget(self, key: K) -> None:
        """Nothing is planned for `key` any more."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._failures.pop(key, None)

    @property
    def waiting(self) -> int:
        """Keys that wait for a worker now."""
        return len(self._queued)

    def oldest_ms(self) -> int:
        """How long the slowest piece of work has been under way."""
        if not self._running:
            return 0
        return int((asyncio.get_running_loop().time() - min(self._running.values())) * 1000)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._worker())

    def close(self) -> None:
        """Drop the timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def _worker(self) -> None:
        while True:
            key = await self._ready.get()
            self._queued.discard(key)
            self._running[key] = asyncio.get_running_loop().time()
            try:
                await self._one(key)
            finally:
                del self._running[key]
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)

    async def _one(self, key: K) -> None:
        """The outermost loop over one key: whatever goes wrong with it, the others go on."""
        try:
            delay = await self._work(key)
        except Exception as e:  # noqa: BLE001  the outermost loop of this process
            self._failed(key, e)
            self.add_after(key, self._backoff(key))
            return
        self._failures.pop(key, None)
        if delay is not None:
            self.add_after(key, delay)

    def _backoff(self, key: K) -> int:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        top = min(BACKOFF_CAP_MS, BACKOFF_BASE_MS << min(failures, 12))
        return self._chance.randint(top // 2, top)
