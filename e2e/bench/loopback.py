"""Servers of the bench on this machine: a port for one, whether it listens, and an answer that must be a good one."""

import asyncio
import contextlib
import socket
import time
from typing import Any

from e2e.cluster.errors import HarnessError


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def listening() -> socket.socket:
    """A socket that listens on a port of its own. Nobody else gets the port before the process that is to inherit it
    serves there (see `inherited`); the caller closes it once that process has begun.
    """
    taken = socket.create_server(("127.0.0.1", 0), backlog=1024)
    taken.set_inheritable(True)
    return taken


def inherited(fd: int) -> socket.socket:
    """What the process that began this one was listening at."""
    return socket.socket(fileno=fd)


async def listens(port: int, within_s: float = 60.0) -> None:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.05)
    raise HarnessError(f"nobody listens on port {port}")


async def answers(port: int, within_s: float = 60.0) -> None:
    """Until who serves HTTP at the port says something. One whose socket was made for it listens before it is up."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            said = await reader.read(1)
            writer.close()
            if said:
                return
    raise HarnessError(f"nobody answers on port {port}")


async def told(asked: Any) -> None:
    async with asked as answer:
        if answer.status != 200:
            raise HarnessError(f"{answer.status}: {await answer.text()}")
