"""The five tools: what the model is told of them, how their arguments are checked, what they do.

A tool never raises for what the model did wrong: it answers in words that say how to do it right.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moorage.drivers.builtin import files, relatives
from moorage.drivers.builtin.shell import run_command
from moorage.drivers.port import Host
from moorage.drivers.telling import ToolResult
from moorage.workspace.errors import WorkspaceError

BASH_S = 120
BASH_MAX_S = 1_800


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ReadArguments(_Arguments):
    """Read a text file, or list a folder. Lines come with their numbers, which are not part of the file."""

    path: str = Field(description="relative to the worktree")
    offset: int = Field(1, ge=1, description="first line to read")
    limit: int = Field(1_000, ge=1, le=5_000, description="how many lines at most")


class WriteArguments(_Arguments):
    """Write a whole file, made or replaced. For a change of an existing file prefer edit."""

    path: str = Field(description="relative to the worktree; missing folders are made")
    content: str


class EditArguments(_Arguments):
    """Replace one piece of a file. `old` must occur exactly once, character for character, spaces included."""

    path: str = Field(description="relative to the worktree")
    old: str = Field(min_length=1, description="text as it stands in the file, without line numbers")
    new: str = Field(description="what stands there afterwards")


class BashArguments(_Arguments):
    """Run a command in the worktree. Nothing is kept between calls but files; what it leaves running is ended."""

    command: str = Field(min_length=1)
    timeout_s: int = Field(BASH_S, ge=1, le=BASH_MAX_S, description="seconds until it is ended")


class TodoItem(_Arguments):
    """One thing to do."""

    text: str
    status: Literal["pending", "in_progress", "done"] = "pending"


class TodoArguments(_Arguments):
    """Keep your plan: the whole list each time. For work of more than three steps."""

    items: list[TodoItem]


@dataclass(frozen=True)
class Definition:
    """What a model is told of a tool. `schema`: JSON Schema of its arguments."""

    name: str
    description: str
    schema: dict[str, Any]


Runner = Callable[[Any], Awaitable[ToolResult]]


class Toolbox:
    """The tools over one worktree. `scratch` is on the same volume and outside of the tree; `env` is for commands.
    `parental`: the agent may start children.
    """

    def __init__(
        self,
        tree: Path,
        scratch: Path,
        host: Host,
        env: Mapping[str, str] = MappingProxyType({}),
        *,
        parental: bool = False,
    ) -> None:
        self._place = files.Place(tree, scratch)
        self._host, self._env = host, env
        self.todo: list[TodoItem] = []
        self._call_id = ""  # of the call that runs: one at a time
        self._tools: dict[str, tuple[type[BaseModel], Runner]] = {
            "read": (ReadArguments, self._read),
            "write": (WriteArguments, self._write),
            "edit": (EditArguments, self._edit),
            "bash": (BashArguments, self._bash),
            "todo": (TodoArguments, self._todo),
        }
        if parental:
            self._tools |= {
                "spawn_run": (relatives.SpawnArguments, self._spawn),
                "wait_run": (relatives.WaitArguments, self._wait),
                "merge_run": (relatives.MergeArguments, self._merge),
                "remaining_budget": (relatives.BudgetArguments, self._remaining),
                "report_progress": (relatives.ProgressArguments, self._progress),
            }

    @property
    def open_todos(self) -> tuple[str, ...]:
        """What the model's own plan says is left."""
        return tuple(item.text for item in self.todo if item.status != "done")

    def definitions(self) -> list[Definition]:
        """Of all tools."""
        return [
            Definition(name, " ".join((kind.__doc__ or "").split()), _schema(kind))
            for name, (kind, _) in self._tools.items()
        ]

    async def run(self, name: str, arguments: Mapping[str, Any], call_id: str = "") -> ToolResult:
        """Run one call to its end. `call_id` is stable over retries (O3)."""
        begun, self._call_id = time.monotonic(), call_id
        result = await self._run(name, arguments)
        return replace(result.capped(), duration_ms=int((time.monotonic() - begun) * 1000))

    async def _run(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if name not in self._tools:
            return _refused(f"there is no tool {name[:64]!r}; there are: {', '.join(self._tools)}")
        kind, runner = self._tools[name]
        try:
            checked = kind.model_validate(arguments)
        except ValidationError as error:
            return _refused("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5]))
        try:
            return await runner(checked)
        except WorkspaceError as error:
            return _refused(str(error))
        except OSError as error:
            return _refused(f"{error.strerror or type(error).__name__}")

    async def _read(self, asked: ReadArguments) -> ToolResult:
        return _done(await self._place.read(asked.path, asked.offset, asked.limit))

    async def _write(self, asked: WriteArguments) -> ToolResult:
        return _done(await self._place.write(asked.path, asked.content))

    async def _edit(self, asked: EditArguments) -> ToolResult:
        return _done(await self._place.edit(asked.path, asked.old, asked.new))

    async def _bash(self, asked: BashArguments) -> ToolResult:
        if "\0" in asked.command:
            return _refused("a command can't hold a NUL byte: write it to a file, or print it by printf")
        ended = await run_command(self._host, asked.command, asked.timeout_s, self._env)
        last = "ended by its timeout" if ended.timed_out else f"exit code {ended.exit_code}"
        text = f"{ended.output}\n[{last}]" if ended.output else f"[{last}]"
        return ToolResult(
            ended.exit_code == 0 and not ended.timed_out,
            text,
            ended.exit_code,
            ended.timed_out,
            ended.truncated,
            ended.size,
        )

    async def _todo(self, asked: TodoArguments) -> ToolResult:
        self.todo = asked.items
        left = sum(item.status != "done" for item in asked.items)
        return _done(f"{len(asked.items)} items, {left} left")

    async def _spawn(self, asked: relatives.SpawnArguments) -> ToolResult:
        return await relatives.spawned(self._host.child_runs, self._call_id, asked)

    async def _wait(self, asked: relatives.WaitArguments) -> ToolResult:
        return await relatives.waited(self._host.child_runs, asked)

    async def _merge(self, asked: relatives.MergeArguments) -> ToolResult:
        return await relatives.merged(self._host.child_runs, asked)

    async def _remaining(self, _: relatives.BudgetArguments) -> ToolResult:
        return relatives.remaining(self._host.budget)

    async def _progress(self, asked: relatives.ProgressArguments) -> ToolResult:
        """The journal has it with the call already."""
        return _done(f"noted: {asked.text[:80]}")


def _schema(kind: type[BaseModel]) -> dict[str, Any]:
    schema = kind.model_json_schema()
    schema.pop("description", None)
    return schema


def _done(text: str) -> ToolResult:
    return ToolResult(True, text, size=len(text.encode()))


def _refused(why: str) -> ToolResult:
    return ToolResult(False, why, size=len(why.encode()))
