"""What the gateway answers about a run: the reduced state, and what only the gateway's own memory knows.

These are the bodies `RunView` and `RunList` of the wire (see moorage.api.wire), kept here because the state is the
core's. `RUN_VIEW.dump_json` and `RUN_VIEW.validate_json` are the two ends of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from moorage.api.wire import ResolvedRun
from moorage.core.run.family import Share
from moorage.core.run.observed import Heartbeat
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import RunState


@dataclass(frozen=True)
class RunView:
    """One run as its gateway knows it. `heartbeat` is None when none was heard; `up_since` is the gateway's own start
    (ms), from which on it could have heard one (F4). `spec` is what was admitted, whatever the object says now (O6).
    `signature` is the gateway's word for the state's offset and head (J6). An older gateway doesn't tell how many
    `iterations` are complete, and what requests under way have `reserved` (B2).
    """

    spec: ResolvedRun
    state: RunState
    up_since: int
    heartbeat: Heartbeat | None = None
    released: bool = False
    signature: str | None = None
    iterations: int | None = None
    reserved: Share | None = None


@dataclass(frozen=True)
class RunBrief:
    """One line of a list: enough to see whether its AgentRun still exists and whether anything is left to do.

    `phase` is as exact as the store's status (S4): whatever comes before an end is Running, but Paused and Recovering.
    """

    uid: str
    tenant: str
    name: str
    placement: str
    phase: RunPhase
    epoch: int
    released: bool

    @property
    def live(self) -> bool:
        """It has a slot: an attempt has begun, and the run is neither paused nor at its end."""
        return self.epoch > 0 and not self.phase.terminal and self.phase is not RunPhase.PAUSED


@dataclass(frozen=True)
class RunList:
    """`GET /v1/runs?pending=true`: runs that have not ended, and ended ones whose refs have not been released."""

    runs: tuple[RunBrief, ...]


RUN_VIEW = TypeAdapter(RunView)
RUN_LIST = TypeAdapter(RunList)
