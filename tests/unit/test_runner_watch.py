"""Heartbeats and orders: the gravest stop that was heard holds, and no failure of the gateway's stops the watch."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from moorage.api.work import Heartbeat, Orders
from moorage.runner import watch as module
from moorage.runner.client import Fenced, GatewayError, TokenUnreadable
from moorage.runner.exchange import NoAnswer
from moorage.runner.watch import Watch

WORK = Orders(seq=0)
CANCEL = Orders(seq=1, stop="cancel", reason="user", grace_ms=9)
TERMINAL = Orders(seq=2, stop="terminal")
PAUSE = Orders(seq=1, stop="pause", reason="Command", grace_ms=300)


def watch(beat: Callable[[Heartbeat], Awaitable[Orders]], orders: Callable[[int, int], Awaitable[Orders]]) -> Watch:
    assignment: Any = SimpleNamespace(run_uid="u1", epoch=3)
    reporter: Any = SimpleNamespace(progress=7, last_iteration=2, heard=lambda _: None)
    made = Watch(beat, orders, 0.01)
    made.assigned(assignment, reporter)
    return made


async def never(*_: object) -> Orders:
    await asyncio.Event().wait()
    raise AssertionError


def scripted(*answers: Orders | Exception) -> tuple[Callable[..., Awaitable[Orders]], list[object]]:
    """Those answers, then silence; and what was asked."""
    left, asked = list(answers), []

    async def call(question: object, heard: int = -1) -> Orders:
        asked.append(question)
        if not left:
            return await never(question)
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return call, asked


async def run_until_stopped(made: Watch, coroutine: Any) -> None:
    task = asyncio.create_task(coroutine)
    stopped = asyncio.create_task(made.stopped.wait())
    await asyncio.wait({task, stopped}, timeout=40, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, stopped, return_exceptions=True)


@pytest.mark.rule("F4")
async def test_a_heartbeat_says_who_and_how_far_and_comes_again_whatever_happens() -> None:
    failures = (GatewayError(503, "Unavailable", ""), NoAnswer("gone"), TokenUnreadable("gone"))
    beat, asked = scripted(*failures, WORK, CANCEL)
    made = watch(beat, never)
    await run_until_stopped(made, made.heartbeats())
    assert made.stop == CANCEL
    assert len(asked) >= 5
    first = asked[0]
    assert isinstance(first, Heartbeat)
    assert (first.work_id, first.epoch, first.progress_seq, first.last_checkpoint) == ("u1", 3, 7, 2)
    assert first.pauses
    assert len(first.model_dump_json()) < 1024


async def test_orders_are_asked_for_beyond_those_that_are_known(monkeypatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    orders, asked = scripted(WORK, NoAnswer("slow"), CANCEL, CANCEL)
    made = watch(never, orders)
    await run_until_stopped(made, made.long_poll())
    assert asked == [0, 0, 0, 1, 1]


async def test_a_graver_stop_takes_the_place_of_a_lighter_one_and_never_the_reverse() -> None:
    orders, _ = scripted(CANCEL, TERMINAL, CANCEL)
    made = watch(never, orders)
    await run_until_stopped(made, made.long_poll())
    assert made.stop == TERMINAL


@pytest.mark.rule("F3")
async def test_a_refusal_as_fenced_is_the_gravest_stop_and_gives_no_grace() -> None:
    orders, _ = scripted(CANCEL, Fenced(409, "Fenced", "epoch 3 is over"))
    made = watch(never, orders)
    await run_until_stopped(made, made.long_poll())
    assert made.stop is not None
    assert (made.stop.stop, made.stop.grace_ms, made.stop.message) == ("fenced", 0, "epoch 3 is over")


@pytest.mark.rule("Q5")
async def test_a_pause_is_no_stop_and_a_graver_order_follows_it() -> None:
    orders, asked = scripted(PAUSE, TERMINAL)
    made = watch(never, orders)
    await run_until_stopped(made, made.long_poll())
    assert (made.pause, made.pausing.is_set(), made.stop) == (PAUSE, True, TERMINAL)
    assert asked[:2] == [0, 1]
