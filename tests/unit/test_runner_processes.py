"""Processes of this machine: their ends are seen, their trees are found, the adopted dead are collected."""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage.procfs import processes
from moorage.runner.processes import (
    PR_SET_CHILD_SUBREAPER,
    ChildProcess,
    become_subreaper,
    descendants,
    family,
    kill_everything,
    reap_orphans,
    spawn,
    standing_still,
)


@pytest.fixture(autouse=True)
def subreaper() -> Iterator[None]:
    become_subreaper()
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


async def start(tmp_path: Path, script: str) -> ChildProcess:
    return await spawn(["sh", "-c", script], env={"PATH": os.environ["PATH"]}, cwd=tmp_path)


async def until(path: Path) -> str:
    async with asyncio.timeout(40):
        while not (text := line(path)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return text


def line(path: Path) -> str:
    text = path.read_text() if path.exists() else ""
    return text.strip() if text.endswith("\n") else ""


def alive(pid: int) -> bool:
    entry = processes().get(pid)
    return entry is not None and not entry.zombie


async def test_the_end_is_seen_while_a_grandchild_holds_the_pipe(tmp_path) -> None:
    child = await start(tmp_path, "sleep 60 & exit 5")
    assert await asyncio.wait_for(child.wait(), 5) == 5
    await child.stop(0)
    child.close()


async def test_a_signal_is_told_as_such(tmp_path) -> None:
    child = await start(tmp_path, "kill -TERM $$")
    assert await child.wait() == -signal.SIGTERM
    child.close()


async def test_a_missing_program_is_an_error_of_its_own(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        await spawn(["/no/such"], env={}, cwd=tmp_path)
    (tmp_path / "plain").write_text("x")
    with pytest.raises(PermissionError):
        await spawn([str(tmp_path / "plain")], env={}, cwd=tmp_path)


async def test_who_is_cancelled_while_it_starts_leaves_nothing_of_it(tmp_path) -> None:
    others = set(descendants())  # of this process, which may have started servers for other tests
    for steps in range(8):  # of the event loop, which takes some to connect the pipes
        starting = asyncio.create_task(start(tmp_path, "sleep 60 & sleep 60"))
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        if not isinstance((await asyncio.gather(starting, return_exceptions=True))[0], asyncio.CancelledError):
            child = starting.result()
            await child.stop(0)
            child.close()
        assert set(descendants()) == others


async def test_stdin_is_given_whole_or_not_at_all(tmp_path) -> None:
    env = {"PATH": os.environ["PATH"]}
    child = await spawn(["wc", "-c"], env=env, cwd=tmp_path, stdin=b"x" * 1_000_000)
    assert (await child.stdout.read()).strip() == b"1000000"
    await child.wait()
    child.close()
    child = await spawn(["true"], env=env, cwd=tmp_path, stdin=b"x" * 1_000_000)
    assert await child.wait() == 0
    child.close()


async def test_a_stdin_that_stays_open_takes_answers_until_its_end(tmp_path) -> None:
    child = await spawn(["cat"], env={"PATH": os.environ["PATH"]}, cwd=tmp_path, stdin=b"a\n", talk=True)
    for line in (b"a\n", b"b\n", b"c\n"):
        assert await child.stdout.readline() == line
        await child.say(bytes([line[0] + 1]) + b"\n")
    child.end_input()
    child.end_input()
    assert await child.stdout.read() == b"d\n"
    assert await child.wait() == 0
    await child.say(b"too late")
    child.close()


async def test_one_that_has_closed_its_stdin_hears_nothing_and_that_is_no_error(tmp_path) -> None:
    script = "exec <&-; echo closed; sleep 60"
    child = await spawn(["sh", "-c", script], env={"PATH": os.environ["PATH"]}, cwd=tmp_path, talk=True)
    assert await child.stdout.readline() == b"closed\n"
    for _ in range(3):
        await child.say(b"x" * 1_000_000)
    await child.stop(1)
    child.close()


@pytest.mark.rule("X2")
async def test_a_family_is_tree_session_and_their_trees_and_nobody_else(tmp_path) -> None:
    script = "(sleep 60 & echo $! > orphan); setsid sh -c 'sleep 60 & echo $! > moved; wait' & wait"
    child, other = await start(tmp_path, script), await start(tmp_path, "exec sleep 60")
    orphan, moved = int(await until(tmp_path / "orphan")), int(await until(tmp_path / "moved"))
    found = family(child.pid)
    assert {child.pid, orphan, moved} <= set(found)
    assert other.pid not in found
    await child.stop(1)
    assert not [pid for pid in found if alive(pid)]
    assert alive(other.pid)
    await other.stop(1)
    for each in (child, other):
        each.close()


@pytest.mark.rule("X2")
async def test_who_ignores_sigterm_has_its_grace_and_no_more(tmp_path) -> None:
    child = await start(tmp_path, "trap '' TERM; echo 1 > ready; while :; do sleep 0.1; done")
    await until(tmp_path / "ready")
    begun = asyncio.get_running_loop().time()
    await child.stop(0.5)
    assert 0.5 <= asyncio.get_running_loop().time() - begun < 40
    assert await child.wait() == -signal.SIGKILL
    child.close()


async def test_stop_after_the_end_signals_nobody_of_that_number(tmp_path, monkeypatch) -> None:
    child = await start(tmp_path, "exit 0")
    await child.wait()
    sent: list[int] = []
    monkeypatch.setattr("moorage.runner.processes.send", lambda pids, _: sent.extend(pids))
    await child.stop(1)
    assert sent == []
    child.close()


@pytest.mark.rule("P6")
async def test_all_that_descends_stands_still_and_goes_on(tmp_path) -> None:
    loop = "while :; do echo x >> $0; done"
    child = await start(
        tmp_path, f"sh -c '{loop}' a & setsid sh -c '{loop}' b & (sh -c '{loop}' c &) ; echo 1 > up; wait"
    )
    await until(tmp_path / "up")
    files = [tmp_path / name for name in "abc"]
    for path in files:
        await until(path)
    with standing_still():
        before = [path.stat().st_size for path in files]
        await asyncio.sleep(0.3)
        assert [path.stat().st_size for path in files] == before
    async with asyncio.timeout(40):
        while not all(path.stat().st_size > size for path, size in zip(files, before, strict=True)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await kill_everything()
    await child.wait()
    child.close()


@pytest.mark.rule("X2")
async def test_fork_bombs_are_killed_to_the_last(tmp_path) -> None:
    forks = "for _ in range(5):\n    os.fork()\nif os.getpid() != os.getsid(0):\n    os.setsid()\n"
    script = f"import os, time\n{forks}time.sleep(60)"
    child = await spawn([sys.executable, "-c", script], env={}, cwd=tmp_path)
    async with asyncio.timeout(20):
        while len(descendants()) < 32:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert await kill_everything()
    assert descendants() == []
    await child.wait()
    child.close()


async def test_the_adopted_dead_are_collected_and_our_own_are_left_alone(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("moorage.runner.processes.REAP_S", 0.05)
    reaper = asyncio.create_task(reap_orphans())
    child = await start(tmp_path, "(sh -c 'echo $$ > pid; exit 3' &); sleep 0.3; exit 7")
    orphan = int(await until(tmp_path / "pid"))
    assert await child.wait() == 7
    async with asyncio.timeout(40):
        while orphan in processes():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    reaper.cancel()
    await asyncio.gather(reaper, return_exceptions=True)
    child.close()
