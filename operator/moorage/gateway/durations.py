"""H2: how long steps, tool calls and verifications take, by the times of the records that begin and end them.

What began before this process did, or at another gateway, is left out: a sample of durations needs no completeness.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from prometheus_client import Histogram

from moorage.core.journal.record import Record, RecordType
from moorage.telemetry.metrics import GatewayMetrics

T = RecordType
MAX_OPEN = 8_192
Key = tuple[str, int, str, str]


class Durations:
    """One per process; told of each append, it neither waits nor raises."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._held = metrics.held_seconds
        self._began: OrderedDict[Key, int] = OrderedDict()
        self._seconds: dict[str, Histogram] = {
            "step": metrics.step_seconds,
            "tool": metrics.tool_seconds,
            "verification": metrics.verification_seconds,
        }

    def appended(self, records: Sequence[Record]) -> None:
        """In order, each once."""
        for record in records:
            match record.type:
                case T.AGENT_STARTED:
                    self._begin(record, "step")
                case T.ITERATION_COMPLETE:
                    self._end(record, "step")
                    self._begin(record, "step")
                    self._waited((record.payload or {}).get("held_ms"))
                case T.TOOL_REQUEST:
                    self._begin(record, "tool", record.tool_call_id or "")
                case T.TOOL_RESPONSE:
                    self._end(record, "tool", record.tool_call_id or "")
                case T.VERIFICATION_STARTED:
                    self._begin(record, "verification")
                case T.VERIFICATION_RESULT:
                    self._end(record, "verification")

    def _begin(self, record: Record, what: str, which: str = "") -> None:
        self._began[(record.run_uid, record.epoch, what, which)] = record.recorded_at
        while len(self._began) > MAX_OPEN:
            self._began.popitem(last=False)

    def _end(self, record: Record, what: str, which: str = "") -> None:
        began = self._began.pop((record.run_uid, record.epoch, what, which), None)
        if began is not None:
            self._seconds[what].observe(max(0, record.recorded_at - began) / 1000)

    def _waited(self, held_ms: object) -> None:
        """P6: told apart, since it is no time of the model's."""
        if isinstance(held_ms, int):
            self._held.observe(held_ms / 1000)
