"""B2, B3 with children: a parent and its children ask their models side by side, as often as they can, and nobody
passes a limit by more than the one request that was let through last; what the family used is what it was billed.
"""

import asyncio
from typing import Any

import pytest
from tests.gateway_script import Operator, ok, refused, resolved
from tests.model_place import ANTHROPIC, PRICES, Place, gateway, place, script

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import NamespaceUsage, ResolvedAgent, ResolvedChildren, ResolvedParent

__all__ = ["gateway", "place", "script"]

TOKENS = 417  # of one answer
COST = 4_581  # micro-dollars of one answer
AT_ONCE = 50
pytestmark = pytest.mark.timeout(120)


def limited(kind: str, answers: int, more: int = 0) -> ResolvedLimits:
    """Room for so many answers, and a little more, which isn't room for another one."""
    if kind == "tokens":
        return ResolvedLimits(tokens_hard=answers * TOKENS + more)
    return ResolvedLimits(cost_hard_micros=answers * COST + more)


async def child(place: Place, parent: Operator, uid: str, limits: ResolvedLimits) -> Operator:
    """A child at work, in the sandbox of its name."""
    above = ResolvedParent(uid=parent.spec.uid, name="fix", commit=(await parent.state())["workspace_base"])
    changes = {"uid": uid, "name": f"fix-{uid}", "session_id": uid, "limits": limits, "parent": above}
    spec = parent.spec.model_copy(update=changes | {"delivery": None, "acceptance": ()})
    operator = Operator(place.gateway, spec)
    await ok(await (await operator.start(pod=uid)).get("/v1/self"))
    return operator


async def end(operator: Operator) -> None:
    await ok(await operator.report(1, "RUN_FAILED", {"reason": "AgentFailed", "message": "", "commit": None}))


async def at_once(place: Place, *pods: str) -> dict[str, int]:
    """Each asks so often at the same time; how many answers each has got."""
    asking = [
        place.ask(ANTHROPIC, pod, stream=n % 2 == 0, max_tokens=300, temperature=n / 100)
        for n in range(AT_ONCE)
        for pod in pods
    ]
    answers = await asyncio.gather(*asking)
    assert {answer.status_code for answer in answers} <= {200, 400}
    assert all("BudgetExhausted" in answer.text for answer in answers if answer.status_code == 400)
    return {pod: sum(each.status_code == 200 for each in answers[at :: len(pods)]) for at, pod in enumerate(pods)}


def spent(usage: dict[str, Any], kind: str) -> int:
    if kind == "cost":
        return int(usage["cost_micros"])
    return sum(usage[name] for name in ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens"))


@pytest.mark.rule("B2", "B3")
@pytest.mark.parametrize(("kind", "more"), [("tokens", 0), ("cost", 250)])
async def test_a_family_that_asks_at_once_passes_no_limit_by_more_than_one_request_each(
    place: Place, kind: str, more: int
) -> None:
    parent = await place.run(ANTHROPIC, limits=limited(kind, 30, more), prices=PRICES)
    first = await child(place, parent, "u2", limited(kind, 10, more))
    second = await child(place, parent, "u3", limited(kind, 8))
    got = await at_once(place, "p1", "u2", "u3")
    for answers, room in ((got["p1"], 12), (got["u2"], 10), (got["u3"], 8)):
        assert room <= answers <= room + 1
    assert len(place.model.log) == sum(got.values())
    one = COST if kind == "cost" else TOKENS
    for operator, pod in ((parent, "p1"), (first, "u2"), (second, "u3")):
        assert spent((await operator.state())["usage"], kind) == got[pod] * one
    for operator in (first, second):
        await end(operator)
    settled = (await ok(await place.gateway.operator.post("/v1/runs/u1/children", json={"gone": []})))["state"]
    given = settled["children_used"]["cost_micros" if kind == "cost" else "tokens"]
    assert given == (got["u2"] + got["u3"]) * one
    family = spent(settled["usage"], kind) + given
    assert family == len(place.model.log) * one
    assert family < 30 * one + more + 3 * one, "less than one request each"
    for _ in range(2):
        told = NamespaceUsage.model_validate(await ok(await parent.http.get("/v1/namespaces/team-a/usage")))
        assert [day.runs for day in told.days] == [3]
        assert spent(told.days[0].model_dump(), kind) == family, "each run is its namespace's once, a share never"
        place.gateway.restart()


@pytest.mark.rule("B2", "B3")
async def test_what_a_child_leaves_is_its_parents_again_and_no_more(place: Place) -> None:
    parent = await place.run(ANTHROPIC, limits=limited("tokens", 10), prices=PRICES)
    kid = await child(place, parent, "u2", limited("tokens", 6))
    for n in range(2):
        assert (await place.ask(ANTHROPIC, "u2", max_tokens=300, temperature=n / 100)).status_code == 200
    await end(kid)
    settled = await ok(await place.gateway.operator.post("/v1/runs/u1/children", json={"gone": []}))
    assert settled["state"]["children_used"]["tokens"] == 2 * TOKENS
    assert await at_once(place, "p1") == {"p1": 8}


@pytest.mark.rule("B2", "B3")
async def test_children_that_are_asked_for_at_once_get_no_more_than_there_is(place: Place) -> None:
    agent = ResolvedAgent(driver="builtin", children=ResolvedChildren(max=20, concurrent=20))
    operator = Operator(place.gateway, resolved(place.upstream, limits=limited("tokens", 10), agent=agent))
    runner = await operator.start()
    await ok(await runner.get("/v1/self"))
    bodies = [{"epoch": 1, "key": f"1.{n}", "goal": f"part {n}", "tokens": 3 * TOKENS} for n in range(6)]
    answers = await asyncio.gather(*(runner.post("/v1/self/children", json=body) for body in bodies))
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [403] * 3
    for answer in answers:
        if answer.status_code == 403:
            refused(answer, 403, "ParentBudget")
    reserved = [each["reserve"]["tokens"] for each in (await operator.state())["children"]]
    assert reserved == [3 * TOKENS] * 3
