"""What time it is: a port, so that tests can step it, and this machine's own clocks behind it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Time. The two readings are never mixed."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC: for records. May step."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some start: for waiting and expiry. Never steps back."""


class SystemClock:
    """This machine's clocks."""

    def now_ms(self) -> int:
        """Wall clock."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Monotonic clock."""
        return time.monotonic_ns() // 1_000_000
