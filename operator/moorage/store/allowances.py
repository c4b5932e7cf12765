"""C5: what a tenant may take of models in a day and at once, decided once for every adapter and without I/O.

A request takes its worst case before it leaves, in one transaction with the look at what is left: it has a row of its
own until it is answered, and what it took is added to its day's sums as that row goes. So no limit is passed by however
many gateways, and each step may be repeated where nobody knows whether it was done. Of a gateway that is gone nobody
will tell more: its requests have taken their worst case. A request counts for the day (UTC) in which it was asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

KEPT_DAYS = 62
"""Days of which rows are kept: two months."""
TOKENS, COST, MODELS = "perDay.tokens", "perDay.cost", "concurrency.models"


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a tenant may have; None is unlimited, 0 is 0."""

    tokens: int | None = None
    cost_micros: int | None = None
    models: int | None = None

    @property
    def bounds(self) -> bool:
        """Whether it says anything."""
        return self != Allowance()


@dataclass(frozen=True, slots=True)
class Ask:
    """One request and its worst case. `day` counts from the epoch, in UTC; `gateway`: whose request it is."""

    tenant: str
    request_id: str
    day: int
    gateway: str
    tokens: int
    cost_micros: int


@dataclass(frozen=True, slots=True)
class Taken:
    """What a tenant took in a day, and what is under way at its worst case; requests of whatever day."""

    day: int
    tokens: int = 0
    cost_micros: int = 0
    open_tokens: int = 0
    open_cost_micros: int = 0
    open_requests: int = 0


@dataclass(frozen=True, slots=True)
class Short:
    """What there is too little of. `over`: also if all that is under way came back. `holders`: gateways that have
    something under way which would help.
    """

    line: str
    most: int
    used: int
    need: int
    over: bool
    holders: frozenset[str] = frozenset()


def summed(day: int, used: tuple[int, int], under_way: Iterable[Ask]) -> Taken:
    """`used`: tokens and cost of that day; `under_way`: all of the tenant's."""
    listed = list(under_way)
    today = [each for each in listed if each.day == day]
    held = sum(each.tokens for each in today), sum(each.cost_micros for each in today)
    return Taken(day, *used, *held, len(listed))


def short_of(allowance: Allowance | None, used: tuple[int, int], under_way: Sequence[Ask], ask: Ask) -> Short | None:
    """What is short for a request that isn't under way yet; None: there is room for it."""
    allowed, taken = allowance or Allowance(), summed(ask.day, used, under_way)
    holders = frozenset(each.gateway for each in under_way if each.day == ask.day)
    kinds = (
        (TOKENS, allowed.tokens, ask.tokens, taken.tokens, taken.open_tokens),
        (COST, allowed.cost_micros, ask.cost_micros, taken.cost_micros, taken.open_cost_micros),
    )
    for line, most, need, spent, held in kinds:
        if most is not None and spent + held + need > most:
            return Short(line, most, spent, need, spent + need > most, holders)
    if allowed.models is not None and len(under_way) >= allowed.models:
        everywhere = frozenset(each.gateway for each in under_way)
        return Short(MODELS, allowed.models, len(under_way), 1, allowed.models == 0, everywhere)
    return None
