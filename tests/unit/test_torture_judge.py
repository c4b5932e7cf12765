"""The judge of tortured runs, over a real journal: it finds nothing where nothing is wrong, and all that can be."""

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moorage.core.journal.export import parse_record, read_lines
from moorage.core.journal.record import Record, RecordType, RunIdentity, decode
from moorage.core.run.result import MAX_VERIFIER_LOSSES
from moorage.core.run.state import Effect
from moorage.points import Point
from moorage.store.memory import MemoryStore
from moorage.store.port import AppendResult, NewExecution
from moorage.testing.judge import (
    Journal,
    Kind,
    Outside,
    Reading,
    _repeated,
    _unlike,
    gave_up,
    judge,
    older_owner,
    outcome,
)
from moorage.testing.killpoints import Fault, Shot, parse_shots
from moorage.testing.torture import Tally, Verdict, Wanted, plan

GOLDEN = Path(__file__).parents[1] / "replay" / "golden" / "local-command.journal"
LINES = list(read_lines([GOLDEN.read_bytes()]))[1:]
RECORDS = [decode(parse_record(line)) for line in LINES]


def told(records: Iterable[Record]) -> Journal:
    reading = Reading("u", range(len(LINES) + 1))
    for record in records:
        reading.feed(record)
    return reading.journal()


WHOLE = told(RECORDS)
UNDISTURBED = outcome(WHOLE.state)
END = WHOLE.state.end
COMMIT = END.commit if END else None
PUSHED = Outside([str(COMMIT)])


def cut(records: int) -> Journal:
    return told(RECORDS[:records])


def kinds(*seen: Journal, pushes: list[str] | None = None) -> list[Kind]:
    found = judge([(each,) for each in seen], UNDISTURBED, PUSHED if pushes is None else Outside(pushes))
    return [finding.kind for finding in found]


def test_an_undisturbed_run_is_clean() -> None:
    assert UNDISTURBED.phase == "Succeeded"
    assert kinds(cut(3), cut(9), WHOLE) == []


def test_a_second_push_is_found() -> None:
    assert Kind.DUPLICATE in kinds(WHOLE, pushes=[str(COMMIT), "f" * 40])


def test_a_push_that_the_remote_never_got_is_found() -> None:
    assert kinds(WHOLE, pushes=[]) == [Kind.DIVERGENCE]


def test_records_that_were_there_and_are_gone_are_found() -> None:
    assert kinds(replace(cut(5), head="0" * 64), WHOLE) == [Kind.LOSS]
    assert Kind.LOSS in kinds(WHOLE, cut(5))
    assert kinds(replace(cut(4), uid="forgotten"), WHOLE) == [Kind.LOSS]


def test_a_run_that_has_no_end_is_found() -> None:
    assert {Kind.LOSS, Kind.DIVERGENCE} <= set(kinds(cut(len(RECORDS) - 2), pushes=[]))


def test_two_runs_of_one_and_a_broken_chain_are_found() -> None:
    assert [f.kind for f in judge([(WHOLE, WHOLE)], UNDISTURBED, Outside([]))] == [Kind.DIVERGENCE]
    assert kinds(replace(WHOLE, problem="record 3")) == [Kind.LOSS]


def test_another_end_than_the_undisturbed_is_found() -> None:
    found = judge([(WHOLE,)], replace(UNDISTURBED, tree="e" * 40), PUSHED)
    assert [f.kind for f in found] == [Kind.DIVERGENCE]
    assert judge([(WHOLE,)], replace(UNDISTURBED, tree="e" * 40), PUSHED, same_tree=False) == []


def test_a_run_whose_verifiers_were_killed_as_often_as_it_bears_is_no_divergence() -> None:
    ended = replace(WHOLE.state.end, reason="VerifierLost") if WHOLE.state.end else None
    assert not gave_up(WHOLE.state)
    assert not gave_up(replace(WHOLE.state, end=ended))
    assert gave_up(replace(WHOLE.state, end=ended, verifications_lost=MAX_VERIFIER_LOSSES))


class Heedless(MemoryStore):
    """A store that lets anybody commit."""

    async def append(self, run_uid: str, epoch: int | None, drafts: Any, *more: Any, **named: Any) -> AppendResult:
        del epoch
        return await super().append(run_uid, None, drafts, *more, **named)


@pytest.mark.parametrize(("kind", "found"), [(MemoryStore, []), (Heedless, [Kind.DUPLICATE])])
async def test_an_older_owner_that_commits_is_found(kind: type[MemoryStore], found: list[Kind]) -> None:
    store = kind()
    identity = RunIdentity(tenant="local", run_uid="u", session_id="s")
    await store.persist(NewExecution(identity=identity, name="n", spec_hash="f" * 64, spec={}, created_at=0))
    await store.raise_fence("u", 2)
    assert [f.kind for f in await older_owner(store, "u")] == found


def test_a_question_that_was_answered_and_is_asked_again_is_found() -> None:
    asked = {"bytes_hash": "a" * 64}
    began = RECORDS[: next(n for n, record in enumerate(RECORDS) if record.type == RecordType.AGENT_STARTED) + 1]
    model = [
        replace(began[-1], type=RecordType.MODEL_REQUEST, request_id="1", payload=asked),
        replace(began[-1], type=RecordType.MODEL_RESPONSE, request_id="1", payload={"complete": True}),
        replace(began[-1], type=RecordType.MODEL_REQUEST, request_id="2", payload=asked),
    ]
    assert [f.kind for f in told([*began, *model]).repeated] == [Kind.DUPLICATE]
    assert told([*began, *model[:2]]).repeated == told([*began, model[0], model[2]]).repeated == ()


def test_the_tally_counts_what_hit_and_what_was_found() -> None:
    tally, shot = Tally(), Shot.parse("append/within:3:kill")
    tally.add(Verdict((shot, shot), 3, UNDISTURBED, ()))
    assert tally.clean
    assert str(tally) == "2 kills in 1 runs: 0 duplicates, 0 losses, 0 divergences, 0 leftovers, 0 unknown"
    unknown = replace(UNDISTURBED, effects=("http_request: unknown",))
    found = tuple(judge([(WHOLE,)], UNDISTURBED, Outside(["f" * 40, "e" * 40])))
    tally.add(Verdict((replace(shot, fault=Fault.STOP),), 1, unknown, found))
    assert not tally.clean
    assert str(tally) == "2 kills, 1 stops in 2 runs: 1 duplicates, 0 losses, 1 divergences, 0 leftovers, 1 unknown"


POINTS = Counter({Point.APPEND_WITHIN: 40, Point.BLOB_AFTER: 17, Point.PUSH_WITHIN: 1})


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_is_the_same_shots_again(seed: int) -> None:
    shots = plan(seed, POINTS, [Fault.KILL])
    assert shots == plan(seed, POINTS, [Fault.KILL])
    assert shots != plan(seed + 100, POINTS, [Fault.KILL])
    assert all(1 <= shot.number <= POINTS[shot.point] for shot in shots)


def test_every_point_is_drawn_about_as_often() -> None:
    drawn = Counter(shot.point for seed in range(600) for shot in plan(seed, POINTS, [Fault.KILL]))
    assert min(drawn.values()) > 0.3 * max(drawn.values()), drawn  # of PUSH_WITHIN each trial has one shot at most


def test_shots_that_are_named_are_one_run() -> None:
    shots = parse_shots("append/within:3:kill push/within:1:stop")
    assert list(Wanted(1, 7, shots=shots).plans(POINTS)) == [(7, shots)]
    seeds = [seed for seed, _ in itertools.islice(Wanted(1, 7).plans(POINTS), 3)]
    assert seeds == [7, 8, 9]


def test_reads_may_be_done_as_often_as_anybody_likes_and_one_key_once() -> None:
    read = Effect("e0", "http_request", "r", "GET t", "confirmed", level="read_only")
    sent = Effect("e1", "http_request", "k", "POST t", "confirmed", level="keyed")
    state = replace(WHOLE.state, effects=(*WHOLE.state.effects, read, read, sent))
    assert outcome(state).effects == tuple(sorted((*UNDISTURBED.effects, "http_request: confirmed")))
    assert [found.kind for found in _repeated(state.effects)] == []
    assert [found.kind for found in _repeated((*state.effects, replace(sent, effect_id="e2")))] == [Kind.DUPLICATE]


ORDER = Effect("e1", "http_request", "k", "http://a.example.com/orders by POST", "confirmed", level="opaque")


@pytest.mark.parametrize(
    ("status", "times", "found"),
    [
        ("confirmed", 1, []),
        ("confirmed", 0, [Kind.LOSS]),
        ("confirmed", 2, [Kind.DUPLICATE]),
        ("unknown", 0, []),
        ("unknown", 1, []),
        ("unknown", 2, [Kind.DUPLICATE]),
        ("not_dispatched", 0, []),
        ("not_dispatched", 1, [Kind.DIVERGENCE]),
        ("rejected", 1, [Kind.DIVERGENCE]),
    ],
)
def test_what_a_host_did_is_held_against_the_journal(status: str, times: int, found: list[Kind]) -> None:
    effects = [replace(ORDER, status=status)]
    assert [each.kind for each in _unlike(effects, [ORDER.target] * times)] == found


def test_what_a_host_did_and_no_journal_knows_is_found() -> None:
    assert [each.kind for each in _unlike([], [ORDER.target])] == [Kind.DIVERGENCE]


def test_an_order_of_which_nobody_knows_is_told_and_excuses_nothing_else() -> None:
    doubt = replace(UNDISTURBED, effects=("git_push: confirmed", "http_request: unknown"))
    assert doubt.unknown
    assert not doubt.undelivered
    assert doubt.known.effects == ("git_push: confirmed", "http_request: confirmed")
    assert replace(doubt, effects=("git_push: unknown",)).undelivered
