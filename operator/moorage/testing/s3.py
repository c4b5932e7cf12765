"""An S3 server of one's own for tests: moto's, in a process of its own, and a way through which answers go wrong.

What it keeps lies in its memory, and is gone with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Self

START_S = 60
_RUNNING = re.compile(r"Running on http://[^:]+:(\d+)")
_HEAD_END = b"\r\n\r\n"

Fault = bytes | Callable[[bytes], bytes | None]
"""An answer in the place of the server's, which isn't asked; or what makes of its answer's bytes that which arrives
instead. None: the connection is lost."""


class S3MissingError(RuntimeError):
    """The server isn't installed."""


def program() -> Path:
    """The server, in an environment of its own within ours. Raise S3MissingError."""
    found = Path(sys.prefix) / "moto" / "bin" / "moto_server"
    if not found.is_file():
        raise S3MissingError(f"{found} is missing: run `make setup`")
    return found


class S3Server:
    """A server on a free port of `host`; `url` is its endpoint. It takes any keys."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._host, self._serial = host, 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path(tempfile.mkdtemp(prefix="moorage-s3-")) / "log"
        self.url = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._log.unlink(missing_ok=True)
        self._log.parent.rmdir()

    def start(self) -> None:
        """Start it, empty, and wait until it listens."""
        argv = ["setpriv", "--pdeathsig", "KILL", str(program()), "-H", self._host, "-p", "0"]
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONUNBUFFERED": "1",
            "HOME": str(self._log.parent),
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        until = time.monotonic() + START_S
        while not (found := _RUNNING.search(self._log.read_text(errors="replace"))):
            if self._process.poll() is not None or time.monotonic() > until:
                raise TimeoutError(f"the S3 server doesn't start: {self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)
        self.url = f"http://{self._host}:{found[1]}"

    @property
    def pid(self) -> int:
        """Of its process, while it runs."""
        if self._process is None:
            raise RuntimeError("the server isn't started")
        return self._process.pid

    def bucket(self) -> str:
        """Make an empty bucket and return its name."""
        self._serial += 1
        name = f"bucket-{self._serial}"
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/{name}", method="PUT")):  # noqa: S310  ours
            return name

    def kill(self) -> None:
        """End it at once."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()


class FaultyWay:
    """A proxy before a server: each of `faults` is for one request to come, the rest passes unharmed.

    `requests` are the first lines of what came through.
    """

    def __init__(self, url: str) -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port = int(port)
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.url = ""
        self.slow_s = 0.0
        """How long each answer is held back."""

    @contextlib.asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Self]:
        """Listen on a free port of loopback, with `tls` as https; `url` is then the address."""
        server = await asyncio.start_server(self._exchange, "127.0.0.1", 0, limit=1 << 24, ssl=tls)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request for each connection: the answer says that it is the last."""
        try:
            request = await _message(reader)
            self.requests.append(request.split(b"\r\n", 1)[0].decode())
            fault = self.faults.pop(0) if self.faults else None
            answer = fault if isinstance(fault, bytes) else await self._forwarded(request)
            await asyncio.sleep(self.slow_s)
            if (told := fault(answer) if callable(fault) else answer) is not None:
                writer.write(told)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # one of the two went away: the other is told by the end of the connection
        finally:
            writer.close()

    async def _forwarded(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(request.replace(_HEAD_END, b"\r\nconnection: close" + _HEAD_END, 1))
            return (await reader.read(-1)).replace(_HEAD_END, b"\r\nconnection: close" + _HEAD_END, 1)
        finally:
            writer.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(_HEAD_END)
    length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    return head + (await reader.readexactly(int(length[1])) if length else b"")


def says(status: int, code: str) -> Fault:
    """An error of S3's: nothing was done."""
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    head = f"HTTP/1.1 {status} No\r\ncontent-type: application/xml\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    return head + body


def cut(keep: int) -> Fault:
    """The connection is lost `keep` bytes into the answer's body."""
    return lambda answer: answer[: answer.index(_HEAD_END) + len(_HEAD_END) + keep]


def lost(_: bytes) -> bytes | None:
    """The request is done and nothing of the answer arrives."""
    return None


def spoilt(answer: bytes) -> bytes:
    """The last byte is another one."""
    return answer[:-1] + bytes([answer[-1] ^ 1])
