"""N6: the loop detector over what an agent's host sees: calls, safe points, checks. The fold itself is in the core."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from moorage.core.continuation.loops import (
    Called,
    Event,
    Finding,
    Spurred,
    Stood,
    Thresholds,
    Verified,
    Watched,
    WentOn,
    watch,
)
from moorage.drivers.telling import brief

WAITING = frozenset({"BashOutput", "TaskOutput", "write_stdin", "wait_run"})
"""Tools that look whether something has ended."""


class Circles:
    """Remembers what one attempt's agent does, and what nobody was told of yet."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._at, self._seen = thresholds, Watched()
        self._news: list[Finding] = []

    def told(self, kind: str, payload: Mapping[str, Any]) -> None:
        """A fact on its way to the journal."""
        if kind == "TOOL_REQUEST" and isinstance(tool := payload.get("tool"), str):
            self.called(tool, payload.get("arguments"))
        elif kind == "COMMAND_DELIVERED":
            self._take(Spurred())

    def called(self, tool: str, arguments: object) -> None:
        """A tool call began. One that waits for something is no circle, however often it is made."""
        if tool in WAITING:
            self._take(Spurred())
            return
        text = json.dumps(arguments, sort_keys=True, default=str)
        said = brief(arguments) if isinstance(arguments, Mapping) else ""
        shown = f"{tool} {said}".strip()
        self._take(Called(tool, hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(), shown))

    def stood(self, tree: str, used: int, *, asks: bool = False) -> None:
        """A safe point: the tree's hash, percent of the nearest hard limit that are used, and whether the agent is
        about to decide something more.
        """
        self._take(Stood(tree, used, asks))

    def went_on(self) -> None:
        """An end that was told, and stood at a safe point of its own, was none."""
        self._take(WentOn())

    def verified(self, failing: frozenset[str]) -> None:
        """Acceptance commands ran in the agent's sandbox."""
        self._take(Verified(failing))

    def news(self) -> Finding | None:
        """What is to be told, once; the worst where there is more than one."""
        found = sorted(self._news, key=lambda finding: finding.last)
        self._news.clear()
        return found[-1] if found else None

    def _take(self, event: Event) -> None:
        self._seen, found = watch(self._seen, event, self._at)
        if found is not None:
            self._news.append(found)
