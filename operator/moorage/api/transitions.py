"""Rules over what an update may change. They compare `self` with `oldSelf`, so only the API server sees them."""

from __future__ import annotations

from moorage.api.quantity import cel_duration
from moorage.api.rules import Rule


def unchanged(*fields: str) -> tuple[Rule, ...]:
    """The named fields stay as they were created, set or not."""
    return tuple(_unchanged(field) for field in fields)


def unchanged_at(path: str) -> Rule:
    """The same for one field further down."""
    has_new, has_old = _has("self", path), _has("oldSelf", path)
    return Rule(
        f"{path} can't be changed: an AgentRun is one piece of work; create a new AgentRun",
        f"{has_new} == {has_old} && (!{has_new} || self.{path} == oldSelf.{path})",
        field=path,
    )


def _unchanged(field: str) -> Rule:
    return Rule(
        f"{field} can't be changed: an AgentRun is one piece of work; create a new AgentRun",
        f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})",
        field=field,
    )


def raised_number(path: str) -> Rule:
    """On the whole object: a plain number of the spec may be raised, never lowered or removed.

    It may be added only to a run that is paused for want of budget: there it may be the Agent's limit that is raised.
    """
    return _raised(path, f"self.spec.{path} >= oldSelf.spec.{path}")


def raised_quantity(path: str) -> Rule:
    """The same for a quantity, written as a number or as a string; unreadable ones are refused elsewhere."""
    new, old = f"string(self.spec.{path})", f"string(oldSelf.spec.{path})"
    return _raised(path, f"!isQuantity({new}) || quantity({new}).compareTo(quantity({old})) >= 0")


def raised_duration(path: str) -> Rule:
    """The same for a duration."""
    new, old = f"self.spec.{path}", f"oldSelf.spec.{path}"
    return _raised(path, f"!({cel_duration(new)}) || duration({new}) >= duration({old})")


EXHAUSTED = "oldSelf.?status.?phase.orValue('') == 'Paused' && oldSelf.?status.?reason.orValue('') == 'BudgetExhausted'"


def _raised(path: str, higher: str) -> Rule:
    has_new, has_old = _has("self.spec", path), _has("oldSelf.spec", path)
    return Rule(
        f"{path} can only be raised: for a tighter limit or none, cancel this AgentRun and create a new AgentRun",
        f"{has_old} ? {has_new} && ({higher}) : !{has_new} || ({EXHAUSTED})",
        field=f"spec.{path}",
    )


def _has(top: str, path: str) -> str:
    return ".?".join((top, *path.split("."))) + ".hasValue()"
