"""A person says what became of an effect of unknown end: who may, what is kept of it, and that it is said once."""

from typing import Any

import pytest
from tests.gateway_script import Operator, agent_at_work, ok, refused, resolved

from moorage.core.journal.record import Assurance, Draft, RecordType, Source
from moorage.testing.gateway import LocalGateway

DOOR = "/v1/runs/u1/resolve"
EFFECT = "call-1234"


def fact(kind: RecordType, payload: dict[str, Any]) -> Draft:
    return Draft(
        record_id=f"{kind}:{payload['effect_id']}",
        type=kind,
        recorded_at=7,
        source=Source.GATEWAY,
        assurance=Assurance.OBSERVED,
        payload=payload,
    )


async def doubtful(gateway: LocalGateway, operator: Operator, *, ended: bool) -> None:
    """A run with an effect that was sent off, and whose receipt got lost."""
    await agent_at_work(gateway, operator)
    for effect in (EFFECT, "call-5678"):
        meant = {"effect_id": effect, "kind": "http", "key": effect, "level": "opaque", "target": "https://pay.example"}
        drafts = [
            fact(RecordType.EFFECT_INTENT, meant),
            fact(RecordType.EFFECT_DISPATCHED, {"effect_id": effect}),
            fact(RecordType.EFFECT_RECEIPT, {"effect_id": effect, "outcome": "unknown", "detail": "cut"}),
        ]
        await gateway.deps.store.append("u1", 1, drafts)
    gateway.restart()
    if ended:
        await ok(await operator.report(1, "RUN_FAILED", {"reason": "EffectUnknown", "message": ""}))


def saying(outcome: str, effect: str = EFFECT, **more: str) -> dict[str, str]:
    return {"effect": effect, "outcome": outcome, "note": "seen in the ledger", "user": "ada@example.com"} | more


async def status_of(operator: Operator, effect: str = EFFECT) -> str:
    return str(next(e["status"] for e in (await operator.state())["effects"] if e["effect_id"] == effect))


@pytest.mark.rule("E4", "I8")
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("outcome", ["confirmed", "rejected"])
async def test_what_a_person_says_is_kept_with_who_said_it(gateway, upstream, ended, outcome) -> None:
    operator = Operator(gateway, resolved(upstream))
    await doubtful(gateway, operator, ended=ended)
    person = gateway.reader("local", None)
    told = await ok(await person.post(DOOR, json=saying(outcome, "call-1")))
    assert told == {"effect_id": EFFECT, "outcome": outcome, "target": "https://pay.example"}
    assert await status_of(operator) == outcome
    record = (await operator.records())[-1]
    assert (record.type, record.assurance, record.actor) == ("EFFECT_RECONCILED", "reported", "ada@example.com")
    assert record.payload["detail"] == "resolved by ada@example.com: seen in the ledger"
    assert (record.payload["token_of"], record.payload["was"]) == ("local", "unknown")


async def test_the_same_again_adds_nothing_and_the_contrary_is_refused(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    await doubtful(gateway, operator, ended=True)
    person = gateway.reader("local", None)
    await ok(await person.post(DOOR, json=saying("confirmed")))
    length = len(await operator.records())
    await ok(await person.post(DOOR, json=saying("confirmed", note="again")))
    assert "never given up" in refused(await person.post(DOOR, json=saying("rejected")), 409, "EffectSettled")
    assert len(await operator.records()) == length
    assert await status_of(operator) == "confirmed"


async def test_only_an_effect_that_is_named_without_doubt_is_resolved(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    await doubtful(gateway, operator, ended=True)
    person = gateway.reader("local", None)
    for named in ("call-", "push-"):
        told = refused(await person.post(DOOR, json=saying("confirmed", named)), 404, "NotFound")
        assert "call-1234, call-5678" in told
    refused(await person.post(DOOR, json=saying("perhaps")), 422, "Invalid")


@pytest.mark.rule("I10")
async def test_others_may_not(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    await doubtful(gateway, operator, ended=False)
    body = saying("confirmed")
    refused(await gateway.reader("ann", "team-a").post(DOOR, json=body), 403, "Forbidden")
    refused(await gateway.reader("mallory", "team-b").post(DOOR, json=body), 404, "UnknownRun")
    refused(await gateway.sandbox("p1", "team-a").post(DOOR, json=body), 404, "UnknownRun")
    assert await status_of(operator) == "unknown"
