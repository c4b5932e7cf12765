"""Commands to a run on this machine: what each verb asks for, and an owner that doesn't answer right away."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
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


@dataclass
class Taking(Local):
    """Its owner notes what it is asked, and takes it on."""

    asked: list[CommandRequest] = field(default_factory=list)

    async def command(self, uid: str, asked: CommandRequest) -> Receipt:
        assert uid == UID
        self.asked.append(asked)
        return Receipt(command_id=asked.command_id, type=asked.type, state="Accepted", offset=7)


@dataclass
class Attentive(Composition):
    asked: list[CommandRequest] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def open_local(self, _: Path) -> AsyncIterator[Local]:
        async with httpx.AsyncClient() as client:
            yield Taking(client, [LocalRun("tidy", UID, 2)], asked=self.asked)


ANSWER = {"approval": "push", "question": "tool:3.0:5d1f", "note": "fine"}
TOLD = ("push", "--question", "tool:3.0:5d1f", "--note", "fine")


@pytest.mark.rule("M2")
@pytest.mark.parametrize(
    ("verb", "arguments", "kind", "asks"),
    [
        ("steer", ("use tabs",), "Steer", {"text": "use tabs"}),
        ("follow-up", ("now the docs",), "FollowUp", {"text": "now the docs"}),
        ("approve", TOLD, "Approve", ANSWER),
        ("reject", TOLD, "Reject", ANSWER),
        ("pause", (), "Pause", {}),
        ("resume", (), "Resume", {}),
        ("checkpoint", (), "Checkpoint", {}),
        ("cancel", (), "Cancel", {}),
    ],
)
def test_each_verb_asks_for_what_it_is_called_and_shows_the_receipt(
    program: Program, verb: str, arguments: tuple[str, ...], kind: str, asks: dict[str, str]
) -> None:
    program.composition = Attentive()
    assert program(verb, "tidy", *arguments, "--id", "c1", "-o", "json") == Exit.OK, program.err
    receipt = json.loads(program.out)
    assert (receipt["type"], receipt["state"], receipt["offset"]) == (kind, "Accepted", 7)
    (asked,) = program.composition.asked
    given = asked.model_dump(include={"command_id", "type", "text", "approval", "question", "note"}, exclude_none=True)
    assert {name: value for name, value in given.items() if value} == {"command_id": "c1", "type": kind, **asks}


def test_an_owner_that_is_about_to_end_is_asked_again(program: Program) -> None:
    program.composition = Quiet(silences=["the process 7 doesn't answer"])
    assert program("cancel", "tidy", "--id", "c1", "--wait", "-o", "json") == Exit.OK, program.err
    assert json.loads(program.out)["state"] == "Done"


def test_an_owner_that_never_answers_is_told_as_out_of_reach(program: Program) -> None:
    program.composition = Quiet(silences=["the process 7 doesn't answer"] * 9)
    assert program("cancel", "tidy", "--id", "c1", "--timeout", "0") == Exit.UNREACHABLE
    assert "c1 has no receipt yet: the process 7 doesn't answer" in program.err
    assert "--id c1" in program.err
