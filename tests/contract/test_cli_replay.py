"""P4 from the command line: the three replays of a run's journal, and a real provider to ask."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.replay.test_golden_journals import GOLDEN, records

from moorage.cli.exits import Exit
from moorage.cli.main import invoke
from moorage.cli.ports import LocalRun
from moorage.cli.render import Terminal
from moorage.cli.session import Session
from moorage.core.evidence.tar import END, header, padding
from moorage.core.journal.chain import Intact
from moorage.core.journal.export import verify_export
from moorage.core.recovery.counterfactual import fork
from moorage.core.recovery.replays import state_hash
from moorage.core.run.reducer import replay
from moorage.testing.models.script import Script
from moorage.testing.models.server import StandIn
from moorage.testing.serving import listening

PATH = GOLDEN / "segments-and-repair.journal"
ASKED = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"2+2"}]}'


class Machine:
    """A composition root whose one run has a golden journal, and a command line over it."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self.exported = PATH.read_bytes()
        self.asked: bytes | None = ASKED

    @contextlib.asynccontextmanager
    async def open_local(self, _: Path) -> AsyncIterator[Any]:
        app = Starlette(routes=[Route("/v1/runs/{uid}/{door}", self._answer)])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://gateway") as self.client:
            yield self

    async def runs(self) -> Sequence[LocalRun]:
        return [LocalRun("fix", "u1", 1)]

    async def abandoned(self, _: str) -> bool:
        return False

    async def _answer(self, request: Request) -> Response:
        if request.path_params["door"] == "journal":
            return Response(self.exported)
        sha = fork(records(PATH)).content.sha256
        if self.asked is None:
            return Response(header(f"withheld/{sha}", 6) + b"erased" + padding(6) + END)
        content = self.asked + padding(len(self.asked))
        return Response(header(f"blobs/{sha}", len(self.asked)) + content + END)

    def __call__(self, *argv: str) -> tuple[int, bytes, str]:
        raw, err = io.BytesIO(), io.StringIO()
        text = io.TextIOWrapper(raw, write_through=True)
        terminal = Terminal(Console(file=text, width=160), Console(file=err, width=160), raw)
        made: Any = self
        code = invoke(argv, Session(terminal, lambda: made, {"XDG_STATE_HOME": str(self._state.parent)}))
        return code, raw.getvalue(), err.getvalue()


@pytest.fixture
def program(tmp_path: Path) -> Machine:
    (tmp_path / "moorage").mkdir()
    return Machine(tmp_path / "moorage")


@pytest.mark.rule("P4")
def test_recovery_prints_the_state_and_its_hash(program: Machine) -> None:
    truth = replay(records(PATH))
    code, out, _ = program("replay", "fix")
    assert (code, out.decode().splitlines()[-1]) == (Exit.OK, f"state {state_hash(truth)}")
    code, out, _ = program("replay", "fix", "-o", "json")
    assert code == Exit.OK
    assert json.loads(out)["stateHash"] == state_hash(truth)


@pytest.mark.rule("P4")
def test_an_audit_explains_the_moves_and_fails_on_a_broken_chain(program: Machine) -> None:
    code, out, err = program("replay", "fix", "--audit")
    assert code == Exit.OK
    assert "Running → Recovering (JOURNAL_REPAIRED)" in out.decode()
    assert "sound: " in err
    code, out, _ = program("replay", "fix", "--audit", "-o", "json")
    assert json.loads(out)["findings"] == []
    program.exported = PATH.read_bytes().replace(b'"tool":"x"', b'"tool":"y"', 1)
    assert program("replay", "fix", "--audit")[0] == Exit.FAILED
    assert program("replay", "fix")[0] == Exit.FAILED


@pytest.mark.rule("P4")
async def test_only_a_what_if_asks_a_model_and_makes_a_run_of_its_own(program: Machine, tmp_path: Path) -> None:
    stand_in = StandIn(Script.model_validate({"replies": [{"text": "four", "usage": {"input_tokens": 9}}]}))
    async with listening(stand_in.app) as url:
        for argv in (("replay", "fix"), ("replay", "fix", "--audit")):
            assert (await asyncio.to_thread(program, *argv))[0] == Exit.OK
        assert stand_in.log == []
        asking = ("replay", "fix", "--what-if", url, "--into", str(tmp_path / "new.journal"), "--model", "other")
        code, out, _ = await asyncio.to_thread(program, *asking)
        assert code == Exit.OK, out
        assert [each.model for each in stand_in.log] == ["other"]
        program.asked = b'{"model":"m"}'
        refused = await asyncio.to_thread(program, *asking)
        assert (refused[0], "HTTP 400" in refused[2]) == (Exit.FAILED, True)
        program.asked = None
        assert (await asyncio.to_thread(program, *asking))[0] == Exit.NOT_FOUND
    program.asked = ASKED
    assert (await asyncio.to_thread(program, *asking))[0] == Exit.UNREACHABLE
    made = verify_export([(tmp_path / "new.journal").read_bytes()])
    assert isinstance(made.chain, Intact)
    assert made.header is not None
    assert out.decode().startswith(f"{made.header.run_uid}: another answer, status 200")
    assert b"four" in (tmp_path / "new.journal.answer").read_bytes()
    assert replay(records(tmp_path / "new.journal")).usage.input_tokens == 9


@pytest.mark.parametrize(
    "argv",
    [
        ("replay", "fix", "--what-if", "http://x"),
        ("replay", "fix", "--into", "x"),
        ("replay", "fix", "--audit", "--what-if", "http://x", "--into", "y"),
        ("replay", "fix", "-o", "name"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(program: Machine, argv: tuple[str, ...]) -> None:
    assert program(*argv)[0] == Exit.USAGE
