"""A small honest world for the plan: a journal that reduces, a Lease, sandboxes, a volume, a remote and a clock.

It applies actions one at a time, so that a test may crash between any two, and lets the environment move: sandboxes
start and die, runners report, verifiers judge. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import (
    ResolvedAgent,
    ResolvedCheck,
    ResolvedDelivery,
    ResolvedRetention,
    ResolvedRun,
    ResolvedTimeouts,
    ResolvedWorkspace,
)
from moorage.core.journal.record import Record, RecordType
from moorage.core.run import actions as a
from moorage.core.run.limits import in_force
from moorage.core.run.observed import Heartbeat, LeaseView, Observed, Problem, SandboxPhase, SandboxView
from moorage.core.run.phases import IllegalMove, RunPhase
from moorage.core.run.plan import decide
from moorage.core.run.reducer import reduce
from moorage.core.run.state import Effect, RunState
from moorage.core.scheduling.explain import Slots

T = RecordType
START = 1_800_000_000_000
BASE, HEAD = "a" * 40, "b" * 40


def a_spec(**changes: Any) -> ResolvedRun:
    base: dict[str, Any] = {
        "uid": "u-1",
        "tenant": "team-a",
        "name": "fix",
        "session_id": "u-1",
        "placement": "cluster",
        "goal": "g",
        "workspace": ResolvedWorkspace(key="k", kind="ephemeral"),
        "agent": ResolvedAgent(driver="command", command=("true",)),
        "acceptance": (ResolvedCheck(name="tests", run="true"),),
        "delivery": ResolvedDelivery(branch="moorage/fix"),
        "limits": ResolvedLimits(),
        "timeouts": ResolvedTimeouts(),
        "retention": ResolvedRetention(ttl_ms=3_600_000),
    }
    return ResolvedRun(**(base | changes))


def record(seq: int, kind: str, payload: Mapping[str, Any], *, epoch: int = 0, at: int = START) -> Record:
    return Record(
        record_id=f"r{seq}",
        type=kind,
        recorded_at=at,
        source="gateway",
        assurance="observed",
        payload=payload,
        tenant="team-a",
        run_uid="u-1",
        session_id="u-1",
        epoch=epoch,
        schema_version=1,
        criticality="critical",
        seq=seq,
        logical_time=seq,
        prev_hash=None,
        hash=f"{seq:064x}",
    )


class Fenced(RuntimeError):
    """An older epoch was refused."""


@dataclass
class Gateway:
    """The journal's door: dedups by record id, refuses old epochs and illegal moves, and keeps nothing else."""

    state: RunState = field(default_factory=RunState)
    seen: set[str] = field(default_factory=set)
    history: list[Record] = field(default_factory=list)
    released: bool = False

    def append(self, record_id: str, kind: str, payload: Mapping[str, Any], epoch: int, at: int) -> None:
        if record_id in self.seen:
            return
        new = record(self.state.offset + 1, kind, payload, epoch=epoch, at=at)
        self.state = reduce(self.state, new)
        self.seen.add(record_id)
        self.history.append(new)

    def as_runner(self, record_id: str, kind: str, payload: Mapping[str, Any], epoch: int, at: int) -> None:
        if epoch < self.state.epoch:
            raise Fenced(kind)
        self.append(record_id, kind, payload, epoch, at)


@dataclass
class Remote:
    """A git remote's branch; counts pushes that moved it. `mood`: the next push `dies` on its way, or it is applied and
    `loses` its answer.
    """

    commit: str | None = None
    pushes: int = 0
    away: bool = False
    mood: str = ""


@dataclass
class World:
    """All that a run touches."""

    spec: ResolvedRun = field(default_factory=a_spec)
    now: int = START
    gateway: Gateway = field(default_factory=Gateway)
    remote: Remote = field(default_factory=Remote)
    lease: LeaseView | None = None
    pods: dict[str, SandboxView] = field(default_factory=dict)
    born: int = 0
    volume: bool = False
    cancel: bool = False
    suspend: bool = False
    gone: bool = False
    problem: Problem | None = None
    verdict: a.Verdict | None = None
    deleted: bool = False
    wanted: ResolvedLimits | None = None
    beat: Heartbeat | None = None
    gateway_reachable: bool = True
    untouched: bool = False  # True: the next pass is the first one of the operator that saw the object come
    started: dict[tuple[int, str, int], str] = field(default_factory=dict)

    @property
    def state(self) -> RunState:
        return self.gateway.state

    def observed(self) -> Observed:
        return Observed(
            uid=self.spec.uid,
            tenant=self.spec.tenant,
            name=self.spec.name,
            generation=1,
            created_at=START,
            spec=self.spec.model_copy(update={"limits": in_force(self.spec.limits, self.state.raised)}),
            problem=self.problem,
            cancel=self.cancel,
            suspend=self.suspend,
            closed_without_journal=self.verdict is not None,
            slots=Slots(),
            journal=self.state if self.gateway_reachable else None,
            gateway_up_since=START,
            lease=self.lease,
            sandboxes=tuple(self.pods.values()),
            volume=self.volume,
            heartbeat=self.beat,
            gone=self.gone,
            untouched=self.untouched,
            progress_seen_at=self.state.progress_at,
            released=self.gateway.released,
            wanted=self.wanted,
            iterations=sum(r.type == T.ITERATION_COMPLETE for r in self.gateway.history),
        )

    def plan(self) -> a.Plan:
        return decide(self.observed(), self.now)

    # --- the operator -------------------------------------------------------------------------------------------------

    def apply(self, action: a.Action) -> None:  # noqa: C901, PLR0912  one case per action
        match action:
            case a.Admit(spec):
                self.gateway.append("admit", T.RUN_ADMITTED, {"spec_hash": "h"}, 0, self.now)
                self.spec = spec
            case a.Begin():
                for part in self.begin(action):
                    part()
            case a.RaiseEpoch(epoch, attempt, reason):
                self.raise_lease(epoch)
                self.raise_fence(epoch, attempt, reason)
            case a.EnsureLease(epoch):
                self.raise_lease(epoch)
            case a.EnsureVolume():
                self.volume = True
            case a.StartSandbox():
                self.register(self.start(action), action)
            case a.RegisterSandbox(name, uid, epoch, role, commit):
                assert self.pods[name].uid == uid
                self.register(self.pods[name], a.StartSandbox(epoch, role, 0, commit))
            case a.StopSandbox(name, uid):
                self.stop(name, uid)
            case a.Report(record_id, kind, payload):
                self.gateway.append(record_id, kind, payload, self.state.epoch, self.now)
            case a.Deliver(commit):
                self.deliver(commit)
            case a.ReleaseLease():
                self.lease = None
            case a.ReleaseVolume():
                self.volume = False
            case a.ReleaseRun():
                self.pods, self.volume, self.lease, self.gateway.released = {}, False, None, True
            case a.DeleteObject():
                self.deleted = True

    def begin(self, action: a.Begin) -> tuple[Callable[[], None], ...]:
        """What goes side by side, to be called in any order, or in part."""

        def admit() -> None:
            self.apply(a.Admit(action.spec))
            self.raise_fence(action.epoch, 1, "Start")

        return admit, lambda: self.raise_lease(action.epoch), lambda: self.apply(a.EnsureVolume())

    def begin_and_die(self, done: int) -> None:
        """A first pass that dies amid it: the parts whose bit is set have happened."""
        action = self.plan().actions[0]
        assert isinstance(action, a.Begin)
        self.untouched = False
        for at, part in enumerate(self.begin(action)):
            if done >> at & 1:
                part()

    def raise_lease(self, epoch: int) -> None:
        at = max(epoch, self.lease.epoch if self.lease else 0)
        self.lease = LeaseView(at, f"attempt-{at}", self.now, 40_000)

    def raise_fence(self, epoch: int, attempt: int, reason: str) -> None:
        if epoch <= self.state.epoch:
            return
        payload = {"epoch": epoch, "attempt": attempt, "reason": reason}
        self.gateway.append(f"fence:{epoch}", T.EPOCH_RAISED, payload, epoch, self.now)

    def start(self, action: a.StartSandbox) -> SandboxView:
        """Create or adopt by name, as a substrate does."""
        name = f"pod-{action.epoch}-{action.role.value}-{action.serial}"
        if name not in self.pods:
            self.born += 1
            uid = f"uid-{self.born}"
            self.pods[name] = SandboxView(
                name, uid, action.epoch, action.role.value, SandboxPhase.WAITING, created_at=self.now
            )
        return self.pods[name]

    def register(self, view: SandboxView, action: a.StartSandbox) -> None:
        payload = {
            "pod_uid": view.uid,
            "pod_name": view.name,
            "epoch": action.epoch,
            "role": action.role.value,
            "commit": action.commit,
        }
        self.gateway.append(f"pod:{view.uid}", T.POD_REGISTERED, payload, action.epoch, self.now)

    def stop(self, name: str, uid: str) -> None:
        view = self.pods.get(name)
        if view is not None and view.uid == uid:
            del self.pods[name]

    def deliver(self, commit: str | None) -> None:
        """E5: what is unsettled is asked about first; then, for a commit, look, intent, dispatch, compare-and-swap,
        receipt.
        """
        for effect in self.state.unsettled_effects:
            self.reconcile(effect)
        push = self.state.delivered()
        if commit is not None and (push is None or push.status == "not_dispatched"):
            self.push(commit)

    def push(self, commit: str) -> None:
        if self.state.phase is RunPhase.CANCELLING or self.state.end is not None:
            return
        if self.remote.away:
            self.defer()
            return
        effect_id = f"push-{self.state.offset + 1}"
        intent = {"effect_id": effect_id, "kind": "git_push", "key": "k", "target": "origin b", "level": "conditional"}
        self.note(T.EFFECT_INTENT, intent)
        self.note(T.EFFECT_DISPATCHED, {"effect_id": effect_id})
        mood, self.remote.mood = self.remote.mood, ""
        if mood != "dies" and self.remote.commit is None:
            self.remote.commit, self.remote.pushes = commit, self.remote.pushes + 1
        self.note(T.EFFECT_RECEIPT, {"effect_id": effect_id, "outcome": "unknown" if mood else "confirmed"})
        if mood:
            self.defer()

    def reconcile(self, effect: Effect) -> None:
        if effect.status != "intended" and self.remote.away:
            if self.state.end is None:
                self.defer(effect.kind)
            return
        there = effect.status != "intended" and self.remote.commit == HEAD
        outcome = "confirmed" if there else "not_dispatched"
        self.note(T.EFFECT_RECONCILED, {"effect_id": effect.effect_id, "outcome": outcome})

    def defer(self, kind: str = "git_push") -> None:
        self.note(T.EFFECT_DEFERRED, {"kind": kind, "reason": "GitUnreachable", "message": "no answer"})

    def note(self, kind: str, payload: Mapping[str, Any]) -> None:
        self.gateway.append(f"{kind}:{self.state.offset}", kind, payload, self.state.epoch, self.now)

    def step(self, crash_after: int | None = None) -> bool:
        """One pass; with `crash_after` the operator dies after that many actions. False where nothing was planned."""
        plan = self.plan()
        self.untouched = False
        if plan.verdict is not None:
            self.verdict = plan.verdict
        for at, action in enumerate(plan.actions):
            if crash_after is not None and at >= crash_after:
                return True
            self.apply(action)
        if not plan.actions and crash_after is None:
            self.now += plan.requeue_ms or 0
        return bool(plan.actions or plan.verdict)

    # --- the sandbox's side -------------------------------------------------------------------------------------------

    def sandbox(self, role: str) -> SandboxView | None:
        """The registered sandbox of the newest epoch."""
        ref = self.state.sandbox(self.state.epoch, role)
        return next((v for v in self.pods.values() if ref and v.uid == ref.pod_uid), None)

    def set_pod(self, view: SandboxView, **changes: Any) -> None:
        self.pods[view.name] = replace(view, **changes)

    def run_pod(self, view: SandboxView, **where: str) -> None:
        self.set_pod(view, phase=SandboxPhase.RUNNING, started_at=self.now, **where)

    def report(self, record_id: str, kind: str, payload: Mapping[str, Any], epoch: int | None = None) -> bool:
        """A fact from inside; False where it was refused."""
        writer = self.state.epoch if epoch is None else epoch
        try:
            self.gateway.as_runner(f"{writer}:{record_id}", kind, payload, writer, self.now)
        except (Fenced, IllegalMove):
            return False
        return True

    def work(self, outcome: str = "completed", *, empty: bool = False) -> None:
        """A whole attempt of an agent, from the inside."""
        self.report("started", T.ATTEMPT_STARTED, {"node": "n"})
        self.report("workspace", T.WORKSPACE_READY, {"base": BASE, "branch": "moorage/fix"})
        self.report("agent", T.AGENT_STARTED, {})
        self.finish(outcome, empty=empty)

    def finish(self, outcome: str = "completed", *, empty: bool = False) -> None:
        self.report("end", T.AGENT_FINISHED, {"outcome": outcome, "reason": "Exited", "exit_code": 0})
        if outcome == "completed":
            proposal = {"commit": HEAD, "tree": HEAD, "base": BASE, "empty": empty, "files": 0 if empty else 1}
            self.report("result", T.RESULT_PROPOSED, proposal)

    # --- people -------------------------------------------------------------------------------------------------------

    def ask_to_pause(self, reason: str = "Command", *, kill: bool = False) -> bool:
        """As the gateway does it for a command or a constraint; False where it is refused."""
        try:
            self.note(T.PAUSE_REQUESTED, {"reason": reason, "by": "somebody", "message": "because", "kill": kill})
        except IllegalMove:
            return False
        return True

    def ask_to_go_on(self) -> bool:
        """The same, back."""
        try:
            self.note(T.RESUME_REQUESTED, {"by": "somebody"})
        except IllegalMove:
            return False
        return True

    def persuade(self) -> None:
        """Whatever may hold a paused run is taken away."""
        self.suspend = False
        limits = self.observed().spec
        if limits is not None:
            higher = {name: 4 * at + 10_000_000 for name, at in limits.limits if isinstance(at, int)}
            self.wanted = limits.limits.model_copy(update=higher)
        self.ask_to_go_on()

    def judge(self, *, passed: bool = True) -> None:
        self.report("verdict", T.VERIFICATION_RESULT, {"commit": HEAD, "passed": passed, "isolated": True})


def drive(world: World, passes: int = 400) -> RunState:
    """Let the operator and a willing environment run until the end."""
    for _ in range(passes):
        if world.state.end is not None or world.verdict is not None:
            break
        world.step()
        if world.state.phase is RunPhase.PAUSED:
            world.persuade()
        runner, verifier = world.sandbox("runner"), world.sandbox("verifier")
        if runner and runner.phase is SandboxPhase.WAITING:
            world.run_pod(runner)
            world.work()
        if verifier and verifier.phase is SandboxPhase.WAITING:
            world.run_pod(verifier)
            world.judge()
    return world.state
