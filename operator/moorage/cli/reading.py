"""The commands that read what was kept of a run: timeline, diff, export."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Annotated

import typer

from moorage.cli.evidence import Evidence
from moorage.cli.exits import CliError, Usage
from moorage.cli.render import Output, Terminal, tell_verdict, timeline_tables
from moorage.cli.session import (
    Format,
    RunName,
    Session,
    Where,
    evidence_of,
    looking,
    session_of,
    wait,
)
from moorage.cli.timeline import Row, recap, row
from moorage.cli.untrusted import Harmless
from moorage.cli.watching import Cursor, follow_timeline
from moorage.cli.writing import is_file, writing
from moorage.core.journal.chain import Broken
from moorage.core.journal.errors import Malformed
from moorage.core.journal.export import Verdict, parse_header, parse_record, read_lines, verify_export
from moorage.core.journal.record import Record, RecordType, decode
from moorage.core.run.phases import IllegalMove
from moorage.core.run.reducer import Replay

CHUNK = 256 * 1024
IN_MEMORY = 4 * 1024 * 1024  # an exported journal up to this size stays off the disk


@looking
def diff(
    ctx: typer.Context,
    *,
    run: RunName,
    where: Where,
) -> None:
    """Print what the run proposes, or delivered, against its base."""

    async def work(session: Session) -> None:
        async with evidence_of(session, where, run) as evidence:
            await _pass_on(evidence.diff(), session.terminal)

    wait(work(session_of(ctx)))


@looking
def timeline(
    ctx: typer.Context,
    *,
    run: RunName,
    output: Format = Output.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Chunks of output too.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    since_cursor: Cursor = None,
    where: Where,
) -> None:
    """Show the journal: what happened, when, under which epoch, and who saw it."""
    session = session_of(ctx)
    chosen = Output.JSON if as_json else output
    if chosen is Output.NAME:
        raise Usage("a timeline has no names to print", "use -o text, json or yaml")
    if follow:
        follow_timeline(session, where, run, chosen, everything=everything, after=since_cursor)
        return
    if since_cursor is not None:
        raise Usage("--since-cursor is for --follow", "without it the whole journal is shown, and verified")

    async def work() -> None:
        async with _exported(session, where, run) as file:
            _show(file, session.terminal, chosen, everything=everything)

    wait(work())


@looking
def export(
    ctx: typer.Context,
    *,
    run: RunName,
    file: Annotated[Path, typer.Option("--output-file", "-o", help="File to write, - for standard output.")],
    where: Where,
) -> None:
    """Write a run's journal to a file that `moorage verify -f` checks without any cluster."""
    session = session_of(ctx)

    async def work() -> Verdict:
        async with _exported(session, where, run) as exported:
            _write(exported, file, session.terminal)
            return verify_export(chunks_of(exported))

    apart = is_file(file)
    verdict = wait(work())
    if apart:
        session.terminal.note(f"wrote {file}")
    tell_verdict(session.terminal if apart else session.terminal.aside(), verdict, Output.TEXT)


async def _pass_on(chunks: AsyncIterator[bytes], terminal: Terminal) -> None:
    """As they are; to a person's terminal, as the text that they show: an agent wrote them."""
    harmless = Harmless() if terminal.raw.isatty() else None
    async for chunk in chunks:
        terminal.write(harmless.feed(chunk) if harmless else chunk)
    if harmless:
        terminal.write(harmless.feed(b"", final=True))


@contextlib.asynccontextmanager
async def _exported(session: Session, where: Where, run: str) -> AsyncIterator[IO[bytes]]:
    """A run's exported journal as a file, from its start. Memory is bounded, whatever the journal's length."""
    async with evidence_of(session, where, run) as evidence, spooled(evidence) as file:
        yield file


@contextlib.asynccontextmanager
async def spooled(evidence: Evidence) -> AsyncIterator[IO[bytes]]:
    """The exported journal, from its start."""
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as file:
        async for chunk in evidence.journal():
            file.write(chunk)
        yield file


def chunks_of(file: IO[bytes]) -> Iterator[bytes]:
    """All of a file, from its start, in chunks."""
    file.seek(0)
    while chunk := file.read(CHUNK):
        yield chunk


def _write(source: IO[bytes], path: Path, terminal: Terminal) -> None:
    with writing(path, terminal.raw) as file:
        for chunk in chunks_of(source):
            file.write(chunk)


def _show(file: IO[bytes], terminal: Terminal, output: Output, *, everything: bool) -> None:
    """Print the timeline up to the first bad record, and fail if there is one. Memory is bounded."""
    verdict = verify_export(chunks_of(file))
    sound = verdict.sound

    def rows() -> Iterator[Row]:
        return _rows(file, sound, everything=everything) if verdict.header else iter(())

    if output is Output.TEXT:
        for table in timeline_tables(rows, terminal.out.width):
            terminal.out.print(table)
        for line in _recap(file, sound):
            terminal.note(line)
    else:
        terminal.listed((each.as_json() for each in rows()), output)
    if isinstance(verdict.chain, Broken):
        tell_verdict(terminal, verdict, Output.TEXT)


def _recap(file: IO[bytes], limit: int) -> list[str]:
    """Nothing, where the records don't follow from each other: then the rows alone are shown."""
    replayed = Replay()
    try:
        for record in records_of(file, limit) if limit else ():
            replayed.feed(record)
    except (IllegalMove, KeyError, TypeError, ValueError):
        return []
    return recap(replayed.state)


def _rows(file: IO[bytes], limit: int, *, everything: bool) -> Iterator[Row]:
    for record in records_of(file, limit):
        if everything or record.type != RecordType.AGENT_OUTPUT:
            yield row(record)


def records_of(file: IO[bytes], limit: int) -> Iterator[Record]:
    """The first `limit` records, which have been verified."""
    lines = read_lines(chunks_of(file))
    parse_header(next(lines))
    for _, line in zip(range(limit), lines, strict=False):
        try:
            yield decode(parse_record(line))
        except Malformed as error:
            raise CliError(f"the journal can't be read: {error}") from None
