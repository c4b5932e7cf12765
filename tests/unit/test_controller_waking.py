"""O2, B3: whom the operator wakes when the gateway has journaled something about a run."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry
from tests.property.run_world import START, World
from tests.run_plans import observed

from moorage.api.runstatus import AgentRunStatus
from moorage.controller import operator as waking
from moorage.controller.engine import Engine, Outcome
from moorage.controller.gather import Gathered
from moorage.controller.operator import Operator
from moorage.controller.roll import Roll
from moorage.controller.told import Standing
from moorage.core.run.admission import PROBLEM_RECHECK_MS
from moorage.core.run.observed import Problem
from moorage.sandbox.port import RunKey
from moorage.telemetry.metrics import OperatorMetrics
from moorage.testing.clock import StepClock

ELDER = RunKey("uid-elder", "t", "elder")
CHILDREN = {
    "short": (Standing.BLOCKED, "ParentBudget"),
    "limitless": (Standing.BLOCKED, "LimitMissing"),
    "driverless": (Standing.BLOCKED, "UnknownDriver"),
    "paused": (Standing.BLOCKED, "ParentEnded"),
    "queued": (Standing.WAITING, "Queued"),
    "ended": (Standing.ENDED, "ParentBudget"),
}


@contextlib.asynccontextmanager
async def working(engine: Any, roll: Roll) -> AsyncIterator[Operator]:
    """An operator with one worker around that engine."""
    metrics, log = OperatorMetrics(CollectorRegistry()), structlog.get_logger()
    operator = Operator(engine=engine, roll=roll, metrics=metrics, log=log, workers=1, chance=Random(0))
    work = asyncio.create_task(operator.queue.run())
    try:
        yield operator
    finally:
        operator.queue.close()
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work


def family() -> Roll:
    """A live parent, and children by how far they are."""
    roll = Roll(limit=2)
    for name in ("elder", *CHILDREN):
        meta = {"name": name, "namespace": "t", "uid": f"uid-{name}", "resourceVersion": "1"}
        body: dict[str, Any] = {"metadata": meta, "spec": {} if name == "elder" else {"parentRef": {"name": "elder"}}}
        roll.saw(body | ({"status": {"phase": "Paused", "epoch": 1}} if name == "paused" else {}))
        roll.note(RunKey(f"uid-{name}", "t", name), *CHILDREN.get(name, (Standing.LIVE, "")))
    return roll


@pytest.mark.rule("B3")
async def test_a_child_that_waits_for_its_parent_looks_again_once_that_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon, and once, however much that writes: a budget is free again where a sibling was settled."""
    monkeypatch.setattr(waking, "FOR_PARENT_MS", 100)
    passes: list[str] = []

    class Passes:
        async def run_pass(self, key: RunKey) -> Outcome:
            passes.append(key.name)
            return Outcome(PROBLEM_RECHECK_MS)

    async with working(Passes(), family()) as operator, asyncio.timeout(20):
        for _ in range(10):
            operator.journal_changed(ELDER)
        while "short" not in passes:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert passes == ["elder", "short"]


@pytest.mark.rule("Q1")
@pytest.mark.parametrize("half_way", [False, True])
async def test_a_poison_object_starves_nobody(half_way: bool) -> None:
    """Its pass fails each time, perhaps after it took the only slot: the run behind it begins all the same."""
    roll, began = Roll(limit=1), asyncio.Event()
    poison, sound = (RunKey(f"uid-{name}", "t", name) for name in ("poison", "sound"))
    for at, key in enumerate((poison, sound)):
        meta = {"name": key.name, "namespace": "t", "uid": key.uid, "resourceVersion": "1"}
        roll.saw({"metadata": meta | {"creationTimestamp": f"2026-01-01T00:00:0{at}Z"}, "spec": {}})

    class Passes:
        async def run_pass(self, key: RunKey) -> Outcome:
            if not roll.slots(key).free:
                return Outcome(PROBLEM_RECHECK_MS)
            if key == poison and not half_way:
                raise ValueError("a fault of ours")
            roll.note(key, Standing.LIVE)
            if key == poison:
                raise ValueError("a fault of ours")
            began.set()
            return Outcome(None)

    async with working(Passes(), roll) as operator, asyncio.timeout(20):
        operator.look(sound)
        operator.look(poison)
        await began.wait()
    assert roll.queue.live == 1


@pytest.mark.rule("Q5")
async def test_who_makes_room_is_woken_by_the_pass_of_who_waits_for_it() -> None:
    now = 1_767_225_600_000
    roll, woken = Roll(limit=1, now=lambda: now), asyncio.Event()
    soft, urgent = (RunKey(f"uid-{name}", "t", name) for name in ("soft", "urgent"))
    background = {"scheduling": {"class": "background", "preemptible": True}}
    for key, spec in ((soft, background), (urgent, {})):
        meta = {"name": key.name, "namespace": "t", "uid": key.uid, "resourceVersion": "1"}
        roll.saw({"metadata": meta | {"creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec})
    roll.note(soft, Standing.LIVE)
    now += 120_000

    class Passes:
        async def run_pass(self, key: RunKey) -> Outcome:
            if key == soft and roll.makes_room_for(key) == "urgent":
                woken.set()
            return Outcome(None)

    async with working(Passes(), roll) as operator, asyncio.timeout(20):
        operator.look(soft)
        operator.look(urgent)
        await woken.wait()


@pytest.mark.rule("B3")
@pytest.mark.parametrize(
    ("reason", "woken"),
    [
        ("ParentBudget", True),
        ("ParentNotReady", True),
        ("ParentPaused", True),
        ("ParentNotFound", True),
        ("ParentEnded", True),
        ("ParentTooDeep", False),
        ("LimitMissing", False),
        ("UnknownDriver", False),
        ("", False),
    ],
)
def test_a_parent_that_writes_wakes_those_that_its_writing_may_help(reason: str, woken: bool) -> None:
    """One that only its author can mend would be looked at each second. What its last pass found outlives the echo of
    its status.
    """
    roll, key = family(), RunKey("uid-short", "t", "short")
    roll.note(key, Standing.BLOCKED, reason)
    meta = {"name": "short", "namespace": "t", "uid": "uid-short", "resourceVersion": "2"}
    roll.saw({"metadata": meta, "spec": {"parentRef": {"name": "elder"}}, "status": {"phase": "Pending"}})
    assert roll.unadmitted(ELDER) == ([key] if woken else [])


@pytest.mark.rule("B3")
@pytest.mark.parametrize(
    ("problem", "woken"),
    [(Problem("ParentBudget", "wait", stalled=False), True), (Problem("LimitMissing", "set it", stalled=True), False)],
)
async def test_what_keeps_a_child_is_known_after_its_pass(problem: Problem, woken: bool) -> None:
    roll, key = family(), RunKey("uid-queued", "t", "queued")
    assert key not in roll.unadmitted(ELDER)

    class Parts:
        """Of a run that isn't admitted: nothing stands, nothing is applied."""

        async def gather(self, *_: Any, **__: Any) -> Gathered:
            return Gathered(observed(World(), problem=problem, spec=None), AgentRunStatus(), None)

        async def apply(self, *_: Any) -> AsyncIterator[Any]:
            return
            yield

        async def write_status(self, *_: Any) -> None:
            return None

    parts: Any = Parts()
    metrics = OperatorMetrics(CollectorRegistry())
    clock = StepClock(START)
    engine = Engine(
        gatherer=parts, applier=parts, objects=parts, roll=roll, clock=clock, telling=parts, metrics=metrics
    )
    await engine.run_pass(key)
    assert (key in roll.unadmitted(ELDER)) is woken


@pytest.mark.rule("O2")
@pytest.mark.parametrize(
    ("reason", "woken"),
    [("ContinuedNotEnded", True), ("SessionBusy", True), ("ContinuedNotFound", True), ("ContinuedReleased", False)],
)
def test_who_is_to_go_on_with_a_run_is_woken_by_what_that_shows(reason: str, woken: bool) -> None:
    roll, key = family(), RunKey("uid-next", "t", "next")
    meta = {"name": "next", "namespace": "t", "uid": "uid-next", "resourceVersion": "1"}
    roll.saw({"metadata": meta, "spec": {"continueFrom": {"name": "elder"}}})
    roll.note(key, Standing.BLOCKED, reason)
    assert roll.continuing(ELDER) == ([key] if woken else [])


@pytest.mark.rule("O2")
@pytest.mark.parametrize("how", ["ends", "goes", "is replaced"])
def test_who_went_on_with_a_run_and_is_through_is_kept_in_mind_no_longer(how: str) -> None:
    """As long as a process lives, that many would gather."""
    roll, key = family(), RunKey("uid-next", "t", "next")
    meta = {"name": "next", "namespace": "t", "uid": "uid-next", "resourceVersion": "1", "generation": 1}
    body = {"metadata": meta, "spec": {"continueFrom": {"name": "elder"}}}
    roll.saw(body)
    if how == "is replaced":
        roll.saw({"metadata": meta | {"uid": "uid-other", "resourceVersion": "2"}, "spec": {}})
    if how == "ends":
        over = {"phase": "Failed", "observedGeneration": 1, "epoch": 1}
        roll.saw(body | {"metadata": meta | {"resourceVersion": "2"}, "status": over})
    if how == "goes":
        roll.forget(key)
    assert roll._next == {}
