"""A gateway in a process of its own that a test kills, and a client that repeats what got no answer."""

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from tests.gateway_script import PASSWORD

ROOT = Path(__file__).resolve().parents[1]
PASSING = {425, 500, 502, 503}


class Killed:
    """A gateway's process on one port; `kill` leaves it no time for anything."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.kills = 0
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, environ: Mapping[str, str] | None = None) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.gateway_process", str(self.root), str(self.port), PASSWORD),
            cwd=ROOT,
            env={**os.environ, **(environ or {})},
        )
        async with httpx.AsyncClient() as http:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await http.get(f"http://127.0.0.1:{self.port}/healthz")).is_success:
                        return
                await asyncio.sleep(0.02)

    async def kill(self) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()
        self.kills += 1

    async def torture(self, chance: random.Random, times: int) -> None:
        """Kill and start anew, at moments that nobody chose."""
        for _ in range(times):
            await asyncio.sleep(chance.uniform(0.02, 0.6))
            await self.kill()
            await self.start()


@contextlib.asynccontextmanager
async def running(root: Path) -> AsyncIterator[Killed]:
    gateway = Killed(root)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.kill()


class Patient:
    """A client that repeats what got no answer, as operator and runner do."""

    def __init__(self, port: int, token: str) -> None:
        headers = {"authorization": f"Bearer {token}"}
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30)

    async def __call__(self, method: str, path: str, body: Any = None) -> Any:
        return (await self.answer(method, path, body)).json()

    async def answer(self, method: str, path: str, body: Any = None) -> httpx.Response:
        while True:
            with contextlib.suppress(httpx.TransportError):
                answer = await self.http.request(method, path, json=body)
                if answer.status_code not in PASSING:
                    assert answer.is_success, answer.text
                    return answer
            await asyncio.sleep(0.02)
