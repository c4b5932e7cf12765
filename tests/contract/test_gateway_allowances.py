"""C5: what a namespace may take of models in a day and at once, at the model door."""

import asyncio
from typing import Any

import httpx
import pytest
from tests.contract.test_gateway_model import Provider, ask, asked, last, operator, provider
from tests.gateway_script import Operator, ok

from moorage.core.models.prices import Reserve
from moorage.gateway.allowances import DayExhausted
from moorage.gateway.facts import DAY_MS
from moorage.testing.clock import StepClock
from moorage.testing.gateway import LocalGateway

__all__ = ["operator", "provider"]  # fixtures
pytestmark = pytest.mark.rule("C5")
DOOR = "/v1/namespaces/team-a/allowance"
WORST = len(httpx.Request("POST", "http://x", json=ask()).content) + 2_048 + 100


async def allow(gateway: LocalGateway, **lines: int) -> dict[str, Any]:
    use: dict[str, Any] = await ok(await gateway.operator.put(DOOR, json=lines))
    return use


async def test_only_the_operator_tells_and_hears_what_was_taken(gateway: LocalGateway, operator: Operator) -> None:
    nothing = {"tokens": 0, "cost_micros": 0, "reserved_tokens": 0, "reserved_cost_micros": 0, "requests": 0}
    assert await allow(gateway, tokens=100_000, models=3) == nothing
    assert (await ok(await gateway.operator.get("/v1/allowances")))["namespaces"] == ["team-a"]
    for other in (gateway.sandbox("p1", "team-a"), gateway.reader("ann", "team-a")):
        assert (await other.put(DOOR, json={"tokens": 1})).status_code == 403
        assert (await other.get("/v1/allowances")).status_code == 403
    counted = gateway.deps.metrics.refusals.labels("allowance", "Forbidden")._value.get()
    assert counted == 2
    for wrong in ({"tokens": -1}, {"tokens": "many"}):
        answer = await gateway.operator.put(DOOR, json=wrong)
        assert (answer.status_code, answer.json()["reason"]) == (422, "Invalid")
    assert (await asked(gateway, ask())).status_code == 200
    assert await allow(gateway, tokens=100_000, models=3) == nothing | {"tokens": 10}
    await allow(gateway)
    assert (await ok(await gateway.operator.get("/v1/allowances")))["namespaces"] == []


async def test_who_finds_the_day_used_up_is_refused_and_paused_till_the_next_one(
    gateway: LocalGateway, provider: Provider, operator: Operator, clock: StepClock
) -> None:
    await allow(gateway, tokens=WORST + 5)
    assert (await asked(gateway, ask())).status_code == 200
    answer = await asked(gateway, ask())
    assert answer.status_code == 400, "clients ask again after most others"
    assert f"used 10 tokens of {WORST + 5} tokens of perDay.tokens today" in answer.json()["error"]["message"]
    assert answer.json()["error"]["message"].startswith("BudgetExhausted"), "by which drivers know that they may stop"
    assert len(provider.asked) == 1
    pause = last(await operator.records(), "PAUSE_REQUESTED").payload
    today = clock.now_ms() // DAY_MS
    assert {name: pause[name] for name in ("reason", "by", "limit", "most", "until")} == {
        "reason": "DayBudgetExhausted",
        "by": "contract",
        "limit": "perDay.tokens",
        "most": WORST + 5,
        "until": (today + 1) * DAY_MS,
    }
    assert (await gateway.deps.store.taken("team-a", today)).open_requests == 0
    await asked(gateway, ask(), **{"x-moorage-pauses": "1"})
    assert (await operator.types()).count("PAUSE_REQUESTED") == 1


async def test_a_raise_and_the_next_day_let_it_go_on(
    gateway: LocalGateway, operator: Operator, clock: StepClock
) -> None:
    await allow(gateway, tokens=WORST - 1)
    allowances = gateway.gate.allowances
    with pytest.raises(DayExhausted, match="this request alone may take"):
        async with allowances.taken("team-a", "r", Reserve(WORST - 100, 100)):
            pass
    await allow(gateway, tokens=WORST + 5)
    async with allowances.taken("team-a", "r1", Reserve(WORST - 100, 100)):
        pass
    await allowances.answered("r1", None)
    with pytest.raises(DayExhausted, match="goes on tomorrow"):
        async with allowances.taken("team-a", "r2", Reserve(WORST - 100, 100)):
            pass
    clock.advance(DAY_MS)
    async with allowances.taken("team-a", "r3", Reserve(WORST - 100, 100)):
        pass


async def test_a_provider_that_bills_nothing_takes_nothing(
    gateway: LocalGateway, provider: Provider, operator: Operator
) -> None:
    await allow(gateway, tokens=100_000, cost_micros=10)
    provider.status = 400
    assert (await asked(gateway, ask())).status_code == 400
    use = await allow(gateway, tokens=100_000, cost_micros=10)
    assert (use["tokens"], use["reserved_tokens"], use["requests"]) == (0, 0, 0)


async def test_no_more_requests_are_under_way_than_the_namespace_may_have(
    gateway: LocalGateway, provider: Provider, operator: Operator
) -> None:
    await allow(gateway, models=1)
    provider.gate.clear()
    first = asyncio.create_task(asked(gateway, ask(stream=True)))
    await provider.reached.wait()
    assert (await allow(gateway, models=1))["requests"] == 1
    second = asyncio.create_task(asked(gateway, ask(messages=[{"role": "user", "content": "more"}])))
    while not gateway.gate.allowances._bells:  # noqa: ASYNC110  it waits
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    assert len(provider.asked) == 1
    provider.gate.set()
    assert [(await each).status_code for each in (first, second)] == [200, 200]
    assert (await allow(gateway, models=1))["requests"] == 0
