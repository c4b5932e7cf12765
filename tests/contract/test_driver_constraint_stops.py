"""C3 for every driver: a GRACEFUL_EXIT ends it after its iteration, an EMERGENCY_STOP wherever it is."""

import os
from pathlib import Path

import pytest
from tests.contract.posing_agents import SUBJECTS

from moorage.api.budget import ResolvedConstraint, ResolvedLimits
from moorage.api.wire import ResolvedTimeouts
from moorage.testing.models import Reply, Script, ToolCall
from moorage.testing.models.script import Usage
from moorage.testing.trees import git
from moorage.testing.world import Run, Sandbox, World

pytestmark = pytest.mark.timeout(180)  # each case starts a runner

SOON = {"MOORAGE_STOP_GRACE_SECONDS": "1"}
WORK = "begin(); keep('b.txt', 'new')"
STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for apart in (False, True):
    subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600"], start_new_session=apart, stdin=subprocess.DEVNULL)
"""
ONE_ITERATION = f"{STUBBORN}\n{WORK}; call('a'); result('a'); call('b'); for_ever()"
WITHIN_IT = f"{STUBBORN}\n{WORK}; call('a'); call('b'); for_ever()"
USAGE = Usage(input_tokens=100, output_tokens=10)
TWO_STEPS = Script(
    replies=tuple(
        Reply(tools=(ToolCall(name="bash", input={"command": f"echo new > {name}"}),), usage=USAGE) for name in "bc"
    )
)


def limited(cel: str, action: str) -> ResolvedLimits:
    constraint = ResolvedConstraint.model_validate({"name": "mine", "cel": cel, "on_violation": action})
    return ResolvedLimits(custom=(constraint,))


async def ended(run: Run) -> Sandbox:
    """Once the runner has ended; nothing of the agent is left."""
    sandbox = await run.start(environment=SOON)
    assert await sandbox.ended(within_s=120) == 0, sandbox.said.read_text()
    assert sandbox.left() == []
    return sandbox


async def posing(world: World, driver: str, folder: Path, script: str, limits: ResolvedLimits) -> Run:
    subject = SUBJECTS[driver]
    subject.write(folder, script)
    poses = subject.agent(f"{folder}:{os.environ['PATH']}")
    return await world.admit(agent=poses, limits=limits, timeouts=ResolvedTimeouts(pause_ms=300))


async def show(world: World, commit: str, path: str) -> str:
    return git(next((world.root / "mirrors").rglob("HEAD")).parent, "show", f"{commit}:{path}")


@pytest.mark.rule("C2", "C3", "X2")
@pytest.mark.parametrize("driver", SUBJECTS)
async def test_a_graceful_exit_finishes_the_iteration_and_keeps_it(tmp_path: Path, driver: str):
    async with World(tmp_path / "world") as world:
        limits = limited("iterations < 1", "GracefulExit")
        run = await posing(world, driver, tmp_path / "bin", ONE_ITERATION, limits)
        await ended(run)
        state = await run.state()
        assert state["agent_end"]["outcome"] in {"paused", "exhausted"}
        assert (state["pause"]["reason"], state["pause"]["kill"]) == ("Constraint", False)
        assert (state["iteration"], state["checkpoint"]["iteration"]) == (1, 1)
        assert await show(world, state["checkpoint"]["commit"], "b.txt") == "new"


@pytest.mark.rule("C2", "C3", "X2", "R3")
@pytest.mark.parametrize("driver", SUBJECTS)
async def test_an_emergency_stop_waits_for_nothing_and_what_was_done_is_kept(tmp_path: Path, driver: str):
    """That of a program that tells no calls can be judged at its safe points alone."""
    calls = SUBJECTS[driver].calls
    async with World(tmp_path / "world") as world:
        limits = limited("toolCalls < 1" if calls else "iterations < 1", "EmergencyStop")
        run = await posing(world, driver, tmp_path / "bin", WITHIN_IT if calls else ONE_ITERATION, limits)
        sandbox = await ended(run)
        state = await run.state()
        assert state["agent_end"]["outcome"] in {"paused", "exhausted"}
        assert (state["pause"]["reason"], state["pause"]["kill"]) == ("Constraint", True)
        assert state["iteration"] == (0 if calls else 1)
        assert state["drift"] == (1 if calls else 0), "what is in no checkpoint"
        assert (sandbox.tree / "b.txt").read_text() == "new"


@pytest.mark.rule("C2", "C3")
@pytest.mark.parametrize(
    ("cel", "action", "iterations", "files"),
    [("iterations < 1", "GracefulExit", 1, ["b"]), ("tokens < 1", "EmergencyStop", 0, [])],
)
async def test_a_builtin_agent_stops_after_its_iteration_or_where_it_stands(
    tmp_path: Path, cel: str, action: str, iterations: int, files: list[str]
):
    async with World(tmp_path / "world", script=TWO_STEPS) as world:
        run = await world.admit(limits=limited(cel, action))
        sandbox = await ended(run)
        state = await run.state()
        assert state["agent_end"]["outcome"] in {"paused", "exhausted"}
        assert (state["pause"]["reason"], state["pause"]["kill"]) == ("Constraint", action == "EmergencyStop")
        assert state["iteration"] == iterations
        assert sorted(path.name for path in sandbox.tree.iterdir() if path.name in {"b", "c"}) == files
        assert world.model is not None
        assert len(world.model.log) == 1, "no further decision is bought"
