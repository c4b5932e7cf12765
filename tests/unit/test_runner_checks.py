"""A check's command beside an agent's processes: all of the one is ended, whatever comes between; none of the other."""

import asyncio
import ctypes
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from moorage.api.wire import ResolvedCheck
from moorage.procfs import processes
from moorage.runner.checking import run_check
from moorage.runner.processes import PR_SET_CHILD_SUBREAPER, ChildProcess, become_subreaper, newcomers, spawn

ENV = {"PATH": os.environ["PATH"]}
LEAVES = "(trap '' TERM HUP; sleep 600) & setsid sh -c 'trap \"\" TERM; sleep 600 & wait' & touch begun"


@pytest.fixture(autouse=True)
def subreaper() -> Iterator[None]:
    become_subreaper()
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[ChildProcess]:
    """A program of a driver's that runs beside the check, and has a child."""
    child = await spawn(["sh", "-c", "sleep 600 & touch other; wait"], env=ENV, cwd=tmp_path)
    await there(tmp_path / "other")
    yield child
    await child.stop(0)
    child.close()


async def there(path: Path) -> None:
    async with asyncio.timeout(40):
        while not await asyncio.to_thread(path.exists):  # noqa: ASYNC110  another process makes it
            await asyncio.sleep(0.01)


def alive(child: ChildProcess) -> bool:
    """It and its child."""
    table = processes()
    return sum(child.pid in {pid, entry.parent} for pid, entry in table.items() if not entry.zombie) == 2


def check(run: str, seconds: float = 600) -> ResolvedCheck:
    return ResolvedCheck(name="tests", run=run, timeout_ms=int(seconds * 1000))


@pytest.mark.rule("X2")
@pytest.mark.parametrize(("script", "seconds", "code"), [(f"{LEAVES}; exit 3", 600, 3), (f"{LEAVES}; wait", 0.5, None)])
async def test_what_a_check_leaves_is_ended_and_nobody_else(other, tmp_path, script, seconds, code) -> None:
    before = frozenset(processes())
    result = await run_check(check(script, seconds), tmp_path, ENV)
    assert (result.exit_code, result.timed_out) == (code, code is None)
    assert newcomers(before) == []
    assert alive(other)


@pytest.mark.rule("X2")
async def test_a_check_that_is_cancelled_half_way_leaves_nothing(other, tmp_path) -> None:
    before = frozenset(processes())
    running = asyncio.create_task(run_check(check(f"{LEAVES}; wait"), tmp_path, ENV))
    await there(tmp_path / "begun")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert newcomers(before) == []
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nobody reads on"
    assert alive(other)


async def test_what_a_check_says_is_kept_by_its_end(tmp_path) -> None:
    result = await run_check(check("echo one; echo two >&2"), tmp_path, ENV)
    assert sorted(result.output.splitlines()) == ["one", "two"]
