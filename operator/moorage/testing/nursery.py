"""Starts of the torture's owner by fork, so that the longest part of a start, its imports, is paid for once.

A child has run nothing yet but imports. Its environment, folder, session and output are its own, it dies as any other
process dies, and whoever asked for it hears of its end. What isn't the same as after an exec: its command line in the
process table. The runs of `make test` elsewhere than at kill points are started by exec.

`python -m moorage.testing.nursery` takes lines of JSON, one per child (`Order`), and tells of each {"id", "pid"} and
{"id", "code"}. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import selectors
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from moorage.app import local  # noqa: F401  what a run would import later
from moorage.testing import killpoints, owner  # noqa: F401

READ = 1 << 16


@dataclass(frozen=True)
class Order:
    """A child: its arguments, its environment, and the file that its output is added to.

    That file's folder is its working directory, by which `leftovers` knows where it belongs.
    """

    id: int
    argv: Sequence[str]
    env: Mapping[str, str]
    output: str


# --- the nursery's own process ----------------------------------------------------------------------------------------


def main() -> None:
    """Bear children until standard input ends; in a child, be the owner."""
    gc.freeze()
    if (order := _Nursery().serve()) is not None:
        sys.argv[1:] = order.argv
        owner.main()


@dataclass
class _Nursery:
    """`living`: children by the descriptors that become readable when they end."""

    living: dict[int, tuple[int, int]] = field(default_factory=dict)
    came: bytes = b""

    def serve(self) -> Order | None:
        """Return an order in the child that it is for, None in the nursery itself at its end."""
        with selectors.PollSelector() as selector:
            selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fd in self.living:
                        self._bury(selector, key.fd)
                        continue
                    if not (read := os.read(key.fd, READ)):
                        return None
                    *lines, self.came = (self.came + read).split(b"\n")
                    for line in lines:
                        if self._bear(selector, order := Order(**json.loads(line))):
                            return order

    def _bear(self, selector: selectors.BaseSelector, order: Order) -> bool:
        """Whether this is the child."""
        pid = os.fork()
        if pid == 0:
            self._become(order)
            return True
        descriptor = os.pidfd_open(pid)
        self.living[descriptor] = order.id, pid
        selector.register(descriptor, selectors.EVENT_READ)
        _tell(id=order.id, pid=pid)
        return False

    def _become(self, order: Order) -> None:
        os.setsid()
        os.chdir(Path(order.output).parent)
        nothing = os.open(os.devnull, os.O_RDONLY)
        output = os.open(order.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for descriptor, place in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(descriptor, place)
        for descriptor in (nothing, output, *self.living):
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(order.env)

    def _bury(self, selector: selectors.BaseSelector, descriptor: int) -> None:
        number, pid = self.living.pop(descriptor)
        selector.unregister(descriptor)
        os.close(descriptor)
        _tell(id=number, code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _tell(**told: int) -> None:
    os.write(sys.stdout.fileno(), json.dumps(told).encode() + b"\n")


# --- whoever asks for children ----------------------------------------------------------------------------------------


class NurseryDied(RuntimeError):
    """Whoever killed it, its children have nobody who would tell of their end."""


@dataclass
class Child:
    """A process of the nursery's, as `asyncio.subprocess.Process` tells of one."""

    pid: int
    ended: asyncio.Future[int]

    @property
    def returncode(self) -> int | None:
        """None while it lives; a signal's number, negative, where one ended it."""
        return self.ended.result() if self.ended.done() else None

    async def wait(self) -> int:
        """The same, once it has ended. Raises NurseryDied."""
        return await asyncio.shield(self.ended)

    def kill(self) -> None:
        """SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


@dataclass
class Nursery:
    """Implements testing.torture.Start. `born` and `ended`: what is told of each child, by its number."""

    process: asyncio.subprocess.Process
    born: dict[int, asyncio.Future[int]] = field(default_factory=dict)
    ended: dict[int, asyncio.Future[int]] = field(default_factory=dict)
    dead: bool = False

    async def __call__(self, argv: Sequence[str], env: Mapping[str, str], output: Path) -> Child:
        """A child with those arguments. Raises NurseryDied."""
        if self.dead or self.process.stdin is None:
            raise NurseryDied
        loop, number = asyncio.get_running_loop(), len(self.born)
        born, ended = loop.create_future(), loop.create_future()
        self.born[number], self.ended[number] = born, ended
        order = Order(number, tuple(argv), dict(env), str(output))
        self.process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        return Child(await born, ended)

    async def listen(self) -> None:
        """Take what is told until there is nobody to tell anything."""
        while self.process.stdout and (line := await self.process.stdout.readline()):
            told = json.loads(line)
            if "pid" in told:
                self.born[told["id"]].set_result(told["pid"])
            else:
                self.ended.pop(told["id"]).set_result(told["code"])
        self.dead = True
        for future in (*self.born.values(), *self.ended.values()):
            if not future.done():
                future.set_exception(NurseryDied())


@contextlib.asynccontextmanager
async def nursery() -> AsyncIterator[Nursery]:
    """A nursery whose children belong to whoever asks for them."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
        cwd="/",
        start_new_session=True,
    )
    made = Nursery(process)
    listening = asyncio.create_task(made.listen())
    try:
        yield made
    finally:
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()
        await listening


if __name__ == "__main__":
    main()
