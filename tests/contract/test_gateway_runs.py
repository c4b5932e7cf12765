"""The operator's and the sandboxes' doors over every store, with real git behind them."""

import asyncio

import pytest
from tests.gateway_script import (
    BRANCH,
    PASSWORD,
    VERIFIER_KEY,
    Operator,
    agent_at_work,
    commit,
    git,
    ok,
    push,
    refused,
    resolved,
    result,
    told,
    verified,
    verifying,
    work_done,
    worktree,
)

from moorage.api.wire import Admission, FenceRequest, ResolvedDelivery, SecretRef
from moorage.core.run.view import RUN_VIEW
from moorage.gateway.delivery import QUIET_MS
from moorage.gateway.gate import Gate
from moorage.gateway.housekeeping import Housekeeping
from moorage.store.errors import StoreUnavailable
from moorage.store.memory import MemoryStore
from moorage.testing.gateway import LocalGateway
from moorage.workspace.mirror import MirrorKey

# --- the main job ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("E1", "E5", "V3", "T2")
async def test_a_run_from_admission_to_a_pushed_branch(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner, head = await work_done(gateway, operator, tmp_path)
    assert (await operator.state())["phase"] == "Verifying"
    await verified(gateway, operator, head)
    view = await ok(await operator.deliver(1, head))
    assert view["state"]["effects"][0]["status"] == "confirmed"
    await ok(await operator.report(1, "RUN_SUCCEEDED", {"reason": "Completed", "message": "", "commit": head}))
    assert (await operator.state())["phase"] == "Succeeded"
    assert [u.ref for u in upstream.updates if u.new == head] == [f"refs/heads/{BRANCH}"]
    types = await operator.types()
    at = [types.index(t) for t in ("EFFECT_INTENT", "EFFECT_DISPATCHED", "EFFECT_RECEIPT", "RUN_SUCCEEDED")]
    assert at == sorted(at)
    orders = await ok(await runner.get("/v1/self/orders?after=0"))
    assert orders["stop"] == "terminal"
    text = b"".join([stored.body async for stored in gateway.deps.store.stored("u1")]).decode()
    assert PASSWORD not in text


async def test_delivering_again_pushes_once(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    first, second = await asyncio.gather(operator.deliver(1, head), operator.deliver(1, head))
    assert first.status_code == second.status_code == 200
    gateway.restart()
    await ok(await operator.deliver(1, head))
    assert len([u for u in upstream.updates if u.new == head]) == 1
    assert (await operator.types()).count("EFFECT_INTENT") == 1


async def test_nothing_is_delivered_that_has_not_passed(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    refused(await operator.deliver(1, head), 409, "NotVerified")
    await verified(gateway, operator, head, exit_code=1)
    refused(await operator.deliver(1, head), 409, "NotVerified")
    refused(await operator.deliver(1, "f" * 40), 409, "NotProposed")
    state = await operator.state()
    assert state["verification"]["passed"] is False
    assert "exit code 1" in state["verification"]["summary"]
    assert "2 failed" in state["verification"]["summary"]
    assert not [u for u in upstream.updates if u.ref != "refs/heads/main"]


@pytest.mark.rule("E5")
async def test_a_push_whose_answer_got_lost_is_recovered_and_not_repeated(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    upstream.inject("drop", "git-receive-pack")
    view = await ok(await operator.deliver(1, head))
    assert view["state"]["effects"][0]["status"] == "unknown"
    gateway.restart()
    view = await ok(await operator.deliver(1, head))
    assert view["state"]["effects"][0]["status"] == "confirmed"
    assert len([u for u in upstream.updates if u.new == head]) == 1
    assert "EFFECT_RECONCILED" in await operator.types()


@pytest.mark.rule("E5")
async def test_a_push_that_never_left_is_made_again_under_a_new_intent(gateway, upstream, clock, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    upstream.inject("error", "git-receive-pack")
    first = await ok(await operator.deliver(1, head))
    early = await ok(await operator.deliver(1, head))
    assert [e["status"] for e in early["state"]["effects"]] == ["unknown"]  # the remote may still be at work on it
    clock.advance(QUIET_MS)
    second = await ok(await operator.deliver(1, head))
    assert first["state"]["effects"][-1]["status"] != "confirmed"
    assert [e["status"] for e in second["state"]["effects"]] == ["not_dispatched", "confirmed"]
    assert len([u for u in upstream.updates if u.new == head]) == 1


@pytest.mark.rule("E5")
async def test_a_branch_that_somebody_made_meanwhile_is_never_overwritten(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    theirs = commit(tmp_path / "seed", "theirs.txt", "x\n")
    git(tmp_path / "seed", "push", "-q", "origin", f"HEAD:refs/heads/{BRANCH}")
    view = await ok(await operator.deliver(1, head))
    effect = view["state"]["effects"][0]
    assert effect["status"] == "rejected"
    assert effect["detail"].startswith("BranchExists: ")
    assert git(tmp_path / "seed", "ls-remote", "origin", BRANCH).split()[0] == theirs


@pytest.mark.rule("I5")
async def test_a_cancelling_run_pushes_nothing_more(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    await ok(await operator.report(1, "CANCEL_REQUESTED", {"reason": "user"}))
    view = await ok(await operator.deliver(1, head))
    assert view["state"]["effects"] == []
    assert not [u for u in upstream.updates if u.new == head]
    orders = await ok(await runner.get("/v1/self/orders?after=0"))
    assert (orders["stop"], orders["reason"]) == ("cancel", "user")
    assert (await operator.state())["cancel_stage"] == "propagated"


@pytest.mark.rule("E5", "X3")
async def test_a_cancelling_run_still_settles_what_it_sent(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    upstream.inject("drop", "git-receive-pack")
    await ok(await operator.deliver(1, head))
    await ok(await operator.report(1, "CANCEL_REQUESTED", {"reason": "user"}))
    view = await ok(await operator.deliver(1, head))
    assert [e["status"] for e in view["state"]["effects"]] == ["confirmed"]
    assert view["state"]["phase"] == "Cancelling"


@pytest.mark.rule("E5", "E4")
async def test_a_push_that_somebody_went_on_from_has_happened(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    upstream.inject("drop", "git-receive-pack")
    await ok(await operator.deliver(1, head))
    git(tmp_path / "seed", "fetch", "-q", "origin", BRANCH)
    git(tmp_path / "seed", "checkout", "-q", "FETCH_HEAD")
    commit(tmp_path / "seed", "theirs.txt", "x\n")
    git(tmp_path / "seed", "push", "-q", "origin", f"HEAD:refs/heads/{BRANCH}")
    (effect,) = (await ok(await operator.deliver(1, head)))["state"]["effects"]
    assert effect["status"] == "confirmed"
    assert effect["detail"].startswith("found below the branch's head ")


@pytest.mark.rule("E4", "E5")
async def test_a_push_that_somebody_replaced_is_a_conflict(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    upstream.inject("drop", "git-receive-pack")
    await ok(await operator.deliver(1, head))
    commit(tmp_path / "seed", "theirs.txt", "x\n")
    git(tmp_path / "seed", "push", "-q", "-f", "origin", f"HEAD:refs/heads/{BRANCH}")
    (effect,) = (await ok(await operator.deliver(1, head)))["state"]["effects"]
    assert (effect["status"], effect["detail"].partition(":")[0]) == ("rejected", "DeliveryConflict")


async def test_a_remote_that_is_away_is_one_record_and_no_intent(gateway, upstream, clock, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    upstream.inject("error", times=99)
    state = (await ok(await operator.deliver(1, head)))["state"]
    for _ in range(5):  # before its time: no news
        await ok(await operator.deliver(1, head))
    assert (state["phase"], state["effects"], state["deferral"]["reason"]) == ("Delivering", [], "GitUnreachable")
    assert state["deferral"]["since"] == clock.now_ms()
    assert (await operator.types()).count("EFFECT_DEFERRED") == 1
    assert "EFFECT_INTENT" not in await operator.types()


@pytest.mark.parametrize("fault", ["deny", "error"])
@pytest.mark.rule("E4", "I8")
async def test_an_ended_run_hears_what_became_of_its_push_once_the_remote_is_back(
    gateway, upstream, clock, tmp_path, fault
) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    upstream.inject("drop", "git-receive-pack")
    effect = (await ok(await operator.deliver(1, head)))["state"]["effects"][0]["effect_id"]
    await ok(await operator.report(1, "CANCEL_REQUESTED", {"reason": "user"}))
    upstream.inject(fault, times=2)
    assert (await ok(await operator.deliver(1, head)))["state"]["deferral"]
    unknown = {"effect_id": effect, "outcome": "unknown", "detail": "its target could not be asked in time"}
    await ok(await operator.report(1, "EFFECT_RECONCILED", unknown))
    await ok(await operator.report(1, "RUN_CANCELLED", {"reason": "Cancelled", "message": "", "commit": None}))
    size = len(await operator.records())
    await ok(await operator.deliver(1, head))
    assert len(await operator.records()) == size
    state = (await ok(await operator.deliver(1, head)))["state"]
    assert (state["phase"], state["effects"][0]["status"]) == ("Cancelled", "confirmed")
    refused(await operator.report(1, "EFFECT_RECONCILED", unknown, "again"), 409, "IllegalMove")


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


# --- checkpoints, results, recovery -----------------------------------------------------------------------------------


def checkpoint(iteration: int, head: str | None, epoch: int = 1) -> dict[str, object]:
    return {"epoch": epoch, "iteration": iteration, "changed": head is not None, "commit": head, "recorded_at": 8}


def beat(epoch: int = 1, seq: int = 1) -> dict[str, object]:
    return {"work_id": "u1", "epoch": epoch, "progress_seq": seq, "observed_at": 3}


@pytest.mark.rule("P5", "R1", "E2")
async def test_a_checkpoint_counts_once_it_is_here_and_the_next_attempt_goes_on_from_it(
    gateway, upstream, tmp_path
) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    tree = await worktree(gateway, tmp_path, "p1")
    head = await asyncio.to_thread(commit, tree, "b.txt", "two\n")
    refused(await runner.post("/v1/self/checkpoint", json=checkpoint(1, head)), 409, "CheckpointMissing")
    assert (await operator.state())["iteration"] == 0
    await push(tree, "HEAD:refs/moorage/runs/u1/1/checkpoints")
    first = await ok(await runner.post("/v1/self/checkpoint", json=checkpoint(1, head)))
    assert await ok(await runner.post("/v1/self/checkpoint", json=checkpoint(1, head))) == first
    await ok(await runner.post("/v1/self/checkpoint", json=checkpoint(2, None)))
    refused(await runner.post("/v1/self/checkpoint", json=checkpoint(2, head)), 409, "DuplicateMismatch")
    assert (await operator.types())[-3:] == ["CHECKPOINT", "ITERATION_COMPLETE", "ITERATION_COMPLETE"]
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "OOMKilled"}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    gateway.restart()
    upstream.inject("deny", times=99)
    assignment = await ok(await gateway.sandbox("p2", "team-a").get("/v1/self"))
    assert assignment["next_iteration"] == 3
    assert assignment["git"]["resume"] == {"commit": head, "iteration": 1, "epoch": 1}
    assert "OOMKilled" in assignment["handoff"]
    assert head in assignment["handoff"]


@pytest.mark.rule("E2")
async def test_an_iteration_that_was_begun_is_not_used_again_by_the_next_attempt(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    await ok(await runner.post("/v1/self/checkpoint", json=checkpoint(1, None)))
    record = {"record_id": "t", "type": "TOOL_REQUEST", "payload": {"tool": "bash"}, "turn": 2, "recorded_at": 8}
    await ok(await runner.post("/v1/self/records", json={"epoch": 1, "records": [record]}))
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "NodeLost"}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    gateway.restart()
    assert (await ok(await gateway.sandbox("p2", "team-a").get("/v1/self")))["next_iteration"] == 3


@pytest.mark.rule("V4")
async def test_a_result_is_looked_at_and_not_believed(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    base = (await operator.state())["workspace_base"]
    tree = await worktree(gateway, tmp_path, "p1")
    head = await asyncio.to_thread(commit, tree, "b.txt", "two\n")
    refused(await runner.post("/v1/self/result", json=result(head)), 409, "CandidateMissing")
    unrelated = await asyncio.to_thread(_orphan, tree)
    await push(tree, f"+{unrelated}:refs/heads/{BRANCH}")
    refused(await runner.post("/v1/self/result", json=result(unrelated)), 409, "NotDescended")
    await push(tree, f"+{head}:refs/heads/{BRANCH}")
    lie = result(head, empty=True, tree="a" * 40, base="b" * 40, files=77)
    await ok(await runner.post("/v1/self/result", json=lie))
    tree_id = git(tree, "rev-parse", f"{head}^{{tree}}")
    proposal = (await operator.state())["proposal"]
    assert proposal == {"commit": head, "tree": tree_id, "base": base, "empty": False, "files": 1}


def _orphan(tree) -> str:
    empty = git(tree, "hash-object", "-w", "-t", "tree", "/dev/null")
    return git(tree, "commit-tree", "-m", "unrelated", empty)


async def test_an_agent_that_changed_nothing_proposes_its_base(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    await ok(await runner.post("/v1/self/result", json=result(None)))
    state = await operator.state()
    assert state["proposal"]["empty"] is True
    assert state["proposal"]["commit"] == state["workspace_base"]


async def test_an_agent_that_failed_proposes_nothing(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    await ok(await runner.post("/v1/self/result", json=result(None, outcome="failed", reason="AgentFailed")))
    state = await operator.state()
    assert (state["agent_end"]["outcome"], state["proposal"]) == ("failed", None)


@pytest.mark.rule("V3")
async def test_a_verdict_is_on_one_commit_and_on_all_commands(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner, head = await work_done(gateway, operator, tmp_path)
    await operator.register("v1", 1, "verifier", head)
    verifier = gateway.sandbox("v1", "team-a")
    assignment = await ok(await verifier.get("/v1/self"))
    assert (assignment["role"], assignment["git"]["commit"]) == ("verifier", head)
    report = {"epoch": 1, "commit": head, "key": VERIFIER_KEY, "checks": [], "recorded_at": 1}
    refused(await verifier.post("/v1/self/verification", json=report), 403, "Forbidden")
    await ok(await verifier.post("/v1/self/records", json=verifying()))
    await ok(await verifier.post("/v1/self/records", json=verifying(key="a forger's")))
    forged = report | {"key": "a forger's", "problem": None}
    refused(await verifier.post("/v1/self/verification", json=forged), 403, "Forbidden")
    refused(await verifier.post("/v1/self/verification", json=report), 422, "Invalid")
    refused(await verifier.post("/v1/self/verification", json=report | {"commit": "c" * 40}), 403, "Forbidden")
    refused(await runner.post("/v1/self/verification", json=report), 403, "Forbidden")
    refused(await verifier.post("/v1/self/result", json=result(head)), 403, "Forbidden")
    await ok(await verifier.post("/v1/self/verification", json=report | {"problem": "no space left"}))
    verdict = (await operator.state())["verification"]
    assert (verdict["passed"], verdict["problem"]) == (False, "no space left")


async def test_a_verifier_fetches_and_can_not_push(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    await operator.register("v1", 1, "verifier", head)
    gateway.token_for_pod("v1", "team-a")
    tree = await worktree(gateway, tmp_path, "v1", "verify")
    await asyncio.to_thread(git, tree, "fetch", "-q", "origin", head)
    await asyncio.to_thread(git, tree, "checkout", "-q", head)
    assert (tree / "b.txt").read_text() == "two\n"
    with pytest.raises(AssertionError, match="403"):
        await push(tree, f"HEAD:refs/heads/{BRANCH}")


# --- the remote -------------------------------------------------------------------------------------------------------


async def first_contact(gateway, spec) -> tuple[Operator, object]:
    operator = Operator(gateway, spec)
    runner = await operator.start(pod=f"pod-of-{spec.uid}")
    return operator, await runner.get("/v1/self")


def with_workspace(spec, **changes):
    return spec.model_copy(update={"workspace": spec.workspace.model_copy(update=changes)})


async def test_a_wrong_password_ends_the_run_with_its_reason(gateway, upstream) -> None:
    gateway.secrets.give("team-a", "git", username="ada", password="wrong-password-1")
    operator, answer = await first_contact(gateway, resolved(upstream))
    message = refused(answer, 424, "GitAuthFailed")
    assert "wrong-password-1" not in message
    end = (await operator.state())["agent_end"]
    assert (end["outcome"], end["reason"]) == ("failed", "GitAuthFailed")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ref": "no-such-branch"}, "GitRefNotFound"),
        ({"url": "ftp://example.invalid/x.git"}, "GitBadUrl"),
        ({"url": "http://169.254.169.254/latest/meta-data"}, "GitBadUrl"),
        ({"kind": "local", "url": None, "path": "/nonexistent/repository"}, "GitNotFound"),
    ],
)
async def test_a_remote_that_will_not_do_ends_the_run_with_its_reason(gateway, upstream, changes, reason) -> None:
    operator, answer = await first_contact(gateway, with_workspace(resolved(upstream), **changes))
    refused(answer, 424, reason)
    assert (await operator.state())["agent_end"]["reason"] == reason


async def test_an_unreachable_remote_is_asked_again_for_a_minute(gateway, upstream, clock) -> None:
    spec = with_workspace(resolved(upstream), url="http://127.0.0.1:9/shop.git")
    operator, answer = await first_contact(gateway, spec)
    refused(answer, 503, "GitUnreachable")
    assert (await operator.state())["agent_end"] is None
    clock.advance(60_000)
    refused(await gateway.sandbox("pod-of-u1", "team-a").get("/v1/self"), 424, "GitUnreachable")
    assert (await operator.state())["agent_end"]["reason"] == "GitUnreachable"


async def test_each_attempt_has_its_own_minute_for_an_unreachable_remote(gateway, upstream, clock) -> None:
    spec = with_workspace(resolved(upstream), url="http://127.0.0.1:9/shop.git")
    operator, answer = await first_contact(gateway, spec)
    refused(answer, 503, "GitUnreachable")
    clock.advance(59_000)
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    second = gateway.sandbox("p2", "team-a")
    refused(await second.get("/v1/self"), 503, "GitUnreachable")
    clock.advance(59_000)
    refused(await second.get("/v1/self"), 503, "GitUnreachable")
    clock.advance(1_000)
    refused(await second.get("/v1/self"), 424, "GitUnreachable")


async def test_a_branch_that_exists_is_told_before_any_work(gateway, upstream) -> None:
    spec = resolved(upstream, delivery=ResolvedDelivery(branch="main"))
    operator, answer = await first_contact(gateway, spec)
    refused(answer, 424, "BranchExists")
    assert (await operator.state())["agent_end"]["reason"] == "BranchExists"


@pytest.mark.rule("W2")
async def test_of_two_runs_for_one_branch_the_later_is_refused_by_name(gateway, upstream, clock) -> None:
    first = resolved(upstream, "u1", name="first")
    second = resolved(upstream, "u2", name="second")
    await Operator(gateway, first).admit()
    clock.advance(10)
    _, later = await first_contact(gateway, second)
    assert "first" in refused(later, 424, "BranchTaken")
    _, earlier = await first_contact(gateway, first)
    assert earlier.status_code == 200


async def test_an_ephemeral_workspace_has_no_remote(gateway, upstream) -> None:
    spec = with_workspace(resolved(upstream), kind="ephemeral", url=None, credentials=None, ref=None)
    _, answer = await first_contact(gateway, spec)
    assert (await ok(answer))["git"]["base"]


@pytest.mark.rule("T2")
async def test_the_credential_is_read_at_use_and_told_to_nobody(gateway, upstream) -> None:
    _, answer = await first_contact(gateway, resolved(upstream))
    assert PASSWORD not in answer.text
    assert gateway.secrets.reads == [("team-a", "git")] * 2, "once whether it is there, once to use it"


LACKS = [
    ({"name": "absent"}, "SecretNotFound", "kubectl create secret generic absent -n team-a --from-literal=username="),
    ({"name": "absent", "key": "pat"}, "SecretNotFound", "generic absent -n team-a --from-literal=pat=PAT"),
    (
        {"name": "git", "key": "pat"},
        "SecretKeyNotFound",
        """patch secret git -n team-a -p '{"stringData":{"pat":"PAT"}}'""",
    ),
    ({"name": "empty"}, "SecretKeyNotFound", "holds nothing under password or token"),
    ({"name": "binary"}, "SecretKeyNotFound", "no text"),
]


@pytest.mark.parametrize(("ref", "reason", "told"), LACKS)
async def test_a_run_whose_secret_is_missing_is_not_admitted_until_it_comes(
    gateway, upstream, ref, reason, told
) -> None:
    gateway.secrets.give("team-a", "empty", password=" ")
    gateway.secrets.held["team-a", "binary"] = {"password": b"\xff\xfe"}
    operator = Operator(gateway, with_workspace(resolved(upstream), credentials=SecretRef(**ref)))
    asked = (operator.door, operator.spec.model_dump_json())
    assert told in refused(await operator.http.put(asked[0], content=asked[1]), 424, reason)
    refused(await operator.http.get(operator.door), 404, "UnknownRun")
    gateway.secrets.give("team-a", ref["name"], **{ref.get("key", "password"): "there now"})
    await ok(await operator.http.put(asked[0], content=asked[1]))


async def test_an_admitted_run_stays_admitted_when_its_secret_goes(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    await operator.admit()
    gateway.secrets.held.clear()
    await operator.admit()
    _, answer = await first_contact(gateway, resolved(upstream))
    assert "create" in refused(answer, 424, "GitAuthFailed")


# --- orders, lists, ends ----------------------------------------------------------------------------------------------


@pytest.mark.rule("X1")
async def test_a_cancel_wakes_a_waiting_runner_at_once(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await operator.start()
    waiting = asyncio.create_task(runner.get("/v1/self/orders?after=0"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await ok(await operator.report(1, "CANCEL_REQUESTED", {"reason": "user"}))
    orders = await ok(await asyncio.wait_for(waiting, 2))
    assert (orders["stop"], orders["seq"]) == ("cancel", 1)
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


# --- crashes around the push ------------------------------------------------------------------------------------------


@pytest.mark.rule("E5", "E1")
@pytest.mark.parametrize("pushed", [False, True])
async def test_a_gateway_that_dies_around_the_push_leaves_one_push(
    gateway, upstream, tmp_path, monkeypatch, pushed
) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    original = gateway.deps.mirrors.push_upstream

    async def dies(*args):
        if pushed:
            await original(*args)
        raise RuntimeError("killed")

    monkeypatch.setattr(gateway.deps.mirrors, "push_upstream", dies)
    refused(await operator.deliver(1, head), 500, "Internal")
    assert (await operator.state())["effects"][-1]["status"] == "dispatched"
    monkeypatch.setattr(gateway.deps.mirrors, "push_upstream", original)
    gateway.restart()
    gateway.deps.clock.advance(QUIET_MS)
    effects = (await ok(await operator.deliver(1, head)))["state"]["effects"]
    assert [e["status"] for e in effects] == (["confirmed"] if pushed else ["not_dispatched", "confirmed"])
    assert len([u for u in upstream.updates if u.new == head]) == 1
    assert len({e["key"] for e in effects}) == 1


async def test_a_slow_push_holds_up_nobody_else(gateway, upstream, tmp_path, monkeypatch) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    original, entered, go = gateway.deps.mirrors.push_upstream, asyncio.Event(), asyncio.Event()

    async def slow(*args):
        entered.set()
        await go.wait()
        return await original(*args)

    monkeypatch.setattr(gateway.deps.mirrors, "push_upstream", slow)
    delivering = asyncio.create_task(operator.deliver(1, head))
    await entered.wait()
    other = Operator(gateway, resolved(upstream, "u2", name="other"))
    await other.start(pod="p2")
    assert (await ok(await runner.post("/v1/self/heartbeat", json=beat())))["stop"] is None
    assert (await operator.state())["phase"] == "Delivering"
    assert not delivering.done()
    go.set()
    assert (await ok(await delivering))["state"]["effects"][0]["status"] == "confirmed"


async def test_an_end_that_comes_during_the_push_still_hears_of_it(gateway, upstream, tmp_path, monkeypatch) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    original = gateway.deps.mirrors.push_upstream

    async def late(*args):
        await ok(await operator.report(1, "RUN_FAILED", {"reason": "DeadlineExceeded", "message": ""}))
        return await original(*args)

    monkeypatch.setattr(gateway.deps.mirrors, "push_upstream", late)
    state = (await ok(await operator.deliver(1, head)))["state"]
    assert (state["phase"], state["effects"][0]["status"]) == ("Failed", "confirmed")


async def test_a_proposal_stays_fetchable_when_the_candidate_moves_on(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    tree = tmp_path / "tree"
    await asyncio.to_thread(git, tree, "checkout", "-q", "HEAD~1")
    other = await asyncio.to_thread(commit, tree, "c.txt", "three\n")
    await push(tree, f"+{other}:refs/heads/{BRANCH}")
    await operator.register("v1", 1, "verifier", head)
    gateway.token_for_pod("v1", "team-a")
    verify = await worktree(gateway, tmp_path, "v1", "verify")
    await asyncio.to_thread(git, verify, "fetch", "-q", "origin", head)


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
    clock.advance(3_600_001)
    young = await blobs.put("team-a", b"its record is still on the way")
    await Housekeeping(Gate(gateway.deps)).once()
    left = set(await blobs.digests("team-a"))
    assert orphan.sha256 not in left
    assert young.sha256 in left
    needed = await gateway.deps.store.referenced_blobs("team-a")
    assert needed
    assert needed <= left
    assert await gateway.deps.mirrors.has_commit(MirrorKey("team-a", "w1"), head)
