"""The operator's and the sandboxes' doors over every store: who may come, what may be said, what holds after an end."""

import asyncio

import pytest
from tests.gateway_script import (
    BRANCH,
    PASSWORD,
    Operator,
    agent_at_work,
    beat,
    checkpoint,
    commit,
    ok,
    push,
    refused,
    resolved,
    result,
    told,
    work_done,
    worktree,
)

from moorage.api.wire import Admission, FenceRequest
from moorage.core.run.view import RUN_VIEW
from moorage.gateway.gate import Gate
from moorage.gateway.housekeeping import Housekeeping
from moorage.gateway.orders import CANCEL
from moorage.store.errors import StoreUnavailable
from moorage.store.memory import MemoryStore
from moorage.testing.gateway import LocalGateway
from moorage.workspace.mirror import MirrorKey

# --- identity and ownership -------------------------------------------------------------------------------------------


@pytest.mark.rule("O6")
async def test_a_run_is_admitted_once_and_with_one_spec(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    first = await operator.admit()
    gateway.restart()
    assert (await operator.admit())["state"] == first["state"]
    changed = resolved(upstream, goal="something else")
    answer = await gateway.operator.put("/v1/runs/u1", content=changed.model_dump_json())
    refused(answer, 409, "SpecConflict")
    assert await operator.types() == ["RUN_ADMITTED"]
    view = RUN_VIEW.validate_python(await operator.view())
    assert view.spec == operator.spec


@pytest.mark.rule("F1", "F2", "F3")
async def test_admission_brings_the_first_fence_in_one_step_and_never_lowers_it(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))

    async def admit(epoch: int):
        fence = FenceRequest(epoch=epoch, attempt=1, holder="h")
        body = Admission(**operator.spec.model_dump(), fence=fence)
        return await gateway.operator.put("/v1/runs/u1", content=body.model_dump_json())

    first = await ok(await admit(1))
    assert (first["state"]["phase"], first["state"]["epoch"]) == ("Provisioning", 1)
    gateway.restart()
    assert (await ok(await admit(1)))["state"] == first["state"]
    assert await operator.types() == ["RUN_ADMITTED", "EPOCH_RAISED"]
    assert RUN_VIEW.validate_python(await operator.view()).spec == operator.spec
    assert (await ok(await admit(3)))["state"]["epoch"] == 3
    refused(await admit(2), 409, "Fenced")
    assert (await operator.state())["epoch"] == 3


@pytest.mark.rule("F2")
async def test_a_pod_that_nobody_registered_is_told_to_ask_again(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    await operator.admit()
    await ok(await operator.fence(1))
    early = gateway.sandbox("p1", "team-a")
    refused(await early.get("/v1/self"), 425, "NotRegistered")
    refused(await early.post("/v1/self/heartbeat", json={}), 425, "NotRegistered")
    await operator.register("p1", 1)
    gateway.restart()
    assert (await ok(await early.get("/v1/self")))["epoch"] == 1


@pytest.mark.rule("F3")
async def test_an_older_epoch_is_refused_at_every_door_and_the_journal_says_so(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    old = await operator.start()
    await ok(await old.get("/v1/self"))
    tree = await worktree(gateway, tmp_path, "p1")
    head = await asyncio.to_thread(commit, tree, "late.txt", "late\n")
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "OwnerLost"}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    doors = {
        "self": old.get("/v1/self"),
        "records": old.post("/v1/self/records", json=told("AGENT_STARTED", {})),
        "checkpoint": old.post("/v1/self/checkpoint", json=checkpoint(1, head)),
        "result": old.post("/v1/self/result", json=result(head)),
    }
    for call in doors.values():
        refused(await call, 409, "Fenced")
    with pytest.raises(AssertionError, match="409"):
        await push(tree, f"HEAD:refs/heads/{BRANCH}")
    assert (await ok(await old.get("/v1/self/orders?after=0")))["stop"] == "fenced"
    assert (await ok(await old.post("/v1/self/heartbeat", json=beat())))["stop"] == "fenced"
    refused(await operator.fence(1), 409, "Fenced")
    refused(await operator.deliver(1, head), 409, "Fenced")
    refused(await operator.report(1, "RUN_FAILED", {"reason": "x"}), 409, "Fenced")
    refused(await operator.report(3, "RUN_FAILED", {"reason": "x"}), 409, "EpochAhead")
    told_of = {r.payload["door"] for r in await operator.records() if r.type == "FENCE_REFUSED"}
    assert told_of >= {*doors, "git", "orders", "fence", "deliver", "operator-records"}
    assert all(r.epoch == 2 and r.source == "gateway" for r in await operator.records() if r.type == "FENCE_REFUSED")
    metrics = (await gateway.client(None).get("/metrics")).text
    assert 'moorage_fence_refusals_total{door="git"}' in metrics


async def test_raising_the_same_epoch_again_is_harmless(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    await operator.start()
    before = await operator.types()
    await ok(await operator.fence(1))
    await operator.register("p1", 1)
    assert await operator.types() == before


@pytest.mark.rule("I10")
async def test_tenants_are_apart(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await operator.start()
    await ok(await runner.get("/v1/self"))
    stolen = gateway.sandbox("p1", "team-b")
    refused(await stolen.get("/v1/self"), 403, "Forbidden")
    refused(await gateway.reader("eve", "team-b").get("/v1/runs/u1"), 404, "UnknownRun")
    await ok(await gateway.reader("ann", "team-a").get("/v1/runs/u1"))
    refused(await runner.get("/v1/runs"), 403, "Forbidden")
    refused(await gateway.client("nonsense").get("/v1/self"), 401, "Unauthenticated")
    refused(await gateway.client(None).get("/v1/self"), 401, "Unauthenticated")


# --- what may be said -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["RUN_SUCCEEDED", "EFFECT_RECEIPT", "VERIFICATION_RESULT", "EPOCH_RAISED", "MODEL_RESPONSE", "CHECKPOINT"]
)
async def test_a_runner_may_not_say_what_others_see(gateway, upstream, kind) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await operator.start()
    before = await operator.types()
    refused(await runner.post("/v1/self/records", json=told(kind, {"reason": "x"})), 403, "Forbidden")
    assert await operator.types() == before


@pytest.mark.rule("J3", "S2")
async def test_what_can_not_follow_appends_nothing_of_its_report(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    await operator.start()
    before = await operator.state()
    body = told("ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "Lost"})
    body["records"] += told("CANCEL_QUIESCED", {}, "2")["records"]
    refused(await gateway.operator.post("/v1/runs/u1/records", json=body), 409, "IllegalMove")
    refused(await operator.report(1, "ATTEMPT_ENDED", {"role": "runner"}), 422, "Invalid")
    assert await operator.state() == before
    gateway.restart()
    assert await operator.state() == before


@pytest.mark.rule("J8", "T5")
async def test_content_lies_in_the_blob_store_and_only_measures_in_the_record(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await operator.start()
    payload = {"tool": "bash", "exit_code": 1, "output": "a secret plan" * 10_000}
    once = told("TOOL_RESPONSE", payload)
    first = await ok(await runner.post("/v1/self/records", json=once))
    assert await ok(await runner.post("/v1/self/records", json=once)) == first
    record = (await operator.records())[-1]
    assert record.payload == {"tool": "bash", "exit_code": 1}
    assert (record.source, record.assurance, record.retention) == ("runner", "reported", "erasable")
    assert b"a secret plan" in await gateway.deps.blobs.get("team-a", record.payload_ref)
    assert (await operator.state())["usage"]["tool_calls"] == 1


async def test_a_new_attempt_may_use_the_words_of_an_earlier_one(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    await agent_at_work(gateway, operator)
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "Lost"}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    second = gateway.sandbox("p2", "team-a")
    await ok(await second.get("/v1/self"))
    await ok(await second.post("/v1/self/records", json=told("AGENT_STARTED", {}, epoch=2)))
    assert (await operator.state())["phase"] == "Running"


async def test_bad_bodies_are_told_by_field_and_never_repeated(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await operator.start()
    message = refused(await runner.post("/v1/self/checkpoint", json={"epoch": 1, "commit": "hunter2"}), 422, "Invalid")
    assert "commit" in message
    assert "hunter2" not in message
    refused(await runner.post("/v1/self/checkpoint", content=b"\xff{"), 422, "Invalid")
    refused(await runner.post("/v1/self/heartbeat", content=b" " * 2000), 413, "TooLarge")
    assert (await runner.get("/nowhere")).status_code == 404
    assert (await runner.delete("/v1/self")).status_code == 405


# --- orders, lists, ends ----------------------------------------------------------------------------------------------


@pytest.mark.rule("X1")
async def test_a_cancel_wakes_a_waiting_runner_at_once(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await operator.start()
    waiting = asyncio.create_task(runner.get("/v1/self/orders?after=0"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await ok(await operator.report(1, "CANCEL_REQUESTED", {"reason": "user"}))
    orders = await ok(await asyncio.wait_for(waiting, 20))
    assert (orders["stop"], orders["seq"]) == ("cancel", CANCEL)
    assert (await operator.types()).count("CANCEL_PROPAGATED") == 1
    await ok(await runner.post("/v1/self/records", json=told("CANCEL_ACKNOWLEDGED", {})))
    assert (await operator.state())["cancel_stage"] == "acknowledged"


async def test_heartbeats_are_kept_in_memory_and_seen_by_the_operator(gateway, upstream, clock) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await operator.start()
    offset = (await operator.state())["offset"]
    for seq, step in ((1, 0), (1, 5_000), (2, 5_000)):
        clock.advance(step)
        assert (await ok(await runner.post("/v1/self/heartbeat", json=beat(seq=seq))))["stop"] is None
    heard = (await operator.view())["heartbeat"]
    assert heard["heard_at"] == clock.now_ms()
    assert heard["progress_at"] == clock.now_ms()
    assert (await operator.state())["offset"] == offset
    gateway.restart()
    view = await operator.view()
    assert view["heartbeat"] is None
    assert view["up_since"] == clock.now_ms()


@pytest.mark.rule("W5", "J7", "R7")
async def test_a_released_run_keeps_its_journal_and_nothing_else(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    await work_done(gateway, operator, tmp_path)
    refused(await gateway.operator.post("/v1/runs/u1/release"), 409, "NotEnded")
    await ok(await operator.report(1, "RUN_FAILED", {"reason": "AcceptanceFailed", "message": ""}))
    briefs = (await ok(await gateway.operator.get("/v1/runs?pending=true")))["runs"]
    assert [(b["uid"], b["phase"], b["released"]) for b in briefs] == [("u1", "Failed", False)]
    released = await ok(await gateway.operator.post("/v1/runs/u1/release"))
    assert released["refs"] >= 1
    assert (await ok(await gateway.operator.post("/v1/runs/u1/release")))["refs"] == 0
    assert (await operator.view())["released"] is True
    assert (await ok(await gateway.operator.get("/v1/runs?pending=true")))["runs"] == []
    assert len((await ok(await gateway.operator.get("/v1/runs")))["runs"]) == 1
    assert (await operator.types())[-1] == "TOMBSTONE"


@pytest.mark.rule("I6")
async def test_after_the_end_a_runner_is_told_so(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    await ok(await operator.report(1, "RUN_FAILED", {"reason": "DeadlineExceeded", "message": ""}))
    for answer in (
        await runner.get("/v1/self"),
        await runner.post("/v1/self/records", json=told("TOOL_RESPONSE", {"tool": "x"})),
        await runner.post("/v1/self/result", json=result(None)),
    ):
        refused(answer, 409, "RunEnded")


@pytest.mark.rule("J3")
async def test_memory_never_runs_ahead_of_the_store(gateway, upstream, monkeypatch) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await operator.start()
    before = await operator.state()
    append = gateway.deps.store.append

    async def full(*args, **kwargs):
        raise StoreUnavailable("no space left on device")

    monkeypatch.setattr(gateway.deps.store, "append", full)
    refused(await runner.post("/v1/self/records", json=told("AGENT_STARTED", {})), 503, "StoreUnavailable")
    monkeypatch.setattr(gateway.deps.store, "append", append)
    assert await operator.state() == before
    await ok(await runner.post("/v1/self/records", json=told("AGENT_STARTED", {})))
    assert (await operator.state())["phase"] == "Running"


@pytest.mark.rule("J5")
async def test_a_broken_chain_refuses_everything_and_starts_nothing_afresh(tmp_path, upstream) -> None:
    store = MemoryStore()
    async with LocalGateway(tmp_path, store=store) as gateway:
        gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
        operator = Operator(gateway, resolved(upstream))
        await operator.start()
        events = store._runs["u1"].events
        events[0] = replace_body(events[0])
        gateway.restart()
        message = refused(await gateway.operator.get("/v1/runs/u1"), 500, "JournalCorrupted")
        assert "offset 0" in message
        refused(await operator.fence(2), 500, "JournalCorrupted")


def replace_body(stored):
    return stored._replace(body=stored.body.replace(b"RUN_ADMITTED", b"RUN_ADMITTEE"))


# --- what must not begin again, and what must go ----------------------------------------------------------------------


async def test_a_runner_that_comes_back_after_its_result_starts_nothing_again(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner, _ = await work_done(gateway, operator, tmp_path)
    offset = (await operator.state())["offset"]
    refused(await runner.get("/v1/self"), 424, "Exited")
    assert (await operator.state())["offset"] == offset


async def test_a_runner_that_comes_after_its_attempt_was_given_up_starts_nothing(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await operator.start()
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "OwnerLost"}))
    refused(await runner.get("/v1/self"), 424, "AttemptEnded")


@pytest.mark.rule("J8")
async def test_housekeeping_takes_orphans_and_nothing_that_a_record_or_ref_needs(
    gateway, upstream, tmp_path, clock
) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    blobs = gateway.deps.blobs
    orphan = await blobs.put("team-a", b"nobody needs this")
    clock.advance(gateway.deps.settings.orphan_age_ms + 1)
    young = await blobs.put("team-a", b"its record is still on the way")
    await Housekeeping(Gate(gateway.deps)).once()
    left = set(await blobs.digests("team-a"))
    assert orphan.sha256 not in left
    assert young.sha256 in left
    needed = await gateway.deps.store.referenced_blobs("team-a")
    assert needed
    assert needed <= left
    assert await gateway.deps.mirrors.has_commit(MirrorKey("team-a", "w1"), head)
