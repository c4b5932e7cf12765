"""P1: wherever a snapshot is taken, it and the tail come to what the whole journal comes to, by state hash."""

from dataclasses import replace
from functools import reduce as over
from typing import TypeVar

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.run_world import record
from tests.property.test_run_replay import histories

from moorage.core.journal.canonical import canonical, canonical_hash
from moorage.core.journal.plain import plain, restored
from moorage.core.journal.record import BlobRef, Record, RecordType
from moorage.core.run.reducer import replay
from moorage.core.run.state import RunState
from moorage.gateway.facts import KEPT_ANSWERS, Facts, fold

T = TypeVar("T")
History = tuple[list[Record], list[tuple[int, Record]], list[RunState]]


def kept(kind: type[T], value: T) -> T:
    """As it comes back from a store."""
    return restored(kind, orjson.loads(canonical(plain(value))))


@pytest.mark.rule("P1")
@given(histories(), st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_a_snapshot_and_the_tail_come_to_what_the_whole_journal_comes_to(history: History, at: int) -> None:
    taken, _, states = history
    at = min(at, len(taken))
    snapshot = kept(RunState, states[at])
    assert snapshot == states[at]
    after = replay(taken[at:], snapshot)
    assert after == states[-1]
    assert canonical_hash(plain(after)) == canonical_hash(plain(states[-1]))


@st.composite
def conversations(draw: st.DrawFn) -> list[Record]:
    """Requests and answers of models, in any order and more than are kept, with safe points between."""
    told = []
    for at, (kind, number) in enumerate(draw(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 9)), max_size=60))):
        name = f"q{number}"
        if kind == 0:
            one = record(at, RecordType.ITERATION_COMPLETE, {"iteration": number})
        elif kind < 4:
            one = record(at, RecordType.MODEL_REQUEST, {"bytes_hash": f"h{at}"})
        else:
            one = record(at, RecordType.MODEL_RESPONSE, {"complete": True, "status": 200})
        told.append(replace(one, request_id=name, turn=number, attachments={"content": BlobRef("0" * 64, at)}))
    return told


@pytest.mark.rule("P1", "R2")
@given(conversations(), st.integers(0, 60))
@settings(max_examples=100, deadline=None)
def test_what_the_doors_know_comes_back_too_and_in_its_order(told: list[Record], at: int) -> None:
    at = min(at, len(told))
    whole, head = over(fold, told, Facts()), over(fold, told[:at], Facts())
    after = over(fold, told[at:], kept(Facts, head))
    assert after == whole
    assert list(after.answers) == list(whole.answers)


def test_the_oldest_answer_is_the_one_that_is_forgotten_also_after_a_snapshot() -> None:
    """In canonical JSON an object's keys are sorted: h10 would be older than h9."""
    facts = Facts()
    for at in range(KEPT_ANSWERS + 4):
        asked = replace(record(at, RecordType.MODEL_REQUEST, {"bytes_hash": f"h{at}"}), request_id=f"q{at}")
        said = record(at, RecordType.MODEL_RESPONSE, {"complete": True, "status": 200})
        answered = replace(said, request_id=f"q{at}", attachments={"content": BlobRef("0" * 64, at)})
        facts = fold(kept(Facts, fold(facts, asked)), answered)
    assert list(facts.answers) == [f"h{at}" for at in range(4, KEPT_ANSWERS + 4)]
