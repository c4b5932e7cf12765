"""The processes of this machine, as /proc tells of them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """One process."""

    parent: int
    session: int
    zombie: bool


def processes() -> dict[int, Entry]:
    """All that can be seen, by pid."""
    found: dict[int, Entry] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                state, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                found[int(folder.name)] = Entry(int(parent), int(session), state in {"Z", "X"})
    return found


def below(roots: set[int], table: Mapping[int, Entry]) -> set[int]:
    """All that descends from any of `roots`, themselves left out."""
    found: set[int] = set()
    wave = roots
    while wave:
        wave = {pid for pid, entry in table.items() if entry.parent in wave and pid not in found}
        found |= wave
    return found
