"""A run's limits and constraints (O6, B1, C4): what would be without effect is refused, not ignored."""

from __future__ import annotations

from collections.abc import Sequence

from moorage.api.agent import Agent
from moorage.api.agentrun import AgentRun
from moorage.api.budget import ResolvedConstraint, ResolvedLimits
from moorage.api.constraints import BytesLimit, Constraints, CostLimit, CountLimit, CustomConstraint, TokenLimit
from moorage.api.quantity import Quantity
from moorage.api.wire import ResolvedAgent, ResolvedApproval, ResolvedModel
from moorage.core.approvals.consent import for_delivery
from moorage.core.constraints.cel import BadExpression, Expression
from moorage.core.constraints.judging import Context, Snapshot
from moorage.core.run.resolving.references import Unresolved


def enforced_limits(
    run: AgentRun, agent: Agent | None, resolved: ResolvedAgent, installed: frozenset[str]
) -> ResolvedLimits:
    """The limits, unless one of them would be without effect."""
    found, model = limits(run.spec.constraints, agent.spec.constraints if agent else None), resolved.model
    if model is not None and (found.cost_soft_micros is not None or found.cost_hard_micros is not None):
        demand_prices(model)
    for custom in found.custom:
        demand_judged(custom, resolved, installed)
    return found


def demand_answerable(limits: ResolvedLimits, approvals: Sequence[ResolvedApproval]) -> None:
    """Raise Unresolved where more has to be asked before the result leaves than may be asked in all."""
    needed, most = len(for_delivery(approvals)), limits.human_approvals_hard
    if most is not None and needed > most:
        why = (
            f"constraints.humanApprovals.hard of {most} is less than spec.approvals asks before Delivery ({needed}), so"
            " that no result could leave: set it higher, or leave approvals out"
        )
        raise Unresolved("ConstraintInvalid", why, stalled=True)


def demand_judged(custom: ResolvedConstraint, agent: ResolvedAgent, installed: frozenset[str]) -> None:
    """C4: raise Unresolved unless it is an expression that can be judged and holds as the run begins, or an entry point
    that is there.
    """
    at = f"constraints.custom {custom.name}"
    if custom.entry_point is not None and custom.entry_point not in installed:
        known = f"installed are: {', '.join(sorted(installed))}" if installed else "none is installed"
        why = f"{at}: no entry point {custom.entry_point} in the group moorage.constraints ({known})"
        raise Unresolved("ConstraintNotFound", why, stalled=True)
    if custom.cel is None:
        return
    begins = Context(state=Snapshot("Running", 1, agent.driver, agent.model.name if agent.model else ""))
    try:
        Expression.compiled(custom).demand_held(begins)
    except BadExpression as error:
        raise Unresolved("ConstraintInvalid", f"{at}: {error}", stalled=True) from None


def demand_prices(model: ResolvedModel) -> None:
    """Raise Unresolved where what is asked of cost couldn't be counted."""
    unpriced = [name for name in model.allowed or (model.name,) if name not in model.prices]
    if unpriced:
        names = ", ".join(unpriced[:16])
        why = f"constraints.cost needs prices, and ModelProvider {model.provider} has none for {names}: add"
        raise Unresolved("PricesMissing", f"{why} spec.models[].prices to it, or limit constraints.tokens instead")


def limits(own: Constraints, usual: Constraints | None) -> ResolvedLimits:
    """Limits as integers; each the run's, else the Agent's, else none."""
    layers = [c for c in (own, usual) if c is not None]
    tokens = next((c.tokens for c in layers if c.tokens is not None), TokenLimit())
    cost = next((c.cost for c in layers if c.cost is not None), CostLimit())
    clock = next((c.wall_clock for c in layers if c.wall_clock is not None), None)
    calls = next((c.tool_calls for c in layers if c.tool_calls is not None), CountLimit())
    effects = next((c.effects for c in layers if c.effects is not None), CountLimit())
    egress = next((c.egress for c in layers if c.egress is not None), BytesLimit())
    disk = next((c.disk for c in layers if c.disk is not None), BytesLimit())
    humans = next((c.human_approvals for c in layers if c.human_approvals is not None), CountLimit())
    return ResolvedLimits(
        max_iterations=next((c.max_iterations for c in layers if c.max_iterations is not None), None),
        tokens_soft=tokens.soft.number if tokens.soft else None,
        tokens_hard=tokens.hard.number if tokens.hard else None,
        cost_soft_micros=cost.soft.micros if cost.soft else None,
        cost_hard_micros=cost.hard.micros if cost.hard else None,
        wall_clock_ms=clock.ms if clock else None,
        tool_calls_soft=calls.soft,
        tool_calls_hard=calls.hard,
        effects_soft=effects.soft,
        effects_hard=effects.hard,
        egress_soft_bytes=_whole(egress.soft),
        egress_hard_bytes=_whole(egress.hard),
        disk_soft_bytes=_whole(disk.soft),
        disk_hard_bytes=_whole(disk.hard),
        human_approvals_soft=humans.soft,
        human_approvals_hard=humans.hard,
        custom=next((tuple(map(_custom, c.custom)) for c in layers if c.custom is not None), ()),
    )


def _whole(amount: Quantity | None) -> int | None:
    """Whole bytes."""
    return None if amount is None else int(amount.amount)


def _custom(told: CustomConstraint) -> ResolvedConstraint:
    return ResolvedConstraint(
        name=told.name,
        cel=told.cel,
        entry_point=told.entry_point,
        on_violation=told.on_violation or "GracefulExit",
        message=told.message,
    )
