"""A pause at the gateway's doors: who may ask for one, what the model door does meanwhile, and raised limits."""

import asyncio
from typing import Any

import pytest
from tests.gateway_script import Operator, beat, ok, refused, told
from tests.model_place import ANTHROPIC, CHAT, RESPONSES, Place, Spoken, gateway, last, place, script

from moorage.api.budget import ResolvedLimits
from moorage.core.run.state import PauseReason
from moorage.gateway.errors import Refusal
from moorage.gateway.orders import CANCEL, FENCED, PAUSE, TERMINAL
from moorage.gateway.pausing import Pauses
from moorage.testing.gateway import LocalGateway

__all__ = ["gateway", "place", "script"]

EVERY = pytest.mark.parametrize("spoken", [ANTHROPIC, RESPONSES, CHAT], ids=lambda each: each.name)
USED = 417  # tokens of each answer


async def paused(operator: Operator) -> None:
    await ok(await operator.report(1, "PAUSED", {"reason": "x", "message": ""}))


async def orders(place: Place, after: int = 0) -> dict[str, Any]:
    answer: dict[str, Any] = await ok(await place.client().get(f"/v1/self/orders?after={after}&heard=-1"))
    return answer


@EVERY
@pytest.mark.rule("C3", "B3")
async def test_who_asks_where_nothing_is_left_is_refused_and_brings_its_run_to_a_stop(place: Place, spoken: Spoken):
    operator = await place.run(spoken, limits=ResolvedLimits(tokens_hard=USED))
    waiting = asyncio.create_task(orders(place))
    assert (await place.ask(spoken)).status_code == 200
    assert (await operator.state())["pause"] is None
    for _ in range(2):
        answer = await place.ask(spoken)
        assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
        assert "BudgetExhausted" in answer.text
    record = await last(operator, "PAUSE_REQUESTED")
    assert record.payload["limit"] == "tokens_hard"
    assert (await operator.types()).count("PAUSE_REQUESTED") == 1
    order = await waiting
    assert (order["seq"], order["stop"], order["reason"]) == (PAUSE, "pause", "BudgetExhausted")
    assert order["grace_ms"] > 0


@pytest.mark.rule("R8", "Q5")
async def test_only_a_runner_that_knows_of_pauses_is_ordered_one(place: Place):
    operator = await place.run(ANTHROPIC)
    run = await place.gateway.gate.ledger.open("u1")
    await Pauses(place.gateway.gate).request(run, PauseReason.COMMAND, "x", by="ada")
    http, later = place.client(), {"pauses": True}
    assert (await ok(await http.post("/v1/self/heartbeat", json=beat())))["stop"] is None
    assert (await ok(await http.post("/v1/self/heartbeat", json=beat() | later)))["stop"] == "pause"
    assert (await orders(place))["stop"] == "pause"
    older = asyncio.create_task(http.get("/v1/self/orders?after=0"))
    await ok(await operator.report(1, "CANCEL_REQUESTED", {"reason": "user"}))
    assert (await ok(await older))["stop"] == "cancel", "it waited for an order that it knows"


@EVERY
@pytest.mark.rule("B3", "I4")
async def test_a_raised_limit_counts_at_the_model_door_at_once_and_in_the_next_assignment(place: Place, spoken: Spoken):
    operator = await place.run(spoken, limits=ResolvedLimits(tokens_hard=USED, max_iterations=3))
    assert (await place.ask(spoken)).status_code == 200
    raised = {"limits": {"tokens_hard": 2 * USED, "cost_hard_micros": 5}, "by": "spec"}
    await ok(await operator.report(1, "LIMITS_RAISED", raised))
    answer = await place.ask(spoken)
    assert answer.status_code == 200
    assert answer.headers["x-moorage-tokens-left"] == str(USED)
    assert (await place.ask(spoken)).status_code == 400
    await paused(operator)
    await ok(await operator.report(1, "RESUMED", {"reason": "x"}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    assignment = await ok(await place.client("p2").get("/v1/self"))
    limits = assignment["limits"]
    assert "it was paused, and goes on" in assignment["handoff"]
    assert (limits["tokens_hard"], limits["max_iterations"], limits["cost_hard_micros"]) == (2 * USED, 3, None)
    assert (await operator.state())["usage"]["output_tokens"] == 600


@pytest.mark.rule("Q5", "I5")
async def test_an_agent_that_knows_nothing_of_pauses_waits_for_its_model_until_it_is_stopped(place: Place):
    operator = await place.run(ANTHROPIC)
    run = await place.gateway.gate.ledger.open("u1")
    assert await Pauses(place.gateway.gate).request(run, PauseReason.COMMAND, "why", by="ada")
    held, ours = asyncio.create_task(place.ask(ANTHROPIC)), {"x-moorage-turn": "1"}
    older = asyncio.create_task(place.client().post(ANTHROPIC.path, json=ANTHROPIC.ask(), headers=ours))
    knows = {"x-moorage-pauses": "1"}
    native = await place.client().post(ANTHROPIC.path, json=ANTHROPIC.ask(), headers=ours | knows)
    assert (native.status_code, "RunPausing" in native.text) == (400, True)
    assert not held.done()
    await paused(operator)
    assert not held.done()
    await ok(await operator.report(1, "RESUMED", {"reason": "x"}))
    assert not held.done()
    await ok(await operator.fence(2))
    for answer in (await held, await older):
        assert (answer.status_code, "Fenced" in answer.text) == (400, True)
    assert place.model.bodies == []
    assert "MODEL_REQUEST" not in await operator.types()


@pytest.mark.rule("I6")
async def test_no_run_has_more_requests_wait_than_it_may(place: Place):
    operator = await place.run(ANTHROPIC)
    run = await place.gateway.gate.ledger.open("u1")
    await Pauses(place.gateway.gate).request(run, PauseReason.COMMAND, "why", by="ada")
    most = place.gateway.deps.settings.model_open
    asked = [asyncio.create_task(place.ask(ANTHROPIC)) for _ in range(most + 1)]
    done, held = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    (refusal,) = [each.result() for each in done]
    assert (refusal.status_code, "TooManyOpen" in refusal.text) == (429, True)
    assert len(held) == most
    await paused(operator)
    await ok(await operator.report(1, "RESUMED", {"reason": "x"}))
    await ok(await operator.fence(2))
    assert {(await each).status_code for each in held} == {400}, "all of them end, and with them their places"
    assert (await place.ask(ANTHROPIC)).status_code != 429


@pytest.mark.rule("T6", "Q5")
async def test_what_waits_for_an_answer_goes_on_by_that_alone(place: Place):
    operator = await place.run(ANTHROPIC)
    run = await place.gateway.gate.ledger.open("u1")
    question = {"key": "tool:1.0", "name": "shell", "before": "ToolCall", "subject": "bash", "reject_at": None}
    await ok(await operator.report(1, "APPROVAL_REQUESTED", question))
    pauses = Pauses(place.gateway.gate)
    assert await pauses.request(run, PauseReason.APPROVAL, "why", by="approvals")
    with pytest.raises(Refusal, match="approve or reject shell") as refusal:
        await pauses.resume(run, by="ada")
    assert refusal.value.reason == "Approval"
    assert await pauses.request(run, PauseReason.COMMAND, "stand", by="ada")
    await pauses.resume(run, by="ada")
    assert (await operator.state())["pause"]["reason"] == "Command"


@pytest.mark.rule("Q5")
async def test_what_is_asked_while_it_pauses_is_asked_once_it_may(place: Place):
    """A raise that comes before the stop: the run is paused all the same, and nobody's request is lost meanwhile."""
    operator = await place.run(ANTHROPIC)
    run = await place.gateway.gate.ledger.open("u1")
    pauses = Pauses(place.gateway.gate)
    await pauses.request(run, PauseReason.COMMAND, "why", by="ada")
    assert not await pauses.request(run, PauseReason.COMMAND, "again", by="bob")
    assert not await pauses.request(run, PauseReason.BUDGET, "too", by="limits")
    assert await pauses.request(run, PauseReason.COMMAND, "now", by="bob", kill=True)
    assert (await orders(place))["grace_ms"] == 0
    await pauses.resume(run, by="ada")
    await pauses.resume(run, by="ada")
    assert (await operator.types()).count("RESUME_REQUESTED") == 1
    assert (await operator.state())["pause"]["released"]


@pytest.mark.rule("S2", "I6")
async def test_only_what_works_is_paused_and_only_what_is_paused_goes_on(place: Place):
    operator = await place.run(ANTHROPIC)
    run, pauses = await place.gateway.gate.ledger.open("u1"), Pauses(place.gateway.gate)
    with pytest.raises(Refusal) as caught:
        await pauses.resume(run, by="ada")
    assert caught.value.reason == "NotPaused"
    refused(await operator.report(1, "PAUSED", {"reason": "x"}), 409, "IllegalMove")
    refused(await operator.report(1, "RESUMED", {"reason": "x"}), 409, "IllegalMove")
    await ok(await operator.report(1, "CANCEL_REQUESTED", {"reason": "user"}))
    with pytest.raises(Refusal) as caught:
        await pauses.request(run, PauseReason.COMMAND, "why", by="ada")
    assert caught.value.reason == "Cancelling"


@pytest.mark.rule("C3")
async def test_a_word_lets_no_run_go_on_whose_limit_is_used_up_or_that_is_suspended(place: Place):
    await place.run(ANTHROPIC, limits=ResolvedLimits(tokens_hard=USED))
    run, pauses = await place.gateway.gate.ledger.open("u1"), Pauses(place.gateway.gate)
    assert (await place.ask(ANTHROPIC)).status_code == 200
    assert (await place.ask(ANTHROPIC)).status_code == 400
    with pytest.raises(Refusal, match="kubectl patch ar fix") as caught:
        await pauses.resume(run, by="ada")
    assert caught.value.reason == "BudgetExhausted"


async def test_a_suspended_run_goes_on_by_its_spec_alone(place: Place):
    operator = await place.run(ANTHROPIC)
    asked = {"reason": "Suspended", "by": "spec", "message": "m", "limit": None, "kill": False}
    await ok(await operator.report(1, "PAUSE_REQUESTED", asked))
    run = await place.gateway.gate.ledger.open("u1")
    with pytest.raises(Refusal, match=r"spec\.suspend"):
        await Pauses(place.gateway.gate).resume(run, by="ada")


@pytest.mark.rule("I6", "S2")
async def test_a_runner_that_has_paused_begins_nothing_again_and_an_end_can_be_told_once(place: Place):
    operator = await place.run(ANTHROPIC)
    run = await place.gateway.gate.ledger.open("u1")
    await Pauses(place.gateway.gate).request(run, PauseReason.COMMAND, "why", by="ada")
    end = {"epoch": 1, "outcome": "paused", "reason": "Paused", "recorded_at": 9}
    await ok(await place.client().post("/v1/self/result", json=end))
    assert (await place.client().get("/v1/self")).status_code == 424
    await paused(operator)
    await ok(await place.client().post("/v1/self/records", json=told("AGENT_STARTED", {}, "2")))
    assert (await operator.state())["phase"] == "Paused"


@pytest.mark.rule("K1")
async def test_a_gateway_that_starts_anew_knows_of_the_pause(gateway: LocalGateway, place: Place):
    operator = await place.run(ANTHROPIC, limits=ResolvedLimits(tokens_hard=USED))
    assert (await place.ask(ANTHROPIC)).status_code == 200
    assert (await place.ask(ANTHROPIC)).status_code == 400
    gateway.restart()
    assert (await orders(place))["stop"] == "pause"
    assert (await place.ask(ANTHROPIC, max_tokens=7)).status_code == 400
    assert (await operator.types()).count("PAUSE_REQUESTED") == 1


def test_an_order_is_only_followed_by_a_graver_one():
    assert PAUSE < CANCEL < TERMINAL < FENCED
