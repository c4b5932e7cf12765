"""B3, O7: a session's account, as its row and the journals of its runs have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moorage.core.run.family import AMOUNTS, Share, share_of

WALL = "wall_ms"


@dataclass(frozen=True)
class Account:
    """B3: what all runs of a session have used so far; `wall_ms` of wallClock."""

    used: Share = field(default_factory=Share)
    wall_ms: int = 0

    def told(self) -> dict[str, int]:
        """As the session's row and the journal have it: what is nothing is left out."""
        amounts = {name: getattr(self.used, name) for name in AMOUNTS} | {WALL: self.wall_ms}
        return {name: amount for name, amount in amounts.items() if amount}


def account_of(told: Mapping[str, Any]) -> Account:
    """As it was told. Raise ValueError for a negative amount (I4)."""
    wall = int(told.get(WALL, 0))
    if wall < 0:
        raise ValueError(f"a wall clock can't be negative: {wall}")
    return Account(share_of(told), wall)
