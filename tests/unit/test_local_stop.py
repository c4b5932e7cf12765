"""Asked a second time to stop, a local run is left as it is; one that has ended meanwhile tells its end."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry

from moorage.clock import SystemClock
from moorage.controller.gateway_client import GatewayClient, session
from moorage.controller.local import Left, LocalRun, ManifestObjects, admitted_body
from moorage.sandbox.process import Handlers, ProcessSubstrate
from moorage.telemetry.metrics import OperatorMetrics

RUN = {"kind": "AgentRun", "metadata": {"name": "tidy"}, "spec": {"goal": "Tidy up."}}


@pytest.fixture
def objects() -> ManifestObjects:
    return ManifestObjects(admitted_body(RUN, "u1", "local", 0), [])


@pytest.fixture
async def run(tmp_path: Path, objects: ManifestObjects) -> AsyncIterator[LocalRun]:
    """Nobody listens at its gateway's address: only what stops it ends it."""
    handlers = Handlers(lambda *_: None, lambda _: None)
    clock, socket = SystemClock(), tmp_path / "socket"
    substrate = ProcessSubstrate(tmp_path, socket, handlers, clock, isolated=False, mirror=lambda _: None)
    async with session() as http:
        yield LocalRun(
            objects,
            substrate,
            GatewayClient(http, "http://127.0.0.1:1", lambda: "token"),
            clock=clock,
            metrics=OperatorMetrics(CollectorRegistry()),
            log=structlog.get_logger(),
            drivers=frozenset(),
            told=lambda _: None,
        )
    await substrate.close()


async def stopped_twice(run: LocalRun, objects: ManifestObjects, phase: str) -> str | None:
    """The phase that it tells, when it stood at `phase` by the second time."""
    run.stop()
    objects.body["status"] = {"phase": phase}
    run.stop()
    return (await run.run()).phase


async def test_a_run_that_has_not_ended_is_left(run: LocalRun, objects: ManifestObjects) -> None:
    with pytest.raises(Left):
        await stopped_twice(run, objects, "Running")


@pytest.mark.parametrize("phase", ["Cancelled", "Succeeded", "Failed"])
async def test_a_run_that_has_ended_is_told_as_what_it_is(run: LocalRun, objects: ManifestObjects, phase: str) -> None:
    assert await stopped_twice(run, objects, phase) == phase
