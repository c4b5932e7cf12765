"""What the driver `command` takes for an event, and what it takes for output."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedAgent
from moorage.drivers.command import LINE_CAP, MARK, CommandDriver
from moorage.drivers.program import pieces
from moorage.testing.host import LocalHost, task_for

EVENT = b'{"moorage": {"event": "iteration"}}\n'


async def split(*chunks: bytes) -> list[bytes]:
    async def given_chunks() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return [piece.data async for piece in pieces(given_chunks(), MARK, LINE_CAP)]


async def test_an_event_is_found_however_the_bytes_are_cut() -> None:
    whole = b"before\n" + EVENT + b"after\n\n" + EVENT + EVENT + b"end"
    for size in range(1, len(whole) + 1):
        parts = await split(*[whole[at : at + size] for at in range(0, len(whole), size)])
        assert b"".join(parts) == whole
        assert parts.count(EVENT) == 3


async def test_only_a_line_that_begins_so_is_an_event() -> None:
    whole = b' {"moorage": {}}\nx{"moorage": {}}\n\xe2\x80\xa8{"moorage": {}}\n\r{"moorage": {}}\n'
    assert await split(whole) == [whole]


async def test_an_overlong_line_is_let_go_of() -> None:
    parts = await split(*[b"x" * 1_000] * 200)
    assert b"".join(parts) == b"x" * 200_000
    assert max(map(len, parts)) <= LINE_CAP + 1_000


@given(st.lists(st.one_of(st.binary(max_size=40), st.just(EVENT), st.just(MARK), st.just(b"\n")), max_size=20))
async def test_no_byte_is_lost_or_moved(chunks) -> None:
    assert b"".join(await split(*chunks)) == b"".join(chunks)


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    (tmp_path / "tree").mkdir()
    return LocalHost(tmp_path / "tree")


def agent(script: str) -> ResolvedAgent:
    return ResolvedAgent(driver="command", command=(sys.executable, "-c", script), env={"GREETING": "hi"})


async def test_events_are_obeyed_and_the_rest_is_output_in_order(host) -> None:
    script = f"""
import os
print("one", os.environ["GREETING"], os.environ["MOORAGE_NEXT_ITERATION"])
print({EVENT.decode()!r}, end="")
print('{{"moorage": {{"event": "summary", "text": "first"}}}}')
print('{{"moorage": "no object"}}')
print("two", end="", flush=True)
"""
    outcome = await CommandDriver().run(task_for(host, agent(script), next_iteration=7), host)
    assert (outcome.outcome, outcome.summary, outcome.exit_code) == ("completed", "first", 0)
    assert host.iterations == [7]
    assert bytes(host.said) == b'one hi 7\n{"moorage": "no object"}\ntwo'


@pytest.mark.rule("B3")
@pytest.mark.parametrize(("limit", "done"), [(0, []), (2, [1, 2])])
async def test_an_iteration_past_the_limit_ends_the_program(host, limit, done) -> None:
    script = f"while True: print({EVENT.decode()!r}, end='', flush=True)"
    task = task_for(host, agent(script), limits=ResolvedLimits(max_iterations=limit))
    outcome = await CommandDriver().run(task, host)
    assert (outcome.outcome, outcome.reason) == ("exhausted", "BudgetExhausted")
    assert host.iterations == done


async def test_as_many_iterations_as_there_may_be_are_no_fault(host) -> None:
    script = f"print({EVENT.decode()!r} * 2, end='')"
    task = task_for(host, agent(script), limits=ResolvedLimits(max_iterations=2))
    assert (await CommandDriver().run(task, host)).outcome == "completed"
