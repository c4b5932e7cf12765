"""Many ask for the same piece of work at once: those who asked before it began share it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")
Begun = Callable[[], None]


class _Job(Generic[T]):
    def __init__(self, work: Callable[[Begun], Awaitable[T]], begun: Begun) -> None:
        self.askers = 0
        self.task: asyncio.Task[T] = asyncio.create_task(self._run(work, begun))

    async def _run(self, work: Callable[[Begun], Awaitable[T]], begun: Begun) -> T:
        try:
            return await work(begun)
        finally:
            begun()


class Shared(Generic[T]):
    """One run of each piece of work serves all who asked for it before it began; who asks later is served by the next.

    So nobody is given an answer that is older than the question.
    """

    def __init__(self) -> None:
        self._waiting: dict[Hashable, _Job[T]] = {}

    async def do(self, key: Hashable, work: Callable[[Begun], Awaitable[T]]) -> T:
        """What `work` returns or raises, done here or for somebody else who asked for the same `key`.

        `work` calls what it is given where it begins: after whatever it has to wait for. It is cancelled with the last
        of those who wait for it.
        """
        job = self._waiting.get(key)
        if job is None:
            job = self._waiting[key] = _Job(work, lambda: self._begun(key, job))
        job.askers += 1
        try:
            return await asyncio.shield(job.task)
        finally:
            job.askers -= 1
            if not job.askers and not job.task.done():
                job.task.cancel()
                await asyncio.wait([job.task])

    def _begun(self, key: Hashable, job: _Job[T] | None) -> None:
        if self._waiting.get(key) is job:
            self._waiting.pop(key, None)
