"""C4: constraints by entry point, so that one can be added without touching the core."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points

from moorage.core.constraints.judging import Factory

GROUP = "moorage.constraints"


def known() -> frozenset[str]:
    """Names of those that are installed here."""
    return frozenset(point.name for point in entry_points(group=GROUP))


def installed() -> Mapping[str, Factory]:
    """All of them, loaded. Raises what their packages raise: a gateway that can't judge doesn't begin to serve."""
    return {point.name: point.load() for point in entry_points(group=GROUP)}
