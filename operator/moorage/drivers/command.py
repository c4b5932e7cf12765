"""Any program as an agent: it changes files in its working directory, and its exit code is its word.

It may say more, one JSON object per line of its stdout:

    {"moorage": {"event": "iteration"}}              a safe point: the tree is checkpointed as it stands
    {"moorage": {"event": "summary", "text": "…"}}   what it did, for status and the commit

The program and all that it started are frozen (SIGSTOP) while a checkpoint is taken, so the tree stands still. A
program that reports nothing has no safe point but its end.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

from moorage.drivers.port import Child, Guarantees, Host, Outcome, Task

MARK = b'{"moorage"'  # how a line of ours begins
LINE_CAP = 32 * 1024
READ = 64 * 1024
STOP_GRACE_S = 25.0
PIPE_GRACE_S = 2.0  # after the program's end: how long a grandchild may hold its output open
SUMMARY_CAP = 4096


class CommandDriver:
    """Driver `command`."""

    name = "command"
    guarantees = Guarantees(safe_points="end", resume="checkpoint", native_usage=False, steer=False)

    async def run(self, task: Task, host: Host) -> Outcome:
        """Run the program to its end, or stop it when told to."""
        argv = [*task.agent.command, *task.agent.args]
        if not argv:
            return Outcome("failed", "NoCommand", "the driver `command` needs spec.agent.command")
        try:
            child = await host.spawn(argv, env=_environment(task))
        except OSError as error:
            return Outcome("failed", "CommandNotStarted", f"{argv[0]}: {error.strerror}; is it in the sandbox image?")
        session = _Session(task, host, child)
        return await session.run()


def _environment(task: Task) -> dict[str, str]:
    handoff = {"MOORAGE_HANDOFF": task.handoff} if task.handoff else {}
    return {**task.agent.env, **handoff, "MOORAGE_NEXT_ITERATION": str(task.next_iteration)}


class _Session:
    """One program's life."""

    def __init__(self, task: Task, host: Host, child: Child) -> None:
        self._task, self._host, self._child = task, host, child
        self._iteration = task.next_iteration
        self._summary = ""

    async def run(self) -> Outcome:
        readers = [asyncio.create_task(self._read_out()), asyncio.create_task(self._read_err())]
        ended = asyncio.create_task(self._child.wait())
        told = asyncio.create_task(self._host.stopping.wait())
        try:
            await asyncio.wait({ended, told, *readers}, return_when=asyncio.FIRST_COMPLETED)
            while not ended.done() and not told.done():
                await self._faults(readers)
                await asyncio.wait({ended, told}, return_when=asyncio.FIRST_COMPLETED, timeout=0.5)
            if not ended.done():
                await self._child.stop(STOP_GRACE_S)
                return Outcome("cancelled", "Stopped", "stopped on request", self._summary, await ended)
            await asyncio.wait(readers, timeout=PIPE_GRACE_S)
            await self._faults(readers)
            return self._judge(await ended)
        finally:
            for each in (ended, told, *readers):
                each.cancel()
            await asyncio.gather(ended, told, *readers, return_exceptions=True)

    async def _faults(self, readers: list[asyncio.Task[None]]) -> None:
        """A reader that failed (a checkpoint that was refused, a fence) ends the session with its own error."""
        for reader in readers:
            if reader.done() and reader.exception() is not None:
                await self._child.stop(0)
                await reader

    def _judge(self, code: int) -> Outcome:
        if code == 0:
            return Outcome("completed", "Completed", "", self._summary, 0)
        if code in {-signal.SIGKILL, 128 + signal.SIGKILL}:
            why = "the agent was killed by SIGKILL; most often its memory limit was reached"
            return Outcome("failed", "AgentKilled", why, self._summary, code)
        if code < 0:
            return Outcome(
                "failed", "AgentKilled", f"the agent was ended by {_signal_name(-code)}", self._summary, code
            )
        return Outcome("failed", "AgentFailed", f"the agent exited with code {code}", self._summary, code)

    async def _read_out(self) -> None:
        async for piece in pieces(self._child.stdout):
            event = _event(piece)
            if event is None:
                await self._host.output("stdout", piece)
            else:
                await self._obey(event)

    async def _read_err(self) -> None:
        while data := await self._child.stderr.read(READ):
            await self._host.output("stderr", data)

    async def _obey(self, event: dict[str, Any]) -> None:
        match event.get("event"):
            case "iteration":
                await self._host.safe_point(self._iteration)
                self._iteration += 1
            case "summary":
                self._summary = str(event.get("text", ""))[:SUMMARY_CAP]
            case _:
                await self._host.output("stdout", json.dumps({"moorage": event}).encode() + b"\n")


async def pieces(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The output in order: each line that may be an event by itself, what lies between in pieces as they come.

    Lines end at \\n bytes alone. An event's line is at most LINE_CAP long; a longer one is output. Memory is bounded.
    """
    held = bytearray()
    while data := await stream.read(READ):
        held += data
        for piece in _take(held):
            yield piece
    if held:
        yield bytes(held)


def _take(held: bytearray) -> Iterator[bytes]:
    """Whole lines off the front of `held`, events apart from the rest; of an overlong line, what there is of it."""
    whole = held.rfind(b"\n") + 1
    at = 0
    while at < whole:
        if held.startswith(MARK, at):
            end = held.index(b"\n", at) + 1
        else:
            found = held.find(b"\n" + MARK, at, whole)
            end = whole if found < 0 else found + 1
        yield bytes(held[at:end])
        at = end
    del held[:whole]
    if len(held) > LINE_CAP:
        yield bytes(held)
        held.clear()


def _event(line: bytes) -> dict[str, Any] | None:
    """What a line tells us, where it is one of ours."""
    if not line.startswith(MARK):
        return None
    try:
        told = json.loads(line)
    except ValueError:
        return None
    event = told.get("moorage")
    return event if isinstance(event, dict) else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
