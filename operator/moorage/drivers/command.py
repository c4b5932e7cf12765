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
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from moorage.drivers.port import Child, Guarantees, Host, Outcome, Task

MARK = b'{"moorage"'  # how a line of ours begins
LINE_CAP = 32 * 1024
READ = 64 * 1024
STOP_GRACE_S = 25.0
PIPE_GRACE_S = 2.0  # after the program's end: how long a grandchild may hold its output open
AFTER_END_BYTES = 4 * 1024 * 1024  # more than a pipe and our buffers can hold
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
        except ValueError as error:  # a NUL byte in an argument or a variable
            return Outcome("failed", "CommandNotStarted", f"{argv[0]}: {error}")
        session = _Session(task, host, child)
        return await session.run()


def _environment(task: Task) -> dict[str, str]:
    handoff = {"MOORAGE_HANDOFF": task.handoff} if task.handoff else {}
    return {**task.agent.env, **handoff, "MOORAGE_NEXT_ITERATION": str(task.next_iteration)}


class _Spent(Exception):
    """A limit that the program can't know of is reached."""


class _Session:
    """One program's life."""

    def __init__(self, task: Task, host: Host, child: Child) -> None:
        self._task, self._host, self._child = task, host, child
        self._iteration, self._used = task.next_iteration, task.iterations_used
        self._summary = ""
        self._ended = asyncio.Event()

    async def run(self) -> Outcome:
        tasks = [asyncio.create_task(each) for each in (self._wait(), self._read_out(), self._read_err())]
        told: asyncio.Future[Any] = asyncio.create_task(self._host.stopping.wait())
        # a reader that failed (a refused checkpoint, a fence, a spent limit) ends it with its own error
        life: asyncio.Future[Any] = asyncio.gather(*tasks)
        try:
            await asyncio.wait({life, told}, return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                life.result()
                return self._judge(await self._child.wait())
            await self._child.stop(STOP_GRACE_S)
            await asyncio.wait(tasks, timeout=PIPE_GRACE_S)
            return Outcome("cancelled", "Stopped", "stopped on request", self._summary, await self._child.wait())
        except _Spent as error:
            return Outcome("exhausted", "BudgetExhausted", str(error), self._summary)
        finally:
            await self._child.stop(0)
            for each in (told, *tasks):
                each.cancel()
            await asyncio.gather(told, life, *tasks, return_exceptions=True)
            self._child.close()

    async def _wait(self) -> None:
        await self._child.wait()
        self._ended.set()

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
        async for piece in pieces(self._rest(self._child.stdout)):
            if not await self._obey(_event(piece)):
                await self._host.output("stdout", piece)

    async def _read_err(self) -> None:
        async for data in self._rest(self._child.stderr):
            await self._host.output("stderr", data)

    async def _rest(self, stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
        """The stream to its end; where a grandchild holds it open, only what is there soon after the program's end.

        What the program wrote itself lies in buffers by then and is read whole, however long its handling takes: the
        grace counts waiting alone. A grandchild that floods is heard for AFTER_END_BYTES.
        """
        grace, after = PIPE_GRACE_S, 0
        reading = asyncio.ensure_future(stream.read(READ))
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            while after < AFTER_END_BYTES:
                await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
                begun = time.monotonic()
                await asyncio.wait({reading}, timeout=max(0.0, grace))
                grace -= time.monotonic() - begun
                if not reading.done() or not (data := reading.result()):
                    return
                after += len(data) if ended.done() else 0
                yield data
                reading = asyncio.ensure_future(stream.read(READ))
        finally:
            reading.cancel()
            ended.cancel()

    async def _obey(self, event: dict[str, Any]) -> bool:
        """Do what an event says; False where it says nothing that is known here."""
        match event.get("event"):
            case "iteration":
                self._demand_left()
                await self._host.safe_point(self._iteration)
                self._iteration += 1
                self._used += 1
            case "summary":
                self._summary = str(event.get("text", ""))[:SUMMARY_CAP]
            case _:
                return False
        return True

    def _demand_left(self) -> None:
        """B3: an iteration past the limit is not counted, and ends the program."""
        limit = self._task.limits.max_iterations
        if limit is not None and self._used >= limit:
            raise _Spent(f"all {limit} iterations are used up")


async def pieces(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The output in order: each line that may be an event by itself, what lies between in pieces as they come.

    Lines end at \\n bytes alone. An event's line is at most LINE_CAP long; a longer one is output. Memory is bounded.
    """
    held = bytearray()
    async for data in chunks:
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


def _event(line: bytes) -> dict[str, Any]:
    """What a line tells us; empty where it is none of ours."""
    if not line.startswith(MARK):
        return {}
    try:
        event = json.loads(line)["moorage"]
    except (ValueError, KeyError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
