"""Cancel, pause and stop on every odd agent: each is obeyed soon, nothing of the agent is left, what it did is kept."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.contract.posing_agents import SUBJECTS

from moorage.api.wire import ResolvedTimeouts
from moorage.core.run.state import PauseReason
from moorage.gateway.pausing import Pauses
from moorage.runner.exitcodes import Exit
from moorage.testing.trees import git
from moorage.testing.world import Run, Sandbox, World

pytestmark = pytest.mark.timeout(180)  # each case starts a runner

SUBJECT = SUBJECTS["pi"]  # one is enough here: test_driver_contract.py stops the agents of all drivers
SOON = {"MOORAGE_STOP_GRACE_SECONDS": "1"}
BEGUN = "keep('begun', '')"
AGENTS = {
    "sleeps for ever": f"{BEGUN}; for_ever()",
    "traps SIGTERM": f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {BEGUN}; for_ever()",
    "forks on and on": f"""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{BEGUN}
while True:
    if os.fork() == 0:
        os.setsid()
        for_ever()
    time.sleep(0.2)
""",
    "floods stdout with 200 MiB": f"""
{BEGUN}
line = b'{{"type":"noise","text":"' + b"x" * 65_000 + b'"}}\\n'
for _ in range(200 * 2**20 // len(line)): sys.stdout.buffer.write(line)
for_ever()
""",
    "prints a line of 16 MiB": f"""
say('{{"type":"noise","text":"' + "x" * 2**24 + '"}}')
{BEGUN}
sys.stdout.buffer.write(b"y" * 2**24)
for_ever()
""",
    "prints binary and U+2028": f"""
say(b"\\xff\\x00\\xfe{{}}" + os.urandom(100_000))
say('{{"type":"noise","text":"a\\u2028b"}}\\u2028{{')
{BEGUN}
for_ever()
""",
    "says success after a 401": f"""
def go(*_):
    end()
    sys.exit(0)
signal.signal(signal.SIGTERM, go)
refused()
{BEGUN}
for_ever()
""",
}


async def cancel(_: World, run: Run, __: Sandbox) -> None:
    await run.report("CANCEL_REQUESTED", {"reason": "user"})


async def pause(world: World, run: Run, _: Sandbox) -> None:
    gate = world.gateway.gate
    opened = await gate.ledger.open(run.spec.uid)
    assert await Pauses(gate).request(opened, PauseReason.COMMAND, "because", by="ada")


async def stop(_: World, __: Run, sandbox: Sandbox) -> None:
    sandbox.terminate()


Order = Callable[[World, Run, Sandbox], Awaitable[None]]
ORDERS: dict[str, tuple[Order, int, str | None]] = {
    "cancel": (cancel, 0, "cancelled"),
    "pause": (pause, 0, "paused"),
    "stop": (stop, Exit.TERMINATED, None),
}
"""How it is told, the runner's exit code, and what it says of its agent's end: nothing where another attempt goes on.
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path) as made:
        yield made


async def begun(sandbox: Sandbox) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread((sandbox.tree / "begun").exists):  # noqa: ASYNC110  the agent makes it
            await asyncio.sleep(0.02)


async def kept(world: World, run: Run, path: str) -> bool:
    """Whether a checkpoint or what was saved beyond it has that file."""
    mirror = next((world.root / "mirrors").rglob("HEAD")).parent
    checkpoint, drifts = (await run.state())["checkpoint"], await run.content("DRIFT_SAVED")
    commits = [each["commit"] for each in (checkpoint, *drifts) if each]
    return any(path in git(mirror, "ls-tree", "--name-only", commit).splitlines() for commit in commits)


@pytest.mark.rule("X1", "X2", "X3", "Q5", "R3", "J12")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("agent", AGENTS)
async def test_an_odd_agent_is_ended_with_all_that_it_started(world: World, tmp_path: Path, order: str, agent: str):
    SUBJECT.write(tmp_path / "bin", f"begin()\n{AGENTS[agent]}")
    poses = SUBJECT.agent(f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    run = await world.admit(agent=poses, timeouts=ResolvedTimeouts(pause_ms=300))
    sandbox = await run.start(environment=SOON)
    await begun(sandbox)
    tell, code, outcome = ORDERS[order]
    await tell(world, run, sandbox)
    assert await sandbox.ended(within_s=120) == code, sandbox.said.read_text()
    assert sandbox.left() == []
    state = await run.state()
    assert (state["agent_end"] and state["agent_end"]["outcome"]) == outcome
    assert await kept(world, run, "begun")
