"""Time that moves when a test says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StepClock:
    """Two readings that a test steps apart or together; both in milliseconds."""

    wall: int = 1_800_000_000_000
    steady: int = 1_000

    def now_ms(self) -> int:
        """The wall clock."""
        return self.wall

    def monotonic_ms(self) -> int:
        """The monotonic clock."""
        return self.steady

    def advance(self, ms: int) -> None:
        """Both go on."""
        self.wall += ms
        self.steady += ms
