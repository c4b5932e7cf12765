"""Failures that befell neighbours in public, as far as no other test shows that they can't befall us.

docs/faults.md has the whole list, each with the test that holds it.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.store_script import draft, new
from tests.workspace_place import KEY, RUN

from moorage.api.wire import ResolvedAgent, ResolvedDelivery
from moorage.core.journal.chain import Intact
from moorage.core.run.phases import RunPhase
from moorage.core.run.reducer import replay
from moorage.gateway.settings import GatewaySettings
from moorage.store.errors import StoreUnavailable
from moorage.store.port import PAGE_BYTES, ExecutionStatus
from moorage.store.postgres import PostgresStore
from moorage.store.reading import verify_stored
from moorage.testing.models import Reply, Script
from moorage.testing.postgres import PostgresServer
from moorage.testing.trees import git
from moorage.testing.world import World
from moorage.workspace.refs import drift_ref

pytestmark = pytest.mark.timeout(180)  # a case starts runners, or a server anew
SIZE = 60_000
RECORDS = 3 * PAGE_BYTES // SIZE  # a scan asks the database three times
STEP = """
import json, pathlib, time
print(json.dumps({"moorage": {"event": "iteration"}}), flush=True)
while not pathlib.Path("../go").exists():
    time.sleep(0.05)
"""
SPENDER = """
import itertools, json, os, signal, urllib.request
for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(each, signal.SIG_IGN)
for number in itertools.count():
    said = {"role": "user", "content": f"and {number}?"}
    body = json.dumps({"model": "scripted", "max_tokens": 100, "messages": [said]}).encode()
    door = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
    asked = urllib.request.Request(door, body, {"content-type": "application/json"})
    try:
        urllib.request.urlopen(asked, timeout=30).read()
    except OSError:
        pass
"""
LEAVING = """
import pathlib, subprocess, sys, time
quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
subprocess.Popen([sys.executable, "-c", SPENDER], start_new_session=True, **quiet)
pathlib.Path("b.txt").write_text("new")
while not pathlib.Path("../go").exists():
    time.sleep(0.05)
"""
TROUBLE = """
import pathlib
def deeper(left):
    if left == 0:
        raise RuntimeError(f"{pathlib.Path.cwd()} at {id(object()):#x} \\u2028 \\x1b[31m")
    deeper(left - 1)
deeper(30)
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path, settings=GatewaySettings(cancel_grace_ms=1_000)) as made:
        yield made


def python(script: str) -> tuple[str, ...]:
    return (sys.executable, "-c", script)


@pytest.mark.rule("R7", "J5")
async def test_a_database_that_goes_in_the_middle_of_a_recovery_scan_ends_the_scan_by_name_and_no_run() -> None:
    with PostgresServer() as server:
        async with await PostgresStore.open(server.dsn()) as store:
            for uid in ("run-1", "run-2"):
                await store.persist(new(uid))
                await store.raise_fence(uid, 1)
                await store.append(uid, 1, [draft(f"r{n}", {"text": "x" * SIZE}) for n in range(RECORDS)])
            before = await store.list_pending()
            journal = store.stored("run-1")
            await anext(journal)
            await asyncio.to_thread(server.kill)
            with pytest.raises(StoreUnavailable):
                [entry async for entry in journal]
            with pytest.raises(StoreUnavailable):
                await store.list_pending()
            with pytest.raises(StoreUnavailable):
                await store.recover("run-2")
            await asyncio.to_thread(server.start)
            assert await store.list_pending() == before
            assert {row.status for row in before} == {ExecutionStatus.RUNNING}
            for uid in ("run-1", "run-2"):
                assert (await store.recover(uid)).head.offset == RECORDS - 1
                assert isinstance(await verify_stored(store, uid), Intact)


@pytest.mark.rule("X1")
async def test_a_cancel_ends_its_run_and_no_other_of_the_same_definition(world: World) -> None:
    mine = await world.admit(command=python(STEP), uid="u1")
    other = await world.admit(command=python(STEP), uid="u2", delivery=ResolvedDelivery(branch="moorage/other"))
    sandboxes = [await run.start() for run in (mine, other)]
    for run in (mine, other):
        await run.until("ITERATION_COMPLETE")
    await mine.report("CANCEL_REQUESTED", {"reason": "user"})
    assert await sandboxes[0].ended() == 0
    assert (await mine.state())["cancel_stage"] == "acknowledged"
    (other.volume / "go").touch()
    assert await sandboxes[1].ended() == 0
    state = await other.state()
    assert (state["phase"], state["cancel_stage"]) == ("Verifying", None)
    assert [kind for kind in await other.types() if kind.startswith("CANCEL_")] == []


@pytest.mark.rule("X2", "I5", "B3")
@pytest.mark.parametrize("end", ["cancel", "its own"])
async def test_what_an_ended_agent_leaves_behind_spends_nothing_more(tmp_path: Path, end: str) -> None:
    """A daemon of the agent's goes on asking the model, whatever it is told, until it is gone."""
    settings = GatewaySettings(cancel_grace_ms=1_000)
    async with World(tmp_path, script=Script(replies=(Reply(text="more"),)), settings=settings) as world:
        assert world.model is not None
        script = f"SPENDER = {SPENDER!r}\n{LEAVING}"
        agent = ResolvedAgent(driver="command", command=python(script), model=world.scripted())
        run = await world.admit(agent=agent)
        sandbox = await run.start()
        await run.until("MODEL_RESPONSE", 2, within_s=90)
        if end == "cancel":
            await run.report("CANCEL_REQUESTED", {"reason": "user"})
        else:
            (run.volume / "go").touch()
        assert await sandbox.ended(within_s=90) == 0, sandbox.said.read_text()
        assert sandbox.left() == []
        types = await run.types()
        assert "MODEL_REQUEST" not in types[types.index("CANCEL_REQUESTED" if end == "cancel" else "AGENT_FINISHED") :]
        assert 2 <= len(world.model.log) <= types.count("MODEL_REQUEST")


@pytest.mark.rule("P4", "S1")
async def test_stack_traces_and_paths_in_errors_change_nothing_that_a_replay_comes_to(world: World) -> None:
    told = []
    for uid in ("u1", "u2"):
        run = await world.admit(command=python(TROUBLE), uid=uid, delivery=ResolvedDelivery(branch=f"moorage/{uid}"))
        assert await (await run.start()).ended() == 0
        records = await run.records()
        assert isinstance(await verify_stored(world.gateway.deps.store, uid), Intact)
        state = replay(records)
        assert state == replay(records)
        assert json.loads(json.dumps(await run.state()))["phase"] == state.phase.value
        assert str(run.volume) in "".join(str(each) for each in await run.content("AGENT_OUTPUT"))
        end = state.agent_end
        assert end is not None
        told.append((state.phase, state.iteration, state.strikes, state.usage.tool_calls, end.outcome, end.reason))
    assert told[0] == told[1]
    assert told[0][0] is not RunPhase.PENDING


@pytest.mark.rule("R3", "W3")
async def test_a_gc_takes_no_commit_that_an_agent_made_on_a_detached_head(place) -> None:
    worktree = await place.prepare()
    tree = worktree.tree
    git(tree, "checkout", "-q", "--detach")
    (tree / "kept.txt").write_text("checkpointed\n")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "on no branch")
    kept = git(tree, "rev-parse", "HEAD")
    checkpoint = await worktree.checkpoint(1, 1)
    await worktree.push_checkpoint(checkpoint)
    (tree / "late.txt").write_text("after it\n")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "on no branch either")
    late = git(tree, "rev-parse", "HEAD")
    await collected(tree)
    assert git(tree, "rev-parse", "HEAD") == late
    again = await place.prepare(epoch=2, resume=checkpoint.commit)
    await collected(again.tree)
    await collected(place.door.mirrors.path(KEY))
    assert git(again.tree, "show", f"{kept}:kept.txt") == "checkpointed"
    saved = await place.stored(drift_ref(RUN, 2))
    assert git(place.door.mirrors.path(KEY), "show", f"{saved}:late.txt") == "after it"
    assert git(place.door.mirrors.path(KEY), "merge-base", "--is-ancestor", late, saved) == ""


async def collected(repository: Path) -> None:
    """All that git itself would ever throw away, at once."""
    await asyncio.to_thread(git, repository, "reflog", "expire", "--expire=now", "--expire-unreachable=now", "--all")
    await asyncio.to_thread(git, repository, "gc", "-q", "--prune=now")
