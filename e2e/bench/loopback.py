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


async def listens(port: int, within_s: float = 60.0) -> None:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.05)
    raise HarnessError(f"nobody listens on port {port}")


async def told(asked: Any) -> None:
    async with asked as answer:
        if answer.status != 200:
            raise HarnessError(f"{answer.status}: {await answer.text()}")
