"""The commands by which people intervene in a run while it lives: each is sent once, and its receipt told.

On a cluster they are RunCommands, on this machine a word to the process that pushes the run on. Sent twice under one
id, a command is done once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import typer

from moorage.api.commands import MAX_QUESTION, MAX_TEXT_BYTES, CommandRequest, CommandType, Receipt
from moorage.api.meta import format_time
from moorage.api.names import slug
from moorage.cli.exits import Exit, NotFound, Unreachable, Usage
from moorage.cli.ports import OwnerSilent
from moorage.cli.render import Output, Terminal
from moorage.cli.session import (
    Format,
    RunName,
    Session,
    Where,
    chosen_run,
    looking,
    past_runs,
    session_of,
    state_folder,
    wait,
)

FAILED = frozenset({"Rejected", "Expired"})
NOT_STARTED = "RunNotStarted"  # a cluster keeps the command until its run begins
LOOK_S = 0.3
QUIET_S = 2.0  # what takes longer says what it waits for
RECEIPT_S = 60.0
MOST_SECONDS = 7 * 86_400.0
MOST_ID = 200
MOST_NOTE = 500

Said = Annotated[str, typer.Argument(metavar="TEXT", help="What the agent is to hear; - reads it from standard input.")]
Approval = Annotated[str, typer.Argument(metavar="APPROVAL", help="Name of the approval that the run waits for.")]
Question = Annotated[
    str,
    typer.Option(
        "--question",
        metavar="KEY",
        help="Which of its questions is answered, as the run's status shows it; another one that waits by now isn't.",
    ),
]
Note = Annotated[str, typer.Option("--note", help="Why, for the journal; a refused agent hears it.")]
Id = Annotated[str, typer.Option("--id", help="Id of the command: sent again, it is done once. Default: a new one.")]
Patience = Annotated[float, typer.Option("--timeout", min=0.0, max=MOST_SECONDS, help="Seconds to wait, at most.")]


@dataclass(frozen=True)
class Asked:
    """What is asked of a run."""

    type: CommandType
    text: str = ""
    approval: str = ""
    question: str = ""
    note: str = ""


class Sender(Protocol):
    """Where one command goes."""

    async def told(self) -> Receipt | None:
        """Send it, or ask what became of it: the same call. None while there is no receipt. Raises CliError."""

    @property
    def waits_for(self) -> str:
        """Why there is none, as far as anybody has said."""


def sending(ask: Callable[..., Asked]) -> Callable[..., None]:
    """Make a command of a function that says what is asked: with an id, a receipt, and a place to look for the run."""

    @functools.wraps(ask)
    def called(ctx: typer.Context, *, where: Where, **given: Any) -> None:
        how = How(**{name: given.pop(name) for name in options})
        _send(session_of(ctx), where, given["run"], ask(**given), how)

    options, own = _shown(_options), _shown(ask)
    ctx, where = _shown(_called).values()
    shown = [ctx, *own.values(), *options.values(), where]
    called.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # what `looking` and typer read
    return looking(called)


def _shown(of: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(of, eval_str=True).parameters


def _called(ctx: typer.Context, *, where: Where) -> None:
    """What every command is called with."""


@dataclass(frozen=True)
class How:
    """What may be said of every command."""

    command_id: str
    to_the_end: bool
    timeout: float
    output: Output


def _options(
    *,
    command_id: Id = "",
    to_the_end: Annotated[bool, typer.Option("--wait", help="Wait until it is done, not only taken on.")] = False,
    timeout: Patience = RECEIPT_S,
    output: Format = Output.TEXT,
) -> None:
    """What `sending` adds; by the names of How's fields."""


@sending
def steer(*, run: RunName, text: Said) -> Asked:
    """Say something to a working agent: it hears it after its present tool calls, before its next decision."""
    del run
    return Asked("Steer", text=_words(text))


@sending
def follow_up(*, run: RunName, text: Said) -> Asked:
    """Say something to an agent once it has stopped: then it goes on."""
    del run
    return Asked("FollowUp", text=_words(text))


@sending
def approve(*, run: RunName, approval: Approval, question: Question = "", note: Note = "") -> Asked:
    """Allow what a run waits for."""
    del run
    return _answering("Approve", approval, question, note)


@sending
def reject(*, run: RunName, approval: Approval, question: Question = "", note: Note = "") -> Asked:
    """Refuse what a run waits for."""
    del run
    return _answering("Reject", approval, question, note)


@sending
def pause(*, run: RunName) -> Asked:
    """Let a run stand still at its next safe point, until it is resumed."""
    del run
    return Asked("Pause")


@sending
def resume(*, run: RunName) -> Asked:
    """Let a paused run go on."""
    del run
    return Asked("Resume")


@sending
def checkpoint(*, run: RunName) -> Asked:
    """Have what stands kept, at the next moment at which that can be."""
    del run
    return Asked("Checkpoint")


@sending
def cancel(*, run: RunName) -> Asked:
    """End a run. What it was doing is stopped, and what it had sent off is accounted for."""
    del run
    return Asked("Cancel")


COMMANDS = (steer, follow_up, approve, reject, pause, resume, checkpoint, cancel)


def _answering(kind: CommandType, approval: str, question: str, note: str) -> Asked:
    if len(note) > MOST_NOTE:
        raise Usage(f"a note has at most {MOST_NOTE} characters", "say it in short")
    if len(question) > MAX_QUESTION:
        raise Usage("no question has a key as long as that", "the run's status shows it after --question")
    return Asked(kind, approval=approval, question=question, note=note)


def _words(text: str) -> str:
    said = sys.stdin.read() if text == "-" else text
    if not said.strip():
        raise Usage("TEXT is empty", "say what the agent is to hear")
    if len(said.encode(errors="replace")) > MAX_TEXT_BYTES:
        raise Usage(f"TEXT has more than {MAX_TEXT_BYTES // 1024} KiB", "name a file of the repository instead")
    return said


def _send(session: Session, where: Where, run: str, asked: Asked, how: How) -> None:
    if len(how.command_id) > MOST_ID:
        raise Usage(f"an id has at most {MOST_ID} characters", "it becomes the name of an object")
    name = how.command_id or f"{slug(run, 40)}-{slug(asked.type)}-{secrets.token_hex(4)}"
    request = CommandRequest(
        command_id=name,
        type=asked.type,
        text=asked.text,
        approval=asked.approval,
        question=asked.question,
        note=asked.note,
        surface="moorage-cli",
    )

    async def work() -> Receipt:
        async with _sender(session, where, run, request) as sender:
            return await _receipt(sender, name, how, session.terminal.note)

    receipt = wait(work())
    _tell(session.terminal, receipt, how.output)
    if receipt.state in FAILED:
        raise typer.Exit(Exit.FAILED)
    if how.to_the_end and not receipt.final:
        raise Unreachable(f"{name} is accepted, and isn't done yet", f"the same with --id {name} asks again")


async def _receipt(sender: Sender, name: str, how: How, note: Callable[[str], None]) -> Receipt:
    """The receipt that was waited for, or the last one when time is over. Raises Unreachable where there is none."""
    loop = asyncio.get_running_loop()
    began, noted = loop.time(), ""
    while True:
        receipt = await sender.told()
        if receipt is not None and (receipt.final or not how.to_the_end):
            return receipt
        waited, why = loop.time() - began, sender.waits_for
        if why and why != noted and waited > QUIET_S:
            note(f"{name} waits: {why}")
            noted = why
        if waited >= how.timeout:
            if receipt is not None:
                return receipt
            raise Unreachable(f"{name} has no receipt yet" + (f": {why}" if why else ""), f"ask again with --id {name}")
        await asyncio.sleep(LOOK_S)


def _tell(terminal: Terminal, receipt: Receipt, output: Output) -> None:
    if output is Output.NAME:
        terminal.write(f"runcommand/{receipt.command_id}\n".encode())
        return
    if output is not Output.TEXT:
        terminal.data(_data(receipt), output)
        return
    because = f" ({receipt.reason})" if receipt.reason and receipt.reason != receipt.state else ""
    place = "" if receipt.offset is None else f", record {receipt.offset}"
    why = f": {receipt.message}" if receipt.message else ""
    terminal.write(f"{receipt.command_id} {receipt.state}{because}{place}{why}\n".encode("utf-8", "replace"))


def _data(receipt: Receipt) -> dict[str, Any]:
    return {
        "id": receipt.command_id,
        "type": receipt.type,
        "state": receipt.state,
        "reason": receipt.reason,
        "message": receipt.message,
        "offset": receipt.offset,
        "issuer": receipt.issuer,
        "at": format_time(receipt.at) if receipt.at else None,
    }


# --- where it goes ----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _sender(session: Session, where: Where, run: str, request: CommandRequest) -> AsyncIterator[Sender]:
    if where.on_cluster(session):
        from moorage.cli.cluster import Target, connected  # noqa: PLC0415  takes most of a second to load
        from moorage.cli.cluster_commands import ClusterSender  # noqa: PLC0415  the same

        target = Target(where.kubeconfig, where.context, where.namespace, where.system_namespace)
        async with connected(target) as cluster:
            yield ClusterSender(cluster, run.rpartition("/")[2], request)
        return
    folder = state_folder(session, where.state)
    if not folder.is_dir():
        raise NotFound(f"no run was ever made here: {folder} doesn't exist", "name a namespace to look on a cluster")
    user = session.env.get("USER", "")
    async with past_runs(session, folder) as local:
        _, uid = await chosen_run(local, run)
        said = request.model_copy(update={"issuer": user, "authority": "local-user", "input_source": "cli"})
        yield _LocalSender(lambda: local.command(uid, said))


@dataclass
class _LocalSender:
    """To the process that pushes the run on; one that begins or is about to end is asked again."""

    send: Callable[[], Awaitable[Receipt]]
    waits_for: str = ""

    async def told(self) -> Receipt | None:
        """See the port."""
        try:
            receipt = await self.send()
        except OwnerSilent as silent:
            self.waits_for = silent.message
            return None
        self.waits_for = ""
        return receipt
