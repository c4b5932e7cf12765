"""O2, B2, X2, N3: children on a real API server: made once from what an agent asked for, settled, ended before their
parent, whatever dies.
"""

from typing import Any

import httpx
import pytest
from tests.integration.operator_world import OperatorWorld

from moorage.api import names
from moorage.testing.models import Reply, Script, StandIn
from moorage.testing.models.script import Usage

AGENT = {
    "driver": "builtin",
    "model": {"providerRef": {"name": "models"}, "name": "m-1"},
    "children": {"max": 3, "concurrent": 2},
}

ANSWER = Reply(text="Yes.", usage=Usage(input_tokens=10, output_tokens=2))


async def pod_of(world: OperatorWorld, name: str) -> dict[str, Any]:
    async def there() -> dict[str, Any] | None:
        uid = (await world.run(name)).get("metadata", {}).get("uid")
        pods = await world.pods("runner")
        return next((each for each in pods if each["metadata"]["labels"][names.RUN] == uid), None)

    found: dict[str, Any] = await world.until(there, f"the sandbox of {name}")
    return found


async def a_parent(world: OperatorWorld, models: str = "https://models.example", tokens: str = "1k") -> dict[str, Any]:
    """Its sandbox; its agent works."""
    spec = {"protocol": "anthropic-messages", "baseURL": models}
    body = {"apiVersion": names.API_VERSION, "kind": "ModelProvider", "metadata": {"name": "models"}, "spec": spec}
    await world.api.create(world.path("modelproviders", version=names.API_VERSION), body)
    await world.apply_run("fix", agent=AGENT, constraints={"tokens": {"hard": tokens}})
    pod = await pod_of(world, "fix")
    await world.work(pod, finish=False)
    return pod


async def spawn(world: OperatorWorld, pod: dict[str, Any], key: str = "1.0", tokens: int = 300) -> str:
    asked = {"epoch": 1, "key": key, "goal": "the parser", "tokens": tokens}
    answer = await world.sandbox(pod).post("/v1/self/children", json=asked)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["name"])


async def children(world: OperatorWorld) -> list[dict[str, Any]]:
    view = await world.view((await world.run("fix"))["metadata"]["uid"])
    return list(view["state"]["children"])


@pytest.mark.rule("O2", "B2")
async def test_a_child_that_was_asked_for_while_no_operator_lived_is_made_once_and_settled(
    world: OperatorWorld,
) -> None:
    await world.start()
    pod = await a_parent(world)
    await world.stop()
    name = await spawn(world, pod)
    await world.start()
    theirs = await pod_of(world, name)
    child = await world.run(name)
    assert child["metadata"]["ownerReferences"][0]["name"] == "fix"
    assert child["spec"]["parentRef"]["name"] == "fix"
    assert [(c["uid"], c["status"]) for c in await children(world)] == [(child["metadata"]["uid"], "started")]
    assert await spawn(world, pod) == name
    await world.stop()
    await world.work(theirs)
    await world.end_pod(theirs)
    await world.start()
    await world.until_phase(name, "Succeeded")

    async def settled() -> bool:
        return [c["outcome"] for c in await children(world)] == ["Succeeded"]

    await world.until(settled, "the child's share is settled")
    await world.finish(pod)
    await world.end_pod(pod)
    await world.until_phase("fix", "Succeeded")
    runs = await world.api.items(world.path("agentruns", version=names.API_VERSION))
    assert sorted(each["metadata"]["name"] for each in runs) == sorted(["fix", name])


@pytest.mark.rule("N3")
async def test_a_parent_that_is_done_waits_for_its_children(world: OperatorWorld) -> None:
    await world.start()
    pod = await a_parent(world)
    name = await spawn(world, pod)
    theirs = await pod_of(world, name)
    await world.finish(pod)
    await world.end_pod(pod)
    await world.until_reason("fix", "ChildrenRunning")
    await world.work(theirs)
    await world.end_pod(theirs)
    await world.until_phase("fix", "Succeeded")
    assert (await world.status(name))["phase"] == "Succeeded"


@pytest.mark.rule("X2")
async def test_children_are_cancelled_with_their_parent_and_end_before_it(world: OperatorWorld) -> None:
    await world.start()
    pod = await a_parent(world)
    name = await spawn(world, pod)
    await world.work(await pod_of(world, name), finish=False)
    await world.api.patch(world.run_path("fix"), {"spec": {"cancel": True}})
    for each in (await pod_of(world, name), pod):
        await world.end_pod(each)
    await world.until_phase("fix", "Cancelled")
    status = await world.status(name)
    assert (status["phase"], status["reason"]) == ("Cancelled", "ParentEnded")
    assert [c["outcome"] for c in await children(world)] == ["Cancelled"]


@pytest.mark.rule("O2", "B3")
async def test_a_child_by_hand_has_its_share_and_waits_while_too_little_is_left(world: OperatorWorld) -> None:
    await world.start()
    await a_parent(world)
    mine = {"parentRef": {"name": "fix"}}
    await world.apply_run("large", **mine, constraints={"tokens": {"hard": 700}})
    await pod_of(world, "large")
    await world.apply_run("larger", **mine, constraints={"tokens": {"hard": 400}})
    await world.until_reason("larger", "ParentBudget")
    await world.api.patch(world.run_path("large"), {"spec": {"cancel": True}})  # it hasn't begun: its pod goes at once
    await world.until_phase("large", "Cancelled")
    await pod_of(world, "larger")


@pytest.mark.rule("X2", "B3")
@pytest.mark.parametrize("way", ["cancelled", "failed"])
@pytest.mark.timeout(180)
async def test_a_child_that_goes_on_spending_is_stopped_with_its_parent_and_billed_to_it(
    world: OperatorWorld, way: str
) -> None:
    """Its agent hears of nothing, and asks its model again and again: the door closes, and stays closed."""
    async with StandIn(Script(replies=(ANSWER,))).serving() as model:
        await world.start()
        pod = await a_parent(world, model.url, "1M")
        name = await spawn(world, pod, tokens=900_000)
        theirs = await pod_of(world, name)
        await world.work(theirs, finish=False)
        asked = 0
        while (answer := await ask(world, theirs, asked)).is_success:
            asked += 1
            if asked == 2:
                await end_parent(world, pod, way)
        assert "BudgetExhausted" not in answer.text
        for each in (theirs, pod):
            await world.end_pod(each)
        await world.until_phase("fix", "Cancelled" if way == "cancelled" else "Failed", seconds=120)
        assert not (await ask(world, theirs, 0)).is_success
        assert len(model.log) == asked >= 2
    status, (settled,) = await world.status(name), await children(world)
    assert (status["phase"], status["reason"]) == ("Cancelled", "ParentEnded")
    assert (settled["outcome"], settled["used"]["tokens"]) == ("Cancelled", asked * 12)


async def ask(world: OperatorWorld, pod: dict[str, Any], number: int) -> httpx.Response:
    """One of many questions to its model."""
    question = [{"role": "user", "content": f"{number}?"}]
    body = {"model": "m-1", "max_tokens": 2, "messages": question}
    return await world.sandbox(pod).post("/model/v1/messages", json=body)


async def end_parent(world: OperatorWorld, pod: dict[str, Any], way: str) -> None:
    if way == "cancelled":
        await world.api.patch(world.run_path("fix"), {"spec": {"cancel": True}})
    else:
        await world.finish(pod, "failed")
