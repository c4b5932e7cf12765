"""Rules over what an update may change. They compare `self` with `oldSelf`, so only the API server sees them."""

from __future__ import annotations

from moorage.api.quantity import cel_duration
from moorage.api.rules import Rule


def _readable(new: str, kind: str) -> str:
    """Whether the new value can be compared at all."""
    if kind == "quantity":
        return f"isQuantity(string({new}))"
    return f"({cel_duration(new)})" if kind == "duration" else "true"


def _not_below(new: str, old: str, kind: str) -> str:
    """Whether the new value is at least the old one."""
    if kind == "quantity":
        return f"quantity(string({new})).compareTo(quantity(string({old}))) >= 0"
    return f"duration({new}) >= duration({old})" if kind == "duration" else f"{new} >= {old}"


_LIMITS = {
    "maxIterations": "int",
    "tokens.soft": "quantity",
    "tokens.hard": "quantity",
    "cost.soft": "quantity",
    "cost.hard": "quantity",
    "wallClock": "duration",
}


def unchanged(*fields: str) -> tuple[Rule, ...]:
    """The named fields stay as they were created, set or not."""
    return tuple(_unchanged(field) for field in fields)


def _unchanged(field: str) -> Rule:
    return Rule(
        f"{field} can't be changed: an AgentRun is one piece of work; create a new AgentRun",
        f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})",
        field=field,
    )


def only_widened(parent: str) -> tuple[Rule, ...]:
    """Limits below `parent` may be raised or removed, never lowered or added; unreadable ones are refused elsewhere."""
    return tuple(_only_widened(parent, path, kind) for path, kind in _LIMITS.items())


def _only_widened(parent: str, path: str, kind: str) -> Rule:
    steps = f"{parent}.{path}".split(".")
    new, old = ".".join(("self", *steps)), ".".join(("oldSelf", *steps))
    has_new, has_old = (".?".join((top, *steps)) + ".hasValue()" for top in ("self", "oldSelf"))
    kept = f"{has_old} && {_not_below(new, old, kind)}"
    return Rule(
        f"{parent}.{path} can only be widened: raise it or remove it; for a tighter limit, cancel this AgentRun and"
        " create a new one",
        f"!{has_new} || !{_readable(new, kind)} || ({kept})",
        field=f"{parent}.{path}",
    )
