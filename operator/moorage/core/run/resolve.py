"""O6: every reference of a run is followed once, at admission. What comes out is what the run is, whatever changes.

`resolve` returns the run as it will be journaled, or the first problem that keeps it from being admitted. A problem
says what to do; `stalled` ones only the author can mend, the others may be mended by somebody else meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.api.agentrun import AgentRun
from moorage.api.budget import ResolvedLimits
from moorage.api.parse import InvalidSpec, parse_agent_run
from moorage.api.wire import (
    ResolvedAgent,
    ResolvedApproval,
    ResolvedCheck,
    ResolvedRetention,
    ResolvedRun,
    ResolvedTimeouts,
)
from moorage.core.approvals.consent import COST
from moorage.core.approvals.resolving import resolved as resolved_approvals
from moorage.core.approvals.resolving import unenforceable
from moorage.core.run.merges import forge_of
from moorage.core.run.observed import Problem
from moorage.core.run.parents import child_of, dividing
from moorage.core.run.resolving.agents import SPEAKS, UNHEARING, WINDOW, model_choice, resolved_agent, template_of
from moorage.core.run.resolving.goals import goal_of
from moorage.core.run.resolving.limits import demand_answerable, demand_prices, enforced_limits, limits
from moorage.core.run.resolving.references import Broken, Defaults, Placement, References, Unresolved
from moorage.core.run.resolving.sandboxes import demand_runtime_class, resolved_sandbox
from moorage.core.run.resolving.workspaces import resolved_delivery, resolved_workspace, volume_size
from moorage.core.run.sessions import next_of
from moorage.core.run.state import RunState
from moorage.core.run.unseen import limit_missing

__all__ = ["SPEAKS", "WINDOW", "Broken", "Defaults", "References", "limits", "model_choice"]

ACCEPTANCE_ROUNDS = 2


def read_run(body: Mapping[str, Any], placement: Placement = "cluster") -> AgentRun | Problem:
    """Parse an AgentRun as it is stored. One that can't be read is a problem of its author's, never a crash; what this
    version doesn't know is passed over."""
    run = parse_agent_run(body, placement)
    if isinstance(run, InvalidSpec):
        return Problem(
            "InvalidSpec", f"{run.message}; the spec can't be changed: delete the run and create it anew", True
        )
    return run


def resolve(run: AgentRun, refs: References, defaults: Defaults) -> ResolvedRun | Problem:
    """Follow everything, or say what is missing."""
    try:
        found = _as_next(_as_child(_resolve(run, refs, defaults), run, refs), run, refs)
    except Unresolved as error:
        return error.problem
    return found if isinstance(found, Problem) else _with_children(found)


def _as_child(alone: ResolvedRun, run: AgentRun, refs: References) -> ResolvedRun | Problem:
    """With the limits that count in the end: what a run has to be able to do, it has to with its share, too."""
    ref = run.spec.parent_ref
    if ref is None:
        return alone
    found = child_of(alone, limits(run.spec.constraints, None), ref, run.metadata.created_at, refs.parent)
    if isinstance(found, ResolvedRun) and found.delivery is not None:
        demand_answerable(found.limits, found.approvals)
    return found


def _as_next(alone: ResolvedRun | Problem, run: AgentRun, refs: References) -> ResolvedRun | Problem:
    """With the limits of its session, which are what it may use."""
    ref = run.spec.continue_from
    if ref is None or isinstance(alone, Problem):
        return alone
    if isinstance(refs.origin, Broken):
        raise Unresolved("ContinuedUnreadable", f"AgentRun {ref.name} can't be gone on with: {refs.origin.message}")
    found = next_of(alone, limits(run.spec.constraints, None), ref, refs.origin)
    if isinstance(found, ResolvedRun) and found.agent.model is not None and _priced(found.limits):
        demand_prices(found.agent.model)
    if isinstance(found, ResolvedRun) and found.delivery is not None:
        demand_answerable(found.limits, found.approvals)
    return found


def _priced(found: ResolvedLimits) -> bool:
    return found.cost_soft_micros is not None or found.cost_hard_micros is not None


def _with_children(found: ResolvedRun) -> ResolvedRun | Problem:
    """By the limits that its children's shares come out of."""
    if found.agent.children is None:
        return found
    return limit_missing(dividing(found.limits, found.approvals, RunState()), "beside agent.children") or found


def _resolve(run: AgentRun, refs: References, defaults: Defaults) -> ResolvedRun:
    spec, meta = run.spec, run.metadata
    _refuse_unsupported(run, defaults.placement)
    template, agent = template_of(run, refs)
    workspace, prefix = resolved_workspace(run, refs, defaults)
    sandbox = resolved_sandbox(
        spec.sandbox, agent.spec.sandbox if agent else None, volume_size(refs.workspace), defaults
    )
    demand_runtime_class(sandbox.runtime_class, refs.runtime_classes)
    resolved = resolved_agent(template, refs, defaults)
    allowed = enforced_limits(run, agent, resolved, refs.constraints)
    approvals = _approvals(run, resolved)
    if spec.delivery is not None:
        demand_answerable(allowed, approvals)
    return ResolvedRun(
        uid=meta.uid,
        tenant=meta.namespace,
        name=meta.name,
        session_id=meta.uid,
        placement=defaults.placement,
        goal=goal_of(run, refs),
        workspace=workspace,
        agent=resolved,
        acceptance=tuple(
            ResolvedCheck(name=check.name, run=check.run, timeout_ms=check.timeout.ms)
            for check in spec.acceptance or ()
        ),
        delivery=resolved_delivery(run, prefix, workspace, forge_of(run, refs.workspace)),
        limits=allowed,
        timeouts=timeouts(run),
        sandbox=sandbox,
        retention=retention(run),
        approvals=approvals,
        max_attempts=spec.recovery.max_attempts,
        acceptance_rounds=_rounds(run, resolved.driver),
        scheduling_class=spec.scheduling.class_,
    )


def _approvals(run: AgentRun, agent: ResolvedAgent) -> tuple[ResolvedApproval, ...]:
    asked = run.spec.approvals or ()
    if (why := unenforceable(asked, agent)) is not None:
        raise Unresolved("ApprovalNotEnforceable", why, stalled=True)
    if agent.model is not None and any(each.before == COST for each in asked):
        demand_prices(agent.model)
    return resolved_approvals(asked)


def _rounds(run: AgentRun, driver: str) -> int:
    """The same command again mostly comes to the same."""
    asked = run.spec.recovery.acceptance_rounds
    return asked if asked is not None else 0 if driver == UNHEARING else ACCEPTANCE_ROUNDS


def _refuse_unsupported(run: AgentRun, placement: Placement) -> None:
    """Fields that exist already and would be silently without effect."""
    spec = run.spec
    if spec.parent_ref is not None and placement == "local":
        why = "spec.parentRef: a local run has no children in this version; leave it out, or run it in a cluster"
        raise Unresolved("NotSupported", why, stalled=True)
    if spec.continue_from is not None and placement == "local":
        why = "spec.continueFrom: a local run goes on with no other one in this version; leave it out, or run it in a"
        raise Unresolved("NotSupported", f"{why} cluster", stalled=True)
    if spec.continue_from is not None and spec.parent_ref is not None:
        why = "spec.continueFrom and spec.parentRef: a run has its session's budget or its parent's; leave one out"
        raise Unresolved("NotSupported", why, stalled=True)


def timeouts(run: AgentRun) -> ResolvedTimeouts:
    """The run's own times, which count before it is admitted too."""
    times, deadline = run.spec.timeouts, run.spec.scheduling.deadline
    return ResolvedTimeouts(
        schedule_to_start_ms=times.schedule_to_start.ms,
        attempt_ms=times.attempt.ms,
        no_progress_ms=times.no_progress.ms,
        delivery_ms=times.delivery.ms,
        settle_ms=times.settle.ms,
        pause_ms=times.pause.ms,
        deadline_ms=deadline.ms if deadline else None,
    )


def retention(run: AgentRun) -> ResolvedRetention:
    """W5: may be changed after admission, so it is read anew in each pass."""
    kept = run.spec.retention
    return ResolvedRetention(
        ttl_ms=kept.ttl_after_finished.ms, keep_worktree=kept.keep_worktree, delete_object=kept.delete_object
    )


def amended(admitted: ResolvedRun, run: AgentRun) -> ResolvedRun:
    """The admitted spec with what its author may change later and the journal doesn't say: its retention."""
    return admitted.model_copy(update={"retention": retention(run)})
