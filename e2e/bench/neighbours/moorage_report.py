"""Moorage's durable step as a runner has it: a tool's response, reported to a gateway in a process of its own.

    python moorage_report.py FOLDER [serve]

`serve` is that process: it says where it listens and with which token, and ends with its standard input. A tool's
answer is content: the gateway syncs it as a blob before the record that names it is appended.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from turns import RESULT, Turn, bare_row, serve

import moorage
from moorage.api.wire import ReportedRecord, ReportRequest
from moorage.runner.client import GatewayClient
from moorage.store.reading import verify_stored
from moorage.store.sqlite import SqliteStore
from moorage.testing.world import Sandbox, World

UID = "u1"


async def gateway(folder: Path) -> None:
    """A run, its epoch and its sandbox, over SQLite and blobs in files."""
    async with World(folder / "world") as world:
        run = await world.admit(command=("true",), uid=UID)
        await run.fence(1)
        sandbox = Sandbox(world, f"{UID}-p1", run.volume)
        await run.register(sandbox, 1, "runner")
        world.sandboxes.remove(sandbox)  # it has no process that the world would have to end
        sys.stdout.write(json.dumps({"url": world.url, "token": sandbox.token}) + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


class Runner:
    """Whoever reports, and another connection that looks what became of it."""

    def __init__(self, folder: Path, url: str, token: str) -> None:
        (folder / "token").write_text(token)
        self._client = GatewayClient(url, folder / "token", patience_s=30)
        self._reader = SqliteStore(folder / "world" / "moorage.db")
        self._told = 0

    async def take(self, steps: int, bare: Callable[[], object]) -> Turn:
        turn, before = Turn(), await self._records()
        for _ in range(steps):
            self._told += 1
            fact = ReportedRecord(
                record_id=f"s{self._told}",
                type="TOOL_RESPONSE",
                payload={"text": f"{self._told} {RESULT}"},  # else one blob would do for all
                recorded_at=time.time_ns() // 1_000_000,
            )
            began = time.perf_counter()
            await self._client.records(ReportRequest(epoch=1, records=(fact,)))
            turn.step(began)
            turn.beside(bare)
        turn.kept = await self._records() - before
        return turn

    async def _records(self) -> int:
        return (await verify_stored(self._reader, UID)).offset + 1


def main(folder: Path) -> None:
    argv = [sys.executable, __file__, str(folder), "serve"]
    with (
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server,
        asyncio.Runner() as loop,
    ):
        assert server.stdout is not None
        runner = Runner(folder, **json.loads(server.stdout.readline()))
        bare = bare_row(folder / "bare.db")
        serve({"moorage": moorage.__version__}, lambda steps: loop.run(runner.take(steps, bare)))


if __name__ == "__main__":
    if sys.argv[2:] == ["serve"]:
        asyncio.run(gateway(Path(sys.argv[1])))
    else:
        main(Path(sys.argv[1]))
