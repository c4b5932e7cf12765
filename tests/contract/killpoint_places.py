"""K1: which tests let a process meet which fault at which point. All of them, at every point, have a row here.

`HERE` are the points that the small job of `moorage.testing.benches` passes: it meets the faults there, over either
store, at several points in one run (`packs`). Its agent doesn't stream, nothing of a run that succeeds is kept, its
journal is short, nobody asks anything of it or watches it, and it has one gateway: what that leaves out has tests of
its own (`ELSEWHERE`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from moorage.points import Point
from moorage.testing.killpoints import Fault

Pack = tuple[Point, ...]

_RUNNERS = (
    *("worktree/", "staging/", "checkpoint", "safe-point/", "proposal/", "result/", "acceptance/", "cancel-ack/"),
    *("message/", "end-check/", "merge/", Point.PAUSE_AFTER),
)
_STREAM, _SNAPSHOT = (Point.MODEL_STREAM,), (Point.SNAPSHOT_BEFORE, Point.SNAPSHOT_AFTER)
_LETTING_GO = (Point.SEAL_BEFORE, Point.SEAL_AFTER, Point.RELEASE_BEFORE, Point.RELEASE_AFTER)
_PULL = (Point.PULL_BEFORE, Point.PULL_WITHIN, Point.PULL_AFTER)
_CANCEL = (Point.CANCEL_BEFORE, Point.CANCEL_WITHIN, Point.CANCEL_ACK_BEFORE, Point.CANCEL_ACK_AFTER)
_PAUSE = (Point.PAUSE_BEFORE, Point.PAUSE_WITHIN, Point.PARK_BEFORE, Point.PARK_AFTER)
_RESUME = (Point.RESUME_BEFORE, Point.RESUME_AFTER)
_PAUSED = (Point.PAUSE_AFTER,)
_COMMANDS = (
    (Point.COMMAND_BEFORE, Point.MESSAGE_BEFORE),
    (Point.COMMAND_AFTER, Point.MESSAGE_AFTER),
)
_FOLLOWED = (Point.STREAM_BEFORE, Point.STREAM_AFTER)
_SHARED = (
    *(Point.KEEP_BEFORE, Point.KEEP_WITHIN, Point.KEEP_AFTER),
    *(Point.FOLLOW_BEFORE, Point.FOLLOW_WITHIN, Point.FOLLOW_AFTER),
)
_CHILDREN = (
    *(Point.SPAWN_BEFORE, Point.SPAWN_AFTER),
    *(Point.SHARE_BEFORE, Point.SHARE_AFTER),
    *(Point.SETTLE_BEFORE, Point.SETTLE_AFTER),
)
_MERGE = (Point.MERGE_BEFORE, Point.MERGE_AFTER)

MATRIX: Mapping[Fault, str] = {
    Fault.KILL: "test_killed_there_it_goes_on_and_finishes_once",
    Fault.ERROR: "test_an_error_there_is_survived",
    Fault.DELAY: "test_held_up_there_it_ends_as_if_undisturbed",
    Fault.STOP: "test_held_up_there_it_ends_as_if_undisturbed",
}
"""The test of each fault at the points that are `HERE`."""

TOGETHER: Mapping[Fault, int] = {Fault.KILL: 6, Fault.ERROR: 4, Fault.DELAY: 8, Fault.STOP: 8}
"""Points in one run: each death lets the next attempt wait longer (R6), what is held up costs no more than its time."""

ELSEWHERE: Mapping[str, Mapping[Fault, Sequence[Pack]]] = {
    "test_whatever_befalls_an_answer_that_streams_the_run_finishes_once": dict.fromkeys(Fault, (_STREAM,)),
    "test_whatever_befalls_an_ended_run_that_is_let_go_of_it_goes_all_the_same": {
        **dict.fromkeys(Fault, (_LETTING_GO,)),
        Fault.ERROR: [(Point.SEAL_BEFORE,), (Point.SEAL_AFTER, Point.RELEASE_BEFORE), (Point.RELEASE_AFTER,)],
    },
    "test_whatever_befalls_a_cancel_it_is_finished_and_nothing_runs_on": {
        Fault.KILL: [(point,) for point in _CANCEL],
        Fault.ERROR: [_CANCEL[:3], _CANCEL[3:]],  # a runner that fails before it acknowledges never has
        Fault.DELAY: [_CANCEL],
        Fault.STOP: [_CANCEL],
    },
    "test_whatever_befalls_a_gateway_at_a_snapshot_the_run_goes_on": {
        **dict.fromkeys(Fault, (_SNAPSHOT,)),
        Fault.ERROR: [_SNAPSHOT[:1], _SNAPSHOT[1:]],  # after one that can't be taken there is none
    },
    "test_whatever_befalls_a_command_it_is_done_once": {
        Fault.KILL: _COMMANDS,
        Fault.ERROR: _COMMANDS,
        Fault.DELAY: [_COMMANDS[0] + _COMMANDS[1]],
        Fault.STOP: [_COMMANDS[0] + _COMMANDS[1]],
    },
    "test_whatever_befalls_a_pause_it_is_finished_and_the_run_goes_on_from_there": {
        Fault.KILL: [(point,) for point in _PAUSE + _RESUME],
        Fault.ERROR: [_PAUSE[::2] + _RESUME[:1], _PAUSE[1::2] + _RESUME[1:]],
        Fault.DELAY: [_PAUSE + _RESUME],
        Fault.STOP: [_PAUSE + _RESUME],
    },
    "test_whatever_befalls_a_runner_that_pauses_the_run_is_paused": dict.fromkeys(Fault, (_PAUSED,)),
    "test_whatever_befalls_a_gateway_as_it_tells_a_follower_each_line_comes_once": dict.fromkeys(Fault, (_FOLLOWED,)),
    "test_whatever_befalls_a_gateway_at_a_pull_request_there_is_one": {
        **dict.fromkeys(Fault, (_PULL[::2], _PULL[1:2])),
        Fault.DELAY: (_PULL,),
    },
    "test_whatever_befalls_who_prunes_a_journal_a_tombstone_stands_for_all_of_it": dict.fromkeys(
        Fault, ((Point.PRUNE_WITHIN,),)
    ),
    "test_whatever_befalls_gateways_at_a_push_it_is_kept_and_followed": dict.fromkeys(Fault, (_SHARED,)),
    "test_whatever_befalls_a_gateway_at_a_child_its_share_is_taken_and_settled_once": dict.fromkeys(
        Fault, (_CHILDREN,)
    ),
    "test_whatever_befalls_a_runner_at_a_merge_the_tree_has_it_once": {
        Fault.KILL: [_MERGE[:1], _MERGE[1:]],
        Fault.ERROR: [_MERGE[:1], _MERGE[1:]],
        Fault.DELAY: [_MERGE],
        Fault.STOP: [_MERGE],
    },
}
"""Points in one run of each fault, by the test."""

NOT_HERE = frozenset(
    point for faults in ELSEWHERE.values() for each in faults.values() for pack in each for point in pack
)
HERE = [point for point in Point if point not in NOT_HERE]
RUNNERS = frozenset(point for point in Point if point.startswith(_RUNNERS))
"""Passed by a sandbox; whatever befalls that, the process that owns the run lives on."""


APART = (Point.SANDBOX_AFTER, frozenset({Point.RENEWAL_BEFORE, Point.RENEWAL_AFTER}))
"""Who is held up there knows of no sandbox as its first heartbeat comes, and the small job ends before the second."""


def packs(points: Sequence[Point], size: int) -> list[Pack]:
    """Every point once, `size` in a pack at most, and none beside its neighbour: what befalls a boundary before may be
    why what is within it isn't reached. Nor are those together that are to be apart.
    """
    count = max(-(-len(points) // size), min(3, len(points)))
    made = [tuple(points[first::count]) for first in range(count)]
    return packs(points, size - 1) if size > 1 and any(_too_close(pack) for pack in made) else made


def _too_close(pack: Pack) -> bool:
    first, others = APART
    return first in pack and not others.isdisjoint(pack)


def here(*faults: Fault) -> list[Any]:
    """Cases of the matrix: fault and points."""
    return _cases({fault: packs(HERE, TOGETHER[fault]) for fault in faults})


def elsewhere(test: str) -> list[Any]:
    """The same of a test that has its own points."""
    return _cases(ELSEWHERE[test])


def _cases(rows: Mapping[Fault, Sequence[Pack]]) -> list[Any]:
    packed = [(fault, pack) for fault, each in rows.items() for pack in each]
    return [pytest.param(*case, id=f"{case[0]}-{'+'.join(case[1])}".replace("/", "_")) for case in packed]


def table() -> dict[tuple[Point, Fault], str]:
    """Which test lets a process meet that fault there."""
    rows = {(point, fault): MATRIX[fault] for point in HERE for fault in MATRIX}
    for test, faults in ELSEWHERE.items():
        rows |= {(point, fault): test for fault, each in faults.items() for pack in each for point in pack}
    return rows
