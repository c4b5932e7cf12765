"""Q3: how many may begin in a second, the others in turn. Pure: time is passed in.

Each that has to wait is given a time of its own, so that nobody asks in vain and nobody is overtaken for ever.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
FORGOTTEN_MS = 60_000
"""Who doesn't come for its turn for so long isn't coming."""


class Rate(Generic[K]):
    """`burst` at once, and `per_second` from then on; both above 0."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._each, self._slack = 1000 / per_second, (burst - 1) * 1000 / per_second
        self._next = 0.0  # when the next one would be due if nobody had waited
        self._turns: dict[K, float] = {}

    def wait_ms(self, key: K, now: int) -> int:
        """0: it may begin now, and has had its turn; else in how many milliseconds it may. `now` in ms."""
        at = self._turns.get(key)
        if at is None:
            at = max(self._next, now - self._slack)
            self._next = at + self._each
        if at <= now:
            self._turns.pop(key, None)
            return 0
        if key not in self._turns:
            self._turns = {each: due for each, due in self._turns.items() if due > now - FORGOTTEN_MS}
            self._turns[key] = at
        return max(1, int(at - now))
