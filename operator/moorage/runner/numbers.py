"""T6: which of several calls alike one is, so that another attempt that comes to it asks for the same. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class Numbers:
    """Counts calls that are alike since the last safe point, as any attempt does that begins there."""

    def __init__(self) -> None:
        self._asked: set[str] = set()
        self._waiting: set[str] = set()

    @contextlib.contextmanager
    def asking(self, call: str) -> Iterator[str]:
        """The call's name with its number, while a person is waited for."""
        number = 0
        while (name := f"{call}:{number}") in self._asked:
            number += 1
        self._asked.add(name)
        self._waiting.add(name)
        try:
            yield name
        finally:
            self._waiting.discard(name)

    def made(self) -> None:
        """A safe point is taken: what was asked before it is done, but for what still waits."""
        self._asked = set(self._waiting)
