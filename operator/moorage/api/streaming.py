"""What the gateway streams to readers (M4), once: the data of each event. docs/streams.md tells users of it.

    /v1/runs/{uid}/logs/stream             output | gap | end        what the agent writes
    /v1/runs/{uid}/timeline/stream         record | gap | end        the journal: lines of its export, as they are
    /v1/namespaces/{namespace}/runs/stream run | ready               where each live run stands, whenever that changes

The cursor of a run's streams is an offset of its journal, so it means the same at every gateway, and after any restart.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from moorage.api.wirebase import Wire

Stream = Literal["stdout", "stderr", "moorage"]


class StreamKind(StrEnum):
    """Names of events."""

    OUTPUT = "output"
    RECORD = "record"
    GAP = "gap"
    END = "end"
    RUN = "run"
    READY = "ready"


class Output(Wire):
    """What the agent wrote. `text`, or `data` in base64 where the bytes are no UTF-8. `at` is the runner's word (ms),
    `stream` is `stdout`, `stderr`, or `moorage` where the runner says something of its own.
    """

    at: int
    epoch: int
    stream: Stream
    text: str | None = None
    data: str | None = None


class Gap(Wire):
    """Something is missing here, and no later event brings it.

    `reason`: Dropped (the agent wrote more than is kept), Erased, Pruned (its retention is over), Behind (a live reader
    was too slow), Tail (fewer lines were asked for). `first` and `last` are the offsets between which it is, `size` its
    bytes where that is known, `full` where all of it still is.
    """

    reason: Literal["Dropped", "Erased", "Pruned", "Behind", "Tail"]
    first: int
    last: int
    size: int | None = None
    full: str | None = None


class StreamEnd(Wire):
    """The run is over, and nothing more comes. Always the last event, and told to whoever asks later, too."""

    phase: str
    reason: str
    message: str = ""
    offset: int


class RunNow(Wire):
    """Where a run stands. `doing` says it in a few words, `tokens_per_minute` counts the last minutes; `now` is the
    gateway's clock (ms).
    """

    uid: str
    namespace: str
    name: str
    phase: str
    doing: str = ""
    attempt: int = 0
    iteration: int = 0
    tokens: int = 0
    cost_micros: int = 0
    tokens_per_minute: int = 0
    created_at: int
    ended_at: int | None = None
    now: int
