"""Work that many ask for at once is done once, and never before the question."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from moorage.workspace.shared import Begun, Shared


class Works:
    """Runs that wait for their turn, begin, and wait for their end."""

    def __init__(self) -> None:
        self.turn, self.end = asyncio.Event(), asyncio.Event()
        self.begun = self.cancelled = 0

    async def __call__(self, begun: Begun) -> int:
        try:
            await self.turn.wait()
            begun()
            self.begun += 1
            mine = self.begun
            await self.end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return mine


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def ask(shared: Shared[int], work: Callable[[Begun], Awaitable[int]], key: str = "a") -> asyncio.Task[int]:
    return asyncio.create_task(shared.do(key, work))


async def test_those_who_ask_before_it_begins_share_it_and_later_ones_get_the_next() -> None:
    shared: Shared[int] = Shared()
    works = Works()
    early = [ask(shared, works) for _ in range(5)]
    await settle()
    works.turn.set()
    await settle()
    late = [ask(shared, works), ask(shared, works)]
    await settle()
    works.end.set()
    assert await asyncio.gather(*early) == [1] * 5
    assert set(await asyncio.gather(*late)) <= {2, 3}  # none is older than its question
    assert works.cancelled == 0


async def test_other_keys_are_other_work() -> None:
    shared: Shared[int] = Shared()
    works = Works()
    works.turn.set()
    works.end.set()
    assert sorted(await asyncio.gather(ask(shared, works, "a"), ask(shared, works, "b"))) == [1, 2]


async def test_a_failure_is_everybodys_and_is_not_kept() -> None:
    shared: Shared[int] = Shared()

    async def fail(begun: Begun) -> int:
        await asyncio.sleep(0)
        raise ValueError("no remote")

    both = await asyncio.gather(ask(shared, fail), ask(shared, fail), return_exceptions=True)
    assert [str(e) for e in both] == ["no remote", "no remote"]
    works = Works()
    works.turn.set()
    works.end.set()
    assert await ask(shared, works) == 1


@pytest.mark.parametrize("begun", [False, True])
async def test_it_is_cancelled_with_the_last_who_waits(begun: bool) -> None:
    shared: Shared[int] = Shared()
    works = Works()
    first, second = ask(shared, works), ask(shared, works)
    await settle()
    if begun:
        works.turn.set()
        await settle()
    first.cancel()
    await settle()
    assert (works.cancelled, second.done()) == (0, False)
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert works.cancelled == 1
    works.turn.set()
    works.end.set()
    assert await ask(shared, works) == 1 + begun
