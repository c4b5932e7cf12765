"""Q5: a runner that is told to pause, with real agents as processes: the safe point, the grace, and what is kept."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedTimeouts
from moorage.core.run.state import PauseReason
from moorage.gateway.pausing import Pauses
from moorage.runner.exitcodes import Exit
from moorage.testing.models import Reply, Script, StandIn, ToolCall
from moorage.testing.world import Run, World

pytestmark = pytest.mark.timeout(180)  # each case starts a runner or two

ITERATION = """echo '{"moorage": {"event": "iteration"}}'"""
TICKING = f"echo 1 > b.txt; while :; do echo tick >> ticks; {ITERATION}; sleep 0.2; done"
SHORT = ResolvedTimeouts(pause_ms=300)
WAIT = ToolCall(
    name="bash", input={"command": "touch ~/begun; until test -e ~/go; do sleep 0.05; done; echo 1 > b.txt"}
)
WORK = Reply(text="Working.", tools=(WAIT,))
DONE = Reply(text="All done.")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path, script=Script(replies=(WORK, DONE))) as made:
        yield made


async def ask(world: World, *, kill: bool = False) -> None:
    gate = world.gateway.gate
    run = await gate.ledger.open("u1")
    assert await Pauses(gate).request(run, PauseReason.COMMAND, "because", by="ada", kill=kill)


async def there(path: Path) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(path.exists):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def park(run: Run) -> None:
    """What the operator does once the sandbox is gone."""
    await run.report("PAUSED", {"reason": "Command", "message": ""})
    await run.report("RESUMED", {"reason": "Command"})


def home(run: Run) -> Path:
    return run.volume / ".moorage" / "agent" / "home"


async def end_of(run: Run) -> dict[str, Any]:
    end: dict[str, Any] = (await run.state())["agent_end"]
    return end


@pytest.mark.rule("Q5", "P2")
async def test_an_unmodified_agent_is_stopped_after_its_next_safe_point(world: World):
    run = await world.admit(command=("sh", "-euc", TICKING))
    sandbox = await run.start()
    await run.until("ITERATION_COMPLETE")
    await ask(world)
    assert await sandbox.ended() == 0
    assert (await end_of(run))["outcome"] == "paused"
    types = await run.types()
    assert types.index("PAUSE_REQUESTED") < types.index("AGENT_FINISHED")
    assert "ITERATION_COMPLETE" in types[types.index("PAUSE_REQUESTED") :], "it came to one more safe point"
    assert sandbox.left() == []
    await park(run)
    second = await run.start(2)
    await run.until("WORKSPACE_READY", 2)
    ready = [record for record in await run.records() if record.type == "WORKSPACE_READY"][-1]
    assert ready.payload is not None
    assert ready.payload["resumed_from"] == (await run.state())["checkpoint"]["commit"]
    await second.kill()


@pytest.mark.rule("Q5", "R3")
async def test_an_agent_without_a_safe_point_is_stopped_when_its_grace_is_over_and_what_it_did_is_kept(world: World):
    """It traps SIGTERM and forks: nothing of it is left all the same."""
    script = "trap '' TERM; echo 1 > b.txt; sleep 600 & sleep 600"
    run = await world.admit(command=("sh", "-uc", script), timeouts=SHORT)
    sandbox = await run.start()
    await there(sandbox.tree / "b.txt")
    await ask(world)
    assert await sandbox.ended(within_s=90) == 0
    state = await run.state()
    assert (state["agent_end"]["outcome"], state["drift"]) == ("paused", 1)
    assert sandbox.left() == []


@pytest.mark.rule("C2", "Q5")
async def test_a_pause_that_does_not_wait_stops_an_agent_where_it_stands(world: World):
    run = await world.admit(command=("sh", "-uc", "echo 1 > b.txt; sleep 600"))
    sandbox = await run.start()
    await there(sandbox.tree / "b.txt")
    await ask(world, kill=True)
    assert await sandbox.ended() == 0
    assert (await end_of(run))["outcome"] == "paused"


@pytest.mark.rule("Q5", "R2")
async def test_a_builtin_agent_finishes_its_iteration_and_asks_nothing_more(world: World):
    run = await world.admit()
    sandbox = await run.start()
    await there(home(run) / "begun")
    await ask(world)
    (home(run) / "go").touch()
    assert await sandbox.ended() == 0
    state = await run.state()
    assert (state["agent_end"]["outcome"], state["iteration"], state["drift"]) == ("paused", 1, 0)
    assert state["checkpoint"]["iteration"] == 1
    assert isinstance(world.model, StandIn)
    assert len(world.model.log) == 1


class OlderRunner:
    """The gateway as a runner of the last release asks it, which knows no pauses. `asked` counts its model requests."""

    def __init__(self, app: Any) -> None:
        self._app, self.asked = app, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        if path.endswith("/orders"):
            scope = {**scope, "query_string": re.sub(rb"&?heard=-?\d+", b"", scope["query_string"])}
        if path.endswith("/heartbeat"):
            receive = without_pauses(receive)
            scope = {**scope, "headers": [each for each in scope["headers"] if each[0] != b"content-length"]}
        if path.startswith("/model/"):
            self.asked += 1
            scope = {**scope, "headers": [each for each in scope["headers"] if each[0] != b"x-moorage-pauses"]}
        await self._app(scope, receive, send)


def without_pauses(receive: Any) -> Any:
    async def heard() -> Any:
        message = await receive()
        return {**message, "body": message.get("body", b"").replace(b'"pauses":true', b'"pauses":false')}

    return heard


@pytest.mark.rule("R8", "Q5", "R3")
async def test_a_runner_of_the_last_release_is_ended_by_sigterm_and_what_it_did_is_kept(world):
    """Its agent waits for its model, since it wouldn't know what a refusal means, until the operator ends the pod."""
    older = world.gateway._app = OlderRunner(world.gateway.app)
    run = await world.admit()
    sandbox = await run.start()
    await there(home(run) / "begun")
    await ask(world)
    (home(run) / "go").touch()
    async with asyncio.timeout(60):
        while older.asked < 2:  # noqa: ASYNC110  the one that it is not to have an answer to
            await asyncio.sleep(0.02)
    (sandbox.tree / "c.txt").write_text("beyond the safe point")
    sandbox.terminate()
    assert await sandbox.ended(within_s=90) == Exit.TERMINATED, sandbox.said.read_text()
    state = await run.state()
    assert (state["agent_end"], state["drift"], state["checkpoint"]["iteration"]) == (None, 1, 1)
    assert isinstance(world.model, StandIn)
    assert len(world.model.log) == 1, "nothing is bought on the way to the stop"
    assert sandbox.left() == []


@pytest.mark.rule("C3")
async def test_what_is_completed_on_the_way_to_a_pause_is_handed_over(world: World):
    run = await world.admit(command=("sh", "-uc", "echo 1 > b.txt; until test -e ~/go; do sleep 0.05; done"))
    sandbox = await run.start()
    await there(sandbox.tree / "b.txt")
    await ask(world)
    (home(run) / "go").touch()
    assert await sandbox.ended() == 0
    assert (await run.state())["phase"] == "Verifying"


@pytest.mark.rule("X1", "X3")
async def test_a_cancel_outranks_a_pause(world: World):
    run = await world.admit(command=("sh", "-uc", "echo 1 > b.txt; sleep 600"))
    sandbox = await run.start()
    await there(sandbox.tree / "b.txt")
    await ask(world)
    await run.report("CANCEL_REQUESTED", {"reason": "user"})
    assert await sandbox.ended() == 0
    state = await run.state()
    assert (state["agent_end"]["outcome"], state["cancel_stage"]) == ("cancelled", "acknowledged")


async def test_a_run_that_is_to_pause_before_its_agent_begins_begins_none(world: World):
    run = await world.admit(command=("sh", "-uc", "sleep 600"))
    await run.fence(1)
    await ask(world)
    sandbox = await run.start()
    assert await sandbox.ended() == 0
    assert (await end_of(run))["outcome"] == "paused"
    assert "AGENT_STARTED" not in await run.types()


@pytest.mark.rule("K1", "Q5")
async def test_a_gateway_that_is_away_while_a_run_pauses_hears_of_it_when_it_is_back(world: World):
    run = await world.admit(command=("sh", "-euc", TICKING))
    sandbox = await run.start()
    await run.until("ITERATION_COMPLETE")
    await ask(world)
    await world.restart_gateway()
    assert await sandbox.ended(within_s=90) == 0
    assert (await end_of(run))["outcome"] == "paused"


@pytest.mark.rule("B3")
@pytest.mark.parametrize("native", [True, False], ids=["builtin", "command"])
async def test_a_limit_that_is_raised_while_an_agent_works_is_no_limit_to_it(world: World, native: bool):
    """Neither stops at the one iteration that it was told of at its start."""
    ticks = f"{ITERATION}; until test -e ~/go; do sleep 0.05; done; echo 1 > b.txt; {ITERATION}"
    command = () if native else ("sh", "-euc", f"touch ~/begun; {ticks}")
    run = await world.admit(command=command, limits=ResolvedLimits(max_iterations=1))
    sandbox = await run.start()
    await there(home(run) / "begun")
    await run.report("LIMITS_RAISED", {"limits": {"max_iterations": 5}, "by": "spec"})
    if not native:
        await run.until("ITERATION_COMPLETE")
    await heartbeat(run)
    (home(run) / "go").touch()
    assert await sandbox.ended() == 0
    state = await run.state()
    assert (state["agent_end"]["outcome"], state["iteration"], state["pause"]) == ("completed", 2, None)


async def heartbeat(run: Run) -> None:
    """Wait until the runner has heard of the raise: it sends its next heartbeat once the last one is answered."""
    seen = {(await heard(run))}
    async with asyncio.timeout(60):
        while len(seen) < 3:
            seen.add(await heard(run))
            await asyncio.sleep(0.05)


async def heard(run: Run) -> int:
    """When the gateway last heard of it."""
    beat = (await run.call("GET", ""))["heartbeat"]
    return beat["heard_at"] if beat else 0
