"""Commands that an ACP agent has us run: started by the host like all of its processes, their last output kept."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moorage.drivers.port import Child, Host

READ = 64 * 1024
MAX_TERMINALS = 64
OUTPUT_BYTES = 1024 * 1024  # kept of one, unless the agent wants less
WITHIN = bytes(range(0x80, 0xC0))  # bytes of a character in UTF-8 after its first one
PIPE_GRACE_S = 0.5  # how long output may still come after the command's end
STOP_GRACE_S = 2.0


class TerminalRefused(Exception):
    """The message says why, to the agent."""


@dataclass
class Terminal:
    """One command. `ended` is done once it is over and what it said is read."""

    child: Child
    limit: int
    kept: bytearray = field(default_factory=bytearray)
    size: int = 0
    code: int | None = None
    ended: asyncio.Task[int] = field(init=False)

    def __post_init__(self) -> None:
        self.ended = asyncio.create_task(self._life())

    def output(self) -> dict[str, Any]:
        """As `terminal/output` has it: the last bytes, from the first whole character on."""
        truncated = self.size > self.limit
        kept = bytes(self.kept).lstrip(WITHIN) if truncated else bytes(self.kept)
        told: dict[str, Any] = {"output": kept.decode(errors="replace"), "truncated": truncated}
        return told if self.code is None else {**told, "exitStatus": self.status()}

    def status(self) -> dict[str, Any]:
        """How it ended."""
        code = self.code if self.code is not None else 0
        return {"exitCode": code if code >= 0 else None, "signal": _named(-code) if code < 0 else None}

    async def stop(self) -> None:
        """End it with its tree; what it has said stays."""
        await self.child.stop(STOP_GRACE_S)
        await asyncio.wait({self.ended})

    async def _life(self) -> int:
        readers = [asyncio.create_task(self._read(stream)) for stream in (self.child.stdout, self.child.stderr)]
        try:
            code = await self.child.wait()
            await asyncio.wait(readers, timeout=PIPE_GRACE_S)
            self.code = code
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
        return code

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(READ):
            self.size += len(data)
            self.kept += data
            del self.kept[: max(0, len(self.kept) - self.limit)]


@dataclass
class Terminals:
    """All of one agent's."""

    host: Host
    env: Mapping[str, str]
    tree: Path
    _open: dict[str, Terminal] = field(default_factory=dict)
    _count: int = 0

    async def create(self, params: Mapping[str, Any]) -> tuple[str, Terminal]:
        """Start what `terminal/create` asks for. Raises TerminalRefused, OSError and, for a NUL byte, ValueError."""
        if len(self._open) >= MAX_TERMINALS:
            raise TerminalRefused(f"{MAX_TERMINALS} terminals are open; release some")
        env = {**self.env, **_variables(params.get("env"))}
        cwd = params.get("cwd")
        child = await self.host.spawn(_argv(params), env=env, cwd=Path(cwd) if isinstance(cwd, str) else self.tree)
        self._count += 1
        name = f"terminal-{self._count}"
        self._open[name] = Terminal(child, _limit(params.get("outputByteLimit")))
        return name, self._open[name]

    def known(self, name: object) -> Terminal:
        """The one of that name. Raises TerminalRefused."""
        found = self._open.get(name) if isinstance(name, str) else None
        if found is None:
            raise TerminalRefused("there is no such terminal")
        return found

    async def release(self, name: str) -> None:
        """End it and forget it."""
        terminal = self._open.pop(name)
        await terminal.stop()
        terminal.child.close()

    async def close(self) -> None:
        """Release all."""
        for name in list(self._open):
            await self.release(name)


def _argv(params: Mapping[str, Any]) -> Sequence[str]:
    """A command without arguments may be a whole line for a shell."""
    command, args = params.get("command"), params.get("args") or []
    if not isinstance(command, str) or not isinstance(args, list) or not all(isinstance(each, str) for each in args):
        raise TerminalRefused("`command` must be text and `args` a list of texts")
    return [command, *args] if args or not any(c.isspace() for c in command) else ["sh", "-c", command]


def _variables(told: object) -> dict[str, str]:
    entries = [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []
    pairs = [(each.get("name"), each.get("value")) for each in entries]
    return {name: value for name, value in pairs if isinstance(name, str) and isinstance(value, str) and name}


def _limit(told: object) -> int:
    known = isinstance(told, int) and not isinstance(told, bool) and told >= 0
    return min(int(str(told)), OUTPUT_BYTES) if known else OUTPUT_BYTES


def _named(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
