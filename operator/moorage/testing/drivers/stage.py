"""Where a driver is put to the test: a folder, a host that keeps little and waits briefly, and a program that poses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moorage.api.budget import ResolvedLimits
from moorage.drivers.port import Child, Driver, Held, Outcome
from moorage.runner.processes import send
from moorage.testing.drivers.pose import Subject
from moorage.testing.host import LocalHost, task_for
from moorage.testing.leftovers import running

SAID_BYTES = 1 << 20
HURRY_S = 1.0
LIMIT_S = 90.0
LOOK_S = 0.02


class CheckpointRefused(Exception):
    """As a host raises it that isn't the owner any more."""


@dataclass
class StageHost(LocalHost):
    """Keeps the last of what is said and counts the rest, and gives programs that are to stop a second at most.

    `refuse_at` is the iteration whose safe point it refuses.
    """

    size: int = 0
    refuse_at: int | None = None
    graces: list[float] = field(default_factory=list)
    children: list[Child] = field(default_factory=list)

    async def output(self, stream: str, data: bytes) -> None:  # noqa: ARG002  the port's signature
        """Count it, and keep the last of it."""
        self.size += len(data)
        self.said += data
        del self.said[:-SAID_BYTES]

    async def safe_point(
        self,
        iteration: int,
        usage: Mapping[str, int] | None = None,
        *,
        held: Held | None = None,
        conversation: bool = True,
    ) -> str:
        """Count an iteration, or refuse to."""
        if iteration == self.refuse_at:
            raise CheckpointRefused
        return await super().safe_point(iteration, usage, held=held, conversation=conversation)

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: bytes | None = None,
        talk: bool = False,
    ) -> Child:
        """A program that knows where its goal is, as under the runner."""
        told = {"MOORAGE_GOAL_FILE": str(self.tree.parent / "goal.txt"), **(env or {})}
        child = await super().spawn(argv, env=told, cwd=cwd, stdin=stdin, talk=talk)
        self.children.append(child)
        return _Hurried(child, self.graces)


class _Hurried:
    """A child whose grace is cut short; `graces` keeps what was asked for."""

    def __init__(self, child: Child, graces: list[float]) -> None:
        self._child, self._graces = child, graces
        self.pid, self.stdout, self.stderr = child.pid, child.stdout, child.stderr
        self.say, self.end_input = child.say, child.end_input
        self.wait, self.close = child.wait, child.close

    async def stop(self, grace: float) -> None:
        """See the port."""
        self._graces.append(grace)
        await self._child.stop(min(grace, HURRY_S))


def _messages(results: Sequence[str]) -> Mapping[str, Any]:
    content = [{"type": "tool_result", "tool_use_id": each, "content": "ok"} for each in results]
    return {"messages": [{"role": "user", "content": content or "goal"}]}


def _responses(results: Sequence[str]) -> Mapping[str, Any]:
    asked = [{"type": "function_call", "name": "exec_command", "call_id": each} for each in results]
    told = [{"type": "function_call_output", "call_id": each, "output": "ok"} for each in results]
    return {"input": [*asked, *told]}


def _chat(results: Sequence[str]) -> Mapping[str, Any]:
    return {"messages": [{"role": "tool", "tool_call_id": each, "content": "ok"} for each in results]}


_REQUESTS: Mapping[str, tuple[str, Callable[[Sequence[str]], Mapping[str, Any]]]] = {
    "anthropic-messages": ("/v1/messages", _messages),
    "openai-responses": ("/v1/responses", _responses),
    "openai-chat": ("/v1/chat/completions", _chat),
}


class Stage:
    """One driver, in a folder of its own."""

    def __init__(self, folder: Path, subject: Subject) -> None:
        self.subject, self._folder = subject, folder
        (folder / "tree").mkdir()
        self.host = StageHost(folder / "tree")

    async def play(
        self,
        script: str | None,
        *,
        goal: str = "make the tests pass",
        next_iteration: int = 1,
        limit: int | None = None,
    ) -> Outcome:
        """How the driver says that a program ended which did so; with None there is no program."""
        programs = self._folder / "bin"
        if script is not None:
            self.subject.write(programs, script)
        agent = self.subject.agent(str(programs) if script is None else f"{programs}:{os.environ['PATH']}")
        limits = ResolvedLimits(max_iterations=limit)
        task = task_for(self.host, agent, limits=limits, goal=goal, next_iteration=next_iteration)
        driver: Driver = self.subject.driver()
        async with asyncio.timeout(LIMIT_S):
            return await driver.run(task, self.host)

    async def played_until(self, name: str, script: str) -> Outcome:
        """The same of one that is told to stop once it has left the file `name` in the tree."""
        async with self.playing(script) as working:
            await self.found(name)
            self.host.stopping.set()
            return await working

    @contextlib.asynccontextmanager
    async def playing(self, script: str) -> AsyncIterator[asyncio.Task[Outcome]]:
        """The same beside what a test does meanwhile."""
        working = asyncio.create_task(self.play(script))
        try:
            yield working
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def found(self, name: str) -> None:
        """Wait until the program has left that file in the tree."""
        async with asyncio.timeout(LIMIT_S):
            while not (self.tree / name).exists():  # noqa: ASYNC110  another process makes it
                await asyncio.sleep(LOOK_S)

    async def told(self, kind: str) -> None:
        """Wait until the driver has told such a fact."""
        async with asyncio.timeout(LIMIT_S):
            while not any(fact.type == kind for fact in self.host.told):  # noqa: ASYNC110  another process says it
                await asyncio.sleep(LOOK_S)

    async def asks(self, *results: str) -> bytes:
        """Have it ask its model with the results of these calls, as the relay hears it. Empty where that may leave."""
        model = self.subject.agent("").model
        path, asked = _REQUESTS[model.protocol if model else "anthropic-messages"]
        async with asyncio.timeout(LIMIT_S):
            return await self.host.hold.ask(f"/model{path}", json.dumps(asked(results)).encode())

    @property
    def tree(self) -> Path:
        """The worktree."""
        return self.host.tree

    def left(self) -> list[int]:
        """Processes of the agent's that are alive."""
        return running(self._folder)

    async def clear(self) -> None:
        """End whatever is alive, and let go of it."""
        send(self.left(), signal.SIGKILL)
        for child in self.host.children:
            await child.wait()
            child.close()
