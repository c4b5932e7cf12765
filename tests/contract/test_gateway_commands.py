"""M2, M3: commands at the gateway's door: decided on the state, durable before the receipt, once, whatever dies."""

import asyncio
from typing import Any

import httpx
import pytest
from tests.gateway_script import (
    Operator,
    agent_at_work,
    checkpoint,
    ok,
    refused,
    resolved,
    result,
    told,
    work_done,
)

from moorage.api.wire import ResolvedAgent
from moorage.core.commands.command import KEPT_CLOSED, MOST_JOINED, MOST_OPEN
from moorage.core.journal.record import Assurance, Draft, RecordType, Source
from moorage.testing.gateway import LocalGateway

DOOR = "/v1/runs/u1/commands"
BUILTIN = ResolvedAgent(driver="builtin")


def command(kind: str = "Steer", name: str = "c1", **more: Any) -> dict[str, Any]:
    text = {"text": "use tabs"} if kind in {"Steer", "FollowUp"} else {}
    return {"command_id": name, "type": kind, "issuer": "ada", "authority": "test", **text, **more}


async def receipt(gateway: LocalGateway, kind: str = "Steer", name: str = "c1", **more: Any) -> Any:
    return await ok(await gateway.operator.post(DOOR, json=command(kind, name, **more)))


async def working(gateway: LocalGateway, upstream: Any, **changes: Any) -> tuple[Operator, httpx.AsyncClient]:
    operator = Operator(gateway, resolved(upstream, agent=BUILTIN, **changes))
    return operator, await agent_at_work(gateway, operator)


async def waiting(runner: httpx.AsyncClient) -> list[str]:
    return [each["text"] for each in (await ok(await runner.get("/v1/self/messages")))["messages"]]


def delivered(name: str = "c1", epoch: int = 1) -> dict[str, Any]:
    return told("COMMAND_DELIVERED", {"command_id": name, "iteration": 2}, name, epoch)


@pytest.mark.rule("M2", "O8")
async def test_an_accepted_command_is_in_the_journal_with_its_issuer_before_its_receipt(gateway, upstream) -> None:
    operator, _ = await working(gateway, upstream)
    got = await receipt(gateway, surface="kubectl", input_source="kubernetes")
    record = (await operator.records())[-1]
    assert (got["state"], got["offset"], got["issuer"]) == ("Accepted", record.seq, "ada")
    assert (record.type, record.command_id, record.actor, record.surface_id) == (
        "COMMAND_ACCEPTED",
        "c1",
        "ada",
        "kubectl",
    )
    assert (record.payload["authority"], record.payload["input_source"]) == ("test", "kubernetes")
    assert "use tabs" not in str(record)
    assert record.attachments["text"].retention == "erasable"


@pytest.mark.rule("M2")
async def test_the_same_id_gets_the_same_receipt_also_from_a_gateway_that_was_restarted(gateway, upstream) -> None:
    operator, _ = await working(gateway, upstream)
    first = await receipt(gateway)
    length = len(await operator.records())
    assert await receipt(gateway) == first
    gateway.restart()
    assert await receipt(gateway) == first
    assert len(await operator.records()) == length


@pytest.mark.rule("M2")
@pytest.mark.parametrize("other", [{"text": "use spaces"}, {"type": "FollowUp"}, {"issuer": "bob"}])
async def test_the_same_id_with_another_content_is_refused(gateway, upstream, other) -> None:
    operator, _ = await working(gateway, upstream)
    await receipt(gateway)
    length = len(await operator.records())
    refused(await gateway.operator.post(DOOR, json=command() | other), 409, "CommandIdTaken")
    assert len(await operator.records()) == length


@pytest.mark.rule("M2", "R8")
@pytest.mark.parametrize("way", [{"authority": "another"}, {"surface": "kubectl"}, {"input_source": "RunCommand"}])
async def test_the_same_that_comes_in_another_way_is_the_same(gateway, upstream, way) -> None:
    operator, _ = await working(gateway, upstream)
    first = await receipt(gateway)
    assert await receipt(gateway, **way) == first
    assert (await operator.types()).count("COMMAND_ACCEPTED") == 1


@pytest.mark.rule("M2")
async def test_ten_at_once_are_one(gateway, upstream) -> None:
    operator, _ = await working(gateway, upstream)
    receipts = await asyncio.gather(*(receipt(gateway) for _ in range(10)))
    assert all(each == receipts[0] for each in receipts)
    assert (await operator.types()).count("COMMAND_ACCEPTED") == 1


@pytest.mark.rule("M2")
@pytest.mark.parametrize("kind", ["Approve", "Reject"])
async def test_nothing_is_approved_where_nothing_waits_for_it_and_that_receipt_stays(gateway, upstream, kind) -> None:
    await working(gateway, upstream)
    got = await receipt(gateway, kind, approval="push")
    assert (got["state"], got["reason"]) == ("Rejected", "NothingToApprove")
    gateway.restart()
    assert await receipt(gateway, kind, approval="push") == got


@pytest.mark.rule("M2")
async def test_what_a_driver_cannot_do_is_rejected_by_name(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    await agent_at_work(gateway, operator)
    for kind, reason in [
        ("Steer", "DriverCannotSteer"),
        ("FollowUp", "DriverCannotFollowUp"),
        ("Checkpoint", "NoSafePoint"),
    ]:
        got = await receipt(gateway, kind, kind)
        assert (got["state"], got["reason"]) == ("Rejected", reason)


@pytest.mark.rule("M2")
async def test_what_comes_after_the_end_is_late_and_adds_nothing(gateway, upstream) -> None:
    operator, _ = await working(gateway, upstream)
    await ok(await operator.report(1, "RUN_FAILED", {"reason": "X", "message": ""}))
    length = len(await operator.records())
    for kind in ("Steer", "FollowUp", "Pause", "Resume", "Checkpoint", "Cancel"):
        got = await receipt(gateway, kind, kind)
        assert (got["state"], got["reason"], got["offset"]) == ("Rejected", "RunEnded", None)
        assert await receipt(gateway, kind, kind) == got
    await ok(await gateway.operator.post("/v1/runs/u1/release"))
    assert (await receipt(gateway))["reason"] == "RunEnded"
    assert (await operator.types())[length:] == ["TOMBSTONE"]


@pytest.mark.rule("M2")
async def test_who_has_seen_more_than_the_journal_holds_is_told_so(gateway, upstream) -> None:
    operator, _ = await working(gateway, upstream)
    head = (await operator.state())["offset"]
    assert (await receipt(gateway, name="ahead", observed_offset=head + 1))["reason"] == "OffsetUnknown"
    assert (await receipt(gateway, name="there", observed_offset=head))["state"] == "Accepted"


async def test_an_agent_that_has_stopped_for_good_hears_nothing_more(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream, agent=BUILTIN))
    await work_done(gateway, operator, tmp_path)
    assert (await receipt(gateway))["reason"] == "AgentFinished"


@pytest.mark.rule("I10")
async def test_only_the_operator_passes_commands_on(gateway, upstream) -> None:
    _, runner = await working(gateway, upstream)
    refused(await runner.post(DOOR, json=command()), 403, "Forbidden")
    refused(await gateway.reader("ann", "team-a").post(DOOR, json=command()), 403, "Forbidden")
    refused(await gateway.operator.post("/v1/runs/u9/commands", json=command()), 404, "UnknownRun")


@pytest.mark.rule("M3")
async def test_a_message_waits_until_it_is_delivered_and_is_delivered_once(gateway, upstream) -> None:
    operator, runner = await working(gateway, upstream)
    await receipt(gateway, "Steer", "c1")
    await receipt(gateway, "FollowUp", "c2", text="then the docs")
    assert await waiting(runner) == ["use tabs", "then the docs"]
    for _ in range(2):
        await ok(await runner.post("/v1/self/records", json=delivered("c1")))
    assert await waiting(runner) == ["then the docs"]
    assert (await receipt(gateway, "Steer", "c1"))["state"] == "Delivered"
    assert (await operator.types()).count("COMMAND_DELIVERED") == 1


@pytest.mark.rule("M3", "R4")
async def test_after_a_recovery_what_waits_is_delivered_and_what_was_delivered_is_in_the_handoff(
    gateway, upstream
) -> None:
    operator, runner = await working(gateway, upstream)
    await receipt(gateway, "Steer", "c1", text="use tabs")
    await receipt(gateway, "Steer", "c2", text="and short lines")
    await ok(await runner.post("/v1/self/records", json=delivered("c1")))
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "NodeLost"}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    second = gateway.sandbox("p2", "team-a")
    assert "use tabs" in (handoff := (await ok(await second.get("/v1/self")))["handoff"])
    assert "and short lines" not in handoff
    assert await waiting(second) == ["and short lines"]
    refused(await runner.get("/v1/self/messages"), 409, "Fenced")
    refused(await runner.post("/v1/self/records", json=delivered("c2")), 409, "Fenced")


@pytest.mark.rule("M3")
async def test_a_runner_hears_of_a_message_at_once(gateway, upstream) -> None:
    _, runner = await working(gateway, upstream)
    poll = asyncio.create_task(runner.get("/v1/self/orders?after=0&heard=-1"))
    await asyncio.sleep(0)
    got = await receipt(gateway)
    orders = await ok(await poll)
    assert (orders["seq"], orders["stop"], orders["waiting"]) == (0, None, got["offset"])


async def test_what_nobody_took_before_the_end_is_told_as_expired(gateway, upstream) -> None:
    operator, runner = await working(gateway, upstream)
    await receipt(gateway)
    await ok(await runner.post("/v1/self/result", json=result(None, outcome="failed", reason="ModelDeclined")))
    await ok(await operator.report(1, "RUN_FAILED", {"reason": "ModelDeclined", "message": ""}))
    got = await receipt(gateway)
    assert (got["state"], got["reason"]) == ("Expired", "RunEnded")


async def test_a_checkpoint_is_done_with_the_next_safe_point(gateway, upstream) -> None:
    _, runner = await working(gateway, upstream)
    assert (await receipt(gateway, "Checkpoint"))["state"] == "Accepted"
    await ok(await runner.post("/v1/self/checkpoint", json=checkpoint(1, None)))
    got = await receipt(gateway, "Checkpoint")
    assert (got["state"], got["reason"], got["message"]) == ("Done", "SafePoint", "iteration 1")


@pytest.mark.rule("X1", "X3")
async def test_a_cancel_begins_with_its_acceptance_and_is_done_with_the_run(gateway, upstream) -> None:
    operator, runner = await working(gateway, upstream)
    assert (await receipt(gateway, "Cancel", "c1"))["state"] == "Accepted"
    assert (await operator.types())[-2:] == ["COMMAND_ACCEPTED", "CANCEL_REQUESTED"]
    assert (await receipt(gateway, "Cancel", "c2"))["state"] == "Accepted"
    assert (await operator.types()).count("CANCEL_REQUESTED") == 1
    assert (await ok(await runner.get("/v1/self/orders?after=0")))["stop"] == "cancel"
    assert (await receipt(gateway, "Steer", "c3"))["reason"] == "Cancelling"
    await ok(await operator.report(1, "RUN_CANCELLED", {"reason": "Cancelled", "message": ""}))
    assert [(await receipt(gateway, "Cancel", name))["state"] for name in ("c1", "c2")] == ["Done", "Done"]


def fact(kind: RecordType, payload: dict[str, Any]) -> Draft:
    return Draft(
        record_id=f"{kind}:{payload['effect_id']}",
        type=kind,
        recorded_at=7,
        source=Source.GATEWAY,
        assurance=Assurance.OBSERVED,
        payload=payload,
    )


async def doubtful(gateway: LocalGateway) -> None:
    meant = {"effect_id": "call-1234", "kind": "http", "key": "k", "level": "opaque", "target": "https://pay.example"}
    cut = {"effect_id": "call-1234", "outcome": "unknown", "detail": "cut"}
    drafts = [fact(RecordType.EFFECT_INTENT, meant), fact(RecordType.EFFECT_RECEIPT, cut)]
    await gateway.deps.store.append("u1", 1, drafts)
    gateway.restart()


@pytest.mark.rule("M2", "O8")
async def test_a_service_account_of_the_longest_name_may_ask_anything(gateway, upstream) -> None:
    operator, _ = await working(gateway, upstream)
    await doubtful(gateway)
    name = f"system:serviceaccount:{'n' * 63}:{'a' * 253}"
    assert (await receipt(gateway, "Pause", "p1", issuer=name))["issuer"] == name
    asked = {"effect": "call-1", "outcome": "confirmed", "issuer": name}
    assert (await receipt(gateway, "Resolve", "e1", **asked))["state"] == "Done"
    assert (await operator.records())[-1].actor == name


@pytest.mark.rule("E4")
@pytest.mark.parametrize("ended", [False, True])
async def test_an_effect_is_resolved_by_a_command_too(gateway, upstream, ended) -> None:
    operator, _ = await working(gateway, upstream)
    await doubtful(gateway)
    if ended:
        await ok(await operator.report(1, "RUN_FAILED", {"reason": "EffectUnknown", "message": ""}))
    asked = {"effect": "call-1", "outcome": "confirmed", "note": "seen"}
    assert (await receipt(gateway, "Resolve", **asked))["state"] == "Done"
    record = (await operator.records())[-1]
    assert (record.type, record.actor, record.payload["detail"]) == (
        "EFFECT_RECONCILED",
        "ada",
        "resolved by ada: seen",
    )
    assert (await receipt(gateway, "Resolve", **asked))["reason"] == "Resolved"
    assert (await receipt(gateway, "Resolve", "c2", **asked))["reason"] == "AlreadySettled"
    contrary = await receipt(gateway, "Resolve", "c3", effect="call-1", outcome="rejected")
    assert (contrary["state"], contrary["reason"]) == ("Rejected", "EffectSettled")
    unknown = await receipt(gateway, "Resolve", "c4", effect="call-9", outcome="rejected")
    assert (unknown["state"], unknown["reason"]) == ("Rejected", "NotFound")


async def test_more_than_a_run_can_hold_is_told_to_ask_again(gateway, upstream) -> None:
    _, runner = await working(gateway, upstream)
    for n in range(32):
        await receipt(gateway, name=f"c{n}")
    refused(await gateway.operator.post(DOOR, json=command(name="c32")), 503, "TooManyCommands")
    await ok(await runner.post("/v1/self/records", json=delivered("c0")))
    assert (await receipt(gateway, name="c32"))["state"] == "Accepted"


@pytest.mark.rule("M2", "X1")
async def test_messages_that_wait_keep_nobody_from_stopping_the_run(gateway, upstream) -> None:
    operator, _ = await working(gateway, upstream)
    for n in range(32):
        await receipt(gateway, name=f"c{n}")
    refused(await gateway.operator.post(DOOR, json=command("FollowUp", name="c32")), 503, "TooManyCommands")
    key = {"key": "tool:1.0", "name": "shell", "before": "ToolCall", "subject": "bash", "reject_at": None}
    await ok(await operator.report(1, "APPROVAL_REQUESTED", key))
    answers = [await receipt(gateway, "Approve", "approve", approval="shell")]
    answers += [await receipt(gateway, kind, kind) for kind in ("Pause", "Resume", "Cancel")]
    assert [each["state"] for each in answers] == ["Done", "Accepted", "Accepted", "Accepted"]


async def asks(operator: Operator, key: str, name: str = "shop", before: str = "Egress") -> int:
    """A question of the run's; the offset of its record."""
    said = {"key": key, "name": name, "before": before, "subject": f"about {key}", "reject_at": None}
    await ok(await operator.report(1, "APPROVAL_REQUESTED", said, key))
    return (await operator.records())[-1].seq


@pytest.mark.rule("M2", "T6")
async def test_an_answer_names_the_question_that_it_is_for(gateway, upstream) -> None:
    operator, _ = await working(gateway, upstream)
    first, second = await asks(operator, "host:a"), await asks(operator, "host:b")
    unclear = await receipt(gateway, "Approve", "a1", approval="shop")
    assert (unclear["state"], unclear["reason"]) == ("Rejected", "QuestionUnclear")
    unseen = await receipt(gateway, "Approve", "a2", approval="shop", question="host:b", observed_offset=first)
    assert (unseen["state"], unseen["reason"]) == ("Rejected", "QuestionChanged")
    told = await receipt(gateway, "Reject", "a3", approval="shop", question="host:b", observed_offset=second)
    assert (told["state"], told["reason"], told["message"]) == ("Done", "Refused", "host:b: about host:b")
    assert await receipt(gateway, "Reject", "a3", approval="shop", question="host:b", observed_offset=second) == told
    late = await receipt(gateway, "Approve", "a4", approval="shop", question="host:b")
    assert (late["state"], late["reason"]) == ("Rejected", "QuestionChanged")
    assert (await receipt(gateway, "Approve", "a5", approval="shop"))["message"] == "host:a: about host:a"
    answers = [each.payload for each in await operator.records() if each.type == "APPROVAL_DECIDED"]
    assert [(each["key"], each["outcome"]) for each in answers] == [("host:b", "rejected"), ("host:a", "approved")]


async def test_a_receipt_that_the_state_has_forgotten_is_found_in_the_journal(gateway, upstream) -> None:
    operator, runner = await working(gateway, upstream)
    for n in range(40):
        await receipt(gateway, name=f"c{n}")
        await ok(await runner.post("/v1/self/records", json=delivered(f"c{n}")))
    assert all(each["command_id"] != "c0" for each in (await operator.state())["commands"])
    got = await receipt(gateway, name="c0")
    assert (got["state"], got["offset"]) == ("Delivered", (await operator.types()).index("COMMAND_ACCEPTED"))
    refused(await gateway.operator.post(DOOR, json=command(name="c0", text="other")), 409, "CommandIdTaken")
    assert await waiting(runner) == []


async def forgotten(gateway: LocalGateway, runner: httpx.AsyncClient) -> None:
    """So many closed ones that the state keeps none of those before."""
    for n in range(33):
        await receipt(gateway, name=f"c{n}")
        await ok(await runner.post("/v1/self/records", json=delivered(f"c{n}")))


@pytest.mark.rule("M2")
async def test_a_forgotten_command_that_is_asked_again_is_not_done_again(gateway, upstream) -> None:
    operator, runner = await working(gateway, upstream)
    question = {"name": "shell", "before": "ToolCall", "subject": "bash", "reject_at": None}
    await ok(await operator.report(1, "APPROVAL_REQUESTED", question | {"key": "tool:1.0"}, "1"))
    first = await receipt(gateway, "Approve", "a1", approval="shell")
    late = await receipt(gateway, "Approve", "a2", approval="shell")
    await forgotten(gateway, runner)
    await ok(await operator.report(1, "APPROVAL_REQUESTED", question | {"key": "tool:1.1"}, "2"))
    length = len(await operator.records())
    for authority in ("test", "another"):
        assert await receipt(gateway, "Approve", "a1", approval="shell", authority=authority) == first
        assert await receipt(gateway, "Approve", "a2", approval="shell", authority=authority) == late
    refused(await gateway.operator.post(DOOR, json=command("Reject", "a1", approval="shell")), 409, "CommandIdTaken")
    assert [each["status"] for each in (await operator.state())["consents"]] == ["approved", "pending"]
    assert len(await operator.records()) == length


@pytest.mark.rule("M2", "I6")
async def test_a_forgotten_receipt_outlives_its_run(gateway, upstream) -> None:
    operator, runner = await working(gateway, upstream)
    first = await receipt(gateway, "Resume", "r1")
    await forgotten(gateway, runner)
    await ok(await operator.report(1, "RUN_FAILED", {"reason": "X", "message": ""}))
    assert (first["state"], first["reason"]) == ("Rejected", "NotPaused")
    assert await receipt(gateway, "Resume", "r1") == first
    assert (await receipt(gateway, "Resume", "r2"))["reason"] == "RunEnded"


async def paused(operator: Operator) -> None:
    """As the operator ends a pause: nothing stands any more."""
    await ok(
        await operator.report(1, "PAUSED", {"reason": "Command", "message": ""}, str(len(await operator.records())))
    )


@pytest.mark.rule("M2", "Q5")
async def test_a_run_is_paused_and_goes_on_by_commands(gateway, upstream) -> None:
    operator, runner = await working(gateway, upstream)
    assert (await receipt(gateway, "Resume", "r0"))["reason"] == "NotPaused"
    assert (await receipt(gateway, "Pause", "p1"))["state"] == "Accepted"
    assert (await operator.types())[-2:] == ["COMMAND_ACCEPTED", "PAUSE_REQUESTED"]
    assert (await ok(await runner.get("/v1/self/orders?after=0&heard=-1")))["stop"] == "pause"
    await paused(operator)
    assert (await receipt(gateway, "Pause", "p1"))["state"] == "Done"
    again = await receipt(gateway, "Pause", "p2")
    assert (again["state"], again["reason"]) == ("Done", "AlreadyPaused")
    assert (await receipt(gateway, "Steer", "s1"))["state"] == "Accepted"
    assert (await receipt(gateway, "Checkpoint", "k1"))["state"] == "Done"
    assert (await receipt(gateway, "Resume", "r1"))["state"] == "Accepted"
    await ok(await operator.report(1, "RESUMED", {"reason": "Command"}))
    assert (await receipt(gateway, "Resume", "r1"))["state"] == "Done"
    assert (await receipt(gateway, "Resume", "r2"))["reason"] == "NotPaused"


@pytest.mark.rule("Q5")
async def test_what_the_spec_holds_no_command_lets_go_on(gateway, upstream) -> None:
    operator, _ = await working(gateway, upstream)
    asked = {"reason": "Suspended", "by": "spec", "message": ""}
    await ok(await operator.report(1, "PAUSE_REQUESTED", asked))
    await paused(operator)
    held = await receipt(gateway, "Resume", "r1")
    assert (held["state"], held["reason"]) == ("Rejected", "Suspended")
    assert (await receipt(gateway, "Pause", "p1"))["reason"] == "AlreadyPaused"  # and holds from now on
    assert (await receipt(gateway, "Resume", "r2"))["state"] == "Accepted"


async def test_an_agent_that_is_done_before_its_safe_point_is_not_paused(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream, agent=BUILTIN))
    runner = await agent_at_work(gateway, operator)
    await receipt(gateway, "Pause", "p1")
    await ok(await runner.post("/v1/self/result", json=result(None)))
    got = await receipt(gateway, "Pause", "p1")
    assert (got["state"], got["reason"]) == ("Expired", "AgentFinished")
    assert (await operator.state())["pause"] is None
    assert (await receipt(gateway, "Pause", "p2"))["reason"] == "AgentFinished"


async def test_who_takes_a_pause_back_that_comes_to_nothing_is_told_so(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream, agent=BUILTIN))
    runner = await agent_at_work(gateway, operator)
    await receipt(gateway, "Pause", "p1")
    assert (await receipt(gateway, "Resume", "r1"))["state"] == "Accepted"
    await ok(await runner.post("/v1/self/result", json=result(None)))
    got = await receipt(gateway, "Resume", "r1")
    assert (got["state"], got["reason"]) == ("Done", "AgentFinished")


@pytest.mark.rule("M2", "Q5")
async def test_who_pauses_a_program_without_safe_points_is_told_that_it_begins_anew(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    told = await receipt(gateway, "Pause", "p1")
    assert (told["state"], "begins anew" in told["message"]) == ("Accepted", True)
    await ok(await runner.post("/v1/self/checkpoint", json=checkpoint(1, None)))
    assert (await receipt(gateway, "Pause", "p2"))["message"] == ""


def known_to(state: Any) -> set[str]:
    return {each["command_id"] for each in state["commands"]}


@pytest.mark.rule("M2", "Q5")
async def test_another_pause_joins_the_open_one_takes_no_room_and_ends_as_that_does(gateway, upstream) -> None:
    operator, _ = await working(gateway, upstream)
    names = [f"p{n}" for n in range(MOST_OPEN + 2)]
    first, *others = [await receipt(gateway, "Pause", name) for name in names]
    assert {each["state"] for each in (first, *others)} == {"Accepted"}
    assert (await operator.types()).count("PAUSE_REQUESTED") == 1
    accepted = [each.payload.get("joins") for each in await operator.records() if each.type == "COMMAND_ACCEPTED"]
    assert accepted == [None, *(["p0"] * len(others))]
    assert (await receipt(gateway, "Resume", "r1"))["state"] == "Accepted"
    again = await receipt(gateway, "Pause", "again")  # the run was to go on: this asks for something new
    assert (again["state"], (await operator.types()).count("PAUSE_REQUESTED")) == ("Accepted", 2)
    await paused(operator)
    for name, before in zip(names, (first, *others), strict=True):  # more of them than are kept of those before
        after = await receipt(gateway, "Pause", name)
        assert (after["state"], after["reason"], after["offset"]) == ("Done", "Pause", before["offset"])
    for n in range(KEPT_CLOSED - 2):
        assert (await receipt(gateway, "Approve", f"a{n}", approval="push"))["state"] == "Rejected"
    assert known_to(await operator.state()) >= {"p0"}
    assert "p1" not in known_to(await operator.state())
    forgotten = await receipt(gateway, "Pause", "p1")
    assert (forgotten["state"], forgotten["reason"], forgotten["offset"]) == ("Done", "Pause", others[0]["offset"])
    assert len({each["offset"] for each in (first, *others)}) == len(names)


@pytest.mark.rule("M2", "X3")
async def test_another_cancel_takes_no_room_and_there_is_an_end_of_that_too(gateway, upstream) -> None:
    operator, _ = await working(gateway, upstream)
    for n in range(MOST_JOINED + 1):
        assert (await receipt(gateway, "Cancel", f"c{n}"))["state"] == "Accepted"
    refused(await gateway.operator.post(DOOR, json=command("Cancel", name="more")), 503, "TooManyCommands")
    assert (await operator.types()).count("CANCEL_REQUESTED") == 1


@pytest.mark.rule("M2")
async def test_all_that_the_end_of_a_run_closes_is_told_so_however_many_they_are(gateway, upstream) -> None:
    operator, _ = await working(gateway, upstream)
    asked = [(kind, f"{kind}{n}") for kind in ("Steer", "Pause") for n in range(MOST_OPEN)]
    for kind, name in asked:
        assert (await receipt(gateway, kind, name))["state"] == "Accepted"
    await ok(await operator.report(1, "RUN_FAILED", {"reason": "X", "message": ""}))
    told = [await receipt(gateway, kind, name) for kind, name in asked]
    assert {(each["state"], each["reason"]) for each in told} == {("Expired", "RunEnded")}
