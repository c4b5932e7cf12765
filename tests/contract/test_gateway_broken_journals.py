"""A broken journal, or a spec that is too old, is refused by itself and is no other run's trouble (J5, R7, R8, I10)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.gateway_script import PASSWORD, Operator, ok, refused, resolved

from moorage.api.wire import ResolvedDelivery
from moorage.core.journal.chain import Broken
from moorage.core.journal.export import verify_export
from moorage.store.memory import MemoryStore
from moorage.testing.clock import StepClock
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer


@pytest.mark.rule("J5", "R7")
async def test_a_broken_journal_hides_no_other_run_and_keeps_none_from_starting(
    tmp_path: Path, upstream: GitServer, clock: StepClock
) -> None:
    store = MemoryStore()
    async with LocalGateway(tmp_path, store=store, clock=clock) as gateway:
        gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
        await Operator(gateway, resolved(upstream, uid="u1")).start(pod="p1")
        events = store._runs["u1"].events
        events[0] = events[0]._replace(body=events[0].body.replace(b"RUN_ADMITTED", b"RUN_ADMITTEE"))
        gateway.restart()
        clock.advance(1_000)
        other = resolved(upstream, uid="u2", name="other", delivery=ResolvedDelivery(branch="moorage/other"))
        runner = await Operator(gateway, other).start(pod="p2")
        assert (await ok(await runner.get("/v1/self")))["git"]["branch"] == "moorage/other"
        refused(await gateway.operator.get("/v1/runs/u1"), 500, "JournalCorrupted")
        briefs = (await ok(await gateway.operator.get("/v1/runs?pending=true")))["runs"]
        assert [(brief["uid"], brief["phase"]) for brief in briefs] == [("u1", "Running"), ("u2", "Running")]


@pytest.mark.rule("I1", "J5")
async def test_only_who_may_settle_its_effects_lets_it_go_on_and_then_it_does(
    tmp_path: Path, upstream: GitServer, clock: StepClock
) -> None:
    store = MemoryStore()
    async with LocalGateway(tmp_path, store=store, clock=clock) as gateway:
        gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
        operator = Operator(gateway, resolved(upstream, uid="u1"))
        await operator.start(pod="p1")
        events = store._runs["u1"].events
        events[-1] = events[-1]._replace(body=bytes(60))
        gateway.restart()
        door, said = "/v1/runs/u1/repair", {"reason": "power cut", "user": "ada@example.com"}
        owner = gateway.reader("local", None)
        refused(await gateway.reader("ann", "team-a").post(door, json=said), 403, "Forbidden")
        refused(await gateway.reader("eve", "team-b").post(door, json=said), 404, "UnknownRun")
        refused(await owner.post("/v1/runs/u9/repair", json=said), 404, "UnknownRun")
        refused(await owner.get("/v1/runs/u1"), 500, "JournalCorrupted")
        exported = verify_export([(await owner.get("/v1/runs/u1/journal")).content])
        assert isinstance(exported.chain, Broken)
        assert (exported.chain.offset, exported.sound) == (len(events) - 1, len(events) - 1)
        last = len(events) - 1
        told = await ok(await owner.post(door, json=said))
        assert (told["generation"], told["first"], told["last"], told["offset"]) == (2, last, last, last + 1)
        refused(await owner.post(door, json=said), 409, "NothingToRepair")
        assert (await operator.state())["phase"] == "Recovering"
        record = (await operator.records())[-1]
        assert (record.type, record.actor) == ("JOURNAL_REPAIRED", "ada@example.com")


@pytest.mark.rule("R7")
@pytest.mark.parametrize(
    ("kept", "named"), [({"agent": {}}, "agent.driver: Field required"), ({"placement": "moon"}, "placement: ")]
)
async def test_a_spec_that_is_not_understood_any_more_is_named_and_keeps_no_other_run_waiting(
    tmp_path: Path, upstream: GitServer, clock: StepClock, kept: dict[str, Any], named: str
) -> None:
    store = MemoryStore()
    async with LocalGateway(tmp_path, store=store, clock=clock) as gateway:
        gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
        await Operator(gateway, resolved(upstream, uid="u1")).start(pod="p1")
        row = store._runs["u1"]
        store._runs["u1"] = replace(row, spec={**row.spec, **kept})
        gateway.restart()
        said = refused(await gateway.operator.get("/v1/runs/u1"), 409, "SpecUnreadable")
        assert "run u1" in said
        assert named in said
        assert "let the version that admitted it bring it to its end" in said
        clock.advance(1_000)
        runner = await Operator(gateway, resolved(upstream, uid="u2", name="other")).start(pod="p2")
        assert (await ok(await runner.get("/v1/self")))["run_uid"] == "u2"
        briefs = (await ok(await gateway.operator.get("/v1/runs?pending=true")))["runs"]
        assert [brief["uid"] for brief in briefs] == ["u1", "u2"]
