"""C2, C4 at the gateway's doors: a run's own constraints, by expressions and entry points, and who waives them."""

import asyncio

import pytest
from tests.contract.test_gateway_constraints import Agent, Site, cel, site
from tests.gateway_script import Operator, agent_at_work, ok, refused, resolved

from moorage.api.budget import ResolvedConstraint, ResolvedLimits
from moorage.api.wire import ResolvedAgent, ResolvedApproval

__all__ = ["site"]  # a fixture
pytestmark = pytest.mark.timeout(120)


@pytest.mark.rule("C4", "B1")
async def test_how_often_people_are_asked_is_limited_by_an_expression(site: Site) -> None:
    shell = ResolvedApproval(name="shell", before="ToolCall")
    limits = ResolvedLimits(custom=(cel("humanApprovals < 1", message="nobody is to be asked again"),))
    agent = ResolvedAgent(driver="builtin")
    operator = Operator(site.gateway, resolved(site.upstream, agent=agent, approvals=(shell,), limits=limits))
    runner = await agent_at_work(site.gateway, operator)
    asking = asyncio.create_task(runner.post("/v1/self/consent", json={"epoch": 1, "key": "1.0", "tool": "bash"}))
    while (await operator.state())["phase"] != "AwaitingApproval":  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    told_by_ada = {"command_id": "a1", "type": "Approve", "approval": "shell", "issuer": "ada"}
    await ok(await operator.http.post(f"{operator.door}/commands", json=told_by_ada))
    assert (await ok(await asking))["status"] == "approved"
    assert (await Agent(operator, runner).tool())["exhausted"] == "constraint mine: nobody is to be asked again"


@pytest.mark.rule("C1", "C4")
async def test_an_expression_stops_the_run_where_it_is_false(site: Site) -> None:
    agent = await site.agent(cel("tokens < 400 || toolCalls > 0", message="use your tools"))
    assert (await agent.ask()).status_code == 200
    assert (await agent.iterate(1))["exhausted"] == "constraint mine: use your tools"
    assert await agent.standing() == [("custom.mine", "GRACEFUL_EXIT")]
    assert (await agent.ask()).json()["error"]["message"] == "BudgetExhausted: constraint mine: use your tools"
    await agent.tool()
    await agent.iterate(2)
    assert await agent.standing() == [], "it holds again"


@pytest.mark.rule("C3")
async def test_who_lets_the_run_go_on_waives_what_stopped_it(site: Site) -> None:
    agent = await site.agent(cel("iterations < 1"))
    await agent.iterate(1)
    pause = (await agent.operator.state())["pause"]
    assert (pause["reason"], pause["message"]) == ("Constraint", "constraint mine: iterations < 1 is false")
    agent = await agent.resumed()
    assert await agent.standing() == [("custom.mine", "WARN_CONTINUE")]
    assert (await agent.ask()).status_code == 200
    budget = await agent.iterate(2)
    assert (budget["exhausted"], budget["warnings"]) == (None, ["constraint mine: iterations < 1 is false"])
    assert len(await agent.judged()) == 1


@pytest.mark.rule("C2", "C3")
async def test_what_is_graver_than_what_was_waived_stops_the_run_again(site: Site) -> None:
    agent = await site.agent(ResolvedConstraint(name="mine", entry_point="tightening"))
    await agent.iterate(1)
    assert await agent.standing() == [("custom.mine", "GRACEFUL_EXIT")]
    agent = await agent.resumed()
    assert (await agent.iterate(2))["exhausted"] is None
    assert (await agent.iterate(3))["exhausted"] == "so many: 3"
    pause = (await agent.operator.state())["pause"]
    assert (pause["reason"], pause["message"], pause["kill"]) == ("Constraint", "so many: 3", True)
    agent = await agent.resumed()
    assert (await agent.iterate(4))["exhausted"] is None, "that was waived as well"


@pytest.mark.rule("C3")
async def test_a_word_waives_what_was_shown_and_nothing_else(site: Site) -> None:
    other = ResolvedConstraint(name="other", cel="iterations < 1")
    agent = await site.agent(cel("iterations < 1"), other)
    await agent.iterate(1)
    assert (await agent.operator.state())["pause"]["constraint"] == "custom.mine"
    agent = await agent.resumed()
    assert await agent.standing() == [("custom.mine", "WARN_CONTINUE"), ("custom.other", "GRACEFUL_EXIT")]
    assert (await agent.ask()).status_code == 400
    pause = (await agent.operator.state())["pause"]
    assert (pause["constraint"], pause["message"]) == ("custom.other", "constraint other: iterations < 1 is false")
    agent = await agent.resumed()
    assert (await agent.ask()).status_code == 200


@pytest.mark.rule("C2", "C3")
async def test_an_emergency_that_was_waived_keeps_nobody_behind_it_from_being_asked(site: Site) -> None:
    first = ResolvedConstraint(name="first", cel="iterations < 1", on_violation="EmergencyStop")
    agent = await site.agent(first, cel("iterations < 2"))
    await agent.iterate(1)
    agent = await agent.resumed()
    await agent.iterate(2)
    assert await agent.standing() == [("custom.first", "WARN_CONTINUE"), ("custom.mine", "GRACEFUL_EXIT")]


@pytest.mark.rule("C2", "C3")
async def test_of_two_constraints_the_one_that_waits_for_nothing_is_told(site: Site) -> None:
    last = ResolvedConstraint(name="last", cel="iterations < 2", on_violation="EmergencyStop")
    agent = await site.agent(cel("iterations < 1"), last)
    await agent.iterate(1)
    await agent.iterate(2)
    pause = (await agent.operator.state())["pause"]
    assert (pause["constraint"], pause["kill"]) == ("custom.last", True)


@pytest.mark.rule("C3", "B3")
async def test_a_limit_that_is_raised_is_no_violation_any_more(site: Site) -> None:
    agent = await site.agent(effects_hard=1)
    await agent.post()
    refused(await agent.post(b"again"), 403, "BudgetExhausted")
    assert (await agent.operator.state())["pause"]["limit"] == "effects_hard"
    agent = await agent.resumed({"effects_hard": 2})
    assert await agent.standing() == []
    assert (await agent.post(b"again")).status_code == 201
    refused(await agent.post(b"and again"), 403, "BudgetExhausted")


@pytest.mark.rule("C2", "C3")
async def test_an_emergency_waits_for_no_safe_point(site: Site) -> None:
    agent = await site.agent(cel("toolCalls < 1", on_violation="EmergencyStop"))
    await agent.tool()
    assert (await agent.operator.state())["pause"] is None, "it was judged as the call was asked for"
    await agent.tool()
    assert (await agent.operator.state())["pause"]["kill"] is True


@pytest.mark.rule("C2", "C4")
async def test_an_entry_point_decides_for_itself_and_ends_the_evaluation(site: Site) -> None:
    paid = ResolvedConstraint(name="no-paid-effects", entry_point="paid")
    agent = await site.agent(paid, cel("effects < 1", on_violation="Warn"))
    await agent.ask()
    await agent.post()
    assert await agent.standing() == [("custom.no-paid-effects", "EMERGENCY_STOP")]
    (judged,) = await agent.judged()
    assert [v["constraint"] for v in judged["validations"]] == ["custom.no-paid-effects"], "nobody behind it was asked"


@pytest.mark.rule("C4")
async def test_an_entry_point_that_went_away_stops_what_was_admitted_with_it(site: Site) -> None:
    agent = await site.agent(ResolvedConstraint(name="mine", entry_point="gone"))
    answer = await agent.ask()
    assert answer.status_code == 400
    assert "no entry point gone" in answer.json()["error"]["message"]


@pytest.mark.rule("C1", "S1")
async def test_a_gateway_that_starts_again_judges_as_before(site: Site) -> None:
    agent = await site.agent(cel("iterations < 2"), effects_hard=1)
    await agent.post()
    await agent.iterate(1)
    site.gateway.restart()
    refused(await agent.post(b"again"), 403, "BudgetExhausted")
    await agent.iterate(2)
    assert await agent.standing() == [("effects", "GRACEFUL_EXIT"), ("custom.mine", "GRACEFUL_EXIT")]
