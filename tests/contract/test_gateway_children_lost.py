"""B2: a child of which something is lost for good is settled all the same, and so is whoever comes after it."""

import asyncio
from pathlib import Path

import pytest
from tests.contract.test_gateway_children import Agent, Family, a_family, agent, family, proposing
from tests.gateway_script import PASSWORD, ok, refused

from moorage.core.journal.record import RecordType
from moorage.gateway.gate import mirror_key
from moorage.store.memory import MemoryStore
from moorage.testing.clock import StepClock
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer
from moorage.testing.trees import git

__all__ = ["agent", "family"]
FAILED = {"reason": "AgentFailed", "message": "", "commit": None}


@pytest.mark.rule("B2", "W7")
async def test_a_child_whose_commit_is_gone_is_settled_without_it(agent: Agent, tmp_path: Path) -> None:
    name = (await agent.spawn())["name"]
    child, _ = await proposing(agent.family, tmp_path, name)
    second = agent.family.child("u3", calls=1)
    await second.start(pod="p3")
    await ok(await second.report(1, "RUN_FAILED", FAILED))
    gateway = agent.family.gateway
    await ok(await gateway.operator.post(f"{child.door}/release"))
    run = await gateway.gate.ledger.open("u1")
    mirror = gateway.gate.deps.mirrors.path(mirror_key(run))
    await asyncio.to_thread(git, mirror, "gc", "-q", "--prune=now")
    settled = await agent.family.settle()
    assert [(each["outcome"], each["commit"]) for each in settled["children"]] == [
        ("Succeeded", None),
        ("Failed", None),
    ]
    said = [each.payload or {} for each in await agent.family.parent.records() if each.type == "CHILD_ENDED"]
    assert "isn't kept any more" in said[0]["problem"]


@pytest.mark.rule("B2", "R8")
async def test_a_request_that_a_gateway_of_an_earlier_release_left_keeps_no_share(family: Family) -> None:
    """It reserved nothing, and didn't say whose it is: nobody can tell whether somebody is still at it."""
    child = family.child()
    runner = await child.start(pod="p2")
    await ok(await runner.get("/v1/self"))
    ledger = family.gateway.gate.ledger
    kid = await ledger.open("u2")
    asked = ledger.observed(RecordType.MODEL_REQUEST, {"bytes_hash": "b"}, "q-1", request_id="q-1", turn=1)
    await ledger.append(kid, 1, [asked])
    assert (await family.settle())["children"][0]["status"] == "started"
    assert list((await ledger.open("u2")).facts.asked) == ["q-1"], "the child is at work: so may be the other gateway"
    await ok(await child.report(1, "RUN_FAILED", FAILED))
    settled = (await family.settle())["children"][0]
    assert (settled["status"], settled["used"]["tokens"]) == ("ended", 0)


@pytest.mark.rule("B2", "O2")
async def test_who_waits_for_a_child_that_never_began_hears_why(agent: Agent) -> None:
    """Its share was reserved, its gateway died before it was admitted, and its object was deleted."""
    name = (await agent.spawn())["name"]
    ledger = agent.family.gateway.gate.ledger
    run = await ledger.open("u1")
    share = {"uid": "u2", "name": name, "reserve": {"tokens": 300}}
    await ledger.append(run, None, [ledger.observed(RecordType.CHILD_STARTED, share, "u2")])
    said = {"gone": ["u2"], "over": ["u2"], "why": {"u2": "its AgentRun is gone"}}
    await ok(await agent.family.gateway.operator.post("/v1/runs/u1/children", json=said))
    heard = await ok(await agent.runner.get(f"/v1/self/children/{name}"))
    assert (heard["outcome"], heard["summary"]) == ("NeverStarted", "its AgentRun is gone")
    assert await agent.spawn() == heard


@pytest.mark.rule("S3", "X2")
@pytest.mark.parametrize("kind", ["RUN_FAILED", "RUN_CANCELLED"])
async def test_no_run_ends_before_its_children_are_settled(family: Family, kind: str) -> None:
    ledger = family.gateway.gate.ledger
    run = await ledger.open("u1")
    share = {"uid": "u2", "name": "fix-u2", "reserve": {"tokens": 300}}
    await ledger.append(run, None, [ledger.observed(RecordType.CHILD_STARTED, share, "u2")])
    if kind == "RUN_CANCELLED":
        await ok(await family.parent.report(1, "CANCEL_REQUESTED", {"reason": "user"}))
    refused(await family.parent.report(1, kind, FAILED), 409, "IllegalMove")
    await family.settle("u2")
    assert (await ok(await family.parent.report(1, kind, FAILED)))["state"]["end"]


@pytest.mark.rule("B2", "J5")
async def test_a_child_whose_journal_is_broken_has_used_its_share_once_its_object_has_ended(
    tmp_path: Path, upstream: GitServer, clock: StepClock
) -> None:
    store = MemoryStore()
    gateway = LocalGateway(tmp_path, store=store, clock=clock)
    async with gateway.serving():
        gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
        family: Family = await a_family(gateway, upstream, tmp_path)
        await family.child().admit()
        second = family.child("u3", tokens=100)
        await second.start(pod="p3")
        await ok(await second.report(1, "RUN_FAILED", FAILED))
        events = store._runs["u2"].events
        events[0] = events[0]._replace(body=events[0].body.replace(b"RUN_ADMITTED", b"RUN_ADMITTEE"))
        gateway.restart()
        settled = await family.settle(over=("u3",))
        assert [each["status"] for each in settled["children"]] == ["started", "ended"], "one keeps no other"
        settled = await family.settle(over=("u2",))
        assert (settled["children"][0]["outcome"], settled["children_used"]["tokens"]) == ("Unreadable", 400)
