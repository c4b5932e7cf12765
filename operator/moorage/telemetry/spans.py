"""H1: spans as a projection of a run's journal, named as OpenTelemetry's GenAI conventions name them. Content off.

A span begins with one record and ends with another. Its ids follow from the run and from what it is about, so that the
same journal makes the same spans, whichever gateway reads it. A trace is no evidence: what a gateway had no time to
send when it died is missing, and the journal has it (V2).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from moorage.core.journal.record import Record, RecordType
from moorage.core.run.state import AMOUNTS, Usage
from moorage.telemetry.attributes import Attribute, Operation, span_name, usage_attributes

T = RecordType
Value = str | int | bool | tuple[str, ...]
MAX_OPEN = 1_024
"""Spans of one run that may be open: more is a journal that never says how things ended."""

MAX_TEXT = 128
PROVIDERS = {"anthropic-messages": "anthropic", "openai-responses": "openai", "openai-chat": "openai"}
"""By what a provider speaks: that is what the convention's name of one tells, whoever it is."""

TOOL_TYPE = "function"  # the convention's word for a tool that runs on the agent's own side


@dataclass(frozen=True)
class Named:
    """What the journal doesn't say of a run in each record, and its spans do. `protocol` and `model`: of the agent's
    model, empty where it has none.
    """

    tenant: str
    name: str
    uid: str
    session_id: str
    driver: str
    protocol: str = ""
    model: str = ""


@dataclass(frozen=True)
class Span:
    """What became of one thing. Times are milliseconds since the epoch (UTC); `error` is a low-cardinality reason."""

    trace_id: int
    span_id: int
    parent_id: int | None
    name: str
    start: int
    end: int
    client: bool = False
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class _Open:
    name: str
    start: int
    parent: str | None
    client: bool
    attributes: Mapping[str, Value]


@dataclass(frozen=True)
class _End:
    """How it ended: what is added to the attributes, and the error if it was one."""

    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str | None = None


class Weaver:
    """Folds one run's records, in order, into spans. Bounded by what is open at once."""

    def __init__(self, run: Named) -> None:
        self.next_seq = 0
        self._run = run
        self._trace = _number(16, run.uid)
        self._open: dict[str, _Open] = {}

    def feed(self, record: Record) -> Iterator[Span]:
        """The spans that end with this record; most end none."""
        self.next_seq = record.seq + 1
        begins, ends = _BEGINS.get(record.type), _ENDS.get(record.type)
        if ends is not None:
            yield from self._close(record, *ends(record))
        if begins is not None and len(self._open) < MAX_OPEN:
            key, opened = begins(self._run, record)
            self._open.setdefault(key, opened)

    def _close(self, record: Record, key: str, end: _End) -> Iterator[Span]:
        """With what it encloses: nothing of an attempt outlives it, and nothing of a run."""
        for inner in [each for each, opened in self._open.items() if opened.parent == key]:
            yield from self._close(record, inner, _End(error=None if inner.startswith(_ATTEMPT) else "Unfinished"))
        opened = self._open.pop(key, None)
        if opened is None:
            return
        usual: dict[str, Value] = {
            Attribute.TENANT: self._run.tenant,
            Attribute.RUN_UID: self._run.uid,
            Attribute.EPOCH: record.epoch,
        }
        attributes = {**usual, **opened.attributes, **end.attributes}
        if end.error is not None:
            attributes[Attribute.ERROR_TYPE] = end.error
        yield Span(
            trace_id=self._trace,
            span_id=_number(8, self._run.uid, key),
            parent_id=_number(8, self._run.uid, opened.parent) if opened.parent else None,
            name=opened.name,
            start=opened.start,
            end=max(record.recorded_at, opened.start),
            client=opened.client,
            attributes={str(name): value for name, value in attributes.items()},
            error=end.error,
        )


def _number(size: int, *parts: str) -> int:
    """An id of so many bytes; never 0, which means none."""
    digest = hashlib.sha256("\0".join(("moorage", *parts)).encode()).digest()
    return int.from_bytes(digest[:size], "big") or 1


# --- what begins, and what it is part of ------------------------------------------------------------------------------

RUN = "run"
_ATTEMPT = "attempt:"


def _attempt(record: Record) -> str:
    return f"{_ATTEMPT}{record.epoch}"


def _agent(record: Record) -> str:
    return f"agent:{record.epoch}"


def _said(record: Record, name: str) -> str | None:
    """A short text of the payload, if it is one."""
    value = (record.payload or {}).get(name)
    return value[:MAX_TEXT] if isinstance(value, str) and value else None


def _told(record: Record, **names: str) -> dict[str, Value]:
    """Attributes from the payload's plain values, by attribute; those that aren't there are left out."""
    payload = record.payload or {}
    found = {Attribute[key]: payload.get(name) for key, name in names.items()}
    return {key: _plain(value) for key, value in found.items() if isinstance(value, str | int | bool)}


def _plain(value: Any) -> Value:
    return value[:MAX_TEXT] if isinstance(value, str) else value


def _run_begins(run: Named, record: Record) -> tuple[str, _Open]:
    told: dict[str, Value] = {
        Attribute.RUN_NAME: run.name,
        Attribute.AGENT_NAME: run.driver,
        Attribute.CONVERSATION: run.session_id,
    }
    return RUN, _Open("agent_run", record.recorded_at, None, client=False, attributes=told)


def _attempt_begins(_: Named, record: Record) -> tuple[str, _Open]:
    told = _told(record, ATTEMPT="attempt", REASON="reason")
    return _attempt(record), _Open("attempt", record.recorded_at, RUN, client=False, attributes=told)


def _agent_begins(run: Named, record: Record) -> tuple[str, _Open]:
    told: dict[str, Value] = {
        Attribute.OPERATION: Operation.INVOKE_AGENT.value,
        Attribute.AGENT_NAME: run.driver,
        Attribute.CONVERSATION: run.session_id,
        **_modelled(run.protocol, run.model),
    }
    name = span_name(Operation.INVOKE_AGENT, run.driver)
    return _agent(record), _Open(name, record.recorded_at, _attempt(record), client=False, attributes=told)


def _chat_begins(run: Named, record: Record) -> tuple[str, _Open]:
    protocol, model = _said(record, "protocol") or "", _said(record, "model") or "unknown"
    told: dict[str, Value] = {
        Attribute.OPERATION: Operation.CHAT.value,
        **_modelled(protocol, model),
        Attribute.CONVERSATION: run.session_id,
        **_told(record, ITERATION="iteration", STREAM="stream"),
    }
    name = span_name(Operation.CHAT, model)
    return f"chat:{record.request_id}", _Open(name, record.recorded_at, _agent(record), client=True, attributes=told)


def _modelled(protocol: str, model: str) -> dict[str, Value]:
    """Who is asked; nothing where nobody is."""
    if not protocol:
        return {}
    return {Attribute.PROVIDER: PROVIDERS.get(protocol, protocol), Attribute.REQUEST_MODEL: model}


def _tool_begins(_: Named, record: Record) -> tuple[str, _Open]:
    tool = _said(record, "tool") or _said(record, "name") or "unknown"
    told: dict[str, Value] = {
        Attribute.OPERATION: Operation.EXECUTE_TOOL.value,
        Attribute.TOOL_NAME: tool,
        Attribute.TOOL_TYPE: TOOL_TYPE,
        Attribute.TOOL_CALL: record.tool_call_id or "",
        **_told(record, ITERATION="iteration"),
    }
    name = span_name(Operation.EXECUTE_TOOL, tool)
    return _tool(record), _Open(name, record.recorded_at, _agent(record), client=False, attributes=told)


def _tool(record: Record) -> str:
    return f"tool:{record.epoch}:{record.tool_call_id}"


def _effect_begins(_: Named, record: Record) -> tuple[str, _Open]:
    told: dict[str, Value] = {Attribute.EFFECT_ID: record.effect_id or "", **_told(record, EFFECT_LEVEL="level")}
    opened = _Open(f"effect {_said(record, 'kind') or 'http'}", record.recorded_at, RUN, client=True, attributes=told)
    return f"effect:{record.effect_id}", opened


def _verification_begins(_: Named, record: Record) -> tuple[str, _Open]:
    return f"verify:{record.epoch}", _Open("verify", record.recorded_at, _attempt(record), client=False, attributes={})


_BEGINS: Mapping[str, Callable[[Named, Record], tuple[str, _Open]]] = {
    T.RUN_ADMITTED.value: _run_begins,
    T.EPOCH_RAISED.value: _attempt_begins,
    T.AGENT_STARTED.value: _agent_begins,
    T.MODEL_REQUEST.value: _chat_begins,
    T.TOOL_REQUEST.value: _tool_begins,
    T.EFFECT_INTENT.value: _effect_begins,
    T.VERIFICATION_STARTED.value: _verification_begins,
}

# --- what ends, and how -----------------------------------------------------------------------------------------------


def _run_ends(record: Record) -> tuple[str, _End]:
    failed = record.type != T.RUN_SUCCEEDED
    reason = _said(record, "reason")
    return RUN, _End(_told(record, REASON="reason"), (reason or record.type) if failed else None)


def _attempt_ends(record: Record) -> tuple[str, _End]:
    epoch = (record.payload or {}).get("epoch", record.epoch)
    return f"{_ATTEMPT}{epoch}", _End(_told(record, REASON="reason"))


def _agent_ends(record: Record) -> tuple[str, _End]:
    completed = _said(record, "outcome") == "completed"
    return _agent(record), _End(error=None if completed else _said(record, "reason") or _said(record, "outcome"))


def _chat_ends(record: Record) -> tuple[str, _End]:
    payload = record.payload or {}
    used = payload.get("usage") or {}
    usage = Usage(**{name: amount for name, amount in used.items() if name in AMOUNTS and isinstance(amount, int)})
    told: dict[str, Value] = {**usage_attributes(usage), **_told(record, STATUS="status", ESTIMATED="estimated")}
    if stop := _said(record, "stop_reason"):
        told[Attribute.FINISH_REASONS] = (stop,)
    return f"chat:{record.request_id}", _End(told, _chat_error(record))


def _chat_error(record: Record) -> str | None:
    if problem := _said(record, "problem"):
        return problem
    status = (record.payload or {}).get("status")
    return str(status) if isinstance(status, int) and status >= 400 else None


def _tool_ends(record: Record) -> tuple[str, _End]:
    payload = record.payload or {}
    error = "timeout" if payload.get("timed_out") else None if payload.get("ok", True) else "failed"
    return _tool(record), _End(_told(record, EXIT_CODE="exit_code"), error)


def _effect_ends(record: Record) -> tuple[str, _End]:
    outcome = _said(record, "outcome") or "unknown"
    told = _told(record, EFFECT_OUTCOME="outcome")
    return f"effect:{record.effect_id}", _End(told, None if outcome == "confirmed" else outcome)


def _verification_ends(record: Record) -> tuple[str, _End]:
    passed = (record.payload or {}).get("passed") is True
    return f"verify:{record.epoch}", _End(error=None if passed else "failed")


_ENDS: Mapping[str, Callable[[Record], tuple[str, _End]]] = {
    T.AGENT_FINISHED.value: _agent_ends,
    T.ATTEMPT_ENDED.value: _attempt_ends,
    T.MODEL_RESPONSE.value: _chat_ends,
    T.TOOL_RESPONSE.value: _tool_ends,
    T.EFFECT_RECEIPT.value: _effect_ends,
    T.EFFECT_RECONCILED.value: _effect_ends,
    T.VERIFICATION_RESULT.value: _verification_ends,
    T.RUN_SUCCEEDED.value: _run_ends,
    T.RUN_FAILED.value: _run_ends,
    T.RUN_CANCELLED.value: _run_ends,
}


def woven(run: Named, records: Iterator[Record]) -> Iterator[Span]:
    """All spans of a journal that has ended."""
    weaver = Weaver(run)
    for record in records:
        yield from weaver.feed(record)
