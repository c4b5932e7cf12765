"""One command: run in a group of its own, its output read as it comes and kept in part, its tree ended with it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from moorage.drivers.port import Child, Host

READ = 64 * 1024
HEAD_BYTES = 16 * 1024
TAIL_BYTES = 48 * 1024
PIPE_GRACE_S = 0.5  # how long output may still come after the command's end
STOP_GRACE_S = 2.0
SHELL = 'if command -v bash >/dev/null; then exec bash -c "$0"; else exec sh -c "$0"; fi'


@dataclass(frozen=True)
class Ended:
    """How a command ended. `output`: its beginning and its end, both streams as they came; `size`: bytes in all."""

    exit_code: int | None
    timed_out: bool
    output: str
    truncated: bool
    size: int


class Kept:
    """The first and the last of what is added; memory is bounded by both together."""

    def __init__(self) -> None:
        self.size = 0
        self._head, self._tail = bytearray(), bytearray()

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        self.size += len(data)
        room = HEAD_BYTES - len(self._head)
        self._head += data[:room] if room > 0 else b""
        self._tail += data[max(0, room) :]
        del self._tail[:-TAIL_BYTES]

    @property
    def dropped(self) -> int:
        """Bytes between head and tail that are gone."""
        return self.size - len(self._head) - len(self._tail)

    def text(self) -> str:
        """As text; bytes that are none are replaced."""
        if not self.dropped:
            return _decoded(self._head + self._tail)
        return f"{_decoded(self._head)}\n[… {self.dropped} bytes left out …]\n{_decoded(self._tail)}"


async def run_command(host: Host, command: str, timeout_s: float, env: Mapping[str, str]) -> Ended:
    """Run it in the worktree, with `env` beside what every program of the agent's gets. Cancelled, it is stopped first.

    Raises OSError where no shell is there.
    """
    child = await host.spawn(["sh", "-c", SHELL, command], env=env)
    kept = Kept()
    readers = [asyncio.create_task(_read(stream, kept)) for stream in (child.stdout, child.stderr)]
    timed_out = False
    try:
        code = await _within(child, timeout_s)
        timed_out = code is None
        await asyncio.wait(readers, timeout=0 if timed_out else PIPE_GRACE_S)
    finally:
        await child.stop(STOP_GRACE_S)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        child.close()
    return Ended(code, timed_out, kept.text(), kept.dropped > 0, kept.size)


async def _within(child: Child, timeout_s: float) -> int | None:
    """The exit code, or None when time was up."""
    try:
        return await asyncio.wait_for(child.wait(), timeout_s)
    except TimeoutError:
        return None


async def _read(stream: asyncio.StreamReader, kept: Kept) -> None:
    while data := await stream.read(READ):
        kept.add(data)


def _decoded(data: bytearray) -> str:
    return data.decode("utf-8", "replace").rstrip("\n")
