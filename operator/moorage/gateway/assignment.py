"""What a sandbox is for: the first thing that it asks.

The base commit is resolved once and pinned in the mirror, so that later attempts start from the same one, also while
the remote is away. A remote that refuses ends the run with a typed reason: the gateway writes it as the agent's end,
since no agent of this attempt will.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from moorage.api.meta import format_time
from moorage.api.wire import Role
from moorage.api.work import Assignment, GitAssignment, RecordedDecision, ResumePoint
from moorage.core.approvals.consent import TOOL_CALL
from moorage.core.continuation.checks import tail_of
from moorage.core.journal.errors import JournalError
from moorage.core.journal.record import RecordType
from moorage.core.run.phases import RunPhase
from moorage.core.run.reducing.effects import FETCH
from moorage.core.run.rework import REWORK, UNHEARD
from moorage.core.run.sessions import OWN_WORDS
from moorage.core.run.state import Deferral, Rejected, RunState
from moorage.gateway.answered import answered, whole_calls
from moorage.gateway.bases import Bases, BranchTaken, refuse_ended
from moorage.gateway.constraints import Asking
from moorage.gateway.errors import Refusal, StillFetching, Unavailable, UnknownRun, UpstreamRefused
from moorage.gateway.facts import Facts
from moorage.gateway.gate import Caller, Gate, base_of, branch_of
from moorage.gateway.ledger import Ledger, Run
from moorage.gateway.messages import said_before
from moorage.gateway.mirroring import fixed_base
from moorage.gateway.upstream import PASSING, refusal_of
from moorage.store import errors as store_errors
from moorage.store.errors import BlobCorrupted, BlobMissing, SpecUnreadable
from moorage.workspace.errors import WorkspaceError
from moorage.workspace.refs import drift_ref

OF_ITS_OWN = frozenset({"OOMKilled"})  # why a sandbox dies again if the same is done again
AGAIN = "; asked again and again, given up at "
BEFORE = MappingProxyType(
    {
        REWORK: "what the last one proposed was not accepted",
        UNHEARD: "the last one had proposed its result when a person had more to say",
    }
)
"""Why there is another attempt, by how the last one ended."""
GOAL_EXCERPT = 400  # characters of the goal that a handoff repeats; the whole goal comes beside it


class Assignments:
    """Says what is to be done."""

    def __init__(self, gate: Gate, bases: Bases) -> None:
        self._gate, self._bases = gate, bases
        self._mirrors = gate.deps.mirrors

    async def assign(self, caller: Caller) -> Assignment:
        """The assignment. Raise UpstreamRefused (the run ends), Unavailable (ask again), Refusal (nothing to do)."""
        run = caller.run
        refuse_idle(run)
        if caller.pod.role == Role.VERIFIER:
            return await self._verifier(caller)
        refuse_ended_attempt(run)
        await self._note_start(caller)
        try:
            base = await self._bases.soon(run, caller.epoch)
        except (WorkspaceError, UpstreamRefused, Unavailable) as error:
            raise await self._failed(caller, error) from None
        run.waits_since = None
        said = await said_before(self._gate.ledger, run) if run.state.recovered else ()
        failed = await self._failing_output(run)
        calls = await whole_calls(self._gate.deps, run) if run.state.recovered else {}
        await self._gate.judge.judge(run, Asking())  # a limit may have been raised
        assignment = _assignment(caller, self._git(run, base, _resume(run)), said, failed, calls)
        more = await self._continuing(run, assignment) if continues(run) else {"conversation": goes_on(run)}
        return assignment.model_copy(update={"budget": self._gate.judge.budget(run), **more})

    async def _continuing(self, run: Run, assignment: Assignment) -> dict[str, Any]:
        """O2: what is told to an agent that goes on with another run's work, and doesn't know its own goal yet."""
        ledger = self._gate.ledger
        elder, worked = await elder_of(ledger, run), await worked_before(ledger, run)
        teller = await teller_of(ledger, run)
        lines = [*([continued(elder, worked)] if elder else []), *([assignment.handoff] if assignment.handoff else [])]
        recalled = teller is not None and teller.spec.agent.driver == OWN_WORDS
        return {"continues": True, "conversation": recalled, "handoff": "\n".join(lines) or None}

    async def _failing_output(self, run: Run) -> str:
        """N4: what the acceptance command wrote that the last proposal failed by; nothing where that was erased."""
        if run.state.rejected is None or run.facts.failed is None:
            return ""
        try:
            content = await self._gate.deps.blobs.get(run.tenant, run.facts.failed)
        except (BlobMissing, BlobCorrupted):
            return ""
        return content.decode("utf-8", "replace")

    async def _note_start(self, caller: Caller) -> None:
        payload = {"epoch": caller.epoch, "pod_uid": caller.pod.pod_uid}
        if caller.identity.node:
            payload["node"] = caller.identity.node
        draft = self._gate.ledger.observed(
            RecordType.ATTEMPT_STARTED, payload, caller.epoch, caller.pod.pod_uid, attempt=caller.run.state.attempt
        )
        await self._gate.ledger.append(caller.run, caller.epoch, [draft])

    async def _verifier(self, caller: Caller) -> Assignment:
        run = caller.run
        base = await base_of(self._mirrors, run) or (run.state.proposal.base if run.state.proposal else None)
        if base is None or caller.pod.commit is None:
            raise Refusal("there is nothing to verify yet", status=409, reason="NothingProposed")
        git = self._git(run, base, None).model_copy(update={"commit": caller.pod.commit})
        return _assignment(caller, git)

    async def _failed(self, caller: Caller, error: WorkspaceError | Refusal) -> Refusal:
        """Ask again for as long as waiting may mend it; then the agent has failed before it began."""
        refusal = refusal_of(error) if isinstance(error, WorkspaceError) else error
        if isinstance(refusal, Unavailable):
            if await self._waits(caller, refusal):
                return refusal
            refusal = UpstreamRefused(refusal.message, reason=refusal.reason)
        caller.run.waits_since = None
        payload = {"outcome": "failed", "reason": refusal.reason, "message": refusal.message[:4096]}
        draft = self._gate.ledger.observed(
            RecordType.AGENT_FINISHED, payload, caller.epoch, attempt=caller.run.state.attempt
        )
        await self._gate.ledger.append(caller.run, caller.epoch, [draft])
        return refusal

    async def _waits(self, caller: Caller, refusal: Unavailable) -> bool:
        """Whether it is waited for; what the run waits for is told then, but for what is the gateway's own trouble."""
        settings = self._gate.deps.settings
        match refusal:
            case StillFetching():
                waited = caller.run.state.deferral  # the branch is free by now; what went wrong at the remote says more
                if waited is None or waited.reason == BranchTaken.reason:
                    await self._tell(caller, refusal, "the repository is being fetched")
                return True
            case BranchTaken(closing=True):
                await self._tell(caller, refusal, f"{refusal.message}; it is being closed")
                return True
            case BranchTaken():
                left = self._left(caller, "branch", settings.branch_patience_ms)
            case _ if refusal.reason in PASSING:
                left = self._left(caller, "remote", settings.upstream_patience_ms)
            case _:
                return True
        if left > 0:
            until = format_time(self._gate.deps.clock.now_ms() + left)
            await self._tell(caller, refusal, f"{refusal.message}{AGAIN}{until}")
        return left > 0

    def _left(self, caller: Caller, what: str, patience_ms: int) -> int:
        """Milliseconds that this attempt still waits for it."""
        run, now = caller.run, self._gate.deps.clock.monotonic_ms()
        if run.waits_since is None or run.waits_since[:2] != (caller.epoch, what):
            run.waits_since = caller.epoch, what, now
        return run.waits_since[2] + patience_ms - now

    async def _tell(self, caller: Caller, refusal: Unavailable, message: str) -> None:
        """Once per reason: who asks often makes no journal longer."""
        state = caller.run.state
        if state.deferral is not None and _known(state.deferral, refusal, message):
            return
        payload = {"kind": FETCH, "reason": refusal.reason, "message": message[:4096]}
        draft = self._gate.ledger.observed(
            RecordType.EFFECT_DEFERRED, payload, caller.epoch, state.offset, attempt=state.attempt
        )
        await self._gate.ledger.append(caller.run, caller.epoch, [draft])

    # --- the answer ---------------------------------------------------------------------------------------------------

    def _git(self, run: Run, base: str, resume: ResumePoint | None) -> GitAssignment:
        space = run.spec.workspace
        return GitAssignment(
            base=base,
            branch=branch_of(run),
            depth=space.depth,
            filter=space.filter,
            sparse=space.sparse,
            submodules=space.submodules,
            lfs=space.lfs,
            resume=resume,
        )


def _known(told: Deferral, refusal: Unavailable, message: str) -> bool:
    """Whether that was told already. Whose the branch is may change, and that run's end may come into sight; a remote
    may say the same in other words each time.
    """
    if not told.of_start or told.reason != refusal.reason:
        return False
    return not isinstance(refusal, BranchTaken) or told.message.partition(AGAIN)[0] == message.partition(AGAIN)[0]


def refuse_idle(run: Run) -> None:
    """Raise where a sandbox has nothing to do any more."""
    state = run.state
    refuse_ended(run)
    if state.phase is RunPhase.CANCELLING:
        raise Refusal("the run is being cancelled", status=409, reason="Cancelling")


def refuse_ended_attempt(run: Run) -> None:
    """Raise where this attempt is over already: a runner that came back, or that comes too late, starts nothing again.

    An end of unknown outcome doesn't count: it is the operator's to say that the attempt is lost.
    """
    end = run.state.agent_end
    if end is not None and end.outcome != "unknown":
        raise UpstreamRefused(end.message or f"this attempt's agent has {end.outcome}", reason=end.reason)
    if run.state.phase is RunPhase.RECOVERING:
        raise UpstreamRefused("this attempt was given up; another one follows", reason="AttemptEnded")


def _resume(run: Run) -> ResumePoint | None:
    """The run's own last checkpoint, else that of the run with which it goes on."""
    point, begins = run.state.checkpoint, run.facts.resume
    if point is not None:
        return ResumePoint(commit=point.commit, iteration=point.iteration, epoch=point.epoch)
    return ResumePoint(commit=begins, iteration=0, epoch=0) if begins is not None else None


def continues(run: Run) -> bool:
    """Whether an attempt begins where another run ended: this one has no checkpoint of its own yet."""
    return run.spec.origin is not None and run.state.checkpoint is None


async def elder_of(ledger: Ledger, run: Run) -> Run | None:
    """The run with which this one goes on; None where nobody can read its journal any more."""
    if run.spec.origin is None:
        return None
    try:
        return await ledger.kin(run, run.spec.origin.uid)
    except (UnknownRun, store_errors.UnknownRun, JournalError, SpecUnreadable):
        return None


async def worked_before(ledger: Ledger, run: Run) -> Run | None:
    """The last run before it that had a worktree."""
    elder = await elder_of(ledger, run)
    while elder is not None and fixed_base(elder) is None:
        elder = await elder_of(ledger, elder)
    return elder


async def teller_of(ledger: Ledger, run: Run) -> Run | None:
    """The last run before it whose model has answered, as far as anybody knows: of a pruned journal nobody does."""
    elder = await elder_of(ledger, run)
    while elder is not None and elder.facts.last is None:
        pruned = elder.state.epoch > 0 and elder.facts == Facts()
        elder = await elder_of(ledger, elder) if not pruned else None
    return elder


async def speaker_of(ledger: Ledger, run: Run) -> Run | None:
    """Whose conversation an attempt goes on with, where its driver keeps none: another run's, or its own run's."""
    if continues(run):
        return await teller_of(ledger, run)
    return run if goes_on(run) else None


def goes_on(run: Run) -> bool:
    """R4: whether the last thing that an earlier attempt's model decided is done, so that the next decision follows it.
    Not where that attempt's sandbox died of what it did (R6).
    """
    last, loss = run.facts.last, run.state.last_loss
    if run.spec.agent.driver != OWN_WORDS or last is None or last.question.turn is None:
        return False
    died = loss is not None and loss.reason in OF_ITS_OWN and not _paused(run.state)
    return run.state.recovered and last.question.turn <= run.state.iteration and not died


def continued(elder: Run, worked: Run | None) -> str:
    """R4: what the next run of a session is told of the one before, from facts alone. `worked`: whose work it goes on
    with.
    """
    spec, end = elder.spec, elder.state.end
    lines = [f"The work goes on in a new run. Run {spec.name} before it has {elder.state.phase.lower()}."]
    if end is not None and elder.state.phase is not RunPhase.SUCCEEDED:
        lines.append(f"It ended with {end.reason}: {end.message[:300]}")
    lines.append(f"Its goal was: {_excerpt(spec.goal)}")
    if worked is None or worked is not elder:
        lines.append("It had no worktree yet.")
    if worked is not None:
        whose = "its" if worked is elder else f"run {worked.spec.name}'s"
        lines.append(f"The worktree is as {whose} last safe point, or result, has it.")
    return "\n".join(lines)


def _excerpt(goal: str) -> str:
    return goal if len(goal) <= GOAL_EXCERPT else goal[:GOAL_EXCERPT] + " […]"


def _assignment(
    caller: Caller,
    git: GitAssignment,
    said: Sequence[str] = (),
    failed: str = "",
    calls: Mapping[str, str] | None = None,
) -> Assignment:
    spec, state, runner = caller.run.spec, caller.run.state, caller.pod.role == Role.RUNNER
    left = recorded(caller.run, caller.epoch) if runner else None
    return Assignment(
        run_uid=spec.uid,
        tenant=spec.tenant,
        name=spec.name,
        epoch=caller.epoch,
        attempt=state.attempt,
        role=Role(caller.pod.role),
        goal=spec.goal,
        agent=spec.agent,
        acceptance=spec.acceptance,
        delivery=spec.delivery,
        limits=caller.run.limits,
        timeouts=spec.timeouts,
        git=git,
        iterations_used=caller.run.facts.completed + state.carried.iterations,
        recorded=left,
        next_iteration=max(state.iteration, caller.run.facts.turn) + 1,  # E2: one that was begun isn't used again
        handoff=handoff(caller.run, said, failed, calls, anew=left is None) if state.recovered and runner else None,
        tokens_used=state.usage.tokens + state.carried.tokens,
        approvals=tuple(each for each in spec.approvals if each.before == TOOL_CALL),
        egress=tuple(entry.host for entry in spec.sandbox.egress) if runner else (),
    )


def recorded(run: Run, epoch: int) -> RecordedDecision | None:
    """R2: the decision that this attempt begins with. Not one of which the last attempt's sandbox died (R6)."""
    loss, found = run.state.last_loss, run.facts.decision(epoch)
    if found is None or found.question.turn is None or (loss is not None and loss.reason in OF_ITS_OWN):
        return None
    return RecordedDecision(iteration=found.question.turn, request_id=found.request_id)


def handoff(
    run: Run,
    said: Sequence[str] = (),
    failed: str = "",
    calls: Mapping[str, str] | None = None,
    *,
    anew: bool = True,
) -> str:
    """R4: what a recovered agent is told, from facts alone. `said`: the messages that earlier attempts were given;
    `failed`: what the acceptance command wrote that rejected what they proposed; `calls`: see `whole_calls`. `anew`:
    it begins with a decision of its own, so that it has to be told which calls were answered; who acts on a recorded
    one makes them by that.
    """
    spec, state = run.spec, run.state
    lines = [
        f"This is attempt {state.attempt} at the same work; {_before(state)}.",
        f"Goal: {_excerpt(spec.goal)}",
        f"Iterations done: {state.iteration}. Journal offset: {state.offset}.",
    ]
    if state.checkpoint:
        point = state.checkpoint
        lines.append(f"The worktree is at checkpoint {point.commit} of iteration {point.iteration}: go on from there.")
    elif run.facts.resume is not None:
        lines.append("No checkpoint was taken since the run began, where the one before it ended.")
    else:
        lines.append("No checkpoint was taken: the worktree is at its base, start from the beginning.")
    if state.last_loss and not _paused(state):
        lines.append(f"The last attempt ended with {state.last_loss.reason}: {state.last_loss.message[:300]}")
    if state.drift:
        last = drift_ref(run.uid, state.epoch)
        lines.append(f"Files written after the checkpoint were saved below {last.rpartition('/')[0]}/ and then reset.")
    if spec.acceptance:
        lines.append("Acceptance: " + "; ".join(check.run for check in spec.acceptance)[:600])
    if state.unknown_effects:
        lines.append("Effects of unknown end: " + ", ".join(e.target for e in state.unknown_effects)[:300])
    if (tokens := run.limits.tokens_hard) is not None:
        lines.append(f"Tokens left: {max(0, tokens - state.usage.tokens - state.carried.tokens)}.")
    if anew:
        lines += [
            answered(each, (calls or {}).get(each.key)) for each in state.consents if each.call and not each.pending
        ]
    if state.rejected is not None:
        lines += _failing_evidence(state.rejected, failed)
    lines += [f"A person said meanwhile, which still holds: {each}" for each in said]
    return "\n".join(lines)


def _before(state: RunState) -> str:
    """Why there is another attempt."""
    if _paused(state):
        return "it was paused, and goes on"
    return BEFORE.get(state.last_loss.reason if state.last_loss else "", "an earlier one was interrupted")


def _paused(state: RunState) -> bool:
    """The last attempt wasn't lost: it was stopped on purpose."""
    return state.pauses > 0 and (state.last_loss is None or state.last_loss.epoch < state.epoch - 1)


def _failing_evidence(rejected: Rejected, output: str) -> list[str]:
    """N4: the verdict is the isolated verifier's, so these are facts."""
    told = [f"Acceptance failed on {rejected.commit}, in a fresh checkout. What failed: {'; '.join(rejected.failing)}"]
    if tail := tail_of(output):
        told.append(f"The last lines of its output:\n{tail}")
    return [*told, "Mend that, and check it yourself before you say that you are done."]
