"""W6: what an agent writes beside its tree is its run's own, and no part of what the run delivers."""

import asyncio
import json
from typing import Any

import pytest

from moorage.api.wire import ResolvedDelivery
from moorage.testing.trees import git
from moorage.testing.world import BRANCH, TENANT, Run, World
from moorage.workspace.mirror import MirrorKey

pytestmark = pytest.mark.timeout(180)  # each case starts a runner or two
PLACES = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "PYTHONPYCACHEPREFIX")
# Tells its environment, writes to each of its places and to its tree, and stays until its neighbour is there too.
AGENT = """
import json, os, pathlib, sys
for name in sys.argv[1:]:
    folder = pathlib.Path(os.environ[name])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mark").open("x").write("mine")  # whoever shares this place fails here
pathlib.Path("work.txt").write_text("done")
print(json.dumps(dict(os.environ)), flush=True)
"""


async def environment(run: Run) -> Any:
    await run.until("AGENT_FINISHED")
    said = "".join(each["text"] for each in await run.content("AGENT_OUTPUT") if each["stream"] == "stdout")
    return json.loads(said)


@pytest.mark.rule("W6")
async def test_two_runs_at_once_share_no_home_cache_temporary_folder_or_port(tmp_path) -> None:
    command = ("python3", "-c", AGENT, *PLACES)
    async with World(tmp_path / "world") as world:
        runs = [
            await world.admit(command=command, uid=uid, delivery=ResolvedDelivery(branch=f"{BRANCH}-{uid}"))
            for uid in ("u1", "u2")
        ]
        sandboxes = [await run.start() for run in runs]
        one, two = await asyncio.gather(*(environment(run) for run in runs))
        for name in (*PLACES, "ANTHROPIC_BASE_URL", "MOORAGE_GOAL_FILE", "MOORAGE_REMAINING_FILE"):
            assert one[name] != two[name]
        for run, env in zip(runs, (one, two), strict=True):
            for name in PLACES:
                assert env[name].startswith(str(run.volume / ".moorage"))
            assert [await sandbox.ended() for sandbox in sandboxes] == [0, 0]
            proposal = (await run.state())["proposal"]["commit"]
            store = world.gateway.deps.mirrors.path(MirrorKey(TENANT, "w1"))
            assert git(store, "diff", "--name-only", f"{proposal}^", proposal) == "work.txt"


@pytest.mark.rule("W6")
async def test_a_runs_next_attempt_finds_its_home_and_caches_and_an_empty_temporary_folder(tmp_path) -> None:
    command = ("sh", "-c", 'ls -A "$HOME" "$TMPDIR"; touch "$HOME/kept" "$TMPDIR/gone"; sleep "$(cat ../pause)"')
    async with World(tmp_path / "world") as world:
        run = await world.admit(command=command)
        run.volume.mkdir()
        (run.volume / "pause").write_text("60")
        first = await run.start()
        await run.until("AGENT_OUTPUT")
        await first.kill()
        (run.volume / "pause").write_text("0")
        await run.report("ATTEMPT_ENDED", {"epoch": 1, "reason": "NodeLost", "message": "no power"})
        second = await run.start(2)
        await run.until("AGENT_FINISHED")
        said = "".join(each["text"] for each in await run.content("AGENT_OUTPUT"))
        assert said.count("kept") == 1
        assert "gone" not in said
        assert await second.ended() == 0
