"""O2, B3: a run that goes on with another one, on a real API server: it waits for its end, begins where that ended,
and pauses where nothing is left of the session's budget until that is raised.
"""

from typing import Any

import pytest
from tests.integration.operator_world import OperatorWorld

from moorage.api import names

CALLS = {"toolCalls": {"hard": 2}}


async def pod_of(world: OperatorWorld, name: str, epoch: int = 1) -> dict[str, Any]:
    async def there() -> dict[str, Any] | None:
        uid = (await world.run(name)).get("metadata", {}).get("uid")
        mine = (p["metadata"]["labels"] for p in await world.pods("runner"))
        wanted = {names.RUN: uid, names.EPOCH: str(epoch)}
        if not any(wanted.items() <= labels.items() for labels in mine):
            return None
        pods = await world.pods("runner")
        return next(p for p in pods if wanted.items() <= p["metadata"]["labels"].items())

    found: dict[str, Any] = await world.until(there, f"the sandbox of {name}")
    return found


async def call(world: OperatorWorld, pod: dict[str, Any], number: int, *, epoch: int = 1) -> None:
    client = world.sandbox(pod)
    for kind in ("TOOL_REQUEST", "TOOL_RESPONSE"):
        record = {"record_id": f"{kind}:{number}", "type": kind, "payload": {}, "recorded_at": 1}
        body = {"epoch": epoch, "records": [record | {"tool_call_id": f"1.{number}"}]}
        answer = await client.post("/v1/self/records", json=body)
        assert answer.status_code == 200, answer.text


@pytest.mark.rule("O2", "O7", "B3")
async def test_a_run_waits_for_the_one_that_it_goes_on_with_and_has_what_that_left(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("next", continueFrom={"name": "fix"}, goal="More of it.")
    await world.until_reason("next", "ContinuedNotFound")
    await world.apply_run("fix", constraints=CALLS)
    pod = await pod_of(world, "fix")
    await world.work(pod, finish=False)
    told = await world.until_reason("next", "ContinuedNotEnded")
    assert "fix" in told["message"]
    for number in range(2):
        await call(world, pod, number)
    await world.finish(pod)
    await world.end_pod(pod)
    await world.until_phase("fix", "Succeeded")
    theirs = await pod_of(world, "next")
    await world.work(theirs, finish=False)
    first, second = [(await world.run(name))["metadata"]["uid"] for name in ("fix", "next")]
    view = await world.view(second)
    assert (view["spec"]["session_id"], view["spec"]["origin"]["uid"]) == (first, first)
    assert view["spec"]["limits"]["tool_calls_hard"] == 2, "the session's"
    assert view["state"]["carried"]["tool_calls"] == 2
    await call(world, theirs, 1)
    status = await world.until(lambda: _paused(world, view), "a pause")
    assert "tool call limit of 2 is used up" in status["pause"]["message"]


async def _paused(world: OperatorWorld, view: dict[str, Any]) -> dict[str, Any] | None:
    state: dict[str, Any] = (await world.view(view["spec"]["uid"]))["state"]
    return state if state["pause"] is not None else None


@pytest.mark.rule("O2")
async def test_what_can_never_be_gone_on_with_is_told_to_its_author(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("self", continueFrom={"name": "self"})
    status = await world.until_reason("self", "ContinuedNotFound")
    assert status["phase"] == "Pending"
    await world.succeed("fix", retention={"ttlAfterFinished": "1s"})
    uid = (await world.run("fix"))["metadata"]["uid"]
    await world.until_released(uid)
    await world.apply_run("late", continueFrom={"name": "fix"})
    told = await world.until_reason("late", "ContinuedReleased")
    assert {c["type"]: c["status"] for c in told["conditions"]}["Stalled"] == "True"
    await world.apply_run("other", continueFrom={"name": "late"})
    await world.until_reason("other", "ContinuedNotFound")
