"""I1, O2, B3: the journal of a run that goes on with another one was broken: what the run began with is still known."""

from pathlib import Path
from typing import Any

import pytest
from tests.contract.memory_gateway import gateway
from tests.contract.test_gateway_sessions import FAILED, Line, at_work, calls, line
from tests.gateway_script import Operator, ok, result, told

from moorage.store.memory import MemoryStore
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer

__all__ = ["gateway", "line"]  # fixtures


async def repaired(line: Line, operator: Operator, kind: str) -> Any:
    """Its journal is broken at that record, which nobody can read any more, and is repaired; the new state."""
    store = line.gateway.deps.store
    assert isinstance(store, MemoryStore)
    events, bad = store._runs[operator.spec.uid].events, [r.seq for r in await operator.records() if r.type == kind][-1]
    events[bad] = events[bad]._replace(body=bytes(60))
    line.gateway.restart()
    said = {"reason": "power cut", "user": "ada"}
    await ok(await line.gateway.reader("local", None).post(f"{operator.door}/repair", json=said))
    return await operator.state()


@pytest.mark.rule("I1", "O2", "P2")
@pytest.mark.parametrize("delivered", [False, True], ids=["failed", "delivered"])
async def test_it_begins_again_where_it_began(
    gateway: LocalGateway, upstream: GitServer, tmp_path: Path, delivered: bool
) -> None:
    """With the checkpoint, of which the pin of its base says nothing."""
    line, runner, head = await at_work(gateway, upstream, tmp_path)
    kind, end = "RUN_FAILED", FAILED
    if delivered:
        await ok(await runner.post("/v1/self/result", json=result(head)))
        await ok(await line.first.deliver(1, head))
        kind, end = "RUN_SUCCEEDED", {"reason": "Delivered", "message": "", "commit": head}
    await ok(await line.first.report(1, kind, end))
    second = line.next()
    before = (await ok(await (await second.start(pod="p2")).get("/v1/self")))["git"]
    (fixed,) = [each.payload for each in await second.records() if each.type == "BASE_FIXED"]
    await repaired(line, second, "BASE_FIXED")
    await ok(await second.fence(2))
    await second.register("p3", 2)
    again = (await ok(await gateway.sandbox("p3", "team-a").get("/v1/self")))["git"]
    assert (again["base"], again["resume"]["commit"]) == (before["base"], before["resume"]["commit"])
    assert [each.payload for each in await second.records() if each.type == "BASE_FIXED"] == [fixed]


@pytest.mark.rule("I1", "B3", "I4")
async def test_what_its_session_had_used_is_known_by_the_sessions_row(line: Line) -> None:
    second = line.next()
    await second.start(pod="p2")
    carried = (await second.state())["carried"]
    assert carried["tool_calls"] == 2
    assert (await repaired(line, second, "SESSION_JOINED"))["carried"] == carried
    await ok(await second.fence(2))
    assert (await repaired(line, second, "EPOCH_RAISED"))["carried"] == carried, "as the first repair has told"
    await ok(await second.report(2, "RUN_FAILED", FAILED))
    third = line.next("u3")
    await third.admit()
    assert (await third.state())["carried"]["tool_calls"] == 2


@pytest.mark.rule("I1", "B3")
async def test_what_others_have_used_since_is_not_taken_for_that(line: Line) -> None:
    second = line.next()
    runner = await second.start(pod="p2")
    await ok(await runner.get("/v1/self"))
    for kind, said in (("WORKSPACE_READY", {"base": line.base, "branch": "moorage/u2"}), ("AGENT_STARTED", {})):
        await ok(await runner.post("/v1/self/records", json=told(kind, said)))
    await calls(runner, "1.1")
    await ok(await second.report(1, "RUN_FAILED", FAILED))
    third = line.next("u3")
    await third.admit()
    assert (await third.state())["carried"]["tool_calls"] == 3
    assert (await repaired(line, second, "SESSION_JOINED"))["carried"]["tool_calls"] == 0
