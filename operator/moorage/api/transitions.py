"""Rules over what an update may change. They compare `self` with `oldSelf`, so only the API server sees them."""

from __future__ import annotations

from moorage.api.quantity import cel_duration
from moorage.api.rules import Rule


def unchanged(*fields: str) -> tuple[Rule, ...]:
    """The named fields stay as they were created, set or not."""
    return tuple(_unchanged(field) for field in fields)


def _unchanged(field: str) -> Rule:
    return Rule(
        f"{field} can't be changed: an AgentRun is one piece of work; create a new AgentRun",
        f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})",
        field=field,
    )


def fixed_limits(*paths: str) -> tuple[Rule, ...]:
    """Limits (quantities, written as numbers or as strings) that a run keeps as it was created with them."""
    return tuple(_fixed(path, "string(self.{0}) == string(oldSelf.{0})") for path in paths)


def fixed_number(path: str) -> Rule:
    """The same for a plain number, of which CEL can't bound the price of a string."""
    return _fixed(path, "self.{0} == oldSelf.{0}")


def _fixed(path: str, same: str) -> Rule:
    has_new, has_old = _has("self", path), _has("oldSelf", path)
    return Rule(
        f"{path} can't be changed in this version: the run works under the limits that it was created with; for others,"
        " cancel it and create a new AgentRun",
        f"{has_new} == {has_old} && (!{has_new} || {same.format(path)})",
        field=path,
    )


def _has(top: str, path: str) -> str:
    return ".?".join((top, *path.split("."))) + ".hasValue()"


def only_raised(path: str) -> Rule:
    """A duration may be raised, never lowered, added or removed; unreadable ones are refused elsewhere."""
    new, old = f"self.{path}", f"oldSelf.{path}"
    has_new, has_old = _has("self", path), _has("oldSelf", path)
    return Rule(
        f"{path} can only be raised: for a tighter limit or none, cancel this AgentRun and create a new AgentRun",
        f"{has_new} == {has_old} && (!{has_new} || !({cel_duration(new)}) || duration({new}) >= duration({old}))",
        field=path,
    )
