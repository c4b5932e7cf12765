"""P4: recovery, audit and counterfactual over the golden journals, and what an audit must find."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.replay.test_golden_journals import GOLDEN, STATES, records

from moorage.core.journal.chain import Intact
from moorage.core.journal.errors import UnknownCritical
from moorage.core.journal.export import header_line, record_line, verify_export
from moorage.core.journal.record import Record, decode
from moorage.core.recovery.counterfactual import Answer, Fork, NoSuchQuestion, counterfactual, fork
from moorage.core.recovery.replays import audit, state_hash
from moorage.core.run.reducer import replay
from moorage.core.run.state import REDUCER_VERSION

LONG = "segments-and-repair"


def golden(name: str = LONG) -> list[Record]:
    return records(GOLDEN / f"{name}.journal")


@pytest.mark.rule("P4", "P3", "I1")
@pytest.mark.parametrize("name", STATES)
def test_recovery_and_audit_of_one_journal_agree_and_nothing_is_found(name: str) -> None:
    report = audit(golden(name))
    assert report.findings == ()
    assert report.state == replay(golden(name))
    assert state_hash(report.state) == state_hash(replay(golden(name)))
    assert [each.new for each in report.moves][-1] == STATES[name][0]


def of(taken: list[Record], kind: str) -> int:
    return next(at for at, record in enumerate(taken) if record.type == kind)


def changed(kind: str, **changes: Any) -> Callable[[list[Record]], None]:
    def damage(taken: list[Record]) -> None:
        at = of(taken, kind)
        payload = {**(taken[at].payload or {}), **changes}
        taken[at] = replace(taken[at], payload=payload)

    return damage


def swapped(taken: list[Record]) -> None:
    at = of(taken, "TOOL_RESPONSE")
    taken[at] = replace(taken[at], logical_time=taken[at].logical_time - 1)


def older_epoch(taken: list[Record]) -> None:
    at = of(taken, "JOURNAL_REPAIRED") + 2
    taken[at] = replace(taken[at], epoch=1)


def skipped(taken: list[Record]) -> None:
    del taken[of(taken, "EPOCH_RAISED")]


OTHER = {"segment": 1, "first": 0, "last": 3, "hash": "0" * 64}
FAULTS: dict[str, tuple[Callable[[list[Record]], None], str]] = {
    "logical time": (swapped, "logical time"),
    "epoch": (older_epoch, "committed after epoch"),
    "illegal": (skipped, "doesn't follow"),
    "lineage": (
        changed("SEGMENT_STARTED", previous=OTHER),
        "follows",
    ),
    "carried": (
        changed("SEGMENT_STARTED", state_hash="0" * 64, reducer_version=REDUCER_VERSION),
        "another state",
    ),
    "shape": (changed("SEGMENT_STARTED", previous=None), "doesn't say what it follows"),
}


@pytest.mark.rule("P4", "P3")
@pytest.mark.parametrize("name", FAULTS)
def test_an_audit_names_what_does_not_add_up_and_where(name: str) -> None:
    damage, said = FAULTS[name]
    taken = golden()
    damage(taken)
    report = audit(taken)
    assert not report.sound
    assert said in report.findings[0].what
    assert 0 < report.findings[0].offset <= taken[-1].seq


def test_an_audit_refuses_what_it_must_not_leave_out() -> None:
    taken = golden()
    taken[3] = replace(taken[3], type="OF_A_LATER_VERSION", criticality="critical")
    with pytest.raises(UnknownCritical):
        audit(taken)


class Model:
    """Somebody to ask."""

    def __init__(self, body: bytes = b'{"type":"message","content":"no"}') -> None:
        self.asked: list[Fork] = []
        self._body = body

    def __call__(self, forked: Fork) -> Answer:
        self.asked.append(forked)
        return Answer(200, self._body, {"input_tokens": 3}, "another-model")


@pytest.mark.rule("P4")
def test_a_counterfactual_is_a_new_run_that_names_where_it_comes_from() -> None:
    taken, model = golden(), Model()
    before = (GOLDEN / f"{LONG}.journal").read_bytes()
    forked = fork(taken)
    at = forked.request.seq
    made = counterfactual(forked, "what-if-1", 1_800_000_000_000, model)
    assert model.asked == [forked]
    assert (GOLDEN / f"{LONG}.journal").read_bytes() == before
    verdict = verify_export([header_line(made.header), *(record_line(each) for each in made.records)])
    assert isinstance(verdict.chain, Intact)
    told = [decode(each) for each in made.records]
    assert {each.run_uid for each in told} == {"what-if-1"} != {taken[0].run_uid}
    lineage = told[0].payload["counterfactual"]  # type: ignore[index]
    source = next(each for each in reversed(taken) if each.seq < at)
    state = replay(each for each in taken if each.seq < at)
    assert (lineage["run_uid"], lineage["offset"], lineage["hash"]) == ("u1", source.seq, source.hash)
    assert lineage["state_hash"] == state_hash(state)
    assert audit(told).sound
    assert replay(told).usage.input_tokens == 3
    assert not made.same


@pytest.mark.rule("P4")
def test_the_same_answer_is_told_as_the_same_and_an_earlier_question_can_be_asked() -> None:
    taken = golden()
    first = next(each for each in taken if each.type == "MODEL_REQUEST")
    forked = fork(taken, first.seq)
    assert (forked.request, forked.answered) == (first, None)  # its answer was dropped by the repair
    assert counterfactual(fork(taken), "n", 1, Model(b'{"type":"message"}')).same
    with pytest.raises(NoSuchQuestion):
        fork(taken, first.seq - 1)
    with pytest.raises(NoSuchQuestion):
        fork(golden("local-command"))
    taken[taken.index(first)] = replace(first, attachments=None)
    with pytest.raises(NoSuchQuestion, match="wasn't kept"):
        fork(taken, first.seq)
