"""The program over a composition root in this process: one past run with a real sealed journal behind its doors."""

import contextlib
import io
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from moorage.api.commands import CommandRequest, Receipt
from moorage.api.sse import MEDIA_TYPE, Event
from moorage.cli.main import invoke
from moorage.cli.ports import (
    InterruptedRun,
    ListedRun,
    Listener,
    LocalResult,
    LocalRun,
    ManifestRefused,
    Progress,
    RunRefused,
)
from moorage.cli.render import Terminal
from moorage.cli.session import Session
from moorage.core.journal.chain import EMPTY, Head, seal
from moorage.core.journal.export import Header, header_line, record_line
from moorage.core.journal.record import Assurance, Draft, RecordType, RunIdentity, Source

UID = "11111111-2222-3333-4444-555555555555"
COMMIT = "a" * 40
IDENTITY = RunIdentity(tenant="local", run_uid=UID, session_id="s1")
FACTS: Sequence[tuple[RecordType, Source, Mapping[str, Any]]] = (
    (RecordType.RUN_ADMITTED, Source.OPERATOR, {"spec_hash": "f" * 64}),
    (RecordType.EPOCH_RAISED, Source.OPERATOR, {"epoch": 1, "attempt": 1, "reason": "Start"}),
    (RecordType.AGENT_STARTED, Source.RUNNER, {"driver": "command"}),
    (RecordType.AGENT_OUTPUT, Source.RUNNER, {"stream": "stdout", "size": 12}),
    (RecordType.ITERATION_COMPLETE, Source.GATEWAY, {"iteration": 1, "changed": True}),
    (RecordType.VERIFICATION_RESULT, Source.GATEWAY, {"commit": COMMIT, "passed": True, "isolated": True}),
    (RecordType.RUN_SUCCEEDED, Source.OPERATOR, {"reason": "Completed", "commit": COMMIT}),
)


def journal() -> bytes:
    drafts = [
        Draft(
            record_id=f"r{i}",
            type=kind,
            recorded_at=1_800_000_000_000 + i,
            source=source,
            assurance=Assurance.REPORTED if source is Source.RUNNER else Assurance.OBSERVED,
            payload=payload,
        )
        for i, (kind, source, payload) in enumerate(FACTS)
    ]
    sealed = seal(drafts, EMPTY, IDENTITY, 1)
    head = Head(len(sealed) - 1, sealed[-1].hash)
    header = Header(tenant="local", run_uid=UID, name="tidy", spec_hash="f" * 64, offset=head.offset, hash=head.hash)
    return header_line(header) + b"".join(record_line(each) for each in sealed)


HELLO = Event("output", b'{"at":1800000000003,"epoch":1,"stream":"stdout","data":"aGVsbG//Cg=="}', 3)
END = Event("end", b'{"phase":"Succeeded","reason":"Completed","message":"","offset":6}', 6)
REPAIRED = {"generation": 2, "first": 4, "last": 6, "offset": 7, "unreadable": 1, "why": "offset 4: its hash"}


@dataclass
class Doors:
    """A gateway's reader doors with one run behind them."""

    exported: bytes = field(default_factory=journal)
    status: int = 200
    asked: list[str] = field(default_factory=list)
    said: list[dict[str, str]] = field(default_factory=list)
    streams: list[list[Event]] = field(default_factory=list)
    spent: dict[str, Any] = field(default_factory=dict)

    def app(self) -> Starlette:
        run = "/v1/runs/{uid}/{door}"
        return Starlette(
            routes=[
                Route(run, self._answer, methods=["GET", "POST"]),
                Route(f"{run}/stream", self._stream),
                Route("/v1/namespaces/local/runs/stream", self._runs),
                Route("/v1/namespaces/local/usage", self._usage),
            ]
        )

    async def _stream(self, request: Request) -> Response:
        """The events that are told at this call."""
        last = request.headers.get("last-event-id")
        self.asked.append(str(request.url).removeprefix("http://gateway") + (f" after {last}" if last else ""))
        if self.status != 200:
            return JSONResponse({"reason": "Refused", "message": "because"}, self.status)
        told = self.streams.pop(0) if self.streams else [*self.events(request.path_params["door"]), END]
        return Response(b"".join(each.encoded() for each in told), media_type=MEDIA_TYPE)

    async def _runs(self, request: Request) -> Response:
        self.asked.append(str(request.url).removeprefix("http://gateway"))
        told = self.streams.pop(0)
        return Response(b"".join(each.encoded() for each in told), media_type=MEDIA_TYPE)

    async def _usage(self, request: Request) -> Response:
        self.asked.append(str(request.url).removeprefix("http://gateway"))
        if self.status != 200:
            return JSONResponse({"reason": "Refused", "message": "because"}, self.status)
        return JSONResponse({"namespace": "local", **self.spent})

    def events(self, door: str) -> list[Event]:
        """What there is of a stream."""
        if door == "logs":
            return [HELLO]
        lines = self.exported.splitlines()[1:]
        return [Event("record", line, number) for number, line in enumerate(lines)]

    async def _answer(self, request: Request) -> Response:
        self.asked.append(str(request.url).removeprefix("http://gateway"))
        if self.status != 200:
            return JSONResponse({"reason": "Refused", "message": "because"}, self.status)
        if request.method == "POST":
            said = await request.json()
            self.said.append(said)
            if request.path_params["door"] == "repair":
                return JSONResponse(REPAIRED)
            target = "https://git.example/web.git#main"
            return JSONResponse({"effect_id": said["effect"], "outcome": said["outcome"], "target": target})
        bodies = {"journal": self.exported, "diff": b"--- a\n+++ b\n"}
        return Response(bodies[request.path_params["door"]])


@dataclass
class Local:
    client: httpx.AsyncClient
    known: Sequence[LocalRun]
    namespace: str = "local"

    async def runs(self) -> Sequence[LocalRun]:
        return self.known

    async def interrupted(self) -> Sequence[InterruptedRun]:
        return [InterruptedRun("half", UID, "2026-11-29 17:00 UTC", Path("/there/half.yaml"))]

    async def listed(self) -> Sequence[ListedRun]:
        return [ListedRun(each.name, each.uid, each.created_at, "Succeeded", "moorage/tidy") for each in self.known]

    async def abandoned(self, _: str) -> bool:
        return False

    async def command(self, uid: str, asked: CommandRequest) -> Receipt:
        answer = await self.client.post(f"/v1/runs/{uid}/commands", content=asked.model_dump_json())
        if answer.is_error:
            raise RunRefused(answer.json()["message"], "")
        return Receipt.model_validate_json(answer.content)


SUCCEEDED = LocalResult(
    name="tidy",
    uid=UID,
    phase="Succeeded",
    reason="Completed",
    summary="Formatted [3] files",
    branch="moorage/tidy",
    commit=COMMIT,
    repository=Path("/repo"),
    tokens=7,
    journal_offset=6,
    journal_hash="b" * 64,
)


@dataclass
class Composition:
    """A composition root that knows one past run and ends every new one as it is told."""

    doors: Doors = field(default_factory=Doors)
    result: LocalResult = SUCCEEDED
    refuse: str = ""
    taken: str = ""
    started: list[str] = field(default_factory=list)

    async def run_local(
        self,
        manifest: Path,
        *,
        state: Path,
        listener: Listener,
        tell: Callable[[LocalResult], None],
        fresh: bool = False,
    ) -> LocalResult:
        if self.refuse:
            raise ManifestRefused(self.refuse)
        if self.taken:
            raise RunRefused(self.taken, "--fresh gives it up")
        listener.progress(Progress("Running", iteration=1, tokens=7))
        self.started.append(f"{manifest.name} {state}" + (" fresh" if fresh else ""))
        tell(self.result)
        return self.result

    @contextlib.asynccontextmanager
    async def open_local(self, state: Path) -> AsyncIterator[Local]:
        assert state.name == "moorage"
        transport = httpx.ASGITransport(self.doors.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            yield Local(client, [LocalRun("tidy", UID, 2), LocalRun("tidy", "older", 1)])

    async def torture(
        self, manifest: Path, *, kills: int, seed: int, shots: str, same_tree: bool, tell: Callable[[str], None]
    ) -> bool:
        tell(f"{manifest.name}: {kills} kills of seed {seed}, {shots}, {same_tree}")
        return True

    def run_operator(self) -> None:
        self.started.append("operator")

    def run_gateway(self) -> None:
        self.started.append("gateway")


@dataclass
class Program:
    """Command lines in, exit code and both streams out."""

    state: Path
    composition: Composition = field(default_factory=Composition)
    plugin: bool = False
    out: bytes = b""
    err: str = ""

    def __call__(self, *argv: str) -> int:
        raw, err = io.BytesIO(), io.StringIO()
        text = io.TextIOWrapper(raw, write_through=True)
        terminal = Terminal(Console(file=text, width=160), Console(file=err, width=160), raw)
        env = {"HOME": "/nonexistent", "XDG_STATE_HOME": str(self.state.parent), "KUBECONFIG": "/nonexistent"}
        code = invoke(argv, Session(terminal, lambda: self.composition, env, self.plugin))
        self.out, self.err = raw.getvalue(), err.getvalue()
        return code

    @property
    def text(self) -> str:
        return self.out.decode()


@pytest.fixture
def program(tmp_path: Path) -> Program:
    state = tmp_path / "moorage"
    state.mkdir()
    return Program(state)


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text("kind: AgentRun\n")
    return path
