"""`moorage top`: who is live, what each does and spends."""

import json
from typing import Any

import pytest
import yaml
from tests.cli_program import Program, manifest, program

from moorage.api.sse import Event
from moorage.api.streaming import RunNow
from moorage.cli import following
from moorage.cli.exits import Exit
from moorage.cli.top import Screen

__all__ = ["manifest", "program"]  # fixtures

NOW = 1_800_000_000_000
READY = Event("ready", b"{}", 9)


def run(name: str, **changes: Any) -> Event:
    told = {
        "uid": f"uid-{name}",
        "namespace": "local",
        "name": name,
        "phase": "Running",
        "doing": "works",
        "attempt": 1,
        "iteration": 3,
        "tokens": 4210,
        "cost_micros": 420_000,
        "tokens_per_minute": 17,
        "created_at": NOW - 61_000,
        "now": NOW,
    }
    return Event("run", json.dumps(told | changes).encode(), changes.get("place"))


def test_a_look_shows_each_live_run_the_one_that_spends_most_first(program: Program) -> None:
    doors = program.composition.doors
    doors.streams = [[run("slow", tokens_per_minute=3), run("fast", doing="asks its model"), READY]]
    assert program("top") == Exit.OK
    assert doors.asked == ["/v1/namespaces/local/runs/stream?follow=false"]
    header, first, second = [line.split("  ") for line in program.text.splitlines()]
    assert [each.strip() for each in header if each.strip()] == [
        "NAME", "PHASE", "DOING", "ITER", "TOKENS", "TOKENS/MIN", "COST", "AGE",
    ]  # fmt: skip
    cells = [each.strip() for each in first if each.strip()]
    assert cells == ["fast", "Running", "asks its model", "3", "4210", "17", "0.42", "1m"]
    assert second[0] == "slow"


def test_as_objects_and_names(program: Program) -> None:
    for output in ("json", "yaml", "name"):
        program.composition.doors.streams = [[run("fix"), READY]]
        assert program("top", "-o", output) == Exit.OK
        if output == "name":
            assert program.text == "agentrun/fix\n"
            continue
        (told,) = json.loads(program.out) if output == "json" else yaml.safe_load(program.out)
        assert (told["name"], told["tokensPerMinute"], told["costMicros"], told["endedAt"]) == (
            "fix",
            17,
            420_000,
            None,
        )


def test_nothing_live_says_so(program: Program) -> None:
    program.composition.doors.streams = [[READY]]
    assert program("top") == Exit.OK
    assert (program.out, program.err) == (b"", "no run is live\n")


def test_names_and_words_of_others_drive_no_terminal(program: Program) -> None:
    program.composition.doors.streams = [[run("fix", doing="\x1b]0;x\x07[bold]"), READY]]
    assert program("top") == Exit.OK
    assert "\x1b" not in program.text
    assert "[bold]" in program.text


@pytest.mark.parametrize("argv", [("--watch", "-o", "yaml"), ("-w", "-o", "name")])
def test_what_goes_on_is_no_list(program: Program, argv: tuple[str, ...]) -> None:
    assert program("top", *argv) == Exit.USAGE


def test_of_all_namespaces_means_a_cluster(program: Program) -> None:
    assert program("top", "-A") == Exit.NOT_FOUND
    assert "there is no kubeconfig at" in program.err


def test_watching_prints_each_change_once_until_the_gateway_is_gone_for_good(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PATIENCE_S", 0.0)
    first = [run("fix"), READY, run("fix", now=NOW + 5), run("fix", tokens=5000)]
    program.composition.doors.streams = [first, []]
    assert program("top", "--watch", "-o", "json") == Exit.UNREACHABLE
    assert [json.loads(line)["tokens"] for line in program.text.splitlines()] == [4210, 5000]


def now(name: str, **changes: Any) -> RunNow:
    return RunNow.model_validate_json(run(name, **changes).data)


def test_runs_that_wait_are_shown_until_a_gateway_tells_of_them_or_they_are_gone() -> None:
    screen = Screen()
    screen.wait("local", [now("first", phase="Queued"), now("second", phase="Queued")])
    screen.wait("other", [now("third", phase="Queued", namespace="other")])
    assert [each.name for each in screen.shown()] == ["first", "second", "third"]
    screen.known.add("uid-first")
    screen.take(now("first", phase="Running"))
    screen.wait("local", [now("first", phase="Queued")])
    assert [(each.name, each.phase) for each in screen.shown()] == [("first", "Running"), ("third", "Queued")]


def test_one_that_has_ended_is_shown_for_a_minute() -> None:
    screen = Screen()
    screen.take(now("over", phase="Failed", ended_at=NOW))
    screen.take(now("live", now=NOW + 60_000))
    assert {each.name for each in screen.shown()} == {"over", "live"}
    screen.take(now("live", now=NOW + 60_001))
    assert {each.name for each in screen.shown()} == {"live"}
