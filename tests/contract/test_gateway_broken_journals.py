"""A broken journal, or a spec that is too old, is refused by itself and is no other run's trouble (J5, R7, R8, I10)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.gateway_script import PASSWORD, Operator, ok, refused, resolved

from moorage.api.wire import ResolvedDelivery
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
