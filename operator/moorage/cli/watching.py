"""Watching a run: what its agent writes, and its journal, as they come; over whatever breaks on the way."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Protocol

import typer

from moorage.api.sse import Event
from moorage.api.streaming import Gap, Output, StreamEnd, StreamKind
from moorage.cli.evidence import Evidence
from moorage.cli.exits import CliError, Exit, Usage
from moorage.cli.following import Following
from moorage.cli.render import Output as Shown
from moorage.cli.render import Terminal, timeline_page
from moorage.cli.session import Format, RunName, Session, Where, evidence_of, looking, session_of, wait
from moorage.cli.timeline import recap, rfc3339, row
from moorage.cli.untrusted import Harmless
from moorage.core.journal.chain import ChainVerifier, Head
from moorage.core.journal.errors import Malformed
from moorage.core.journal.export import Line, parse_record
from moorage.core.journal.record import Record, RecordType, Stored, decode
from moorage.core.run.phases import IllegalMove, RunPhase
from moorage.core.run.reducer import Replay

Cursor = Annotated[
    int | None, typer.Option("--since-cursor", min=-1, help="Go on after this cursor.", show_default=False)
]


@looking
def logs(
    ctx: typer.Context,
    *,
    run: RunName,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run ends; exit code 1 if it failed.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, help="Only so many of the last lines.", show_default=False)
    ] = None,
    since_cursor: Cursor = None,
    live: Annotated[bool, typer.Option("--live", help="Rather skip than be late; what is skipped is told.")] = False,
    output: Format = Shown.TEXT,
    where: Where,
) -> None:
    """Print what the agent wrote. Started again with the last cursor, it misses nothing and repeats nothing."""
    session = session_of(ctx)
    if output not in {Shown.TEXT, Shown.JSON}:
        raise Usage("what an agent wrote is text", "use -o text, or -o json for one object a line")
    if tail is not None and since_cursor is not None:
        raise Usage("--tail and --since-cursor exclude each other", "give one of them")
    query = {"follow": _word(follow), "live": _word(live)} | _said(tail=tail, after=since_cursor)
    made: Callable[[Terminal], Watcher] = LogLines if output is Shown.JSON else LogText
    _finish(wait(Watch(session, where, run, "logs", query).passed_on(made)), follow=follow)


def follow_timeline(
    session: Session, where: Where, run: str, output: Shown, *, everything: bool, after: int | None
) -> None:
    """Print each record as it comes, until the run ends; each is verified to follow the one before."""
    if output not in {Shown.TEXT, Shown.JSON}:
        raise Usage("a timeline that goes on is no list", "use -o text, or -o json for one object a line")
    query = {"all": "true"} | _said(after=after)

    def made(terminal: Terminal) -> Watcher:
        return Facts(terminal, output, everything=everything)

    _finish(wait(Watch(session, where, run, "timeline", query).passed_on(made)), follow=True)


def _word(flag: bool) -> str:
    return str(flag).lower()


def _said(**numbers: int | None) -> dict[str, str]:
    return {name: str(number) for name, number in numbers.items() if number is not None}


class Watcher(Protocol):
    """What is made of a stream's events."""

    def take(self, event: Event) -> None:
        """Print one. Raises CliError."""

    def done(self) -> None:
        """No more come."""


@dataclass(frozen=True)
class Watch:
    """One stream of one run, as it was asked for."""

    session: Session
    where: Where
    run: str
    door: str
    query: Mapping[str, str]

    async def passed_on(self, made: Callable[[Terminal], Watcher]) -> StreamEnd | None:
        """How the run ended, where its end came. Raises CliError; whoever is interrupted is told how to go on."""
        terminal = self.session.terminal
        async with evidence_of(self.session, self.where, self.run) as evidence:
            following = evidence.following(self.door, self.query, terminal.note)
            try:
                end = await _passed_on(evidence, following, made(terminal))
            except (CliError, asyncio.CancelledError):
                if following.cursor is not None:
                    terminal.note(f"to go on from here: --since-cursor {following.cursor}")
                raise
            if end is not None and following.goes_on:
                terminal.note(f"{evidence.name} is {end.phase} ({end.reason})")
            return end


async def _passed_on(evidence: Evidence, following: Following, watcher: Watcher) -> StreamEnd | None:
    end = None
    events = evidence.pushed_on(following.events()) if following.goes_on else following.events()
    async with aclosing(events):
        async for event in events:
            watcher.take(event)
            if event.kind == StreamKind.END:
                end = StreamEnd.model_validate_json(event.data)
    watcher.done()
    return end


def _finish(end: StreamEnd | None, *, follow: bool) -> None:
    """Whoever follows a run learns how it ended."""
    if follow and (end is None or end.phase != RunPhase.SUCCEEDED):
        raise typer.Exit(Exit.FAILED)


# --- what the agent wrote ---------------------------------------------------------------------------------------------


class LogText:
    """As it is; to a person's terminal, as the text that it shows: an agent wrote it."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._harmless = Harmless() if terminal.raw.isatty() else None
        self._torn = False  # the last line has no end yet

    def take(self, event: Event) -> None:
        """See Watcher."""
        if event.kind == StreamKind.OUTPUT:
            self._write(written(Output.model_validate_json(event.data)))
        elif event.kind == StreamKind.GAP:
            mark = f"[{missing(Gap.model_validate_json(event.data))}]\n".encode()
            self._write(b"\n" + mark if self._torn else mark)

    def done(self) -> None:
        """See Watcher."""
        if self._harmless:
            self._terminal.write(self._harmless.feed(b"", final=True))

    def _write(self, data: bytes) -> None:
        if data:
            self._torn = not data.endswith(b"\n")
            self._terminal.write(self._harmless.feed(data) if self._harmless else data)


class LogLines:
    """One JSON object a line, with the cursor to go on from."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def take(self, event: Event) -> None:
        """See Watcher."""
        match event.kind:
            case StreamKind.OUTPUT:
                said = Output.model_validate_json(event.data)
                told = said.model_dump(exclude_none=True) | {"at": rfc3339(said.at)}
                self._terminal.line({"cursor": event.id, **told})
            case StreamKind.GAP:
                gap = Gap.model_validate_json(event.data).model_dump(exclude_none=True)
                self._terminal.line({"cursor": event.id, "gap": gap})
            case StreamKind.END:
                end = StreamEnd.model_validate_json(event.data).model_dump()
                self._terminal.line({"cursor": event.id, "end": end})

    def done(self) -> None:
        """See Watcher."""


def written(output: Output) -> bytes:
    """The bytes of a chunk. Raises ValueError for what is no base64."""
    return output.text.encode("utf-8", "replace") if output.text is not None else base64.b64decode(output.data or "")


def missing(gap: Gap) -> str:
    """In words."""
    size = "output" if gap.size is None else f"{gap.size} bytes of output"
    match gap.reason:
        case "Dropped":
            return f"{size} dropped here"
        case "Erased":
            return "output was erased"
        case "Pruned":
            return "the journal's retention is over: its records are gone"
        case "Behind":
            return f"{size} skipped here: {gap.full or 'the whole log'} has it"
        case "Tail":
            return "what came before is too long to be looked through: ask without --tail"


# --- the journal ------------------------------------------------------------------------------------------------------


class Facts:
    """A row for each record; the chain is verified as it comes."""

    def __init__(self, terminal: Terminal, output: Shown, *, everything: bool) -> None:
        self._terminal, self._output, self._everything = terminal, output, everything
        self._chain: ChainVerifier | None = None
        self._replay: Replay | None = None
        self._begun = False

    def take(self, event: Event) -> None:
        """See Watcher. Raises CliError at the first bad record."""
        match event.kind:
            case StreamKind.RECORD:
                self._record(self._verified(_stored(event)))
            case StreamKind.GAP:
                self._terminal.note(missing(Gap.model_validate_json(event.data)))
            case StreamKind.END if self._output is Shown.JSON:
                self._terminal.line({"end": StreamEnd.model_validate_json(event.data).model_dump()})

    def done(self) -> None:
        """What all rows come to, where all were seen."""
        for line in recap(self._replay.state) if self._replay and self._output is Shown.TEXT else ():
            self._terminal.note(line)

    def _verified(self, stored: Stored) -> Record:
        if self._chain is None:
            first = decode(stored)
            self._chain = ChainVerifier(Head(first.seq - 1, first.prev_hash), first.run_uid)
            self._replay = Replay() if first.seq == 0 else None
        broken = self._chain.feed(stored)
        if broken is not None or self._chain.last is None:
            why = broken.why if broken else "it can't be read"
            raise CliError(f"not intact: record {broken.offset if broken else '?'} is the first bad one: {why}")
        return self._chain.last

    def _record(self, record: Record) -> None:
        self._follow(record)
        if record.type == RecordType.AGENT_OUTPUT and not self._everything:
            return
        if self._output is Shown.JSON:
            self._terminal.line(row(record).as_json())
            return
        page = timeline_page([row(record)], self._terminal.out.width, header=not self._begun)
        self._begun = True
        self._terminal.out.print(page)

    def _follow(self, record: Record) -> None:
        try:
            if self._replay:
                self._replay.feed(record)
        except (IllegalMove, KeyError, TypeError, ValueError):
            self._replay = None  # the rows alone are shown


def _stored(event: Event) -> Stored:
    try:
        return parse_record(Line(1, 0, event.data))
    except Malformed as error:
        raise CliError(f"the journal can't be read: {error}") from None
