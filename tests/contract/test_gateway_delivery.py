"""A run from its admission to the pushed branch, over every store and real git; and whatever may come between."""

import asyncio

import pytest
from tests.gateway_script import (
    BRANCH,
    PASSWORD,
    Operator,
    beat,
    commit,
    git,
    ok,
    refused,
    resolved,
    verified,
    work_done,
)

from moorage.gateway.delivery import QUIET_MS

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


@pytest.mark.rule("E5")
@pytest.mark.parametrize("other", [BRANCH.split("/", maxsplit=1)[0], f"{BRANCH}/deeper"], ids=["above", "below"])
async def test_a_branch_beside_which_ours_cannot_be_made_ends_it_by_name(
    gateway, upstream, tmp_path, other: str
) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    git(tmp_path / "seed", "push", "-q", "origin", f"HEAD:refs/heads/{other}")
    view = await ok(await operator.deliver(1, head))
    effect = view["state"]["effects"][0]
    assert effect["status"] == "rejected"
    assert effect["detail"].startswith("BranchExists: ")
    assert f"beside {other}, which is there" in effect["detail"]
    assert "EFFECT_DISPATCHED" not in await operator.types()


@pytest.mark.rule("E5")
async def test_a_branch_that_came_in_the_way_between_look_and_push_ends_it_by_name(
    gateway, upstream, tmp_path, monkeypatch
) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    look = gateway.deps.mirrors.look_upstream

    async def looked(*args):
        monkeypatch.undo()
        seen = await look(*args)
        git(tmp_path / "seed", "push", "-q", "origin", f"HEAD:refs/heads/{BRANCH}/deeper")
        return seen

    monkeypatch.setattr(gateway.deps.mirrors, "look_upstream", looked)
    view = await ok(await operator.deliver(1, head))
    effect = view["state"]["effects"][0]
    assert effect["status"] == "rejected"
    assert f"beside {BRANCH}/deeper, which is there" in effect["detail"]
    assert "EFFECT_DISPATCHED" in await operator.types()


@pytest.mark.rule("E5")
async def test_what_a_remote_could_not_do_is_final_once_it_has_not_happened(gateway, upstream, clock, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    lock = upstream.root / f"shop.git/refs/heads/{BRANCH}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    first = await ok(await operator.deliver(1, head))
    assert [e["status"] for e in first["state"]["effects"]] == ["unknown"]  # it may be this very push's
    clock.advance(QUIET_MS)
    second = await ok(await operator.deliver(1, head))
    (effect,) = second["state"]["effects"]
    assert effect["status"] == "rejected"
    assert effect["detail"].startswith("DeliveryRejected: ")
    assert f"{BRANCH}.lock" in effect["detail"]


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
