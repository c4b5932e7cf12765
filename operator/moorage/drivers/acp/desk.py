"""What an ACP agent wants of its client: files of the worktree, and commands. Each request is answered once.

Where the agent has told of a tool call that is under way, what it wants belongs to that; else what changes something is
a call of its own, whose intent is durable before it is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moorage.drivers.acp import rpc
from moorage.drivers.acp.terminals import Terminal, TerminalRefused, Terminals
from moorage.drivers.asking import MAX_ANSWERS, UNKNOWN
from moorage.drivers.builtin.files import Place
from moorage.drivers.facts import Allowed, Answered, Asked, Fact, Noted, Say, Wanted
from moorage.drivers.port import Host, Task
from moorage.drivers.telling import ToolResult
from moorage.drivers.untrusted import number, text
from moorage.workspace.errors import WorkspaceError

Tell = Callable[[Fact], Awaitable[None]]
Answer = Mapping[str, Any] | None
CHANGES = frozenset({"fs/write_text_file", "terminal/create"})
OF_THIS_SESSION = frozenset({"sessionId", "_meta"})  # the same call of another session is the same


@dataclass(frozen=True)
class _Job:
    """One request, and who is told of it; `call` is empty where it belongs to a call that the agent has told of."""

    wanted: Wanted
    tell: Tell
    call: str = ""

    @property
    def params(self) -> Mapping[str, Any]:
        return self.wanted.params

    async def begin(self) -> None:
        """The intent of a call of its own."""
        if self.call:
            await self.tell(Asked(self.call, self.wanted.method, self._brief()))

    async def done(self, result: ToolResult) -> None:
        """Its receipt; of what belongs to another call, a line of the log."""
        if self.call:
            await self.tell(Answered(self.call, self.wanted.method, self._brief(), result))
        elif self.wanted.method in CHANGES:
            named = text(self.params.get("command")) or Path(text(self.params.get("path"))).name
            await self.tell(Noted(f"[{self.wanted.method} {named[:120]}: {result.ending}]"))

    def _brief(self) -> Mapping[str, Any]:
        """For the records: all of a command, of a file its path and size."""
        if "content" in self.params:
            return {"path": text(self.params.get("path")), "bytes": len(text(self.params["content"]).encode())}
        return {name: self.params[name] for name in ("command", "args", "cwd") if name in self.params}


class Desk:
    """Implements facts.Server for one agent; `say` writes to it."""

    def __init__(self, task: Task, host: Host, env: Mapping[str, str], say: Say) -> None:
        self._place, self._say = Place(task.tree, task.tmp), say
        self._asks_before, self._stopping = host.asks_before, host.stopping
        self._terminals = Terminals(host, env, task.tree)
        self._waits: set[asyncio.Task[None]] = set()
        self._failed: BaseException | None = None  # what broke one of them
        self._calls = 0
        self._methods: Mapping[str, Callable[[_Job], Awaitable[Answer]]] = {
            "fs/read_text_file": self._read,
            "fs/write_text_file": self._write,
            "terminal/create": self._create,
            "terminal/output": self._output,
            "terminal/wait_for_exit": self._exit,
            "terminal/kill": self._kill,
            "terminal/release": self._release,
        }

    async def serve(self, wanted: Wanted, tell: Tell, allowed: Allowed) -> None:
        """Do it and answer; a command's end, and a person's word, is awaited beside the agent's other requests."""
        job = self._job(wanted, tell)
        await job.begin()
        if job.call and self._asks_before(wanted.method):
            await self._hold_up(job, allowed)
        elif wanted.method == "terminal/wait_for_exit":
            self._beside(self._answer(job))
        else:
            await self._answer(job)

    async def _hold_up(self, job: _Job, allowed: Allowed) -> None:
        if len(self._waits) < MAX_ANSWERS:
            self._beside(self._once_allowed(job, allowed))
        else:
            await self._refuse(job, UNKNOWN)

    async def _once_allowed(self, job: _Job, allowed: Allowed) -> None:
        """T6: a call of its own, done or refused."""
        does = {name: value for name, value in job.params.items() if name not in OF_THIS_SESSION}
        refused = await allowed(job.call, job.wanted.method, does)
        if self._stopping.is_set():
            return  # nothing new begins
        if refused is None:
            await self._answer(job)
        else:
            await self._refuse(job, refused)

    async def close(self) -> None:
        """End all commands, and have told what became of them. Raises what the host did meanwhile."""
        await self._terminals.close()
        await asyncio.gather(*self._waits, return_exceptions=True)
        if self._failed is not None:
            raise self._failed

    def _job(self, wanted: Wanted, tell: Tell) -> _Job:
        if not (wanted.own and wanted.method in CHANGES):
            return _Job(wanted, tell)
        self._calls += 1
        return _Job(wanted, tell, f"client-{self._calls}")

    async def _answer(self, job: _Job) -> None:
        method = self._methods.get(job.wanted.method)
        if method is None:
            why = f"{job.wanted.method[:64]}: no such method here"
            await self._say(rpc.error(job.wanted.request, rpc.NO_SUCH_METHOD, why))
            return
        try:
            answer = await method(job)
        except (WorkspaceError, TerminalRefused, OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
            await self._refuse(job, why)
            return
        await self._say(rpc.result(job.wanted.request, answer))

    async def _refuse(self, job: _Job, why: str) -> None:
        await job.done(ToolResult(ok=False, text=why, size=len(why.encode())))
        await self._say(rpc.error(job.wanted.request, rpc.BAD_PARAMETERS, why))

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._waits.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._waits.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failed = self._failed or task.exception()

    # --- files --------------------------------------------------------------------------------------------------------

    async def _read(self, job: _Job) -> Answer:
        lines = (await self._place.text(text(job.params.get("path")))).split("\n")
        first = max(1, number(job.params.get("line")) or 1) - 1
        limit = number(job.params.get("limit"))
        return {"content": "\n".join(lines[first:] if limit is None else lines[first : first + max(0, limit)])}

    async def _write(self, job: _Job) -> Answer:
        said = await self._place.write(text(job.params.get("path")), text(job.params.get("content")))
        await job.done(ToolResult(ok=True, text=said, size=len(said.encode())))
        return {}

    # --- commands -----------------------------------------------------------------------------------------------------

    async def _create(self, job: _Job) -> Answer:
        name, terminal = await self._terminals.create(job.params)
        self._beside(_follow(job, terminal))
        return {"terminalId": name}

    async def _output(self, job: _Job) -> Answer:
        return self._known(job).output()

    async def _exit(self, job: _Job) -> Answer:
        terminal = self._known(job)
        await asyncio.shield(terminal.ended)
        return terminal.status()

    async def _kill(self, job: _Job) -> Answer:
        await self._known(job).stop()
        return {}

    async def _release(self, job: _Job) -> Answer:
        self._known(job)
        await self._terminals.release(text(job.params.get("terminalId")))
        return {}

    def _known(self, job: _Job) -> Terminal:
        return self._terminals.known(job.params.get("terminalId"))


async def _follow(job: _Job, terminal: Terminal) -> None:
    code = await asyncio.shield(terminal.ended)
    said = str(terminal.output()["output"])
    await job.done(ToolResult(code == 0, said, code, size=terminal.size).capped())
