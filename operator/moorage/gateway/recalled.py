"""O2, R4: a conversation that goes on, an earlier attempt's or another run's, where the driver keeps none itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from pydantic import ValidationError

from moorage.api.work import CallResult, Conversation
from moorage.core.journal.record import Record, RecordType
from moorage.gateway.assignment import speaker_of
from moorage.gateway.contents import ContentLost
from moorage.gateway.errors import NotFound as NothingRecorded
from moorage.gateway.facts import ModelAnswer
from moorage.gateway.gate import Gate
from moorage.gateway.ledger import Run
from moorage.store.blobs import payload_of

PAGE: Final = 256  # records
LOOKED: Final = 16 * PAGE  # behind the end of a journal: results that are further away are none of a last decision


async def conversation(gate: Gate, run: Run) -> Conversation:
    """What an attempt of the run goes on with. Raise NothingRecorded, and as the store does."""
    speaker = await speaker_of(gate.ledger, run)
    last = speaker.facts.last if speaker is not None else None
    if speaker is None or last is None or last.question.content is None:
        raise NothingRecorded("no conversation goes on here")
    try:
        asked = await gate.contents.read(run.tenant, last.question.content)
        said = await gate.contents.read(run.tenant, last.content)
    except ContentLost:
        raise NothingRecorded("the conversation is kept no more") from None
    results = dict[int, CallResult]()
    async for each in _results(gate, speaker, last):
        results.setdefault(each.index, each)
    return Conversation(
        request=asked.decode(),
        answer=said.decode("utf-8", "replace"),
        results=tuple(results[index] for index in sorted(results)),
    )


async def _results(gate: Gate, speaker: Run, last: ModelAnswer) -> AsyncIterator[CallResult]:
    """Of the calls in the last answer, newest first."""
    end = speaker.state.offset + 1
    for stop in range(end, max(0, end - LOOKED), -PAGE):
        first = max(0, stop - PAGE)
        for record in reversed(await gate.deps.store.read(speaker.uid, first, stop - first)):
            if record.type == RecordType.MODEL_RESPONSE and record.request_id == last.request_id:
                return
            told = record.type == RecordType.TOOL_RESPONSE and record.turn == last.question.turn
            if told and (result := await _result(gate, speaker, record)) is not None:
                yield result


async def _result(gate: Gate, speaker: Run, record: Record) -> CallResult | None:
    try:
        return CallResult.model_validate(await payload_of(record, gate.deps.blobs, speaker.tenant) or {})
    except ValidationError:  # erased, or told by somebody who says less
        return None
