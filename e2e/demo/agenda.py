"""The demo's steps in order, so that each can say which it is and about how long the rest takes."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from e2e.cluster.console import Console, duration


@dataclass(frozen=True)
class Agenda:
    """`steps`: name → seconds that it takes on two cores; their order is the order of work."""

    console: Console
    steps: Mapping[str, float]

    def step(self, name: str, *, pulse: bool = True) -> AbstractContextManager[None]:
        """Begin a step; it says when it ends how long it took. Without `pulse`, steps within it show that it lives."""
        return self.console.step(name, left=self.left(name), expected_s=self.steps[name], pulse=pulse)

    def left(self, name: str) -> str:
        """``step 2 of 7, about 40 s left with it``."""
        names = list(self.steps)
        index = names.index(name)
        rest = sum(self.steps[each] for each in names[index:])
        return f"step {index + 1} of {len(names)}, about {duration(rest)} left with it"
