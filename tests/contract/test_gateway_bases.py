"""The base is fixed while the sandbox's pod starts, so that the first question waits for no remote."""

import asyncio
from typing import Any

import pytest

from moorage.api.wire import ResolvedWorkspace, SecretRef
from moorage.gateway.gate import BASE_PIN
from moorage.testing.world import TENANT, Run, Sandbox, World
from moorage.workspace.errors import NotFound
from moorage.workspace.mirror import MirrorKey
from moorage.workspace.refs import pin_ref


async def registered(world: World, run: Run) -> Sandbox:
    await run.fence(1)
    sandbox = Sandbox(world, "p1", run.volume)
    await run.register(sandbox, 1, "runner")
    world.sandboxes.remove(sandbox)  # it has no process that the world would have to end
    return sandbox


async def pinned(world: World, run: Run) -> str | None:
    key = MirrorKey(TENANT, run.spec.workspace.key)
    try:
        return await world.gateway.deps.mirrors.ref(key, pin_ref(run.spec.uid, BASE_PIN))
    except NotFound:
        return None


async def soon_pinned(world: World, run: Run) -> str:
    for _ in range(1000):
        if found := await pinned(world, run):
            return found
        await asyncio.sleep(0.02)
    raise TimeoutError("nothing is fetched ahead")


async def asked(world: World, sandbox: Sandbox) -> Any:
    return await world.gateway.client(sandbox.token).get("/v1/self")


async def test_the_base_is_there_before_the_sandbox_asks_and_needs_no_remote_then(tmp_path) -> None:
    async with World(tmp_path / "world") as world:
        run = await world.admit(command=("true",))
        sandbox = await registered(world, run)
        base = await soon_pinned(world, run)
        requests = len(world.remote.requests)
        answer = await asked(world, sandbox)
        assert answer.json()["git"]["base"] == base
        assert len(world.remote.requests) == requests


async def test_a_base_that_was_fixed_and_not_pinned_is_pinned_when_it_is_asked_for(tmp_path) -> None:
    """Its gateway died between the two: a branch that is rewritten afterwards would take it away."""
    async with World(tmp_path / "world") as world:
        run = await world.admit(command=("true",))
        sandbox = await registered(world, run)
        base = await soon_pinned(world, run)
        git = world.gateway.deps.mirrors._git(MirrorKey(TENANT, run.spec.workspace.key))
        await git.run("update-ref", "-d", pin_ref(run.spec.uid, BASE_PIN))
        assert (await asked(world, sandbox)).json()["git"]["base"] == base
        assert await pinned(world, run) == base


async def test_a_base_that_can_not_be_had_ahead_is_told_when_it_is_asked_for(tmp_path) -> None:
    async with World(tmp_path / "world") as world:
        url = world.remote.url("shop.git")
        space = ResolvedWorkspace(
            key="w1", kind="remote_git", url=url, ref="no-such-branch", credentials=SecretRef(name="git")
        )
        run = await world.admit(command=("true",), workspace=space)
        sandbox = await registered(world, run)
        answer = await asked(world, sandbox)
        assert (answer.status_code, answer.json()["reason"]) == (424, "GitRefNotFound")


@pytest.mark.rule("W5")
async def test_what_is_fetched_ahead_for_a_run_that_has_ended_is_not_kept(tmp_path) -> None:
    async with World(tmp_path / "world") as world:
        run = await world.admit(command=("true",))
        await registered(world, run)
        await run.report("RUN_FAILED", {"reason": "AgentFailed", "message": ""})
        await run.call("POST", "/release")
        await asyncio.sleep(0.5)
        assert await pinned(world, run) is None
