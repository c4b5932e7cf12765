"""C5: what a tenant may take of models in a day and at once, decided once for every adapter and without I/O.

A request takes its worst case before it leaves, in one transaction with the look at what is left, and gives back what
it didn't need. So no limit is passed by however many gateways. What a gateway has under way goes by the gateway's name:
of one that is gone nobody will tell more, and it counts at its worst case (`plan_give_up`). A request counts for the
day (UTC) in which it was asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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
    """One request and its worst case. `day` counts from the epoch, in UTC."""

    tenant: str
    day: int
    gateway: str
    tokens: int
    cost_micros: int


@dataclass(frozen=True, slots=True)
class Taken:
    """What a tenant took in a day by way of one gateway, and what is under way there at its worst case."""

    day: int
    gateway: str
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


def plan_take(allowance: Allowance | None, rows: Sequence[Taken], ask: Ask) -> Taken | Short:
    """The row to write, or what is short. `rows`: the tenant's of that day, and others with something under way."""
    for found in _shorts(allowance or Allowance(), rows, ask):
        return found
    mine = next((r for r in rows if (r.day, r.gateway) == (ask.day, ask.gateway)), Taken(ask.day, ask.gateway))
    return replace(
        mine,
        open_tokens=mine.open_tokens + ask.tokens,
        open_cost_micros=mine.open_cost_micros + ask.cost_micros,
        open_requests=mine.open_requests + 1,
    )


def _shorts(allowance: Allowance, rows: Sequence[Taken], ask: Ask) -> Iterable[Short]:
    today = [r for r in rows if r.day == ask.day]
    holders = frozenset(r.gateway for r in today if r.open_requests)
    kinds = (
        (TOKENS, allowance.tokens, ask.tokens, [(r.tokens, r.open_tokens) for r in today]),
        (COST, allowance.cost_micros, ask.cost_micros, [(r.cost_micros, r.open_cost_micros) for r in today]),
    )
    for line, most, need, taken in kinds:
        used, under_way = sum(each for each, _ in taken), sum(each for _, each in taken)
        if most is not None and used + under_way + need > most:
            yield Short(line, most, used, need, used + need > most, holders)
    at_once = sum(r.open_requests for r in rows)
    if allowance.models is not None and at_once >= allowance.models:
        everywhere = frozenset(r.gateway for r in rows if r.open_requests)
        yield Short(MODELS, allowance.models, at_once, 1, allowance.models == 0, everywhere)


def plan_settle(row: Taken, ask: Ask, tokens: int, cost_micros: int) -> Taken:
    """The row once the request is answered: what it took is used, and nothing of it is under way any more."""
    return replace(
        row,
        tokens=row.tokens + tokens,
        cost_micros=row.cost_micros + cost_micros,
        open_tokens=max(0, row.open_tokens - ask.tokens),
        open_cost_micros=max(0, row.open_cost_micros - ask.cost_micros),
        open_requests=max(0, row.open_requests - 1),
    )


def plan_give_up(row: Taken) -> Taken:
    """The row of a gateway that is gone."""
    return Taken(row.day, row.gateway, row.tokens + row.open_tokens, row.cost_micros + row.open_cost_micros)


def summed(rows: Iterable[Taken], day: int) -> Taken:
    """Of all gateways; requests under way also those of the day before."""
    listed = list(rows)
    today = [r for r in listed if r.day == day]
    return Taken(
        day,
        "",
        sum(r.tokens for r in today),
        sum(r.cost_micros for r in today),
        sum(r.open_tokens for r in today),
        sum(r.open_cost_micros for r in today),
        sum(r.open_requests for r in listed),
    )
