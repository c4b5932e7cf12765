"""C4, C6: a run under its tenant's contract. What the contract doesn't allow is held, never failed: the contract may be
changed, and whoever may do that is named. O6: a run that is admitted keeps the contract that it was admitted under.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moorage.api.budget import ResolvedLimits
from moorage.api.quantity import Quantity, amount
from moorage.api.wire import ResolvedContract, ResolvedModel, ResolvedRun
from moorage.core.run.limits import NUMBERS
from moorage.core.run.observed import Problem
from moorage.core.run.resolving.limits import demand_judged, demand_prices
from moorage.core.run.resolving.references import Unresolved
from moorage.core.tenancy.contract import BOTH, CUSTOM, Contract

CONCURRENCY = "ConcurrencyReached"
"""Reason of a run that waits for another one that the same constraint selects."""
COST = ("cost_soft_micros", "cost_hard_micros")


def under_contract(
    run: ResolvedRun, labels: Mapping[str, str], contract: Contract, installed: frozenset[str] = frozenset()
) -> ResolvedRun | Problem:
    """The run with the stricter of its own limits and the contract's, or what the contract has against it. `labels`:
    the run's; `installed`: entry points of the gateway.
    """
    counting = contract.of(labels)
    against = _refusal(run, counting) or _unjudged(run, counting, installed)
    return against or _bounded(run, counting)


def full(labels: Mapping[str, str], contract: Contract, live: Iterable[Mapping[str, str]]) -> Problem | None:
    """The constraint with a selector whose runs have all the sandboxes that they may have. `live`: labels of each run
    of the namespace that has one.
    """
    standing = list(live)
    for scope in contract.selecting(labels):
        most = scope.contract.sandboxes
        used = sum(1 for each in standing if scope.selects(each))
        if most is not None and used >= most:
            why = f"the runs that rcon/{scope.name} selects use {used} of {most} sandboxes"
            advice = f"next when one of them ends or rcon/{scope.name} is raised"
            return Problem(CONCURRENCY, f"{why}; {advice}", stalled=False, held=True)
    return None


def _refusal(run: ResolvedRun, contract: Contract) -> Problem | None:
    agent, box = run.agent, run.sandbox
    found = [
        _listed("ModelNotAllowed", "model", [agent.model.name] if agent.model else [], contract, "models"),
        _listed(
            "ProviderNotAllowed",
            "ModelProvider",
            [agent.model.provider] if agent.model else [],
            contract,
            "providers",
        ),
        _listed("RuntimeClassNotAllowed", "RuntimeClass", [box.runtime_class], contract, "runtimeClasses"),
        _listed("HostNotAllowed", "host", [each.host for each in box.egress], contract, "hosts"),
        _too_large("cpu", box.cpu, contract.sandbox_cpu, contract),
        _too_large("memory", box.memory, contract.sandbox_memory, contract),
        _too_large("disk", box.disk, contract.sandbox_disk, contract),
    ]
    return next((each for each in found if each is not None), None)


ALLOWED = {
    "models": "allowed_models",
    "providers": "allowed_providers",
    "runtimeClasses": "allowed_runtime_classes",
    "hosts": "allowed_hosts",
}


def _listed(reason: str, noun: str, named: Iterable[str | None], contract: Contract, which: str) -> Problem | None:
    allowed: frozenset[str] | None = getattr(contract, ALLOWED[which])
    if allowed is None:
        return None
    foreign = [name for name in named if name not in allowed]
    if not foreign:
        return None
    what = f"{noun} {foreign[0]}" if foreign[0] is not None else f"a sandbox without a {noun}"
    line = f"allowed.{which}"
    known = f"allowed are: {', '.join(sorted(allowed)[:16])}" if allowed else "none is allowed"
    return _held(
        reason, f"{what} isn't in {line} of {_who(contract, line)} ({known})", "name another one", contract, line
    )


def _too_large(resource: str, wanted: str | None, most: Quantity | None, contract: Contract) -> Problem | None:
    if wanted is None or most is None or amount(wanted) <= most.amount:
        return None
    line = f"perSandbox.{resource}"
    why = f"sandbox.resources.{resource} of {wanted} is more than {line} of {_who(contract, line)} ({most})"
    return _held("SandboxTooLarge", why, "ask for less", contract, line)


def _held(reason: str, why: str, instead: str, contract: Contract, line: str) -> Problem:
    advice = f"create the run anew and {instead}, or have {_who(contract, line)} changed: it starts then"
    return Problem(reason, f"{why}: {advice}", stalled=False, held=True)


def _who(contract: Contract, line: str) -> str:
    return BOTH.join(f"rcon/{name}" for name in contract.set_by.get(line, "").split(BOTH))


def _unjudged(run: ResolvedRun, contract: Contract, installed: frozenset[str]) -> Problem | None:
    """A limit of the contract's that can't be counted, or judged, for this run."""
    line = CUSTOM
    try:
        for custom in contract.limits.custom:
            demand_judged(custom, run.agent, installed)
        line = "perDay.cost"
        if run.agent.model is not None and contract.cost_per_day_micros is not None:
            demand_prices(run.agent.model)
        line = "constraints.cost"
        if run.agent.model is not None and any(getattr(contract.limits, name) is not None for name in COST):
            demand_prices(run.agent.model)
    except Unresolved as error:
        who = {contract.set_by[name] for name in contract.set_by if name.startswith(line)}
        whose = BOTH.join(f"rcon/{name}" for name in sorted(who))
        return Problem(error.problem.reason, f"{whose}: {error.problem.message}", stalled=False, held=True)
    return None


def _bounded(run: ResolvedRun, contract: Contract) -> ResolvedRun:
    update: dict[str, Any] = {}
    bounds = contract.limits
    if bounds != ResolvedLimits():
        numbers = {name: _least(getattr(run.limits, name), getattr(bounds, name)) for name in NUMBERS}
        update["limits"] = run.limits.model_copy(update={**numbers, "custom": (*run.limits.custom, *bounds.custom)})
        set_by = {line: who for line, who in contract.set_by.items() if line.startswith("constraints.")}
        update["contract"] = ResolvedContract(own=run.limits, limits=bounds, set_by=set_by)
    if run.agent.model is not None and contract.allowed_models is not None:
        model = _narrowed(run.agent.model, contract.allowed_models)
        update["agent"] = run.agent.model_copy(update={"model": model})
    return run.model_copy(update=update) if update else run


def _narrowed(model: ResolvedModel, allowed: frozenset[str]) -> ResolvedModel:
    """Of what its provider serves, the agent may ask for what is allowed."""
    return model.model_copy(update={"allowed": tuple(name for name in model.allowed if name in allowed)})


def _least(a: int | None, b: int | None) -> int | None:
    return min((each for each in (a, b) if each is not None), default=None)


def wanted_limits(author: ResolvedLimits, run: ResolvedRun | None, contract: Contract) -> ResolvedLimits:
    """What an admitted run's limits are to be by now: as its author writes them, and no more than the contract allows
    as it stands. What only the contract bounded follows the contract. `run`: as admitted, with what was raised.
    """
    if run is None:
        return author
    taken = run.contract
    update: dict[str, int] = {}
    for name in NUMBERS:
        said, most = getattr(author, name), getattr(contract.limits, name)
        if said is None and taken is not None and getattr(taken.limits, name) is not None:
            said = getattr(taken.own, name)
            wanted = _least(said, most)
        else:
            wanted = _least(said, most) if said is not None else None
        at = getattr(run.limits, name)
        if wanted is not None and at is not None and said != wanted and wanted < at:
            wanted = at  # a contract that has become narrower takes nothing from a run that is under way
        if wanted is not None:
            update[name] = wanted
    return ResolvedLimits().model_copy(update=update)
