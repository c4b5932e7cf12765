"""C5, C8: what the ResourceConstraints of one namespace come to together. The stricter of each line wins.

A constraint with a selector counts for some runs alone. What bounds one run at a time (allowed, perSandbox,
constraints) is merged for each run by its labels; a bound of several together (concurrency.sandboxes) stands apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from moorage.api.budget import ResolvedLimits
from moorage.api.constraints import Constraints
from moorage.api.quantity import Quantity, dollars
from moorage.api.resourceconstraint import (
    Allowed,
    Concurrency,
    PerDay,
    PerSandbox,
    ResourceConstraint,
    ResourceConstraintSpec,
    Totals,
)
from moorage.core.run.limits import NUMBERS, WRITTEN
from moorage.core.run.resolving.limits import limits

BOTH = " and "  # between the names of constraints that make a line only together
CUSTOM = "constraints.custom"


@dataclass(frozen=True)
class Contract:
    """Every line; None is unlimited, 0 is 0, an empty set allows none. Without any constraint: `Contract()`.

    limits: of each run, beside those of its own. set_by: for each line that is set, by its name in the spec, the
    ResourceConstraint that set it. scoped: the constraints with a selector, by name.
    """

    weight: int = 1
    sandboxes: int | None = None
    models: int | None = None
    tokens_per_day: int | None = None
    cost_per_day_micros: int | None = None
    cpu: Quantity | None = None
    memory: Quantity | None = None
    storage: Quantity | None = None
    sandbox_cpu: Quantity | None = None
    sandbox_memory: Quantity | None = None
    sandbox_disk: Quantity | None = None
    allowed_models: frozenset[str] | None = None
    allowed_providers: frozenset[str] | None = None
    allowed_runtime_classes: frozenset[str] | None = None
    allowed_hosts: frozenset[str] | None = None
    limits: ResolvedLimits = field(default_factory=ResolvedLimits)
    set_by: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    scoped: tuple[Scoped, ...] = ()

    def of(self, labels: Mapping[str, str]) -> Contract:
        """What counts for a run with these labels: the lines that bound one run at a time are the stricter ones of the
        namespace's and of each constraint that selects it. The others stay the namespace's.
        """
        merged = replace(self, scoped=self.selecting(labels))
        for scope in merged.scoped:
            merged = _stricter(merged, scope.contract, PER_RUN)
        return merged

    def selecting(self, labels: Mapping[str, str]) -> tuple[Scoped, ...]:
        """The constraints whose selector selects a run with these labels; each has a concurrency of its own."""
        return tuple(each for each in self.scoped if each.selects(labels))


@dataclass(frozen=True)
class Scoped:
    """A constraint with a selector. `contract` has its lines and no others."""

    name: str
    match_labels: Mapping[str, str]
    contract: Contract

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether a run with these labels is meant."""
        return all(labels.get(key) == value for key, value in self.match_labels.items())


@dataclass(frozen=True)
class Line:
    """One line: its name in the spec, its field of Contract, and how it is read, compared and written."""

    name: str
    field: str
    read: Callable[[ResourceConstraintSpec], Any]
    size: Callable[[Any], Any] = lambda value: value
    spelt: Callable[[Any], str] = str


def _amount(quantity: Quantity) -> Any:
    return quantity.amount


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _set(names: Iterable[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


def _at_once(spec: ResourceConstraintSpec) -> Concurrency:
    return spec.concurrency or Concurrency()


def _a_day(spec: ResourceConstraintSpec) -> PerDay:
    return spec.per_day or PerDay()


def _in_all(spec: ResourceConstraintSpec) -> Totals:
    return spec.resources or Totals()


def _one(spec: ResourceConstraintSpec) -> PerSandbox:
    return spec.per_sandbox or PerSandbox()


def _allowed(spec: ResourceConstraintSpec) -> Allowed:
    return spec.allowed or Allowed()


def per_day(contract: Contract) -> Mapping[str, int | None]:
    """The lines that count what models take, by name; None is unlimited. A line of 0 models is waited out likewise."""
    return {
        "perDay.tokens": contract.tokens_per_day,
        "perDay.cost": contract.cost_per_day_micros,
        "concurrency.models": contract.models,
    }


def _number(value: Any) -> int | None:
    return None if value is None else value.number


def _micros(value: Any) -> int | None:
    return None if value is None else value.micros


WHOLE = (
    Line("weight", "weight", lambda s: s.weight),
    Line("concurrency.sandboxes", "sandboxes", lambda s: _at_once(s).sandboxes),
    Line("concurrency.models", "models", lambda s: _at_once(s).models),
    Line("perDay.tokens", "tokens_per_day", lambda s: _number(_a_day(s).tokens)),
    Line("perDay.cost", "cost_per_day_micros", lambda s: _micros(_a_day(s).cost), spelt=lambda m: f"${dollars(m)}"),
    Line("resources.cpu", "cpu", lambda s: _in_all(s).cpu, _amount),
    Line("resources.memory", "memory", lambda s: _in_all(s).memory, _amount),
    Line("resources.storage", "storage", lambda s: _in_all(s).storage, _amount),
)
"""Those that bound what several runs use together."""
PER_RUN = (
    Line("perSandbox.cpu", "sandbox_cpu", lambda s: _one(s).cpu, _amount),
    Line("perSandbox.memory", "sandbox_memory", lambda s: _one(s).memory, _amount),
    Line("perSandbox.disk", "sandbox_disk", lambda s: _one(s).disk, _amount),
    Line("allowed.models", "allowed_models", lambda s: _set(_allowed(s).models), spelt=_listed),
    Line("allowed.providers", "allowed_providers", lambda s: _set(_allowed(s).providers), spelt=_listed),
    Line(
        "allowed.runtimeClasses",
        "allowed_runtime_classes",
        lambda s: _set(_allowed(s).runtime_classes),
        spelt=_listed,
    ),
    Line("allowed.hosts", "allowed_hosts", lambda s: _set(_allowed(s).hosts), spelt=_listed),
)
"""Those that bound one run at a time, beside its limits."""
LINES = WHOLE + PER_RUN


def merge(constraints: Iterable[ResourceConstraint]) -> Contract:
    """The contract of a namespace. The order in which they come changes nothing."""
    merged, scoped = Contract(), []
    for each in sorted(constraints, key=lambda c: c.metadata.name):
        alone = contract_of(each)
        if each.spec.selector is None:
            merged = _stricter(merged, alone, LINES)
        else:
            scoped.append(Scoped(each.metadata.name, MappingProxyType(dict(each.spec.selector.match_labels)), alone))
    return replace(merged, scoped=tuple(scoped))


def contract_of(constraint: ResourceConstraint) -> Contract:
    """What one constraint says by itself."""
    spec, name = constraint.spec, constraint.metadata.name
    read = {line: line.read(spec) for line in LINES}
    told = {line: value for line, value in read.items() if value is not None}
    bounds = limits(spec.constraints or Constraints(), None)
    own = bounds.model_copy(
        update={"custom": tuple(c.model_copy(update={"name": f"{name}.{c.name}"}) for c in bounds.custom)}
    )
    lines = [*(line.name for line in told), *_limit_lines(own)]
    return Contract(
        **{line.field: value for line, value in told.items()},
        limits=own,
        set_by=MappingProxyType(dict.fromkeys(lines, name)),
    )


def _limit_lines(bounds: ResolvedLimits) -> list[str]:
    named = [WRITTEN[field].path for field in NUMBERS if getattr(bounds, field) is not None]
    return [*named, CUSTOM] if bounds.custom else named


def _stricter(a: Contract, b: Contract, lines: Iterable[Line]) -> Contract:
    """`a` with those lines of `b` that are stricter; all of its limits that are."""
    fields: dict[str, Any] = {}
    set_by = dict(a.set_by)
    for line in lines:
        mine = getattr(a, line.field) if line.name in a.set_by else None
        value, who = _line(line, (mine, a.set_by.get(line.name, "")), (getattr(b, line.field), b.set_by.get(line.name)))
        if who:
            fields[line.field], set_by[line.name] = value, who
    found, whose = _limits(a, b)
    return replace(a, **fields, limits=found, set_by=MappingProxyType({**set_by, **whose}))


def _line(line: Line, mine: tuple[Any, str], other: tuple[Any, str | None]) -> tuple[Any, str]:
    """The stricter value and whose it is; no name where neither says one."""
    (value, who), (theirs, whose) = mine, other
    if whose is None or theirs is None:
        return value, who
    if value is None:
        return theirs, whose
    if isinstance(value, frozenset):
        common = value & theirs
        return common, who if common == value else whose if common == theirs else f"{who}{BOTH}{whose}"
    return (theirs, whose) if line.size(theirs) < line.size(value) else (value, who)


def _limits(a: Contract, b: Contract) -> tuple[ResolvedLimits, dict[str, str]]:
    """Each number the smaller one; expressions all of them, since each has to hold."""
    update: dict[str, Any] = {}
    whose: dict[str, str] = {}
    for name in NUMBERS:
        mine, theirs = getattr(a.limits, name), getattr(b.limits, name)
        if theirs is not None and (mine is None or theirs < mine):
            update[name] = theirs
            whose[WRITTEN[name].path] = b.set_by[WRITTEN[name].path]
    if b.limits.custom:
        update["custom"] = (*a.limits.custom, *b.limits.custom)
        names = [n for n in (a.set_by.get(CUSTOM), b.set_by[CUSTOM]) if n]
        whose[CUSTOM] = BOTH.join(names)
    return a.limits.model_copy(update=update), whose
