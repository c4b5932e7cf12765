"""Facts of one attempt on their way to the journal, and how far it has come."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

from moorage.api.budget import Budget
from moorage.api.wire import ReportedRecord, ReportRequest
from moorage.api.work import Assignment
from moorage.runner.client import GatewayClient, GatewayError

NEW = frozenset({"COMPLETION_CHECKED", "CONTINUATION_DECIDED"})
"""R8: what the last release's gateway takes from no runner. Nothing follows from these records, so it goes without."""


def now_ms() -> int:
    """Milliseconds since the epoch, UTC: for records; decides nothing."""
    return time.time_ns() // 1_000_000


def plain(text: str) -> str:
    """Text that a journal and a commit can hold: no half surrogates, no control characters but line ends and tabs."""
    whole = text.encode("utf-8", "replace").decode()
    return "".join(each for each in whole if each in "\n\t" or unicodedata.category(each) != "Cc")


class Reporter:
    """`progress` rises with whatever the attempt does, `last_iteration` is its last safe point (F4). `heard` is told
    what the gateway says of the budget (C7).
    """

    def __init__(self, client: GatewayClient, assignment: Assignment) -> None:
        self.progress = 0
        self.last_iteration: int | None = None
        self._client, self._epoch = client, assignment.epoch
        self._next_id = 0
        self.heard: Callable[[Budget | None], None] = lambda _: None

    def progressed(self) -> None:
        """The attempt does something, though there is no fact to tell."""
        self.progress += 1

    async def emit(
        self,
        type: str,  # noqa: A002  the record's own word
        payload: Mapping[str, Any],
        *,
        record_id: str | None = None,
        turn: int | None = None,
        step: int | None = None,
        tool_call_id: str | None = None,
    ) -> None:
        """Journal a fact as reported. Returns once it is durable, or refused by a gateway that doesn't know it yet."""
        self._next_id += 1
        self.progress += 1
        record = ReportedRecord(
            record_id=record_id or f"{type}:{self._next_id}",
            type=type,
            payload=dict(payload),
            turn=turn,
            step=step,
            tool_call_id=tool_call_id,
            recorded_at=now_ms(),
        )
        try:
            reported = await self._client.records(ReportRequest(epoch=self._epoch, records=(record,)))
        except GatewayError as error:
            if type not in NEW or error.reason != "Forbidden":
                raise
        else:
            self.heard(reported.budget)
