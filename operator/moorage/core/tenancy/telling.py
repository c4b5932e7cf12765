"""What a ResourceConstraint's status says: use against limit for each line, and which constraint is stricter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moorage.api.constraints import Constraints
from moorage.api.meta import bounded, kstatus, set_conditions
from moorage.api.quantity import amount, dollars
from moorage.api.resourceconstraint import MAX_LINES, ContractLine, ResourceConstraint, ResourceConstraintStatus
from moorage.api.wire import AllowanceRequest, AllowanceUse
from moorage.core.constraints.cel import BadExpression, Expression
from moorage.core.run.limits import NUMBERS, WRITTEN
from moorage.core.run.observed import Problem
from moorage.core.run.resolving.limits import limits
from moorage.core.tenancy.contract import CUSTOM, LINES, Contract, contract_of
from moorage.core.tenancy.rendering import COUNTED

SANDBOXES = "concurrency.sandboxes"
MODEL_LINES = ("concurrency.models", "perDay.tokens", "perDay.cost")
"""Lines that the gateway keeps."""


@dataclass(frozen=True)
class Used:
    """What of a line is used, by its name in the spec: of the namespace, and of a constraint with a selector, by its
    name. What isn't in it isn't known.
    """

    whole: Mapping[str, str]
    scoped: Mapping[str, Mapping[str, str]]

    def of(self, constraint: ResourceConstraint) -> Mapping[str, str]:
        """Of that constraint's lines."""
        if constraint.spec.selector is None:
            return self.whole
        return self.scoped.get(constraint.metadata.name, {})


def by_quota(used: Mapping[str, str]) -> dict[str, str]:
    """A ResourceQuota's `status.used` by the contract's lines."""
    return {line: used[name] for line, name in COUNTED.items() if name in used}


def allowance_of(contract: Contract) -> AllowanceRequest:
    """What the gateway is to keep of it."""
    return AllowanceRequest(
        tokens=contract.tokens_per_day, cost_micros=contract.cost_per_day_micros, models=contract.models
    )


def of_models(use: AllowanceUse | None) -> dict[str, str]:
    """What the gateway says is used, by the contract's lines. What requests under way may come to counts with it."""
    if use is None:
        return {}
    return {
        "concurrency.models": str(use.requests),
        "perDay.tokens": str(use.tokens + use.reserved_tokens),
        "perDay.cost": f"${dollars(use.cost_micros + use.reserved_cost_micros)}",
    }


def status_of(
    constraint: ResourceConstraint, contract: Contract, used: Used, problem: Problem | None, now: int
) -> ResourceConstraintStatus:
    """The status, given what stands there. `contract`: what all of the namespace's come to."""
    lines = lines_of(constraint, contract, used.of(constraint))
    trouble = problem or misread(constraint)
    generation, old = constraint.metadata.generation, constraint.status or ResourceConstraintStatus()
    if trouble is None:
        truths = kstatus("Current", "Enforced", _enforced(constraint, contract), generation)
    else:
        truths = kstatus("Failed" if trouble.stalled else "InProgress", trouble.reason, trouble.message, generation)
    sandboxes = next((line for line in lines if line.name == SANDBOXES), None)
    return old.model_copy(
        update={
            "observed_generation": generation,
            "conditions": set_conditions(old.conditions, truths, now),
            "lines": lines,
            "sandboxes": f"{sandboxes.used or 0}/{sandboxes.limit}" if sandboxes else None,
        }
    )


def lines_of(constraint: ResourceConstraint, contract: Contract, used: Mapping[str, str]) -> tuple[ContractLine, ...]:
    """One for each line that the constraint says, in the order of the spec."""
    told = _told(contract_of(constraint))
    return tuple(
        ContractLine(
            name=name,
            limit=bounded(limit, 1024),
            used=used.get(name),
            stricter_in=_stricter(constraint, contract, name),
        )
        for name, limit in list(told.items())[:MAX_LINES]
    )


def _told(own: Contract) -> dict[str, str]:
    plain = {line.name: line.spelt(getattr(own, line.field)) for line in LINES if line.name in own.set_by}
    numbers = ((WRITTEN[name], getattr(own.limits, name)) for name in NUMBERS)
    bounds = {written.path: str(written.spelt(most)) for written, most in numbers if most is not None}
    if own.limits.custom:
        bounds[CUSTOM] = ", ".join(each.name for each in own.limits.custom)
    return plain | bounds


def _stricter(constraint: ResourceConstraint, contract: Contract, line: str) -> str | None:
    """Whose line counts instead of the constraint's own, where a stricter one counts for the same runs."""
    selector = constraint.spec.selector
    if line == CUSTOM or (selector is not None and line == SANDBOXES):
        return None  # all of them count
    counting = contract.of(selector.match_labels) if selector is not None else contract
    same = _value(contract_of(constraint), line) == _value(counting, line)
    return None if same else counting.set_by.get(line)


def _value(contract: Contract, line: str) -> object:
    found = next((each for each in LINES if each.name == line), None)
    if found is not None:
        value = getattr(contract, found.field)
        return amount(value) if isinstance(value, str) else value
    return next((getattr(contract.limits, name) for name in NUMBERS if WRITTEN[name].path == line), None)


def _enforced(constraint: ResourceConstraint, contract: Contract) -> str:
    whom = "all runs of this namespace" if constraint.spec.selector is None else "the runs that it selects"
    own = contract_of(constraint)
    stricter = ((line, _stricter(constraint, contract, line)) for line in own.set_by)
    elsewhere = [(line, who) for line, who in stricter if who is not None]
    if not elsewhere:
        return f"it counts for {whom}"
    said = ", ".join(f"{line} in {who}" for line, who in elsewhere)
    return f"it counts for {whom}; stricter is {said}"


def misread(constraint: ResourceConstraint) -> Problem | None:
    """An expression of it that can't be judged: no run would pass it."""
    for custom in limits(constraint.spec.constraints or Constraints(), None).custom:
        try:
            if custom.cel is not None:
                Expression.compiled(custom)
        except BadExpression as error:
            why = f"constraints.custom {custom.name}: {error}; correct it: no run starts until then"
            return Problem("ConstraintInvalid", why, stalled=True)
    return None
