"""Writes the statuses of AgentRuns: when it is time, and not again and again where the API server takes none.

Nothing is remembered but when a status was last written, and who can't have one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moorage.api.merge import patch_to
from moorage.api.runstatus import AgentRunStatus
from moorage.clock import Clock
from moorage.controller.ports import Objects, Telling, Unwritable
from moorage.controller.roll import Roll
from moorage.core.run.state import RunState
from moorage.core.run.status import write_delay
from moorage.sandbox.port import Conflict, RunKey

UNWRITABLE_RETRY_MS = 60_000  # first pause after a refusal, doubled each time
UNWRITABLE_RETRY_CAP_MS = 3_600_000


CHANGED_RETRY_MS = 1_000
"""Somebody changed the object since it was read: the watch tells so at once, and where it doesn't, this."""


@dataclass(frozen=True)
class _Refusal:
    """No status is taken of that generation of the object: `due` says when it is tried again, on the wall clock."""

    generation: int
    due: int
    pause: int


class Statuses:
    """One object per operator."""

    def __init__(self, objects: Objects, roll: Roll, clock: Clock, telling: Telling) -> None:
        self._objects, self._roll, self._clock, self._telling = objects, roll, clock, telling
        self._written: dict[RunKey, int] = {}
        self._refused: dict[RunKey, _Refusal] = {}

    async def tell(
        self, key: RunKey, old: AgentRunStatus, new: AgentRunStatus, journal: RunState | None, version: str
    ) -> int | None:
        """Write `new` over `old`, which the object had in that version, if it is time; else say in how many
        milliseconds it will be. Raises Unavailable.
        """
        now = self._clock.now_ms()
        delay = write_delay(old, new, self._written.get(key), journal, now)
        if delay is None:
            return None
        delay = max(delay, self._pause(key, new.observed_generation or 0, now))
        return await self._write(key, old, new, version) if delay == 0 else delay

    def forget(self, key: RunKey) -> None:
        """That run is gone."""
        self._written.pop(key, None)
        self._refused.pop(key, None)

    def _pause(self, key: RunKey, generation: int, now: int) -> int:
        """A changed object may be a mended one: it is tried at once."""
        refusal = self._refused.get(key)
        if refusal is None or refusal.generation != generation:
            return 0
        return max(0, min(refusal.due - now, refusal.pause))  # a clock that was put back waits no longer

    async def _write(self, key: RunKey, old: AgentRunStatus, new: AgentRunStatus, version: str) -> int | None:
        try:
            body = await self._objects.write_status(key, patch_to(new.wire(), self._standing(key, old)), version)
        except Conflict:
            return CHANGED_RETRY_MS
        except Unwritable as error:
            return self._note(key, new.observed_generation or 0, str(error))
        self._refused.pop(key, None)
        self._written[key] = self._clock.now_ms()
        if body is not None:
            if self._roll.knows(key):  # else it was deleted before this answer came
                self._roll.saw(body)
            self._telling.changed(key, old, new)
        return None

    def _standing(self, key: RunKey, old: AgentRunStatus) -> Mapping[str, Any]:
        """The fields to replace: also those of a status that can't be read, which would make the new one unreadable."""
        entry = self._roll.get(key)
        there = (entry.body or {}).get("status") if entry else None
        return there if old == AgentRunStatus() and isinstance(there, Mapping) else old.wire()

    def _note(self, key: RunKey, generation: int, why: str) -> int:
        """Said once of each generation: what is refused again and again is no news."""
        last = self._refused.get(key)
        again = last is not None and last.generation == generation
        pause = min(UNWRITABLE_RETRY_CAP_MS, last.pause * 2) if last and again else UNWRITABLE_RETRY_MS
        self._refused[key] = _Refusal(generation, self._clock.now_ms() + pause, pause)
        if not again:
            self._telling.unwritable(key, why)
        return pause
