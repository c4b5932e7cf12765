"""A command to a run on this machine whose owner doesn't answer right away."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from tests.cli_program import UID, Composition, Local, Program, program

from moorage.api.commands import CommandRequest, Receipt
from moorage.cli.exits import Exit
from moorage.cli.ports import LocalRun, OwnerSilent

__all__ = ["program"]  # fixtures


@dataclass
class Reserved(Local):
    """Its owner is silent as often as it is told to be, and then has done what was asked."""

    silences: list[str] = field(default_factory=list)

    async def command(self, _: str, asked: CommandRequest) -> Receipt:
        if self.silences:
            raise OwnerSilent(self.silences.pop(), "try again in a moment")
        return Receipt(command_id=asked.command_id, type=asked.type, state="Done", reason="Cancelled", offset=7)


@dataclass
class Quiet(Composition):
    silences: list[str] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def open_local(self, _: Path) -> AsyncIterator[Local]:
        async with httpx.AsyncClient() as client:
            yield Reserved(client, [LocalRun("tidy", UID, 2)], silences=self.silences)


def test_an_owner_that_is_about_to_end_is_asked_again(program: Program) -> None:
    program.composition = Quiet(silences=["the process 7 doesn't answer"])
    assert program("cancel", "tidy", "--id", "c1", "--wait", "-o", "json") == Exit.OK, program.err
    assert json.loads(program.out)["state"] == "Done"


def test_an_owner_that_never_answers_is_told_as_out_of_reach(program: Program) -> None:
    program.composition = Quiet(silences=["the process 7 doesn't answer"] * 9)
    assert program("cancel", "tidy", "--id", "c1", "--timeout", "0") == Exit.UNREACHABLE
    assert "c1 has no receipt yet: the process 7 doesn't answer" in program.err
    assert "--id c1" in program.err
