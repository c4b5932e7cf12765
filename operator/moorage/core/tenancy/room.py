"""C6: whether a namespace's ResourceQuotas have room for a run, before anything is made for it.

Quotas with scopes are left to the API server: which pods they count isn't said by a run. What it refuses after a race
is waited out, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from moorage.api import names
from moorage.api.quantity import amount

Needs = Mapping[str, Fraction]
"""What is taken, by the names that quotas have for it."""
ZERO = Fraction(0)


@dataclass(frozen=True)
class Short:
    """What there is too little of. `never`: the quota as it stands could never hold it. `message` is for people."""

    message: str
    never: bool = False


def short_of(quotas: Iterable[Mapping[str, Any]], reserved: Iterable[Needs], needs: Needs) -> Short | None:
    """The first quota without room. `reserved`: for others that are on their way and not in the quotas' numbers yet."""
    taken = list(reserved)
    found = [short for quota in quotas for short in _short(quota, taken, needs)]
    return next((each for each in found if each.never), found[0] if found else None)


def _short(quota: Mapping[str, Any], reserved: list[Needs], needs: Needs) -> Iterable[Short]:
    spec, status = quota.get("spec") or {}, quota.get("status") or {}
    if spec.get("scopes") or spec.get("scopeSelector"):
        return
    for name, most in (spec.get("hard") or {}).items():
        need, limit = needs.get(name, ZERO), _number(most)
        if not need or limit is None:
            continue
        if need > limit:
            why = f"{_called(quota)} allows {most} of {name} in all, and the run needs {_spelt(need)}"
            yield Short(f"{why}: ask for less, or have {_who(quota)} raised", never=True)
            continue
        counted = _number((status.get("hard") or {}).get(name))
        if counted is None:
            yield Short(f"{_called(quota)} is new and hasn't counted {name} yet; next when it has")
            continue
        limit = min(limit, counted)  # the API server refuses by what was counted last
        used = _number((status.get("used") or {}).get(name)) or ZERO
        under_way = sum((each.get(name, ZERO) for each in reserved), ZERO)
        if used + under_way + need > limit:
            why = f"{_called(quota)} has {_spelt(max(ZERO, limit - used - under_way))} of {most} {name} left"
            next_ = f"next when something of the namespace ends or {_who(quota)} is raised"
            yield Short(f"{why}, and the first in line needs {_spelt(need)}; {next_}")


def _called(quota: Mapping[str, Any]) -> str:
    return f"quota {(quota.get('metadata') or {}).get('name', '')}"


def _who(quota: Mapping[str, Any]) -> str:
    """Who sets it: the ResourceConstraints that it is rendered from, or the quota itself."""
    meta = quota.get("metadata") or {}
    owners = [
        f"rcon/{o.get('name')}" for o in meta.get("ownerReferences") or () if o.get("apiVersion") == names.API_VERSION
    ]
    return " and ".join(owners) or f"quota/{meta.get('name', '')}"


def _number(text: Any) -> Fraction | None:
    if text is None or str(text) in {"0", "0m"}:
        return ZERO if text is not None else None
    try:
        return amount(str(text))
    except ValueError:
        return None


def _spelt(number: Fraction) -> str:
    """As a quantity: whole where it is, else in thousandths."""
    for suffix, size in (("Gi", 2**30), ("Mi", 2**20)):
        if number >= size and number % size == 0:
            return f"{number / size}{suffix}"
    return str(number) if number.denominator == 1 else f"{int(number * 1000)}m"
