"""Stops and delays around the agent: before it runs (the network not shut yet), and while its result is handed over."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedAgent
from moorage.runner.exitcodes import Exit
from moorage.runner.probe import isolated
from moorage.testing.world import Run, Sandbox, World

pytestmark = pytest.mark.timeout(180)  # each case starts a runner or two


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path) as made:
        yield made


@contextlib.asynccontextmanager
async def open_port() -> AsyncIterator[str]:
    """An address that takes connections, as long as no policy is enforced."""

    async def taken(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(taken, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


async def heard(run: Run) -> None:
    """Wait for a heartbeat of the runner's."""
    async with asyncio.timeout(40):
        while (await run.call("GET", ""))["heartbeat"] is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def held_up(world: World, address: str) -> tuple[Run, Sandbox]:
    """A runner that lives and waits for its network to be shut."""
    run = await world.admit(command=("sh", "-c", "echo 1 > b.txt"))
    sandbox = await run.start(environment={"MOORAGE_PROBE": address})
    await heard(run)
    return run, sandbox


@pytest.mark.rule("T3", "F4")
async def test_no_agent_starts_before_the_network_is_shut_and_the_owner_is_heard_meanwhile(world):
    async with open_port() as address:
        run, sandbox = await held_up(world, address)
        await asyncio.sleep(0.5)
        types = await run.types()
        assert not {"WORKSPACE_READY", "AGENT_STARTED"} & set(types)
        assert sandbox.process.returncode is None
    assert await sandbox.ended() == 0
    assert (await run.state())["phase"] == "Verifying"


@pytest.mark.rule("X1", "X3")
async def test_a_cancel_is_obeyed_before_there_is_an_agent(world):
    async with open_port() as address:
        run, sandbox = await held_up(world, address)
        await run.report("CANCEL_REQUESTED", {"reason": "user"})
        assert await sandbox.ended(within_s=40) == 0
    state = await run.state()
    assert (state["agent_end"]["outcome"], state["cancel_stage"]) == ("cancelled", "acknowledged")
    assert "AGENT_STARTED" not in await run.types()


async def test_sigterm_is_obeyed_before_there_is_an_agent(world):
    async with open_port() as address:
        run, sandbox = await held_up(world, address)
        sandbox.terminate()
        assert await sandbox.ended(within_s=40) == Exit.TERMINATED
    assert json.loads(sandbox.log.read_text())["reason"] == "Terminated"
    assert (await run.state())["agent_end"] is None


@pytest.mark.rule("F3")
async def test_a_fence_is_obeyed_before_there_is_an_agent(world):
    async with open_port() as address:
        run, sandbox = await held_up(world, address)
        await run.report("ATTEMPT_ENDED", {"epoch": 1, "reason": "NodeLost", "message": "no heartbeat"})
        await run.fence(2)
        assert await sandbox.ended(within_s=40) == Exit.FENCED
    assert json.loads(sandbox.log.read_text())["reason"] == "Fenced"


@pytest.mark.rule("T3")
async def test_a_network_that_stays_open_is_told_by_its_address():
    async with open_port() as address:
        host, port = address.split(":")
        assert await isolated([(host, int(port)), ("127.0.0.1", 9)], 0.3) == address
        assert await isolated([("127.0.0.1", 9)], 0.3) is None
    assert await isolated([(host, int(port))], 0.3) is None


@pytest.mark.rule("C7")
async def test_what_is_left_is_told_from_the_start_and_after_each_safe_point(world):
    limits = ResolvedLimits(max_iterations=3, tokens_hard=1000)
    say = """cat "$MOORAGE_REMAINING_FILE"; echo"""
    iteration = """echo '{"moorage": {"event": "iteration"}}'"""
    wait = f"""while [ "$({say})" = "$was" ]; do sleep 0.05; done"""
    script = f"{say}; was=$({say}); {iteration}; {wait}; {say}; echo 1 > b.txt"
    run = await world.admit(command=("sh", "-euc", script), limits=limits)
    assert await (await run.start()).ended() == 0
    said = "".join(each["text"] for each in await run.content("AGENT_OUTPUT")).splitlines()
    told = [json.loads(line) for line in said]
    limited = [{name: each[name] for name in each if each[name] not in (None, [])} for each in told]
    assert limited == [{"iterations": 3, "tokens": 1000}, {"iterations": 2, "tokens": 1000}]
    assert {"cost", "tool_calls", "effects", "warnings", "exhausted"} < told[0].keys()


async def test_an_agent_that_can_not_be_driven_was_never_running(world):
    agent = ResolvedAgent(driver="no-such", command=("true",))
    run = await world.admit(agent=agent)
    assert await (await run.start()).ended() == 0
    assert (await run.state())["agent_end"]["reason"] == "UnknownDriver"
    assert "AGENT_STARTED" not in await run.types()


@pytest.mark.rule("X1", "X3")
async def test_a_cancel_while_the_result_is_handed_over_is_obeyed(world):
    held = asyncio.Event()
    app = world.gateway.app

    async def first_push_never_ends(scope, receive, send) -> None:
        if scope["path"].endswith("/git-receive-pack") and not held.is_set():
            held.set()
            await asyncio.sleep(60)
        await app(scope, receive, send)

    world.gateway._app = first_push_never_ends
    run = await world.admit(command=("sh", "-c", "echo 1 > b.txt"))
    sandbox = await run.start()
    async with asyncio.timeout(20):
        await held.wait()
    await run.report("CANCEL_REQUESTED", {"reason": "user"})
    assert await sandbox.ended(within_s=20) == 0
    state = await run.state()
    assert (state["agent_end"]["outcome"], state["cancel_stage"]) == ("cancelled", "acknowledged")
    assert (state["proposal"], state["drift"]) == (None, 1)


async def test_sigterm_while_the_result_is_handed_over_lets_it_come_to_its_end(world):
    held, go = asyncio.Event(), asyncio.Event()
    app = world.gateway.app

    async def slow_push(scope, receive, send) -> None:
        if scope["path"].endswith("/git-receive-pack"):
            held.set()
            await go.wait()
        await app(scope, receive, send)

    world.gateway._app = slow_push
    run = await world.admit(command=("sh", "-c", "echo 1 > b.txt"))
    sandbox = await run.start()
    async with asyncio.timeout(20):
        await held.wait()
    sandbox.terminate()
    await asyncio.sleep(0.3)
    go.set()
    assert await sandbox.ended(within_s=20) == 0
    assert (await run.state())["phase"] == "Verifying"
