"""The contract of substrates over processes on this machine, and what only they owe: an end seen, no process left."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.contract.substrate_cases import CASES, Case, begun
from tests.property.run_world import a_spec

from moorage.sandbox.port import RunKey
from moorage.sandbox.process import Handlers, ProcessSubstrate, descendants
from moorage.testing.clock import StepClock

pytestmark = pytest.mark.timeout(180)  # one case starts twenty sandboxes

ISOLATED = shutil.which("bwrap") is not None


class Told:
    """What the substrate told."""

    def __init__(self) -> None:
        self.issued: list[tuple[str, str, str]] = []
        self.ended: list[RunKey] = []

    def handlers(self) -> Handlers:
        return Handlers(lambda *token: self.issued.append(token), self.ended.append)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture(params=[pytest.param(True, marks=pytest.mark.skipif(not ISOLATED, reason="no bwrap")), False])
async def substrate(
    request: pytest.FixtureRequest, tmp_path: Path, told: Told, clock: StepClock
) -> AsyncIterator[ProcessSubstrate]:
    """With a gateway that takes connections and never answers: the runner waits, as for a slow one."""
    socket = tmp_path / "gateway.sock"

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        writer.close()

    server = await asyncio.start_unix_server(silent, socket)
    made = ProcessSubstrate(
        tmp_path / "runs", socket, told.handlers(), clock, isolated=request.param, mirror=lambda _: None
    )
    try:
        yield made
    finally:
        await made.close()
        server.close()


@pytest.fixture
def run() -> RunKey:
    return RunKey(str(uuid.uuid4()), "local", "fix")


@pytest.mark.rule("L1")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_contract(case: Case, substrate: ProcessSubstrate, run: RunKey) -> None:
    await case(substrate, run, a_spec(uid=run.uid, placement="local"))


async def test_each_sandbox_has_a_token_of_its_own(substrate: ProcessSubstrate, run: RunKey, told: Told) -> None:
    view = await begun(substrate, run, a_spec(uid=run.uid))
    ((uid, namespace, token),) = told.issued
    assert (uid, namespace) == (view.uid, "local")
    assert len(token) >= 32


async def until(check: Callable[[], object]) -> None:
    async with asyncio.timeout(40):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_an_end_is_told_and_typed(substrate: ProcessSubstrate, run: RunKey, told: Told) -> None:
    view = await begun(substrate, run, a_spec(uid=run.uid))
    pid = substrate._runs[run.uid].sandboxes[view.name].process.pid
    os.kill(pid, signal.SIGKILL)
    await until(lambda: told.ended)
    assert told.ended == [run]
    (seen,) = (await substrate.observe(run)).sandboxes
    assert (seen.ended, seen.reason) == (True, "Killed")


async def test_no_process_outlives_its_sandbox(substrate: ProcessSubstrate, run: RunKey) -> None:
    view = await begun(substrate, run, a_spec(uid=run.uid))
    await until(lambda: processes_of(run))
    await asyncio.sleep(0.5)  # it is further on than its first line
    await substrate.stop(run, view.name, view.uid, 2_000)
    await until(lambda: not processes_of(run))


async def test_a_sandbox_that_is_told_to_go_while_it_begins_leaves_nothing(substrate: ProcessSubstrate) -> None:
    """Bubblewrap may die before the child that it has just forked knows to die with it."""
    for after_ms in range(20):
        run = RunKey(str(uuid.uuid4()), "local", "fix")
        view = await begun(substrate, run, a_spec(uid=run.uid))
        await asyncio.sleep(after_ms / 1000)
        await substrate.stop(run, view.name, view.uid, 100)
        await until(lambda run=run: not processes_of(run))


@pytest.mark.rule("F6", "F4")
async def test_it_tells_no_time_of_its_own_and_a_look_is_no_sign_of_life(
    substrate: ProcessSubstrate, run: RunKey, clock: StepClock
) -> None:
    await substrate.raise_epoch(run, 1, "me")
    view, begun_at = await begun(substrate, run, a_spec(uid=run.uid)), clock.now_ms()
    assert (view.created_at, view.started_at) == (begun_at, begun_at)
    clock.advance(3_600_000)
    lease = (await substrate.observe(run)).lease
    assert lease is not None
    assert lease.renewed_at == begun_at


async def test_nothing_is_sent_to_a_process_that_has_ended(
    substrate: ProcessSubstrate, run: RunKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may be somebody else's by then, and with it a whole tree."""
    view = await begun(substrate, run, a_spec(uid=run.uid))
    sent = []

    def noting(send: Callable[[int, int], None]) -> Callable[[int, int], None]:
        def noted(pid: int, sign: int) -> None:
            sent.append(sign)
            send(pid, signal.SIGKILL)  # whoever is told to stop does so at once

        return noted

    for name in ("kill", "killpg"):  # the group where it hasn't come to its first process yet
        monkeypatch.setattr(f"moorage.sandbox.process.os.{name}", noting(getattr(os, name)))
    await substrate.stop(run, view.name, view.uid, 10_000)
    assert len(sent) == 1


FORKS = """
import subprocess, sys, time
for _ in range(2):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
time.sleep(600)
"""


async def test_a_kill_takes_the_whole_tree_along(
    substrate: ProcessSubstrate, run: RunKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moorage.sandbox.process.program", lambda: [sys.executable, "-c", FORKS])
    view = await begun(substrate, run, a_spec(uid=run.uid))
    pid = substrate._runs[run.uid].sandboxes[view.name].process.pid
    await until(lambda: len(descendants(pid)) >= 2)
    tree = descendants(pid)
    await substrate.stop(run, view.name, view.uid, 0)
    await until(lambda: all(state_of(p) == "Z" for p in tree))


def state_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


def processes_of(run: RunKey) -> list[int]:
    """Processes whose command line or working directory names the run."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            told = (entry / "cmdline").read_bytes().decode(errors="replace") + str((entry / "cwd").readlink())
            if run.uid in told and "\0" in told:
                found.append(int(entry.name))
    return found
