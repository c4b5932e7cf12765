"""Killed, failing, held up and stopped while a command is accepted and while the agent is given a message."""

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tests.contract.commanded_run import Commanded, commanded
from tests.contract.killpoint_places import elsewhere
from tests.contract.killpoints.test_killpoints_endings import Armed
from tests.contract.local_machine import Machine

from moorage.points import Point
from moorage.testing.killpoints import Fault, fired
from moorage.testing.torture import waken

pytestmark = pytest.mark.timeout(300)


@contextlib.asynccontextmanager
async def woken(armed: Armed) -> AsyncIterator[None]:
    """Whoever is stopped meanwhile goes on after a moment."""

    async def wake() -> None:
        while True:
            for shot in [each for each in armed._asleep if fired(armed.trace, each)]:
                await waken(armed.trace, shot)
                armed._asleep.remove(shot)
            await asyncio.sleep(0.02)

    task = asyncio.create_task(wake())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def sent(run: Commanded, process: subprocess.Popen[str]) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """Send the command until it has a receipt, always under its id; the run's process, which may be another by then."""
    while True:
        code, receipt, _ = await run.said("steer", "steps", "use tabs", "--id", "s1")
        if code == 0:
            return process, receipt
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, 2)
        if process.returncode is not None:
            (run.machine.root / "begun").unlink()
            process = await run.begun()


@pytest.mark.rule("K1", "M2", "M3")
@pytest.mark.parametrize(("fault", "points"), elsewhere("test_whatever_befalls_a_command_it_is_done_once"))
async def test_whatever_befalls_a_command_it_is_done_once(
    machine: Machine, fault: Fault, points: Sequence[Point]
) -> None:
    async with commanded(machine) as run:
        armed = Armed(machine, fault, points)
        async with woken(armed):
            process, receipt = await sent(run, await run.begun())
            run.go()
            assert (await run.ended(process))["phase"] == "Succeeded"
        assert armed.met
        assert receipt["state"] == "Accepted"
        assert (
            machine.told("COMMAND_ACCEPTED") == machine.told("COMMAND_DELIVERED") == machine.told("RUN_SUCCEEDED") == 1
        )
        assert run.heard()[-1].count("use tabs") == 1
