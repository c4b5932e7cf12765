"""O2, B3: whom the operator wakes when the gateway has journaled something about a run."""

import asyncio
import contextlib
from random import Random
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry

from moorage.controller import operator as waking
from moorage.controller.engine import Outcome
from moorage.controller.operator import Operator
from moorage.controller.roll import Roll, Standing
from moorage.core.run.admission import PROBLEM_RECHECK_MS
from moorage.sandbox.port import RunKey
from moorage.telemetry.metrics import OperatorMetrics

ELDER = RunKey("uid-elder", "t", "elder")
CHILDREN = {"short": Standing.BLOCKED, "paused": Standing.BLOCKED, "queued": Standing.WAITING, "ended": Standing.ENDED}


def family() -> Roll:
    """A live parent, and children by how far they are."""
    roll = Roll(limit=2)
    for name in ("elder", *CHILDREN):
        meta = {"name": name, "namespace": "t", "uid": f"uid-{name}", "resourceVersion": "1"}
        body: dict[str, Any] = {"metadata": meta, "spec": {} if name == "elder" else {"parentRef": {"name": "elder"}}}
        roll.saw(body | ({"status": {"phase": "Paused", "epoch": 1}} if name == "paused" else {}))
        roll.note(RunKey(f"uid-{name}", "t", name), CHILDREN.get(name, Standing.LIVE))
    return roll


@pytest.mark.rule("B3")
async def test_a_child_that_waits_for_its_parent_looks_again_once_that_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon, and once, however much that writes: a budget is free again where a sibling was settled."""
    monkeypatch.setattr(waking, "FOR_PARENT_MS", 100)
    passes: list[str] = []

    class Engine:
        async def run_pass(self, key: RunKey) -> Outcome:
            passes.append(key.name)
            return Outcome(PROBLEM_RECHECK_MS)

    operator = Operator(
        engine=Engine(),  # type: ignore[arg-type]
        roll=family(),
        metrics=OperatorMetrics(CollectorRegistry()),
        log=structlog.get_logger(),
        workers=1,
        chance=Random(0),
    )
    work = asyncio.create_task(operator.queue.run())
    try:
        for _ in range(10):
            operator.journal_changed(ELDER)
        async with asyncio.timeout(20):
            while "short" not in passes:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    finally:
        operator.queue.close()
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
    assert passes == ["elder", "short"]
