"""Restate: `ctx.run` in a handler, whose result the server has in its log before the call returns.

    python restate_steps.py FOLDER SERVER

SERVER is the server's program: one node with its own settings, its log synced, telemetry off, all on loopback.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import restate
from hypercorn.asyncio import serve as listen
from hypercorn.config import Config
from turns import RESULT, Turn, bare_sync, serve

service = restate.Service("Steps")
TURNS: dict[int, Turn] = {}
START_S = 60


def durable() -> str:
    return RESULT


@service.handler(inactivity_timeout=timedelta(minutes=10))
async def take(ctx: restate.Context, asked: dict[str, Any]) -> int:
    turn = TURNS[asked["turn"]]
    bare = bare_sync(Path(asked["bare"]))
    for _ in range(asked["steps"]):
        began = time.perf_counter()
        await ctx.run_typed("durable", durable)
        turn.step(began)
        turn.beside(bare)
    return len(turn.steps)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def call(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", "accept": "application/json"}
    request = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read() or b"null")


class Server:
    """The server, the endpoint that it calls (in a thread of this process), and the two introduced to each other."""

    def __init__(self, folder: Path, program: str) -> None:
        self._folder = folder
        fabric, self._ingress, self._admin, endpoint = (free_port() for _ in range(4))
        threading.Thread(target=self._endpoint, args=(endpoint,), daemon=True).start()
        settings = {
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{fabric}",
            "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{fabric}/",
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{self._ingress}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{self._admin}",
            "RESTATE_LOG_FILTER": "warn",
        }
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", program, "--no-logo", "--node-name", "bench", "--base-dir", str(folder)],
            stdin=subprocess.DEVNULL, stdout=sys.stderr, env=os.environ | settings,
        )  # fmt: skip
        self._introduce(f"http://127.0.0.1:{endpoint}")

    def _endpoint(self, port: int) -> None:
        config = Config()
        config.bind, config.loglevel = [f"127.0.0.1:{port}"], "WARNING"
        asyncio.run(listen(restate.app([service]), config, shutdown_trigger=asyncio.Event().wait))  # type: ignore[arg-type]

    def _introduce(self, endpoint: str) -> None:
        """Tell the server of the endpoint, as soon as it answers, and wait until all its partitions do."""
        self._patiently(lambda: call(f"http://127.0.0.1:{self._admin}/deployments", {"uri": endpoint}))
        self._patiently(self.kept)

    def _patiently(self, ask: Callable[[], object]) -> None:
        until = time.monotonic() + START_S
        while True:
            try:
                ask()
            except OSError:
                if self.process.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return

    def take(self, steps: int) -> Turn:
        turn = TURNS[len(TURNS)] = Turn()
        asked = {"turn": len(TURNS) - 1, "steps": steps, "bare": str(self._folder / "bare")}
        before = self.kept()
        call(f"http://127.0.0.1:{self._ingress}/Steps/take", asked)
        turn.kept = self.kept() - before
        return turn

    def kept(self) -> int:
        """What the server itself finds, by its query door."""
        query = "SELECT count(*) AS n FROM sys_journal WHERE entry_type = 'Notification: Run'"
        return int(call(f"http://127.0.0.1:{self._admin}/query", {"query": query})["rows"][0]["n"])


def main(folder: Path, program: str) -> None:
    server = Server(folder, program)
    shown = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.split()
    try:
        serve({"restate-sdk": version("restate-sdk"), shown[0]: shown[1]}, server.take)
    finally:
        server.process.send_signal(signal.SIGTERM)
        server.process.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
