"""Part `proxy`: what the gateway adds to a model's answer, beside the model asked directly and a bare reverse proxy.

Requests are sent one at a time, in turn to each of the three. Chunks carry the time of their sending: one stream by
itself says what is added to a chunk, 200 streams at ten chunks a second each what is left of that under load. Then
50 streams, with and without one beside them whose reader takes nothing.
"""

import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from e2e.bench.figures import Aim, Figure, Report
from e2e.bench.leases import Meter
from e2e.bench.loopback import answers, listening, told
from e2e.bench.proxy_servers import RUNS, TENANT, pod
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.cluster.paths import CHECKOUT
from e2e.cluster.processes import identify, write_pid_file
from moorage.api.wire import ResolvedAgent, ResolvedModel, ResolvedRun, ResolvedWorkspace, SecretRef
from moorage.testing.gateway import OPERATOR_TOKEN

KINDS = ("direct", "bare", "ours")
REQUESTS, STREAMS, FEW, PER_SECOND, ROUNDS = 200, 200, 50, 10, 3
CHUNKS, LONG = 60, 400
TURNS = "I have looked at the file and at its tests, and now I change them. " * 40
Samples = dict[str, list[float]]


@dataclass(frozen=True)
class Place:
    """Where one of the three is asked."""

    kind: str
    url: str
    meter: Meter


@dataclass
class Found:
    """Samples in milliseconds, by kind."""

    request: Samples = field(default_factory=lambda: {kind: [] for kind in KINDS})
    first: Samples = field(default_factory=lambda: {kind: [] for kind in KINDS})
    chunk: Samples = field(default_factory=lambda: {kind: [] for kind in KINDS})
    loaded: Samples = field(default_factory=lambda: {kind: [] for kind in KINDS})
    work: Samples = field(default_factory=lambda: {kind: [] for kind in KINDS})
    cpu: Samples = field(default_factory=lambda: {kind: [] for kind in KINDS})
    few: list[float] = field(default_factory=list)
    beside_slow: list[float] = field(default_factory=list)
    chunks: int = 0


def measure(console: Console) -> Report:
    """No cluster is needed."""
    return report(asyncio.run(_measure(console)))


async def _measure(console: Console) -> Found:
    found = Found()
    connector = aiohttp.TCPConnector(limit=0)
    async with _places() as places, aiohttp.ClientSession(connector=connector) as http:
        for number in range(RUNS):
            await _run(http, places["ours"].url, places["direct"].url, number)
        for number in range(ROUNDS):
            with console.step(f"round {number + 1} of {ROUNDS}, requests"):
                await _requests(http, places, found)
            for kind in KINDS:
                with console.step(f"round {number + 1} of {ROUNDS}, streams, {kind}"):
                    await _streams(http, places[kind], found)
            with console.step(f"round {number + 1} of {ROUNDS}, a reader that takes nothing"):
                await _beside_a_slow_one(http, places["ours"], found)
    return found


@contextlib.asynccontextmanager
async def _places() -> AsyncIterator[dict[str, Place]]:
    """The three, each in a process of its own."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moorage-bench-")))
        direct = await stack.enter_async_context(_server(folder, "direct", "model"))
        bare = await stack.enter_async_context(_server(folder, "bare", "bare", direct.url))
        ours = await stack.enter_async_context(_server(folder, "ours", "ours", str(folder)))
        yield {"direct": direct, "bare": bare, "ours": ours}


@contextlib.asynccontextmanager
async def _server(folder: Path, kind: str, *argv: str) -> AsyncIterator[Place]:
    with listening() as taken:
        port, fd = taken.getsockname()[1], taken.fileno()
        command = (sys.executable, "-m", "e2e.bench.proxy_servers", argv[0], str(fd), *argv[1:])
        process = await asyncio.create_subprocess_exec(*command, cwd=CHECKOUT, pass_fds=(fd,))
    try:
        await answers(port)
        entry = identify(process.pid)
        if entry is None:
            raise HarnessError(f"the server {kind} has ended")
        write_pid_file(folder / f"{kind}.pid", entry)
        yield Place(kind, f"http://127.0.0.1:{port}", Meter(folder / f"{kind}.pid"))
    finally:
        process.kill()
        await process.wait()


async def _run(http: aiohttp.ClientSession, ours: str, model: str, number: int) -> None:
    """A run whose agent is at work."""
    uid, mine = f"u{number}", pod(number)
    operator, runner = ({"authorization": f"Bearer {token}"} for token in (OPERATOR_TOKEN, f"token-of-{mine}"))
    chosen = ResolvedModel(
        provider="stand-in",
        protocol="anthropic-messages",
        base_url=model,
        name="m",
        credentials=SecretRef(name="model", key="key"),
    )
    spec = ResolvedRun(
        uid=uid,
        tenant=TENANT,
        name=f"bench-{number}",
        session_id=uid,
        placement="cluster",
        goal="ask a lot",
        workspace=ResolvedWorkspace(key=f"w{number}", kind="ephemeral"),
        agent=ResolvedAgent(driver="command", command=("true",), model=chosen),
    )
    bound = {"pod_uid": mine, "pod_name": mine, "epoch": 1, "role": "runner"}
    await told(http.put(f"{ours}/v1/runs/{uid}", data=spec.model_dump_json(), headers=operator))
    fence = {"epoch": 1, "attempt": 1, "holder": "a"}
    await told(http.post(f"{ours}/v1/runs/{uid}/fence", json=fence, headers=operator))
    await told(http.post(f"{ours}/v1/runs/{uid}/pods", json=bound, headers=operator))
    base = json.loads(await _said(http.get(f"{ours}/v1/self", headers=runner)))["git"]["base"]
    for kind, payload in (
        ("WORKSPACE_READY", {"base": base, "branch": f"moorage/bench-{number}"}),
        ("AGENT_STARTED", {}),
    ):
        record = {"record_id": f"r:{kind}", "type": kind, "payload": payload, "recorded_at": 1}
        body = {"epoch": 1, "records": [record]}
        await told(http.post(f"{ours}/v1/self/records", json=body, headers=runner))


async def _said(asked: Any) -> bytes:
    async with asked as answer:
        said: bytes = await answer.read()
        if answer.status != 200:
            raise HarnessError(f"{answer.status}: {said.decode()}")
        return said


# --- requests ---------------------------------------------------------------------------------------------------------


def _asking(http: aiohttp.ClientSession, place: Place, body: dict[str, Any], run: int = 0) -> Any:
    path = "/v1/messages" if place.kind == "direct" else "/model/v1/messages"
    headers = {"authorization": f"Bearer token-of-{pod(run)}", "content-type": "application/json"}
    return http.post(f"{place.url}{path}", data=json.dumps(body), headers=headers)


def _body(mark: str, **more: Any) -> dict[str, Any]:
    """A conversation of some ten turns, no two the same."""
    turns = [{"role": ("user", "assistant")[turn % 2], "content": TURNS} for turn in range(9)]
    return {"model": "m", "max_tokens": 1_000, "system": mark, "messages": turns, **more}


async def _requests(http: aiohttp.ClientSession, places: dict[str, Place], found: Found) -> None:
    before = {kind: places[kind].meter.ms() for kind in KINDS}
    for number in range(REQUESTS):
        for kind in KINDS:
            began = time.perf_counter()
            await _said(_asking(http, places[kind], _body(f"{began}")))
            if number >= REQUESTS // 10:  # connections are there by then
                found.request[kind].append((time.perf_counter() - began) * 1e3)
    for kind in KINDS:
        found.work[kind].append((places[kind].meter.ms() - before[kind]) / REQUESTS)


# --- streams ----------------------------------------------------------------------------------------------------------


async def _stream(
    http: aiohttp.ClientSession, place: Place, chunks: int, phase: float = 0.0, run: int = 0
) -> list[float]:
    """Milliseconds from each chunk's sending to its being here."""
    pace = {"chunks": chunks, "per_second": PER_SECOND, "phase": phase}
    took = []
    async with _asking(http, place, _body(f"{time.perf_counter()}", stream=True, metadata=pace), run) as answer:
        if answer.status != 200:
            raise HarnessError(f"{place.kind}: {answer.status}: {await answer.text()}")
        async for line in answer.content:
            if line.startswith(b"data:") and b"text_delta" in line:
                text = json.loads(line[5:])["delta"]["text"]
                took.append((time.perf_counter() - float(text.split()[1])) * 1e3)
    if len(took) != chunks:
        raise HarnessError(f"{place.kind}: {len(took)} of {chunks} chunks came")
    return took


async def _many(http: aiohttp.ClientSession, place: Place, count: int) -> list[float]:
    """The median of each of so many streams, spread evenly over the runs, which may have 32 each, and over the tenth of
    a second between their chunks.
    """
    each = (_stream(http, place, CHUNKS, number / count, number % RUNS) for number in range(count))
    seen = await asyncio.gather(*each)
    return [statistics.median(took) for took in seen]


async def _streams(http: aiohttp.ClientSession, place: Place, found: Found) -> None:
    found.chunk[place.kind] += await _stream(http, place, CHUNKS)
    before, began = place.meter.ms(), time.perf_counter()
    found.loaded[place.kind] += await _many(http, place, STREAMS)
    found.cpu[place.kind].append((place.meter.ms() - before) / (time.perf_counter() - began))
    found.chunks += CHUNKS * (STREAMS + 1)


async def _beside_a_slow_one(http: aiohttp.ClientSession, place: Place, found: Found) -> None:
    found.few += await _many(http, place, FEW)
    pace = {"chunks": LONG, "per_second": 1_000, "phase": 0.0}
    async with _asking(http, place, _body("slow", stream=True, metadata=pace)):  # and nothing of it is taken
        found.beside_slow += await _many(http, place, FEW)


# --- the table --------------------------------------------------------------------------------------------------------


def _added(samples: Samples, kind: str) -> list[float]:
    direct = statistics.median(samples["direct"])
    return [each - direct for each in samples[kind]]


def report(found: Found) -> Report:
    """As the page has it."""
    bare = "added by a bare aiohttp reverse proxy"
    figures = (
        Figure(
            "added to a request", "ms", _added(found.request, "ours"), _added(found.request, "bare"), bare, Aim(2.0)
        ),
        Figure("the same request, all in all", "ms", found.request["ours"], found.request["direct"], "directly"),
        Figure("… the gateway's processor time for it", "ms", found.work["ours"], found.work["bare"], "bare"),
        Figure("added to a chunk", "ms", _added(found.chunk, "ours"), _added(found.chunk, "bare"), bare, Aim(0.2)),
        Figure(
            f"added to a chunk, {STREAMS} streams at {PER_SECOND} a second each, the median of each stream",
            "ms",
            _added(found.loaded, "ours"),
            _added(found.loaded, "bare"),
            bare,
        ),
        Figure("… processor time of the gateway meanwhile", "ms/s", found.cpu["ours"], found.cpu["bare"], "bare"),
        Figure(
            f"a chunk of {FEW} streams, beside one whose reader takes nothing",
            "ms",
            found.beside_slow,
            found.few,
            "without it",
            Aim(1.2, "ratio"),
        ),
    )
    return Report(
        "proxy",
        figures,
        [f"each of {found.chunks:,} chunks of the three came once, in its order"],
        [
            "Ours notes each request before it leaves, and each answer, encrypted, before its end is passed on; each"
            " note is synced to the disk. The bare one notes nothing.",
            "Load, model and proxy share the cores. Times that are added are over the median of asking directly.",
        ],
    )
