import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random

import pytest

from moorage.controller.queue import WorkQueue

Work = Callable[[str], Awaitable[int | None]]


@contextlib.asynccontextmanager
async def working(work: Work, workers: int = 2) -> AsyncIterator[tuple[WorkQueue[str], list[tuple[str, Exception]]]]:
    failures: list[tuple[str, Exception]] = []
    queue: WorkQueue[str] = WorkQueue(
        work, workers=workers, chance=Random(1), failed=lambda key, error: failures.append((key, error))
    )
    task = asyncio.create_task(queue.run())
    try:
        yield queue, failures
    finally:
        queue.close()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(40):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_key_added_ten_times_is_worked_on_once() -> None:
    seen: list[str] = []

    async def work(key: str) -> None:
        seen.append(key)

    async with working(work) as (queue, _):
        for _ in range(10):
            queue.add("a")
        await until(lambda: bool(seen))
        await asyncio.sleep(0.05)
    assert seen == ["a"]


async def test_a_key_is_never_worked_on_twice_at_once_and_once_more_when_it_changed_meanwhile() -> None:
    running, most, passes = 0, 0, 0
    gate = asyncio.Event()

    async def work(key: str) -> None:
        nonlocal running, most, passes
        running, passes = running + 1, passes + 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    async with working(work, workers=4) as (queue, _):
        queue.add("a")
        await until(lambda: running == 1)
        for _ in range(5):
            queue.add("a")
        gate.set()
        await until(lambda: passes == 2)
        await asyncio.sleep(0.05)
    assert (most, passes) == (1, 2)


async def test_a_key_that_fails_backs_off_alone() -> None:
    order: list[str] = []
    times: list[float] = []

    async def work(key: str) -> None:
        order.append(key)
        if key == "bad":
            times.append(asyncio.get_running_loop().time())
            raise RuntimeError("broken")

    async with working(work, workers=1) as (queue, failures):
        queue.add("bad")
        for at in range(20):
            queue.add(f"good-{at}")
        await until(lambda: len(failures) == 3)
    assert order[:21] == ["bad", *(f"good-{at}" for at in range(20))], "it keeps no other from its turn"
    assert (times[1] - times[0] >= 0.05, times[2] - times[1] >= 0.1) == (True, True), "half of the backoff is sure"


async def test_an_earlier_wish_outranks_a_later_one_and_an_event_outranks_both() -> None:
    times: list[float] = []
    loop = asyncio.get_running_loop()

    async def work(key: str) -> None:
        times.append(loop.time())

    async with working(work) as (queue, _):
        began = loop.time()
        queue.add_after("a", 10_000)
        queue.add_after("a", 60)
        queue.add_after("a", 5_000)
        await until(lambda: len(times) == 1)
        assert 0.05 <= times[0] - began < 4.5, "neither before its time nor at one of the later ones"
        queue.add_after("a", 30_000)
        queue.add("a")
        began = loop.time()
        await until(lambda: len(times) == 2)
    assert times[1] - began < 25


async def test_what_the_work_asks_for_is_done_later() -> None:
    passes = 0

    async def work(key: str) -> int | None:
        nonlocal passes
        passes += 1
        return 10 if passes < 3 else None

    async with working(work) as (queue, _):
        queue.add("a")
        await until(lambda: passes == 3)
        await asyncio.sleep(0.05)
    assert passes == 3


async def test_a_slow_key_is_seen_by_the_probe() -> None:
    async def work(key: str) -> None:
        await asyncio.sleep(60)

    async with working(work) as (queue, _):
        assert queue.oldest_ms() == 0
        queue.add("a")
        await until(lambda: queue.oldest_ms() >= 90)


@pytest.mark.parametrize("workers", [1, 3])
async def test_workers_bound_what_goes_on_at_once(workers: int) -> None:
    running = most = done = 0

    async def work(key: str) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        done += 1

    async with working(work, workers=workers) as (queue, _):
        for at in range(12):
            queue.add(str(at))
        await until(lambda: done == 12)
    assert most == workers
