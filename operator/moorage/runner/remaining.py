"""C7: what is left of the run's budget, for its agent: kept as the gateway told it last, and in a file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moorage.api.budget import Budget, ResolvedLimits
from moorage.api.meta import format_time
from moorage.api.quantity import dollars
from moorage.api.work import Assignment
from moorage.core.constraints.limits import COST, ITERATIONS, METERED, TOKENS
from moorage.drivers.sessions import put

DISK_NAME = "diskBytes"  # what an expression calls it


class Remaining:
    """The file is rewritten when what it says changes; a reader sees the one or the other, whole."""

    def __init__(self, file: Path, budget: Budget) -> None:
        self._file, self.budget, self._written = file, budget, b""

    def hear(self, budget: Budget | None) -> None:
        """From the gateway; an older one tells nothing."""
        if budget is not None:
            self.budget = budget
            self.write()

    def write(self) -> None:
        """Where it says something new."""
        said = json.dumps(told(self.budget)).encode()
        if said != self._written:
            with contextlib.suppress(
                OSError
            ):  # the folder is the agent's own, and its disk may be full: it goes without
                put(self._file, said.decode())
                self._written = said


def told(budget: Budget) -> dict[str, Any]:
    """The file's content: null is unlimited, 0 is nothing left."""
    left: dict[str, Any] = {each.uses: budget.left.get(each.name) for each in METERED}
    cost = budget.left.get(COST.name)
    return left | {
        "cost": None if cost is None else dollars(cost),
        "ends_at": None if budget.ends_at is None else format_time(budget.ends_at),
        "warnings": list(budget.warnings),
        "exhausted": budget.exhausted,
    }


def first(assignment: Assignment, iterations: int) -> Budget:
    """As the assignment has it. An older gateway says what was used of two, and of the others that they are limited."""
    if assignment.budget is not None:
        return assignment.budget
    used = {"iterations": iterations, "tokens": assignment.tokens_used}
    return Budget(used=used, left=_left(assignment.limits, used))


def percent(budget: Budget, counted: Mapping[str, int]) -> int:
    """How much of the hard limit is used that is nearest, of those that an agent uses up by going on (N6): as the
    gateway has told, or as `counted` here since, which is all that there is with an older one. What its children have
    is none that the agent has used.
    """
    used = {each.name: budget.used.get(each.name, 0) for each in (ITERATIONS, TOKENS, COST)}
    most = {name: amount + budget.left[name] for name, amount in used.items() if name in budget.left}
    own = {name: max(used[name] - budget.given.get(name, 0), counted.get(name, 0)) for name in most}
    return max((100 * own[name] // limit for name, limit in most.items() if limit), default=0)


def _left(limits: ResolvedLimits, used: dict[str, int]) -> dict[str, int]:
    hard = {each.name: each.hard(limits) for each in METERED}
    return {name: max(0, most - used.get(name, 0)) for name, most in hard.items() if most is not None}


def wants_disk(limits: ResolvedLimits) -> bool:
    """Whether anybody looks at how much lies on the disk: nobody knows what an entry point looks at."""
    asked = any(each.cel is None or DISK_NAME in each.cel for each in limits.custom)
    return asked or (limits.disk_soft_bytes, limits.disk_hard_bytes) != (None, None)
