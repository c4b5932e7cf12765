"""Token buckets in integers: what a provider takes in a minute, and when it takes more.

A bucket holds as much as a minute brings and fills evenly. Its level is kept in sixty-thousandths of a unit, of which a
limit of n a minute brings exactly n each millisecond, so that nothing is lost to rounding however often one looks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

MINUTE_MS: Final = 60_000


@dataclass(frozen=True)
class Limits:
    """What one gateway may ask of a provider: requests at once, and requests and tokens in a minute. None: no limit."""

    concurrent: int | None = None
    requests: int | None = None
    tokens: int | None = None

    @property
    def none(self) -> bool:
        """Nobody ever waits."""
        return self.concurrent is None and self.requests is None and self.tokens is None


@dataclass(frozen=True)
class Bucket:
    """Of one limit, at one time (ms of a steady clock). Its level is below zero where more was used than was there."""

    per_minute: int
    level: int
    at: int

    @classmethod
    def full(cls, per_minute: int, now: int) -> Bucket:
        """As it is when nobody has asked for a minute."""
        return cls(per_minute, per_minute * MINUTE_MS, now)

    def after(self, per_minute: int, now: int) -> Bucket:
        """The same later on, perhaps under another limit from now on."""
        filled = self.level + self.per_minute * max(0, now - self.at)
        return Bucket(per_minute, min(filled, per_minute * MINUTE_MS), max(now, self.at))

    def less(self, amount: int) -> Bucket:
        """So much is used; a negative amount is given back."""
        return replace(self, level=min(self.level - amount * MINUTE_MS, self.per_minute * MINUTE_MS))

    def wait_ms(self, amount: int) -> int:
        """How long until so much is there, or as much as there ever is: what is larger than a minute's asks then."""
        lacking = min(amount, self.per_minute) * MINUTE_MS - self.level
        return max(0, -(-lacking // self.per_minute))
