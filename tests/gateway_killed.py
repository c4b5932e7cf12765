"""A gateway in a process of its own that a test kills, and a client that repeats what got no answer."""

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from tests.gateway_process import DSN
from tests.gateway_script import BRANCH, PASSWORD, commit, git, result, told, verification, verifying

from moorage.core.journal.chain import Intact
from moorage.core.journal.export import verify_export
from moorage.runner.watch import background
from moorage.testing.gateway import OPERATOR_TOKEN
from moorage.testing.gitserver import GitServer
from moorage.testing.killpoints import Fault, Shot, environment
from moorage.testing.torture import waken

ROOT = Path(__file__).resolve().parents[1]
PASSING = {425, 500, 502, 503}


class Killed:
    """A gateway's process on one port; `kill` leaves it no time for anything.

    `dsn`: of the PostgreSQL that it shares with others. `password`: of its tenant's remote. The port is held by a
    socket that never listens: while no gateway lives nobody else gets it, and connections are refused.
    """

    def __init__(self, root: Path, dsn: str | None = None, *, password: str = PASSWORD) -> None:
        self.root, self.dsn, self.password = root, dsn, password
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        self.port = reserved.getsockname()[1]
        weakref.finalize(self, os.close, reserved.detach())
        self.kills = 0
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, environ: Mapping[str, str] | None = None) -> None:
        """Return once it answers, or has died: of a shot, it may before anybody has asked it whether it lives."""
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.gateway_process", str(self.root), str(self.port), self.password),
            cwd=ROOT,
            env={**os.environ, **({DSN: self.dsn} if self.dsn else {}), **(environ or {})},
        )
        async with httpx.AsyncClient() as http:
            while self.process.returncode is None:
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

    def freeze(self) -> None:
        """It does nothing more, and its connections stand."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """It goes on as if nothing had been."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    async def keep_up(self, environ: Mapping[str, str]) -> None:
        """Start it anew whenever it has died."""
        while True:
            assert self.process is not None
            await self.process.wait()
            await self.start(environ)

    async def torture(self, chance: random.Random, times: int) -> None:
        """Kill and start anew, at moments that nobody chose."""
        for _ in range(times):
            await asyncio.sleep(chance.uniform(0.02, 0.6))
            await self.kill()
            await self.start()


@contextlib.asynccontextmanager
async def running(root: Path, dsn: str | None = None) -> AsyncIterator[Killed]:
    gateway = Killed(root, dsn)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.kill()


@contextlib.asynccontextmanager
async def meeting(
    gateway: Killed, trace: Path, shots: Sequence[Shot], environ: Mapping[str, str] | None = None
) -> AsyncIterator[None]:
    """The gateway is started and meets these shots; it is started anew when it died of one, and woken when it slept."""
    armed = {**(environ or {}), **environment(trace, *shots)}
    await gateway.start(armed)
    stops = [waken(trace, shot) for shot in shots if shot.fault is Fault.STOP]
    async with background(gateway.keep_up(armed), *stops):
        yield


class Service:
    """One port for several gateways, as a Service is: each connection goes to one that takes it, drawn by `chance`, or
    else the first of `ports`.
    """

    def __init__(self, *ports: int, chance: random.Random | None = None) -> None:
        self.ports, self.port = list(ports), 0
        self._chance = chance
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator["Service"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carried(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carried(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """What breaks on one side breaks on the other."""
        back = None
        try:
            with contextlib.suppress(OSError):
                there, back = await self._connected()
                async with asyncio.TaskGroup() as ways:
                    ways.create_task(_pumped(reader, back))
                    ways.create_task(_pumped(there, writer))
        except* OSError:
            pass
        finally:
            await broken_off(writer, back)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        order = list(self.ports)
        if self._chance is not None:
            self._chance.shuffle(order)
        for port in order:
            with contextlib.suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port)
        raise ConnectionRefusedError


async def broken_off(*writers: asyncio.StreamWriter | None) -> None:
    """All of their connections at once, and what the loop has of them: left there, it is a warning to a later test."""
    open_ones = [each for each in writers if each is not None]
    for each in open_ones:
        each.transport.abort()
    await asyncio.shield(asyncio.gather(*(each.wait_closed() for each in open_ones), return_exceptions=True))


async def _pumped(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65_536):
        sink.write(data)
        await sink.drain()
    sink.write_eof()


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


async def patiently(work: Callable[..., str], *args: Any) -> str:
    while True:
        with contextlib.suppress(AssertionError):
            return await asyncio.to_thread(work, *args)
        await asyncio.sleep(0.05)


async def verified_run(port: int, spec: Any, tmp_path: Path) -> str:
    """Admission to what could be delivered, each step repeated until it is answered; the head."""
    operator, runner, verifier = (Patient(port, t) for t in (OPERATOR_TOKEN, "token-of-p1", "token-of-v1"))
    run = "/v1/runs/u1"
    pod = {"pod_uid": "p1", "pod_name": "p1", "epoch": 1, "role": "runner"}
    await operator("PUT", run, spec.model_dump(mode="json"))
    await operator("POST", f"{run}/fence", {"epoch": 1, "attempt": 1, "holder": "a"})
    await operator("POST", f"{run}/pods", pod)
    base = (await runner("GET", "/v1/self"))["git"]["base"]
    await runner("POST", "/v1/self/records", told("WORKSPACE_READY", {"base": base, "branch": BRANCH}))
    await runner("POST", "/v1/self/records", told("AGENT_STARTED", {}))
    header, url = "Authorization: Bearer token-of-p1", f"http://127.0.0.1:{port}/git/run.git"
    tree = tmp_path / "tree"
    git(tmp_path, "init", "-q", str(tree))
    git(tree, "config", "http.extraHeader", header)
    await patiently(git, tree, "fetch", "-q", url, base)
    git(tree, "checkout", "-q", base)
    head = commit(tree, "b.txt", "two\n")
    await patiently(git, tree, "push", "-q", url, "HEAD:refs/moorage/runs/u1/1/checkpoints")
    point = {"epoch": 1, "iteration": 1, "changed": True, "commit": head, "recorded_at": 8}
    await runner("POST", "/v1/self/checkpoint", point)
    await patiently(git, tree, "push", "-q", url, f"HEAD:refs/heads/{BRANCH}")
    await runner("POST", "/v1/self/result", result(head))
    await operator("POST", f"{run}/pods", pod | {"pod_uid": "v1", "role": "verifier", "commit": head})
    await verifier("POST", "/v1/self/records", verifying())
    await verifier("POST", "/v1/self/verification", verification(head))
    for client in (operator, runner, verifier):
        await client.http.aclose()
    return head


async def whole_run(port: int, spec: Any, tmp_path: Path, *, then: int | None = None) -> tuple[str, Any]:
    """The same, to success; the head and the last view. `then`: the port of the gateway that delivers it."""
    head = await verified_run(port, spec, tmp_path)
    operator, run = Patient(then or port, OPERATOR_TOKEN), f"/v1/runs/{spec.uid}"
    while True:
        view = await operator("POST", f"{run}/deliver", {"epoch": 1, "commit": head})
        if [e["status"] for e in view["state"]["effects"]][-1:] == ["confirmed"]:
            break
        await asyncio.sleep(0.1)
    end = {"reason": "Completed", "message": "", "commit": head}
    await operator("POST", f"{run}/records", told("RUN_SUCCEEDED", end))
    exported = await operator.answer("GET", f"{run}/journal")
    assert isinstance(verify_export([exported.content]).chain, Intact)
    last = await operator("GET", run)
    await operator.http.aclose()
    return head, last


def delivered_once(upstream: GitServer, head: str, state: Any) -> None:
    assert state["phase"] == "Succeeded"
    assert state["iteration"] == 1
    assert [e["status"] for e in state["effects"] if e["status"] != "not_dispatched"] == ["confirmed"]
    assert [u.new for u in upstream.updates if u.ref == f"refs/heads/{BRANCH}"] == [head]
