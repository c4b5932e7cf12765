"""H1: spans of a journal: what they are called, what they lie in, how they end, and what of a journal they need."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from tests.property.run_world import record

from moorage.core.journal.record import Record
from moorage.telemetry.metrics import GatewayMetrics
from moorage.telemetry.spans import Named, Span, Weaver, woven
from moorage.telemetry.tracing import MAX_WAITING, Tracer, Unread

RUN = Named("team-a", "fix-login", "u-1", "s-1", "codex", "openai-responses", "m-1")
ASKED = {"protocol": "openai-responses", "model": "m-1", "iteration": 1, "stream": True}
USAGE = {"input_tokens": 5, "cache_read_tokens": 90, "cache_write_tokens": 5, "output_tokens": 7}


def journal(*facts: tuple[str, Mapping[str, Any], dict[str, Any]], at: int = 1_000) -> list[Record]:
    """Records a second apart, of epoch 1 but for the first."""
    made = []
    for seq, (kind, payload, ids) in enumerate(facts):
        base = record(seq, kind, payload, epoch=ids.pop("epoch", 1 if seq else 0), at=at + 1_000 * seq)
        made.append(Record(**{**base.__dict__, **ids}))
    return made


def whole(**last: Any) -> list[Record]:
    return journal(
        ("RUN_ADMITTED", {"spec_hash": "x"}, {}),
        ("EPOCH_RAISED", {"attempt": 1, "epoch": 1, "reason": "Start"}, {}),
        ("AGENT_STARTED", {"driver": "codex"}, {}),
        ("MODEL_REQUEST", ASKED, {"request_id": "q1"}),
        ("MODEL_RESPONSE", {"status": 200, "usage": USAGE, "stop_reason": "end_turn"}, {"request_id": "q1"}),
        ("TOOL_REQUEST", {"tool": "bash", "iteration": 1}, {"tool_call_id": "1.0"}),
        ("TOOL_RESPONSE", {"ok": False, "exit_code": 2, "timed_out": False}, {"tool_call_id": "1.0"}),
        ("EFFECT_INTENT", {"kind": "http", "level": "keyed"}, {"effect_id": "e1"}),
        ("EFFECT_RECEIPT", {"outcome": "confirmed"}, {"effect_id": "e1"}),
        ("AGENT_FINISHED", {"outcome": "completed", "reason": "Completed"}, {}),
        ("ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "Completed"}, {}),
        (last.get("kind", "RUN_SUCCEEDED"), last.get("payload", {}), {}),
    )


def named(spans: Sequence[Span]) -> dict[str, Span]:
    return {span.name: span for span in spans}


@pytest.mark.rule("H1")
def test_each_thing_has_the_conventions_name_and_lies_in_what_it_is_part_of() -> None:
    spans = named(list(woven(RUN, iter(whole()))))
    inside = {
        "agent_run": None,
        "attempt": "agent_run",
        "invoke_agent codex": "attempt",
        "chat m-1": "invoke_agent codex",
        "execute_tool bash": "invoke_agent codex",
        "effect http": "agent_run",
    }
    assert spans.keys() == inside.keys()
    for name, outer in inside.items():
        assert spans[name].parent_id == (None if outer is None else spans[outer].span_id)
    assert len({span.trace_id for span in spans.values()}) == 1
    assert (spans["chat m-1"].start, spans["chat m-1"].end, spans["chat m-1"].client) == (4_000, 5_000, True)


@pytest.mark.rule("H1")
def test_input_tokens_of_a_chat_include_what_was_cached() -> None:
    told = named(list(woven(RUN, iter(whole()))))["chat m-1"].attributes
    assert told["gen_ai.usage.input_tokens"] == 100
    assert told["gen_ai.usage.cache_read.input_tokens"] == 90
    assert (told["gen_ai.operation.name"], told["gen_ai.provider.name"]) == ("chat", "openai")
    assert told["gen_ai.response.finish_reasons"] == ("end_turn",)


REQUIRED = {
    "invoke_agent codex": {
        "gen_ai.operation.name",
        "gen_ai.provider.name",
        "gen_ai.request.model",
        "gen_ai.agent.name",
    },
    "chat m-1": {"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.conversation.id"},
    "execute_tool bash": {"gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.tool.type", "gen_ai.tool.call.id"},
}


@pytest.mark.rule("H1")
def test_each_operation_has_what_its_convention_requires() -> None:
    spans = named(list(woven(RUN, iter(whole()))))
    for name, required in REQUIRED.items():
        told = spans[name].attributes
        assert required <= told.keys()
        assert (told["gen_ai.operation.name"], spans[name].client) == (name.split()[0], name.startswith("chat"))
    assert spans["chat m-1"].attributes["gen_ai.request.stream"] is True


def test_an_agent_without_a_model_names_no_provider() -> None:
    alone = Named("team-a", "fix-login", "u-1", "s-1", "command")
    told = named(list(woven(alone, iter(whole()))))["invoke_agent command"].attributes
    assert not {"gen_ai.provider.name", "gen_ai.request.model"} & told.keys()


def test_an_error_is_a_short_reason_and_success_none() -> None:
    failed = whole(kind="RUN_FAILED", payload={"reason": "BudgetExhausted", "message": "secret words"})
    spans = named(list(woven(RUN, iter(failed))))
    assert {name: span.error for name, span in spans.items() if span.error} == {
        "agent_run": "BudgetExhausted",
        "execute_tool bash": "failed",
    }
    assert "secret words" not in str(spans)


def test_what_never_ended_ends_with_what_it_is_part_of() -> None:
    lost = [r for r in whole() if r.type not in {"MODEL_RESPONSE", "AGENT_FINISHED", "ATTEMPT_ENDED"}]
    spans = named(list(woven(RUN, iter(lost))))
    assert (spans["chat m-1"].error, spans["invoke_agent codex"].error, spans["attempt"].error) == (
        "Unfinished",
        "Unfinished",
        None,
    )
    assert {span.end for span in spans.values() if span.name in {"attempt", "chat m-1"}} == {12_000}


def test_an_answer_without_its_question_is_no_span_and_a_later_attempt_is_another() -> None:
    again = {"attempt": 2, "epoch": 2, "reason": "SandboxLost"}
    spans = list(
        woven(
            RUN,
            iter(
                journal(
                    ("RUN_ADMITTED", {}, {}),
                    ("MODEL_RESPONSE", {"replayed": True}, {"request_id": "q0"}),
                    ("EPOCH_RAISED", {"attempt": 1, "epoch": 1}, {}),
                    ("ATTEMPT_ENDED", {"epoch": 1, "reason": "SandboxLost"}, {}),
                    ("EPOCH_RAISED", again, {"epoch": 2}),
                    ("ATTEMPT_ENDED", {"epoch": 2, "reason": "Completed"}, {"epoch": 2}),
                )
            ),
        )
    )
    assert [span.name for span in spans] == ["attempt", "attempt"]
    assert spans[0].span_id != spans[1].span_id


def test_the_same_journal_makes_the_same_spans() -> None:
    assert list(woven(RUN, iter(whole()))) == list(woven(RUN, iter(whole())))


def test_a_clock_that_went_back_makes_no_negative_time() -> None:
    records = whole()
    records[4] = Record(**{**records[4].__dict__, "recorded_at": 10})
    assert named(list(woven(RUN, iter(records))))["chat m-1"].end == 4_000


def test_what_is_open_is_bounded() -> None:
    asked = [("TOOL_REQUEST", {"tool": "x"}, {"tool_call_id": str(n)}) for n in range(3_000)]
    weaver = Weaver(RUN)
    for each in journal(("RUN_ADMITTED", {}, {}), *asked):
        assert not list(weaver.feed(each))
    assert len(weaver._open) == 1_024


# --- what is sent, by whom --------------------------------------------------------------------------------------------


class Sink(SpanProcessor):
    def __init__(self) -> None:
        self.ended: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.ended]


def tracer(records: Sequence[Record], *, unread: bool = False) -> tuple[Tracer, Sink, GatewayMetrics]:
    async def read(uid: str, start: int) -> AsyncIterator[Record]:
        assert uid == "u-1"
        if unread:
            raise Unread("StoreUnavailable")
        for each in records[start:]:
            yield each

    sink, metrics = Sink(), GatewayMetrics(CollectorRegistry())
    return Tracer(sink, Resource({}), read, metrics, structlog.get_logger()), sink, metrics


async def woven_by(one: Tracer, *batches: Sequence[Record]) -> None:
    for batch in batches:
        one.appended(RUN, batch)
    weaving = asyncio.create_task(one.run())
    await asyncio.wait_for(one.drained(), 30)
    weaving.cancel()
    await asyncio.gather(weaving, return_exceptions=True)


async def test_two_gateways_send_each_span_once_between_them() -> None:
    records = whole()
    (one, first, _), (other, second, _) = tracer(records), tracer(records)
    await woven_by(one, records[:4], records[6:9])
    await woven_by(other, records[4:6], records[9:])
    assert first.names == ["execute_tool bash", "effect http"]
    assert second.names == ["chat m-1", "invoke_agent codex", "attempt", "agent_run"]
    starts = [span.start_time for span in first.ended]
    assert starts == [6_000_000_000, 8_000_000_000], "it knows when what the other saw began"


async def test_what_is_told_twice_is_sent_once() -> None:
    records = whole()
    one, sink, _ = tracer(records)
    await woven_by(one, records[:5], records[3:5], records[5:])
    assert sink.names.count("chat m-1") == 1


async def test_a_journal_that_cant_be_read_costs_its_spans_and_nothing_else() -> None:
    records = whole()
    one, sink, metrics = tracer(records, unread=True)
    with capture_logs() as logs:
        await woven_by(one, records[6:8])
    assert sink.ended == []
    assert metrics.spans_left_out._value.get() == 2
    assert [(each["event"], each["reason"]) for each in logs] == [("spans_left_out", "StoreUnavailable")]


@pytest.mark.parametrize("caught_up", [False, True], ids=["told", "caught-up"])
async def test_a_record_of_an_odd_shape_costs_its_own_spans_and_no_others(caught_up: bool) -> None:
    records = whole()
    records[4] = Record(**{**records[4].__dict__, "payload": {"usage": [7]}})
    one, sink, metrics = tracer(records)
    with capture_logs() as logs:
        await woven_by(one, records[5:] if caught_up else records)
    assert {"execute_tool bash", "effect http", "agent_run"} <= set(sink.names)
    (chat,) = [span for span in sink.ended if span.name == "chat m-1"]
    assert chat.status.description == "Unfinished"
    assert metrics.spans_left_out._value.get() == 1
    assert [each["reason"] for each in logs] == ["MODEL_RESPONSE at 4: AttributeError"]


async def test_whatever_one_run_comes_to_the_next_one_is_woven() -> None:
    records = whole()

    async def read(uid: str, start: int) -> AsyncIterator[Record]:
        raise RuntimeError(uid, start)
        yield  # pragma: no cover  what makes it a generator

    sink, metrics = Sink(), GatewayMetrics(CollectorRegistry())
    one = Tracer(sink, Resource({}), read, metrics, structlog.get_logger())
    with capture_logs() as logs:
        await woven_by(one, records[6:8], records)
    assert sink.names[-1] == "agent_run"
    assert metrics.spans_left_out._value.get() == 2
    assert [each["reason"] for each in logs] == ["RuntimeError"]


def test_nobody_waits_for_a_trace() -> None:
    records = whole()
    one, _, metrics = tracer(records)
    for _ in range(MAX_WAITING + 3):
        one.appended(RUN, records[:1])
    assert metrics.spans_left_out._value.get() == 3
