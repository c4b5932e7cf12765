"""What becomes of an effect whose answer is lost, late, cut or asked for again, and who may have it (E2, E3, E4)."""

import asyncio
from typing import Any

import httpx
import pytest
from tests.contract.test_gateway_egress import BODY, Agent, at_work, authority, gateway
from tests.gateway_script import ok, refused

from moorage.store.errors import StoreUnavailable
from moorage.store.sqlite import SqliteStore
from moorage.testing.authority import Authority, Cut

__all__ = ["at_work", "authority", "gateway"]  # fixtures
pytestmark = pytest.mark.timeout(120)


@pytest.mark.rule("E3", "E4", "E6")
@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
async def test_a_keyed_request_whose_answer_is_lost_is_sent_again_under_its_key(
    at_work: Agent, authority: Authority, cut: Cut
) -> None:
    authority.cuts = [cut, cut]
    assert (await at_work.post("keyed")).json() == {"number": 1}
    assert len(authority.log) == 3
    assert len({seen.headers["idempotency-key"] for seen in authority.log}) == 1
    assert (authority.committed, await at_work.effects()) == ([BODY], [("keyed", "confirmed")])


@pytest.mark.rule("E2", "E4", "E6")
@pytest.mark.parametrize("cut", [Cut.FAILS, Cut.AFTER])
async def test_an_agent_that_asks_again_for_a_keyed_request_nobody_knows_of_has_it_once(
    at_work: Agent, authority: Authority, cut: Cut
) -> None:
    authority.cuts = [cut] * 3
    assert (await at_work.post("keyed")).status_code in {503, 409}
    assert await at_work.effects() == [("keyed", "unknown")]
    assert (await at_work.post("keyed")).json() == {"number": 1}
    assert len({seen.headers["idempotency-key"] for seen in authority.log}) == 1
    assert (authority.committed, await at_work.effects()) == ([BODY], [("keyed", "confirmed")])
    assert (await at_work.post("keyed")).json() == {"number": 2}  # what is known is over, and this is one more


@pytest.mark.rule("E2", "E4")
async def test_a_keyed_request_whose_receipt_the_store_did_not_take_is_asked_again_under_its_key(
    at_work: Agent, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    object.__setattr__(at_work.gateway.deps.settings, "receipt_patience_ms", 0)
    at_work.gateway.restart()
    append, kinds = SqliteStore.append, []

    async def failing(self: SqliteStore, run_uid: str, epoch: int | None, drafts: Any, *more: Any, **named: Any) -> Any:
        kinds.append(drafts[0].type)
        if kinds.count("EFFECT_RECEIPT") == 1 and kinds[-1] == "EFFECT_RECEIPT":
            raise StoreUnavailable("the disk is full")
        return await append(self, run_uid, epoch, drafts, *more, **named)

    monkeypatch.setattr(SqliteStore, "append", failing)
    refused(await at_work.post("keyed"), 503, "StoreUnavailable")
    assert (await at_work.post("keyed")).json() == {"number": 1}
    assert len({seen.headers["idempotency-key"] for seen in authority.log}) == 1
    assert (len(authority.log), authority.committed) == (2, [BODY])


@pytest.mark.rule("E3", "E4", "I8")
@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
async def test_any_other_request_whose_answer_is_lost_is_unknown_and_not_sent_again(
    at_work: Agent, authority: Authority, cut: Cut
) -> None:
    authority.cuts = [cut]
    assert "leave it to a person" in refused(await at_work.post("plain"), 409, "EffectUnknown")
    assert await at_work.effects() == [("opaque", "unknown")]
    refused(await at_work.post("plain"), 409, "EffectUnknown")
    assert len(authority.log) == 1
    assert (await at_work.post("plain", b"another")).status_code == 201  # only this path is stopped


@pytest.mark.rule("E4")
@pytest.mark.parametrize(("said", "again"), [("rejected", 201), ("confirmed", 409)])
async def test_a_person_may_say_what_became_of_it(at_work: Agent, authority: Authority, said: str, again: int) -> None:
    authority.cuts = [Cut.AFTER]
    refused(await at_work.post("plain"), 409, "EffectUnknown")
    effect = (await at_work.operator.state())["effects"][0]["effect_id"]
    person = at_work.gateway.reader("ada", None)
    door = f"{at_work.operator.door}/resolve"
    await ok(await person.post(door, json={"effect": effect, "outcome": said}))
    assert await at_work.effects() == [("opaque", said)]
    assert (await at_work.post("plain")).status_code == again


@pytest.mark.rule("R2", "E2", "E3")
@pytest.mark.parametrize("host", ["keyed", "plain"])
async def test_the_next_attempt_gets_the_recorded_answers_of_what_was_done_since_the_last_safe_point(
    at_work: Agent, authority: Authority, host: str
) -> None:
    first = [(await at_work.post(host, body)).json() for body in (BODY, BODY, b"x")]
    assert first == [{"number": n} for n in (1, 2, 3)]
    at_work.gateway.restart()
    again = await at_work.recovered(2)
    assert [(await again.post(host, body)).json() for body in (BODY, b"x", BODY)] == [first[0], first[2], first[1]]
    assert len(authority.log) == 3
    assert (await again.post(host)).json() == {"number": 4}  # a third one is one more
    last = await again.recovered(3)
    assert [(await last.post(host)).json() for _ in range(3)] == [first[0], first[1], {"number": 4}]
    assert len(authority.log) == 4


@pytest.mark.rule("E2", "E3")
async def test_a_safe_point_lets_go_of_what_was_done_before(at_work: Agent, authority: Authority) -> None:
    await at_work.post("plain")
    point = {"epoch": 1, "iteration": 1, "changed": False, "recorded_at": 8}
    await ok(await at_work.http.post("/v1/self/checkpoint", json=point))
    again = await at_work.recovered(2)
    assert (await again.post("plain")).json() == {"number": 2}


@pytest.mark.rule("E2")
async def test_a_key_of_the_agents_own_is_one_call_for_the_whole_run_and_for_no_other_request(
    at_work: Agent, authority: Authority
) -> None:
    mine = {"idempotency-key": "order-7"}
    assert (await at_work.post("keyed", **mine)).json() == {"number": 1}
    point = {"epoch": 1, "iteration": 1, "changed": False, "recorded_at": 8}
    await ok(await at_work.http.post("/v1/self/checkpoint", json=point))
    answer = await at_work.post("keyed", **mine)
    assert (answer.json(), answer.headers["x-moorage-replayed"]) == ({"number": 1}, "true")
    refused(await at_work.post("keyed", b"other", **mine), 409, "KeyReused")
    assert len(authority.log) == 1
    assert authority.log[0].headers["idempotency-key"] != "order-7"


@pytest.mark.rule("I6")
async def test_calls_with_names_count_since_the_last_safe_point_and_in_all(
    at_work: Agent, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moorage.core.effects.calls.MAX_CALLS", 2)
    monkeypatch.setattr("moorage.core.effects.calls.MAX_NAMED", 3)

    async def order(name: str) -> httpx.Response:
        return await at_work.post("keyed", **{"idempotency-key": name})

    assert [(await order(name)).status_code for name in "ab"] == [201, 201]
    assert "since the last safe point" in refused(await order("c"), 403, "TooManyEffects")
    point = {"epoch": 1, "iteration": 1, "changed": False, "recorded_at": 8}
    await ok(await at_work.http.post("/v1/self/checkpoint", json=point))
    assert (await order("c")).status_code == 201
    assert "keys of the agent's own" in refused(await order("d"), 403, "TooManyEffects")
    assert (await order("a")).headers["x-moorage-replayed"] == "true"
    assert (await at_work.post("keyed")).status_code == 201
    assert len(authority.committed) == 4


async def test_a_refusal_is_known_not_to_have_happened_and_may_be_tried_again(
    at_work: Agent, authority: Authority
) -> None:
    authority.status = 422
    for host in ("keyed", "plain"):
        assert (await at_work.post(host)).status_code == 422
    assert await at_work.effects() == [("keyed", "rejected"), ("opaque", "rejected")]
    authority.status = None
    for host in ("keyed", "plain"):
        assert (await at_work.post(host)).status_code == 201


@pytest.mark.rule("E4")
async def test_a_server_that_fails_may_have_done_it(at_work: Agent, authority: Authority) -> None:
    authority.status = 500
    answer = await at_work.post("plain")
    assert (answer.status_code, answer.headers["x-moorage-effect"][:5]) == (500, "http-")
    assert (await at_work.post("keyed")).status_code == 500
    assert await at_work.effects() == [("opaque", "unknown"), ("keyed", "unknown")]
    assert len(authority.log) == 1 + 3


@pytest.mark.rule("E4", "I8")
async def test_what_is_under_way_is_settled_by_nobody_else(at_work: Agent, authority: Authority) -> None:
    authority.waits.clear()
    asked = asyncio.create_task(at_work.post("plain"))
    await authority.came.wait()
    refused(await at_work.post("plain"), 409, "EffectBusy")
    await ok(await at_work.operator.http.post(f"{at_work.operator.door}/deliver", json={"epoch": 1}))
    assert await at_work.effects() == [("opaque", "dispatched")]
    authority.waits.set()
    assert (await asked).status_code == 201
    assert await at_work.effects() == [("opaque", "confirmed")]


@pytest.mark.rule("E4")
async def test_what_another_gateway_left_open_is_unknown_as_soon_as_it_is_asked_for(
    at_work: Agent, authority: Authority
) -> None:
    authority.waits.clear()
    asked = asyncio.create_task(at_work.post("plain"))
    await authority.came.wait()
    at_work.gateway.restart()  # the next gateway knows of nothing that is under way
    refused(await at_work.post("plain"), 409, "EffectUnknown")
    assert await at_work.effects() == [("opaque", "unknown")]
    authority.waits.set()
    await asked
    assert len(authority.log) == 1


async def test_an_answer_without_a_body_is_an_answer(at_work: Agent, authority: Authority) -> None:
    authority.status = 204
    assert (await at_work.post("plain")).status_code == 204
    again = await at_work.recovered(2)
    answer = await again.post("plain")
    assert (answer.status_code, answer.content, len(authority.log)) == (204, b"", 1)


async def test_a_read_that_is_cut_is_cut_for_the_agent_and_one_that_is_long_is_not_kept(
    at_work: Agent, authority: Authority
) -> None:
    authority.cuts = [Cut.WITHIN]
    with pytest.raises(httpx.TransportError):
        await at_work.get("reads")
    (effect,) = (await at_work.operator.state())["effects"]
    assert (effect["status"], effect["detail"][:9]) == ("confirmed", "cut after")
    assert [ref for r in await at_work.operator.records() if r.effect_id for ref in r.blobs] == []


async def test_an_effect_whose_answer_is_cut_has_happened_and_is_not_sent_again(
    at_work: Agent, authority: Authority
) -> None:
    authority.cuts = [Cut.WITHIN]
    assert "look at the target" in refused(await at_work.post("plain"), 409, "EffectDone")
    refused(await at_work.post("plain"), 409, "EffectDone")
    assert (len(authority.log), await at_work.effects()) == (1, [("opaque", "confirmed")])


async def test_the_whole_answer_of_a_keyed_effect_is_asked_for_again(at_work: Agent, authority: Authority) -> None:
    authority.cuts = [Cut.WITHIN, Cut.BEFORE]
    assert (await at_work.post("keyed")).json() == {"number": 1}
    assert (len(authority.log), authority.committed) == (3, [BODY])
    authority.cuts = [Cut.WITHIN, Cut.BEFORE, Cut.BEFORE]
    refused(await at_work.post("keyed", b"other"), 409, "EffectDone")  # it is known to have happened all the same
    assert await at_work.effects() == [("keyed", "confirmed")] * 2
