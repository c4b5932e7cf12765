"""Random histories against the plan: legal moves only, one end, nothing counted backwards, every crash harmless."""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.property.run_world import BASE, HEAD, T, World, a_spec, drive

from moorage.api.budget import ResolvedLimits
from moorage.api.commands import CommandRequest
from moorage.api.wire import Role
from moorage.core.commands.admission import Abilities, Accepted, decide
from moorage.core.constraints.context import lived_ms
from moorage.core.run import actions as a
from moorage.core.run.admission import JOURNAL_LOST
from moorage.core.run.observed import Problem, SandboxPhase
from moorage.core.run.phases import MOVES, TERMINAL, RunPhase
from moorage.core.run.reducer import replay
from moorage.core.run.state import RunState


class RunMachine(RuleBasedStateMachine):
    """The environment and the operator take turns at random; the invariants are checked after each move."""

    @initialize(
        acceptance=st.booleans(),
        push=st.booleans(),
        attempts=st.integers(1, 4),
        rounds=st.integers(0, 2),
        limits=st.builds(
            ResolvedLimits,
            tokens_hard=st.none() | st.integers(1, 20),
            max_iterations=st.none() | st.integers(1, 3),
            wall_clock_ms=st.none() | st.integers(1, 4_000_000),
        ),
    )
    def begin(self, acceptance: bool, push: bool, attempts: int, rounds: int, limits: ResolvedLimits) -> None:
        base = a_spec()
        assert base.delivery is not None
        self.world = World(
            a_spec(
                acceptance=base.acceptance if acceptance else (),
                delivery=base.delivery.model_copy(update={"push": push}),
                max_attempts=attempts,
                acceptance_rounds=rounds,
                limits=limits,
            )
        )
        self.phases = [self.world.state.phase]
        self.tokens = 0
        self.epoch = 0
        self.lived = 0
        self.end: RunState | None = None
        self.serial = 0

    def fresh(self) -> str:
        self.serial += 1
        return f"x{self.serial}"

    @rule(crash=st.none() | st.integers(0, 4))
    def operator_pass(self, crash: int | None) -> None:
        self.world.step(crash)

    @rule()
    def operator_dies_between_lease_and_fence(self) -> None:
        for action in self.world.plan().actions:
            if isinstance(action, a.RaiseEpoch):
                self.world.raise_lease(action.epoch)
                return
            if isinstance(action, a.StartSandbox):
                self.world.start(action)
                return

    @rule(ms=st.integers(1, 4_000_000))
    def time_passes(self, ms: int) -> None:
        self.world.now += ms

    @rule(role=st.sampled_from(["runner", "verifier"]))
    def sandbox_starts(self, role: str) -> None:
        view = self.world.sandbox(role)
        if view and view.phase is SandboxPhase.WAITING:
            self.world.run_pod(view)

    @rule(role=st.sampled_from(["runner", "verifier"]), reason=st.sampled_from(["OOMKilled", "Evicted", ""]))
    def sandbox_ends(self, role: str, reason: str) -> None:
        view = self.world.sandbox(role)
        if view:
            self.world.set_pod(view, phase=SandboxPhase.ENDED, reason=reason)

    @rule(role=st.sampled_from(["runner", "verifier"]))
    def sandbox_is_deleted_from_outside(self, role: str) -> None:
        view = self.world.sandbox(role)
        if view:
            del self.world.pods[view.name]

    @rule()
    def lease_is_deleted(self) -> None:
        self.world.lease = None

    @rule(by=st.integers(1, 5))
    def lease_is_raised_by_a_stranger(self, by: int) -> None:
        if self.world.lease:
            self.world.raise_lease(self.world.lease.epoch + by)

    @rule(
        late=st.integers(0, 2), kind=st.sampled_from(["started", "workspace", "agent", "finish", "iteration", "model"])
    )
    def runner_reports(self, late: int, kind: str) -> None:
        """Also too late, twice and out of order: an older epoch, a fact already told."""
        world = self.world
        epoch = max(0, world.state.epoch - late)
        reports = {
            "started": ("started", T.ATTEMPT_STARTED, {"node": "n"}),
            "workspace": ("workspace", T.WORKSPACE_READY, {"base": BASE, "branch": "b"}),
            "agent": ("agent", T.AGENT_STARTED, {}),
            "iteration": (self.fresh(), T.ITERATION_COMPLETE, {"iteration": world.state.iteration + 1}),
            "model": (self.fresh(), T.MODEL_RESPONSE, {"usage": {"input_tokens": 5, "output_tokens": 2}}),
        }
        if kind == "finish":
            world.finish()
            return
        world.report(*reports[kind], epoch=epoch)

    @rule(outcome=st.sampled_from(["failed", "exhausted", "paused", "unknown"]))
    def agent_ends_badly(self, outcome: str) -> None:
        self.world.finish(outcome)

    @precondition(lambda self: self.world.sandbox("verifier") is not None)
    @rule(passed=st.booleans())
    def verifier_judges(self, passed: bool) -> None:
        if self.world.state.proposal is not None:
            self.world.judge(passed=passed)

    @rule()
    def somebody_says_something(self) -> None:
        asked = CommandRequest(command_id=self.fresh(), type="FollowUp", issuer="ada", text="and the docs")
        if isinstance(decide(asked, self.world.state, Abilities(steer=True, follow_up=True)), Accepted):
            told = {"command_id": asked.command_id, "type": asked.type, "digest": "d", "issuer": asked.issuer}
            self.world.note(T.COMMAND_ACCEPTED, told)

    @rule()
    def agent_hears_what_was_said(self) -> None:
        for waiting in [c for c in self.world.state.commands if c.waits]:
            said = {"command_id": waiting.command_id, "iteration": self.world.state.iteration + 1}
            self.world.report(f"heard:{waiting.command_id}", T.COMMAND_DELIVERED, said)

    @rule()
    def user_cancels(self) -> None:
        self.world.cancel = True

    @rule(suspend=st.booleans())
    def user_suspends(self, suspend: bool) -> None:
        self.world.suspend = suspend

    @rule(reason=st.sampled_from(["Command", "Constraint", "BudgetExhausted"]), kill=st.booleans())
    def somebody_asks_for_a_pause(self, reason: str, kill: bool) -> None:
        self.world.ask_to_pause(reason, kill=kill)

    @rule()
    def somebody_asks_to_go_on(self) -> None:
        self.world.ask_to_go_on()

    @rule(tokens=st.integers(0, 60), iterations=st.integers(0, 6), clock=st.integers(0, 9_000_000))
    def user_raises_limits(self, tokens: int, iterations: int, clock: int) -> None:
        """Also to less than they are: then nothing follows."""
        self.world.wanted = ResolvedLimits(tokens_hard=tokens, max_iterations=iterations, wall_clock_ms=clock)

    @rule(up=st.booleans())
    def gateway_comes_and_goes(self, up: bool) -> None:
        self.world.gateway_reachable = up

    @rule(away=st.booleans(), mood=st.sampled_from(["", "dies", "loses"]))
    def remote_comes_and_goes(self, away: bool, mood: str) -> None:
        self.world.remote.away, self.world.remote.mood = away, mood

    @precondition(lambda self: self.world.state.admitted_at is not None)
    @rule()
    def object_is_deleted(self) -> None:
        self.world.gone = True

    @invariant()
    def one_push_of_a_run_is_open_at_a_time(self) -> None:
        if hasattr(self, "world"):
            assert len(self.world.state.open_effects) <= 1

    @invariant()
    def moves_are_legal_and_the_end_absorbs(self) -> None:
        if not hasattr(self, "world"):
            return
        state = self.world.state
        walked = self._walked()
        for old, new in pairwise(walked):
            assert old is new or new in MOVES[old], (old, new)
        if self.end is not None:
            assert (state.phase, state.end) == (self.end.phase, self.end.end)
        if state.phase in TERMINAL:
            self.end = state

    def _walked(self) -> list[RunPhase]:
        return [replay(self.world.gateway.history[:n]).phase for n in range(len(self.world.gateway.history) + 1)]

    @invariant()
    def nothing_counts_backwards(self) -> None:
        if not hasattr(self, "world"):
            return
        state = self.world.state
        assert state.usage.tokens >= self.tokens
        assert state.epoch >= self.epoch
        lived = lived_ms(state, self.world.now)
        assert lived >= self.lived
        self.tokens, self.epoch, self.lived = state.usage.tokens, state.epoch, lived

    @invariant()
    def a_pause_has_nobody_at_work_and_uses_up_no_attempt(self) -> None:
        if not hasattr(self, "world"):
            return
        state, history = self.world.state, self.world.gateway.history
        losses = [r for r in history if r.type == T.ATTEMPT_ENDED and r.payload and r.payload["role"] == Role.RUNNER]
        assert state.strikes <= 2 * len(losses)
        if state.phase is RunPhase.PAUSED:
            assert state.open_effects == ()
            assert not self.world.report(self.fresh(), T.MODEL_REQUEST, {})

    @invariant()
    def rounds_are_bounded_and_each_has_a_verdict_against_it(self) -> None:
        if not hasattr(self, "world"):
            return
        state, history = self.world.state, self.world.gateway.history
        against = [r for r in history if r.type == T.VERIFICATION_RESULT and r.payload and not r.payload["passed"]]
        assert state.rounds <= min(self.world.spec.acceptance_rounds, len(against))

    @invariant()
    def success_has_its_evidence(self) -> None:
        if not hasattr(self, "world") or self.world.state.phase is not RunPhase.SUCCEEDED:
            return
        state, spec = self.world.state, self.world.spec
        assert state.agent_end is not None
        assert state.agent_end.outcome == "completed"
        if spec.acceptance:
            assert state.verification is not None
            assert state.verification.passed
        if spec.delivery and spec.delivery.push:
            assert self.world.remote.commit == HEAD

    @invariant()
    def nothing_is_pushed_twice(self) -> None:
        assert not hasattr(self, "world") or self.world.remote.pushes <= 1

    @invariant()
    def one_runner_at_a_time_may_write_the_volume(self) -> None:
        if not hasattr(self, "world"):
            return
        live = [v for v in self.world.pods.values() if v.role == Role.RUNNER and not v.ended]
        assert len(live) <= 1, live

    def teardown(self) -> None:
        """Whatever happened, a willing environment brings the run to its one end, and nothing is left running."""
        if not hasattr(self, "world"):
            return
        self.world.gateway_reachable, self.world.suspend = True, False
        drive(self.world)
        assert self.world.state.end is not None or self.world.verdict is not None
        assert self.world.state.open_effects == ()
        self.world.now += 60_000
        for _ in range(20):
            self.world.step()
        assert all(v.ended for v in self.world.pods.values())


TestRunMachine = pytest.mark.rule("S2", "S3", "I2", "I4", "I6", "F1", "C3", "N4")(RunMachine.TestCase)
TestRunMachine.settings = settings(
    max_examples=300, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.rule("F2")
@given(crashes=st.lists(st.integers(0, 5), max_size=12))
@settings(max_examples=150, deadline=None)
def test_every_crash_point_between_two_actions_leads_to_the_same_end(crashes: list[int]) -> None:
    calm = drive(World())
    torn = World()
    for crash in crashes:
        torn.step(crash)
    end = drive(torn)
    assert end.end is not None
    assert calm.end is not None
    assert (end.phase, end.end.commit) == (calm.phase, calm.end.commit)
    assert torn.remote.pushes == 1
    assert end.attempt == 1


@pytest.mark.rule("F1", "F2")
@pytest.mark.parametrize("done", range(8))
def test_a_crash_amid_the_first_pass_leads_to_the_same_end_and_to_one_sandbox(done: int) -> None:
    """Admission with its fence, Lease and volume go side by side: each of them may have happened, or not."""
    world = World(untouched=True)
    world.begin_and_die(done)
    assert not world.pods
    end = drive(world)
    assert (end.phase, end.attempt, world.remote.pushes) == (RunPhase.SUCCEEDED, 1, 1)
    assert [view.epoch for view in world.pods.values() if view.role == Role.RUNNER] == [end.epoch]
    assert (world.lease.epoch if world.lease else 0) == end.epoch


@pytest.mark.parametrize("done", [2, 4, 6])
def test_while_a_run_waits_nothing_stands_of_an_admission_that_never_came(done: int) -> None:
    """Suspended, queued, over or without its Workspace: an earlier pass may have died, or the gateway have refused."""
    waits: list[dict[str, object]] = [
        {"suspend": True},
        {"cancel": True},
        {"problem": Problem("SecretNotFound", "create it", stalled=False)},
        {"problem": Problem("UnknownDriver", "m", stalled=True)},
    ]
    for changes in waits:
        world = World(untouched=True)
        world.begin_and_die(done)
        for name, value in changes.items():
            setattr(world, name, value)
        world.step()
        assert (world.lease, world.volume) == (None, False), changes
        assert world.plan().actions == ()


def test_what_had_begun_is_kept_while_its_journal_is_lost() -> None:
    world = World(volume=True, problem=JOURNAL_LOST)
    world.raise_lease(1)
    assert world.plan().actions == ()


@pytest.mark.rule("S1")
@given(crashes=st.lists(st.integers(0, 5), max_size=6))
@settings(max_examples=50, deadline=None)
def test_the_state_is_what_its_history_says(crashes: list[int]) -> None:
    world = World()
    for crash in crashes:
        world.step(crash)
    drive(world)
    assert replay(world.gateway.history) == world.state
    half = len(world.gateway.history) // 2
    assert replay(world.gateway.history[half:], replay(world.gateway.history[:half])) == world.state
