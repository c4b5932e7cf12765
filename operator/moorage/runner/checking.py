"""Runs one acceptance command, for whoever has a checkout: the verifier, or the agent's own sandbox before an end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from moorage.api.wire import ResolvedCheck
from moorage.api.work import CheckResult
from moorage.runner.processes import ChildProcess, descendants, kill_newcomers, spawn

TAIL_BYTES = 16 * 1024
READ = 64 * 1024
PIPE_GRACE_S = 2.0


def without_model(env: Mapping[str, str]) -> dict[str, str]:
    """The agent's environment without a way to a model."""
    return {name: value for name, value in env.items() if not name.startswith(("ANTHROPIC_", "MOORAGE_"))}


async def run_check(check: ResolvedCheck, folder: Path, env: Mapping[str, str]) -> CheckResult:
    """Run one command by `sh -c` in that folder, within its time. Nothing that it started lives afterwards, also where
    this is cancelled; what was there before it lives on.
    """
    begun, others = time.monotonic(), frozenset(descendants())
    child = await spawn(["sh", "-c", check.run], env=env, cwd=folder)
    tail = bytearray()
    try:
        code = await _heard(child, check.timeout_ms / 1000, others, tail)
    finally:
        if await kill_newcomers(others):
            await child.wait()
        child.close()
    return CheckResult(
        name=check.name,
        run=check.run,
        exit_code=code,
        timed_out=code is None,
        duration_ms=int((time.monotonic() - begun) * 1000),
        output=tail.decode("utf-8", "replace"),
    )


async def _heard(child: ChildProcess, seconds: float, others: frozenset[int], tail: bytearray) -> int | None:
    """The exit code, or None when time was up; the end of what it said is in `tail`."""
    readers = [asyncio.create_task(_drain(stream, tail)) for stream in (child.stdout, child.stderr)]
    try:
        code = await _within(child, seconds)
        await kill_newcomers(others)
        await asyncio.wait(readers, timeout=PIPE_GRACE_S)
        return code
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _within(child: ChildProcess, seconds: float) -> int | None:
    """The exit code, or None when time was up."""
    try:
        return await asyncio.wait_for(asyncio.shield(child.wait()), seconds)
    except TimeoutError:
        await child.stop(0)
        return None


async def _drain(stream: asyncio.StreamReader, tail: bytearray) -> None:
    while data := await stream.read(READ):
        tail.extend(data)
        del tail[:-TAIL_BYTES]
