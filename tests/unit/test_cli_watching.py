"""Watching runs: what the program prints of a stream, how it comes back, and with what it ends."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from tests.cli_program import END, FACTS, HELLO, UID, Doors, Program, manifest, program

from moorage.api.sse import Event
from moorage.cli import following
from moorage.cli.evidence import Evidence
from moorage.cli.exits import Exit, NotFound

__all__ = ["manifest", "program"]  # fixtures

LOGS = f"/v1/runs/{UID}/logs/stream?follow=true&live=false"
FAILED = Event("end", b'{"phase":"Failed","reason":"AgentFailed","message":"","offset":9}', 9)


def said(text: str, place: int) -> Event:
    return Event("output", json.dumps({"at": 7, "epoch": 1, "stream": "stdout", "text": text}).encode(), place)


def gap(place: int, **told: Any) -> Event:
    return Event("gap", json.dumps({"first": place, "last": place, **told}).encode(), place)


@pytest.mark.rule("M4")
def test_a_follower_comes_back_with_its_cursor_until_the_end_has_come(program: Program) -> None:
    doors = program.composition.doors
    doors.streams = [[said("a\n", 3), said("b", 5)], [], [said("c\n", 6), END]]
    assert program("logs", "-f", "tidy") == Exit.OK
    assert program.out == b"a\nbc\n"
    assert doors.asked == [LOGS, f"{LOGS} after 5", f"{LOGS} after 5"]
    assert "tidy is Succeeded (Completed)" in program.err


def test_how_a_followed_run_ended_is_the_exit_code(program: Program) -> None:
    for argv in (("logs", "-f", "tidy"), ("timeline", "-f", "tidy")):
        program.composition.doors.streams = [[FAILED]]
        assert program(*argv) == Exit.FAILED
        assert "tidy is Failed (AgentFailed)" in program.err
    program.composition.doors.streams = [[FAILED]]
    assert program("logs", "tidy") == Exit.OK, "whoever only reads has read it"


def test_what_is_missing_is_said_in_its_place(program: Program) -> None:
    program.composition.doors.streams = [
        [
            said("torn", 3),
            gap(4, reason="Dropped", size=7),
            gap(5, reason="Erased"),
            gap(6, reason="Pruned"),
            gap(7, reason="Behind", size=9, full="/v1/runs/x/logs"),
            gap(8, reason="Tail"),
            END,
        ]
    ]
    assert program("logs", "-f", "tidy") == Exit.OK
    assert program.text.splitlines() == [
        "torn",
        "[7 bytes of output dropped here]",
        "[output was erased]",
        "[the journal's retention is over: its records are gone]",
        "[9 bytes of output skipped here: /v1/runs/x/logs has it]",
        "[what came before is too long to be looked through: ask without --tail]",
    ]


def test_as_json_each_line_is_an_object_with_the_cursor_to_go_on_from(program: Program) -> None:
    program.composition.doors.streams = [[said("a\u2028b\n", 3), HELLO, gap(4, reason="Erased"), END]]
    assert program("logs", "tidy", "-f", "-o", "json") == Exit.OK
    lines = [json.loads(line) for line in program.out.split(b"\n")[:-1]]
    assert lines[0] == {
        "cursor": 3,
        "at": "1970-01-01T00:00:00.007Z",
        "epoch": 1,
        "stream": "stdout",
        "text": "a\u2028b\n",
    }
    assert lines[1]["data"] == "aGVsbG//Cg=="
    assert lines[2] == {"cursor": 4, "gap": {"reason": "Erased", "first": 4, "last": 4}}
    assert lines[3]["end"]["phase"] == "Succeeded"


def test_a_tail_and_a_cursor_are_asked_for_and_exclude_each_other(program: Program) -> None:
    doors = program.composition.doors
    assert program("logs", "tidy", "--tail", "5") == Exit.OK
    assert program("logs", "tidy", "-f", "--live", "--since-cursor", "7") == Exit.OK
    assert program("timeline", "tidy", "-f", "--since-cursor", "7") == Exit.OK
    path = f"/v1/runs/{UID}"
    assert doors.asked == [
        f"{path}/logs/stream?follow=false&live=false&tail=5",
        f"{path}/logs/stream?follow=true&live=true&after=7",
        f"{path}/timeline/stream?all=true&after=7",
    ]
    for argv in (
        ("logs", "tidy", "--tail", "5", "--since-cursor", "7"),
        ("logs", "tidy", "-o", "yaml"),
        ("timeline", "tidy", "-f", "-o", "yaml"),
        ("timeline", "tidy", "--since-cursor", "7"),
    ):
        assert program(*argv) == Exit.USAGE


@pytest.mark.parametrize(("status", "code"), [(404, Exit.NOT_FOUND), (403, Exit.DENIED), (503, Exit.UNREACHABLE)])
def test_whoever_never_got_through_is_told_at_once(program: Program, status: int, code: Exit) -> None:
    program.composition.doors.status = status
    assert program("logs", "-f", "tidy") == code
    assert len(program.composition.doors.asked) == 1


def test_an_outage_that_lasts_ends_it_and_says_how_to_go_on(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PATIENCE_S", 0.0)
    program.composition.doors.streams = [[said("a\n", 3)], []]
    assert program("logs", "-f", "tidy") == Exit.UNREACHABLE
    assert "to go on from here: --since-cursor 3" in program.err
    assert program.out == b"a\n"


def test_a_followed_timeline_shows_what_the_timeline_shows(program: Program) -> None:
    assert program("timeline", "tidy", "-f") == Exit.OK
    followed = program.text
    assert program("timeline", "tidy") == Exit.OK

    def words(text: str) -> list[list[str]]:
        return [line.split() for line in text.splitlines()]

    assert words(followed) == words(program.text)
    assert program("timeline", "tidy", "-f", "--all", "-o", "json") == Exit.OK
    rows = [json.loads(line) for line in program.text.splitlines()]
    assert [row["type"] for row in rows[:-1]] == [kind.value for kind, _, _ in FACTS]
    assert rows[-1]["end"]["phase"] == "Succeeded"


def test_a_followed_timeline_ends_at_the_first_bad_record(program: Program) -> None:
    doors = program.composition.doors
    events = doors.events("timeline")
    bad = Event("record", events[2].data.replace(b'"driver":"command"', b'"driver":"comm4nd"'), 2)
    doors.streams = [[*events[:2], bad, *events[3:], END]]
    assert program("timeline", "-f", "tidy") == Exit.FAILED
    assert "not intact: record 2 is the first bad one" in program.err
    assert "attempt 1 owns the run" in program.text
    assert "comm4nd" not in program.text
    doors.streams = [[*events[:1], *events[2:], END]]
    assert program("timeline", "-f", "tidy") == Exit.FAILED, "one is missing"
    doors.streams = [[*events[4:], END]]
    assert program("timeline", "-f", "tidy", "--since-cursor", "3") == Exit.OK


def follow(doors: Doors, expected: Callable[[], Awaitable[str]], **query: str) -> tuple[list[Event], list[str]]:
    """What a follower hears of a run that the gateway may not know yet, and what it notes."""
    notes: list[str] = []

    async def work() -> list[Event]:
        transport = httpx.ASGITransport(doors.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            stream = Evidence(client, UID, "fix", expected=expected).following("logs", query, notes.append)
            return [event async for event in stream.events()]

    return asyncio.run(work()), notes


def test_a_run_that_waits_for_its_admission_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "LOOK_S", 0.0)
    doors, words = Doors(status=404), ["fix is Pending", "fix is Queued (SlotsTaken)", "fix is Queued (SlotsTaken)"]

    async def expected() -> str:
        if len(words) == 1:
            doors.status = 200
        return words.pop(0)

    found, notes = follow(doors, expected, follow="true")
    assert [event.kind for event in found] == ["output", "end"]
    assert notes == ["fix is Pending", "fix is Queued (SlotsTaken)"]


def test_one_that_will_never_be_known_and_who_only_reads_are_told_at_once() -> None:
    async def nothing() -> str:
        return ""

    async def pending() -> str:
        return "fix is Pending"

    with pytest.raises(NotFound, match="the gateway has no logs of fix"):
        follow(Doors(status=404), nothing, follow="true")
    with pytest.raises(NotFound):
        follow(Doors(status=404), pending, follow="false")
