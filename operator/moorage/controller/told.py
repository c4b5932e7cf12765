"""What the object of an AgentRun says, however malformed the rest of it is: a poison object is still told apart, keeps
its place and is looked at like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from moorage.api.meta import parse_time
from moorage.api.quantity import duration_ms
from moorage.core.run.pauses import PAUSABLE
from moorage.core.run.phases import RunPhase
from moorage.core.run.status import ENDS
from moorage.core.scheduling.fair import Rank, rank
from moorage.sandbox.port import RunKey

DEFAULT_TTL = "168h"
NOT_LIVE = frozenset({RunPhase.PENDING.value, ""})


class Standing(StrEnum):
    """What a run counts as for admission."""

    WAITING = "waiting"
    BLOCKED = "blocked"  # waits for something else than a slot
    LIVE = "live"
    ENDED = "ended"


def labels_of(body: Mapping[str, Any] | None) -> Mapping[str, str]:
    """Its labels."""
    return ((body or {}).get("metadata") or {}).get("labels") or {}


def key_of(body: Mapping[str, Any]) -> RunKey:
    """The key of an AgentRun."""
    meta = body.get("metadata") or {}
    return RunKey(str(meta.get("uid", "")), str(meta.get("namespace", "")), str(meta.get("name", "")))


def parent_of(body: Mapping[str, Any]) -> tuple[str, str] | None:
    """Namespace and name of the run that it names as its parent."""
    return _named(body, "parentRef")


def origin_of(body: Mapping[str, Any]) -> tuple[str, str] | None:
    """Namespace and name of the run that it is to go on with."""
    return _named(body, "continueFrom")


def _named(body: Mapping[str, Any], field: str) -> tuple[str, str] | None:
    spec, meta = body.get("spec"), body.get("metadata") or {}
    ref = spec.get(field) if isinstance(spec, Mapping) else None
    name = ref.get("name") if isinstance(ref, Mapping) else None
    return (str(meta.get("namespace", "")), str(name)) if name else None


def truth(status: Mapping[str, Any], kind: str) -> str | None:
    """What the condition of that type says in a status as it stands, however malformed; None where there is none."""
    listed = status.get("conditions")
    told = [c for c in listed if isinstance(c, Mapping)] if isinstance(listed, list) else []
    return next((str(c.get("status")) for c in told if c.get("type") == kind), None)


def settled(body: Mapping[str, Any]) -> bool:
    """It has ended, its status says so about this very generation, nobody is deleting it, and no effect is left to ask
    about."""
    meta, status = body.get("metadata") or {}, body.get("status") or {}
    if not isinstance(status, Mapping) or meta.get("deletionTimestamp"):
        return False
    told = str(status.get("phase")) in ENDS and status.get("observedGeneration") == meta.get("generation")
    return told and not unsettled(status)


def unsettled(status: Mapping[str, Any]) -> bool:
    """An effect of it is told as open."""
    return truth(status, "EffectsClosed") == "False"


def standing_told(body: Mapping[str, Any]) -> Standing:
    """What it counts as by its phase."""
    status = body.get("status") or {}
    phase = str(status.get("phase") or "") if isinstance(status, Mapping) else ""
    if phase in ENDS:
        return Standing.ENDED
    if phase == RunPhase.PAUSED:
        return Standing.BLOCKED
    return Standing.WAITING if phase in {*NOT_LIVE, "Queued"} else Standing.LIVE


def begun(body: Mapping[str, Any] | None) -> bool:
    """An attempt of it has begun."""
    status = (body or {}).get("status")
    return isinstance(status, Mapping) and status.get("epoch") is not None


def due_at(body: Mapping[str, Any]) -> int | None:
    """When the retention of an ended run is over; None where that can't be told from the object."""
    ended, spec = time_told(body, "finishedAt"), body.get("spec")
    try:
        kept = spec.get("retention") if isinstance(spec, Mapping) else None
        return ended + duration_ms((kept or {}).get("ttlAfterFinished") or DEFAULT_TTL) if ended is not None else None
    except (TypeError, ValueError, AttributeError):
        return None


def time_told(body: Mapping[str, Any], field: str) -> int | None:
    """That time of the status, however malformed the rest of it is."""
    status = body.get("status")
    try:
        return parse_time(status[field]) if isinstance(status, Mapping) else None
    except (KeyError, TypeError, ValueError):
        return None


def stopped_since(body: Mapping[str, Any]) -> int | None:
    """When it was stopped to make room, as its status tells while it waits since."""
    status = body.get("status")
    queue = status.get("queue") if isinstance(status, Mapping) else None
    return time_told({"status": queue}, "since")


def stoppable(body: Mapping[str, Any]) -> bool:
    """Its phase is one in which it can be stopped softly."""
    status = body.get("status")
    phase = status.get("phase") if isinstance(status, Mapping) else None
    return phase in {None, *(each.value for each in PAUSABLE)}


def succeeded(body: Mapping[str, Any]) -> bool:
    """It ended well."""
    status = body.get("status")
    return isinstance(status, Mapping) and status.get("phase") == RunPhase.SUCCEEDED.value


def rank_of(key: RunKey, body: Mapping[str, Any], since: int | None = None) -> Rank:
    """By what its spec says, as far as that can be read: a poison object keeps its place by age. `since`: from when
    that counts, where it isn't from the object's creation.
    """
    said, created = scheduling_of(body), since if since is not None else created_at(body.get("metadata") or {})
    try:
        deadline = duration_ms(said["deadline"]) if said.get("deadline") else None
    except (TypeError, ValueError, AttributeError):
        deadline = None
    return rank(key.name, created, background=said.get("class") == "background", deadline_ms=deadline)


def scheduling_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """spec.scheduling."""
    spec = body.get("spec")
    said = spec.get("scheduling") if isinstance(spec, Mapping) else None
    return said if isinstance(said, Mapping) else {}


def created_at(meta: Mapping[str, Any]) -> int:
    """In ms since the epoch; 0 where that can't be read."""
    try:
        return parse_time(str(meta.get("creationTimestamp")))
    except ValueError:
        return 0


def stale(body: Mapping[str, Any], version: int, known: int) -> bool:
    """Nothing new. Somebody's change that our own write overtook shows as a generation that isn't told yet."""
    meta, status = body.get("metadata") or {}, body.get("status")
    told = isinstance(status, Mapping) and status.get("observedGeneration") == meta.get("generation")
    return version < known or (version == known and version > 0 and told and not meta.get("deletionTimestamp"))


def version_of(meta: Mapping[str, Any]) -> int:
    """Its resourceVersion as a number; 0 where it has none."""
    text = str(meta.get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
