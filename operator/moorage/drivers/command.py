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
from collections.abc import AsyncIterator
from typing import Any

from moorage.drivers.port import Guarantees, Host, Outcome, Task
from moorage.drivers.program import SUMMARY_CAP, Iterations, Piece, Program, in_short, killed, pieces, started

MARK = b'{"moorage"'  # how a line of ours begins
LINE_CAP = 32 * 1024


class CommandDriver:
    """Driver `command`."""

    name = "command"
    guarantees = Guarantees(safe_points="end", resume="checkpoint", native_usage=False, steer=False)

    async def run(self, task: Task, host: Host) -> Outcome:
        """Run the program to its end, or stop it when told to."""
        argv = [*task.agent.command, *task.agent.args]
        if not argv:
            return Outcome("failed", "NoCommand", "the driver `command` needs spec.agent.command")
        child = await started(host, argv, env=_environment(task))
        if isinstance(child, Outcome):
            return child
        return await Program(host, child, _Listener(task, host)).run()


def _environment(task: Task) -> dict[str, str]:
    handoff = {"MOORAGE_HANDOFF": task.handoff} if task.handoff else {}
    return {**task.agent.env, **handoff, "MOORAGE_NEXT_ITERATION": str(task.next_iteration)}


class _Listener:
    """What such a program says. It never says its last word: its exit is that."""

    waits = False  # it asks nobody before it does anything

    def __init__(self, task: Task, host: Host) -> None:
        self.summary, self.final = "", asyncio.Event()
        self._host, self._iterations = host, Iterations(task, host)

    async def hear(self, stdout: AsyncIterator[bytes]) -> None:
        """Obey events; all else is output."""
        async for piece in pieces(stdout, MARK, LINE_CAP):
            if not await self._obey(_event(piece)):
                await self._host.output("stdout", piece.data)

    async def hear_errors(self, stderr: AsyncIterator[bytes]) -> None:
        """All of it is output."""
        async for data in stderr:
            await self._host.output("stderr", data)

    async def attend(self) -> None:
        """Nothing of it waits for us: what it asks a model says nothing of where it stands."""
        await asyncio.Event().wait()

    def judge(self, code: int) -> Outcome:
        """By the exit code."""
        if code == 0:
            return Outcome("completed", "Completed", "", self.summary, 0)
        why = f"the agent exited with code {code}"
        return killed(code, self.summary) or Outcome("failed", "AgentFailed", why, self.summary, code)

    async def _obey(self, event: dict[str, Any]) -> bool:
        """Do what an event says; False where it says nothing that is known here."""
        match event.get("event"):
            case "iteration":
                self._iterations.demand_one()
                await self._iterations.complete()
            case "summary":
                said = str(event.get("text", ""))
                self.summary = in_short(said)
                if len(said.strip()) > SUMMARY_CAP:
                    await self._host.output("stdout", f"{said.rstrip()}\n".encode(errors="replace"))
            case _:
                return False
        return True


def _event(piece: Piece) -> dict[str, Any]:
    """What a line tells us; empty where it is none of ours."""
    if piece.kind != "line":
        return {}
    try:
        event = json.loads(piece.data)["moorage"]
    except (ValueError, KeyError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}
