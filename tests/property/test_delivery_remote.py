"""A remote that fails at random and a gateway that dies at any step of a delivery: one push at most, and always an end.

The gateway, its mirror, git and the remote are the real ones; the operator is the plan over what the gateway answers.
Time is a clock that goes on by what the plan waits for.
"""

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.gateway_script import BRANCH, PASSWORD, Operator, commit, git, resolved, verified, work_done

from moorage.api.wire import ResolvedTimeouts
from moorage.core.run import actions as a
from moorage.core.run.observed import LeaseView, Observed
from moorage.core.run.plan import decide
from moorage.core.run.reducer import replay
from moorage.core.run.view import RUN_VIEW, RunView
from moorage.core.scheduling.explain import Slots
from moorage.gateway.delivery import QUIET_MS
from moorage.store.memory import MemoryStore
from moorage.testing.clock import StepClock
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import LATE_S, GitServer
from moorage.workspace.mirror import Mirrors

pytestmark = pytest.mark.timeout(240)  # each example is a remote and a gateway of its own

MOST_RECORDS = 120
MOST_PASSES = 300
FAULTS = ("away", "error", "drop", "late", "")


class Killed(RuntimeError):
    """The process is gone here."""


class Fuse:
    """Burns down with every step that is taken; at 0 the gateway dies, once."""

    def __init__(self) -> None:
        self.left: int | None = None

    def burn(self) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            self.left = None
            raise Killed


class DyingStore(MemoryStore):
    """Dies before or after an append."""

    fuse = Fuse()

    async def append(self, *args: Any, **kwargs: Any) -> Any:
        self.fuse.burn()
        done = await super().append(*args, **kwargs)
        self.fuse.burn()
        return done


class DyingMirrors(Mirrors):
    """Dies before or after a word with the remote."""

    fuse = Fuse()

    async def push_upstream(self, *args: Any) -> Any:
        self.fuse.burn()
        done = await super().push_upstream(*args)
        self.fuse.burn()
        return done

    async def look_upstream(self, *args: Any) -> Any:
        self.fuse.burn()
        done = await super().look_upstream(*args)
        self.fuse.burn()
        return done


class Delivery:
    """One run from its verdict to its end."""

    def __init__(self, gateway: LocalGateway, remote: GitServer, clock: StepClock, chance: random.Random) -> None:
        self.gateway, self.remote, self.clock, self.chance = gateway, remote, clock, chance
        self.fuse = Fuse()
        self.kills = 0
        self.late_at: int | None = None
        self.operator = Operator(gateway, resolved(remote, timeouts=ResolvedTimeouts(delivery_ms=300_000)))
        self.cancel_at = chance.choice([None, None, chance.randrange(12)])
        self.back_at = chance.choice([None, chance.randrange(6, 16)])  # None: the remote never comes back

    def arm(self) -> None:
        """The process that a test kills from here on."""
        store, mirrors = self.gateway.deps.store, DyingMirrors(self.gateway.deps.mirrors._root, timeout=30.0)
        assert isinstance(store, DyingStore)
        store.fuse = mirrors.fuse = self.fuse
        self.gateway.deps = replace(self.gateway.deps, mirrors=mirrors)
        self.gateway.restart()

    async def view(self) -> RunView:
        return RUN_VIEW.validate_python(await self.operator.view())

    async def until_end(self) -> RunView:
        for number in range(MOST_PASSES):
            view = await self.view()
            assert len(view.state.open_effects) <= 1
            if view.state.end is not None:
                return view
            self.weather(number)
            plan = decide(self.observed(view, number), self.clock.now_ms())
            died = await self.apply(plan)
            if died or not plan.actions:
                await self.time_passes(100 if died else plan.requeue_ms or 1)
        raise AssertionError(f"no end: {view.state}")

    async def time_passes(self, ms: int) -> None:
        """What is late by the machine's clock is not later than the quiet time by the run's."""
        self.clock.advance(ms)
        if self.late_at is not None and self.clock.now_ms() - self.late_at >= QUIET_MS:
            await asyncio.sleep(LATE_S + 0.5)
            self.late_at = None

    def weather(self, number: int) -> None:
        """What the remote is like during this pass, and whether the gateway survives it."""
        self.remote._faults.clear()
        fault = self.chance.choice(FAULTS)
        if self.back_at is None and number >= 8:
            fault = "away"
        if self.back_at is not None and number >= self.back_at:
            fault = ""
        if fault == "away":
            self.remote.inject("error", times=99)
        elif fault:
            self.remote.inject(fault, "git-receive-pack")
        if fault == "late":
            self.late_at = self.clock.now_ms()
        if number < 20 and self.chance.random() < 0.5:
            self.fuse.left = self.chance.randrange(10)

    def observed(self, view: RunView, number: int) -> Observed:
        now = self.clock.now_ms()
        return Observed(
            uid=view.spec.uid,
            tenant=view.spec.tenant,
            name=view.spec.name,
            generation=1,
            created_at=now,
            spec=view.spec,
            problem=None,
            cancel=self.cancel_at is not None and number >= self.cancel_at,
            suspend=False,
            closed_without_journal=False,
            slots=Slots(),
            journal=view.state,
            gateway_up_since=view.up_since,
            lease=LeaseView(1, "attempt-1", now, 40_000),
            sandboxes=(),
            volume=False,
        )

    async def apply(self, plan: a.Plan) -> bool:
        """True where the gateway died under it."""
        reports = [x for x in plan.actions if isinstance(x, a.Report)]
        for action in plan.actions:
            if isinstance(action, a.Deliver) and await self.call("deliver", {"epoch": 1, "commit": action.commit}):
                return True
        told = [
            {"record_id": r.record_id, "type": r.type, "payload": r.payload, "recorded_at": self.clock.now_ms()}
            for r in reports
        ]
        return bool(told) and await self.call("records", {"epoch": 1, "records": told})

    async def call(self, door: str, body: dict[str, Any]) -> bool:
        answer = await self.operator.http.post(f"{self.operator.door}/{door}", json=body)
        if answer.status_code == 500:
            self.gateway.restart()
            self.kills += 1
            return True
        assert answer.status_code == 200, answer.text
        return False


@pytest.mark.rule("E1", "E4", "E5", "E8", "I8")
@pytest.mark.parametrize("seed", range(12))
async def test_whatever_fails_one_push_is_applied_and_the_run_ends(tmp_path: Path, seed: int) -> None:
    chance, clock = random.Random(seed), StepClock()
    (tmp_path / "srv").mkdir()
    with GitServer(tmp_path / "srv", "ada", PASSWORD) as remote:
        bare = remote.create("shop.git")
        git(tmp_path, "clone", "-q", str(bare), str(tmp_path / "seed"))
        git(tmp_path / "seed", "checkout", "-q", "-b", "main")
        commit(tmp_path / "seed", "a.txt", "one\n")
        git(tmp_path / "seed", "push", "-q", "origin", "main")
        quiet = structlog.wrap_logger(structlog.ReturnLogger())
        gateway = LocalGateway(tmp_path, store=DyingStore(), clock=clock, log=quiet)
        gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
        async with gateway.serving():
            run = Delivery(gateway, remote, clock, chance)
            _, head = await work_done(gateway, run.operator, tmp_path)
            await verified(gateway, run.operator, head)
            run.arm()
            view = await run.until_end()
            records = await run.operator.records()
    told(view, records, [u for u in remote.updates if u.ref == f"refs/heads/{BRANCH}"], head)


def told(view: RunView, records: list[Any], updates: list[Any], head: str) -> None:
    """The journal says what the remote has seen, or that it doesn't know; nothing reached it without an intent."""
    end, statuses = view.state.end, {e.status for e in view.state.effects}
    assert end is not None
    assert [u.new for u in updates] in ([], [head])
    assert len(records) < MOST_RECORDS
    assert view.state.open_effects == ()
    assert all(len(replay(records[:n]).open_effects) <= 1 for n in range(len(records)))
    sent = [r.payload["effect_id"] for r in records if r.type == "EFFECT_DISPATCHED"]
    meant = {r.payload["effect_id"]: r.payload["commit"] for r in records if r.type == "EFFECT_INTENT"}
    assert set(sent) <= set(meant)
    assert {u.new for u in updates} <= {meant[effect_id] for effect_id in sent}
    if "confirmed" in statuses:
        assert updates
    elif "unknown" not in statuses:
        assert not updates
    assert (view.state.phase == "Succeeded") <= ("confirmed" in statuses)
