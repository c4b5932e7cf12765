"""Part `streams`: 200 readers follow one run, beside as many readers of the barest server of events.

A writer sends ten lines a second, each with the time of its sending; every reader notes when it has the line. The
readers are connections of the bench's own process. Then the same with a reader beside them that takes nothing, and how
long a reader that comes late waits for a whole log.
"""

import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from e2e.bench.figures import Aim, Figure, Report
from e2e.bench.leases import Meter
from e2e.bench.loopback import free_port, listens, told
from e2e.bench.stream_servers import POD, TENANT
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.cluster.paths import CHECKOUT
from e2e.cluster.processes import identify, write_pid_file
from moorage.api.sse import Parser
from moorage.api.wire import ResolvedAgent, ResolvedRun, ResolvedWorkspace
from moorage.testing.gateway import OPERATOR_TOKEN

READERS, LINES, PER_SECOND, ROUNDS = 200, 80, 10, 3
LOG_BYTES, CHUNK = 8 << 20, 32_000
HALF_S = 1.0  # before the first line and after the last one


@dataclass
class Server:
    """One of the two, in a process. `write` sends a text, `path` and `headers` are for its readers."""

    kind: str
    port: int
    meter: Meter
    pid: int
    write: Callable[[str], Awaitable[None]]
    path: str
    headers: dict[str, str]

    def resident_kib(self) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@dataclass
class Found:
    """Samples by kind of server; times in milliseconds."""

    each: dict[str, list[float]] = field(default_factory=lambda: {"ours": [], "bare": []})
    last: dict[str, list[float]] = field(default_factory=lambda: {"ours": [], "bare": []})
    cpu: dict[str, list[float]] = field(default_factory=lambda: {"ours": [], "bare": []})
    late: dict[str, list[float]] = field(default_factory=lambda: {"ours": [], "bare": []})
    beside_slow: list[float] = field(default_factory=list)
    grown_kib: list[float] = field(default_factory=list)
    lines: int = 0


def measure(console: Console) -> Report:
    """No cluster is needed."""
    return _report(asyncio.run(_measure(console)))


async def _measure(console: Console) -> Found:
    found = Found()
    for number in range(ROUNDS):
        for kind in ("ours", "bare"):
            with console.step(f"round {number + 1} of {ROUNDS}, {kind}"):
                async with _server(kind) as server:
                    await _followed(server, found)
                async with _server(kind) as server:
                    found.late[kind].append(await _late(server))
        with console.step(f"round {number + 1} of {ROUNDS}, a reader that takes nothing"):
            async with _server("ours") as server:
                await _beside_a_slow_one(server, found)
    return found


@contextlib.asynccontextmanager
async def _server(kind: str) -> AsyncIterator[Server]:
    with tempfile.TemporaryDirectory(prefix="moorage-bench-") as folder:
        port = free_port()
        argv = (sys.executable, "-m", "e2e.bench.stream_servers", kind, folder, str(port))
        process = await asyncio.create_subprocess_exec(*argv, cwd=CHECKOUT)
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
                await listens(port)
                entry = identify(process.pid)
                if entry is None:
                    raise HarnessError(f"the server {kind} has ended")
                write_pid_file(Path(folder) / "server.pid", entry)
                meter = Meter(Path(folder) / "server.pid")
                write, path, headers = await (_gateway(http) if kind == "ours" else _bare(http))
                yield Server(kind, port, meter, process.pid, write, path, headers)
        finally:
            process.kill()
            await process.wait()


async def _gateway(http: aiohttp.ClientSession) -> Any:
    """A run whose agent may write."""
    operator, runner = ({"authorization": f"Bearer {token}"} for token in (OPERATOR_TOKEN, f"token-of-{POD}"))
    spec = ResolvedRun(
        uid="u1",
        tenant=TENANT,
        name="bench",
        session_id="u1",
        placement="cluster",
        goal="say a lot",
        workspace=ResolvedWorkspace(key="w1", kind="ephemeral"),
        agent=ResolvedAgent(driver="command", command=("true",)),
    )
    pod = {"pod_uid": POD, "pod_name": POD, "epoch": 1, "role": "runner"}
    await told(http.put("/v1/runs/u1", data=spec.model_dump_json(), headers=operator))
    await told(http.post("/v1/runs/u1/fence", json={"epoch": 1, "attempt": 1, "holder": "a"}, headers=operator))
    await told(http.post("/v1/runs/u1/pods", json=pod, headers=operator))
    count = iter(range(1 << 30))

    async def write(text: str) -> None:
        record = {"record_id": f"o{next(count)}", "type": "AGENT_OUTPUT", "recorded_at": 1}
        body = {"epoch": 1, "records": [record | {"payload": {"stream": "stdout", "text": text}}]}
        await told(http.post("/v1/self/records", json=body, headers=runner))

    return write, "/v1/runs/u1/logs/stream", operator


async def _bare(http: aiohttp.ClientSession) -> Any:
    async def write(text: str) -> None:
        await told(http.post("/line", data=text))

    return write, "/stream", {}


# --- readers ----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _connected(server: Server) -> AsyncIterator[asyncio.StreamReader]:
    """A reader's connection, its answer begun."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    headers = "".join(f"{name}: {value}\r\n" for name, value in server.headers.items())
    writer.write(f"GET {server.path} HTTP/1.1\r\nhost: bench\r\n{headers}\r\n".encode())
    try:
        if b" 200 " not in await reader.readline():
            raise HarnessError("a reader was refused")
        await reader.readuntil(b"\r\n\r\n")
        yield reader
    finally:
        writer.transport.abort()


async def _texts(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """Of the events, out of the chunks of HTTP."""
    parser = Parser()
    while size := int((await reader.readline()).strip() or b"0", 16):
        data = await reader.readexactly(size + 2)
        for event in parser.feed(data[:-2]):
            if event.kind == "output":
                yield json.loads(event.data)["text"]


async def _arrivals(server: Server, ready: asyncio.Semaphore, lines: int) -> list[float]:
    """Milliseconds from each line's sending to its being here."""
    took: dict[int, float] = {}
    async with _connected(server) as reader:
        ready.release()
        async for text in _texts(reader):
            number, sent, _ = text.split()
            if int(number) in took:
                raise HarnessError(f"a reader had line {number} twice")
            took[int(number)] = (time.perf_counter() - float(sent)) * 1e3
            if len(took) == lines:
                return [took[each] for each in range(lines)]
    raise HarnessError(f"a reader had {len(took)} of {lines} lines")


async def _written(server: Server, lines: int) -> None:
    """At their times, whether or not those before were acknowledged."""
    began, sent = time.perf_counter() + HALF_S, []
    async with asyncio.TaskGroup() as group:
        for number in range(lines):
            await asyncio.sleep(max(0.0, began + number / PER_SECOND - time.perf_counter()))
            sent.append(group.create_task(server.write(f"{number} {time.perf_counter()} {'x' * 80}\n")))


async def _round(server: Server, slow: Server | None = None) -> tuple[list[list[float]], int]:
    """What each reader saw, and the KiB by which the server grew meanwhile. `slow`: beside one that takes nothing."""
    ready = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(_arrivals(server, ready, LINES)) for _ in range(READERS)]
        for _ in readers:
            await ready.acquire()
        before = server.resident_kib()
        async with _connected(slow) if slow else contextlib.nullcontext():
            await _written(server, LINES)
            grown = server.resident_kib() - before
    return [reader.result() for reader in readers], grown


async def _followed(server: Server, found: Found) -> None:
    before, began = server.meter.ms(), time.perf_counter()
    seen, _ = await _round(server)
    spent = time.perf_counter() - began
    found.cpu[server.kind].append((server.meter.ms() - before) / spent)
    found.each[server.kind] += [statistics.median(reader) for reader in seen]
    found.last[server.kind] += [max(line) for line in zip(*seen, strict=True)]
    found.lines += sum(map(len, seen)) if server.kind == "ours" else 0


async def _beside_a_slow_one(server: Server, found: Found) -> None:
    """It has asked, and takes nothing of 8 MiB that are there and of what comes."""
    for _ in range(LOG_BYTES // CHUNK):
        await server.write("0 0 " + "y" * CHUNK + "\n")
    seen, grown = await _round(Server(**{**vars(server), "path": f"{server.path}?tail=0"}), slow=server)
    found.grown_kib.append(grown)
    found.beside_slow += [statistics.median(reader) for reader in seen]
    found.lines += sum(map(len, seen))


async def _late(server: Server) -> float:
    """Milliseconds until who comes late has 8 MiB of log."""
    count = LOG_BYTES // CHUNK
    for _ in range(count):
        await server.write("y" * CHUNK + "\n")
    began, got = time.perf_counter(), 0
    async with _connected(server) as reader:
        async for text in _texts(reader):
            got += len(text)
            if got == count * (CHUNK + 1):
                return (time.perf_counter() - began) * 1e3
    raise HarnessError(f"{got} bytes of the log came")


def _report(found: Found) -> Report:
    bare = "a bare aiohttp server of events"
    figures = (
        Figure(
            f"a line at {READERS} readers, the median reader",
            "ms",
            found.each["ours"],
            found.each["bare"],
            bare,
            Aim(50),
        ),
        Figure("… the last reader", "ms", found.last["ours"], found.last["bare"], bare, Aim(100)),
        Figure(
            "… the median reader, beside one that takes nothing",
            "ms",
            found.beside_slow,
            found.each["ours"],
            "without it",
            Aim(1.2, "ratio"),
        ),
        Figure("… the gateway's memory meanwhile, more than before", "KiB", found.grown_kib, aim=Aim(32 * 1024)),
        Figure(
            f"processor time of the server, {READERS} readers at {PER_SECOND} lines a second",
            "ms/s",
            found.cpu["ours"],
            found.cpu["bare"],
            bare,
        ),
        Figure("8 MiB of log for one who comes late", "ms", found.late["ours"], found.late["bare"], bare),
    )
    return Report(
        "streams",
        figures,
        [f"each line came to each reader, and none twice: {found.lines:,} in all"],
        [
            "Ours makes each line durable before anybody is told of it; the bare one keeps it in memory.",
            "Readers, writer and server share the cores.",
        ],
    )
