"""What commands write: tables and progress for people, JSON and YAML for programs.

Results go to standard output, everything else to standard error, so that a pipe sees results alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import Any, BinaryIO, Literal

import yaml
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from moorage.cli.exits import CliError
from moorage.cli.ports import LocalResult, Progress
from moorage.cli.timeline import Row
from moorage.cli.untrusted import harmless
from moorage.core.journal.chain import Broken
from moorage.core.journal.export import Verdict
from moorage.core.journal.heads import key_of
from moorage.core.journal.lineage import Repair
from moorage.core.journal.pruning import Pruned

PHASE_STYLES = {"Succeeded": "green", "Failed": "red", "Cancelled": "yellow", "Running": "cyan"}
PIPED_WIDTH = 160  # of tables that no terminal shows
CHECK_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


class Output(StrEnum):
    """`-o`: how an object is printed."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


@dataclass
class Terminal:
    """Where a command writes to."""

    out: Console
    err: Console
    raw: BinaryIO
    started: float = field(default_factory=time.monotonic)

    def note(self, text: str) -> None:
        """Tell a person something beside the result."""
        with contextlib.suppress(OSError):  # O1: a reader that has gone ends no run, nor does a full disk
            self.err.print(escape(harmless(text)), style="dim", highlight=False, soft_wrap=True)

    def fault(self, error: CliError) -> None:
        """Say what went wrong and what to do."""
        with contextlib.suppress(OSError):  # the exit code says it, too
            said = Text.assemble(("error: ", "bold red"), harmless(error.message))
            self.err.print(said, highlight=False, soft_wrap=True)
            if error.hint:
                hint = Text.assemble(("hint: ", "bold"), harmless(error.hint))
                self.err.print(hint, highlight=False, soft_wrap=True)

    def aside(self) -> Terminal:
        """The same, with results on standard error: standard output may be what was asked to be written to."""
        return replace(self, out=self.err)

    def write(self, data: bytes) -> None:
        """Pass bytes on as they are."""
        self.raw.write(data)
        self.raw.flush()

    def data(self, value: Mapping[str, Any] | list[Any], output: Output) -> None:
        """Print plain data as JSON or YAML."""
        if output is Output.YAML:
            text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
        else:
            text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        self.write(text.encode())

    def line(self, value: Mapping[str, Any]) -> None:
        """Print one of the objects of a list that may never end, as JSON in a line."""
        self.write(f"{json.dumps(value, ensure_ascii=False)}\n".encode("utf-8", "replace"))

    def listed(self, values: Iterable[Mapping[str, Any]], output: Output) -> None:
        """Print a list as JSON or YAML, as `data` does, one by one: it may be longer than memory."""
        first = True
        for value in values:
            self.write(_item(value, output, first=first).encode())
            first = False
        if first:
            self.write(b"[]\n")
        elif output is not Output.YAML:
            self.write(b"\n]\n")

    def progress(self, seen: Progress) -> None:
        """One line per change of a local run."""
        elapsed = f"{time.monotonic() - self.started:6.1f} s"
        parts = [Text(f"[{elapsed}] "), Text(seen.phase, style=PHASE_STYLES.get(seen.phase, ""))]
        details = [seen.reason] if seen.reason and seen.reason != seen.phase else []
        details += [f"iteration {seen.iteration}"] if seen.iteration else []
        details += [f"{seen.tokens} tokens"] if seen.tokens else []
        details += [seen.message] if seen.message else []
        if details:
            parts.append(Text(harmless("  " + " · ".join(details))))
        with contextlib.suppress(OSError):  # O1: as in `note`
            self.err.print(Text.assemble(*parts), highlight=False, soft_wrap=True)


class _Console(Console):
    """One that leaves the end of its process to others."""

    def on_broken_pipe(self) -> None:
        """Raise what is being handled, instead of SystemExit: a reader of standard error may go, and a run goes on."""
        raise  # noqa: PLE0704  rich calls this within its handler


def terminal() -> Terminal:
    """This process's own streams; a stream that was closed at its start is `/dev/null`."""
    _open_closed()
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    styled: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"  # rich would still print bold
    out, err = _Console(width=width, color_system=styled), _Console(stderr=True, color_system=styled)
    return Terminal(out, err, sys.stdout.buffer)


def _open_closed() -> None:
    """No file that is opened later may get the number of a standard stream: what is printed would go into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free is this one
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _item(value: Mapping[str, Any], output: Output, *, first: bool) -> str:
    if output is Output.YAML:
        return yaml.safe_dump([value], sort_keys=False, allow_unicode=True)
    return ("[\n" if first else ",\n") + textwrap.indent(json.dumps(value, indent=2, ensure_ascii=False), "  ")


COLUMNS = ("TIME", "EPOCH", "ITER", "WHAT HAPPENED", "SEEN BY")
WRAPS = COLUMNS.index("WHAT HAPPENED")
USUAL = (len("2026-01-31 10:00:00.123"), 5, 4, 24, len("operator (observed)"))  # cells
RIGHT = {"EPOCH", "ITER"}
GAP = 2  # cells between two columns
PAGE = 500  # rows that are laid out at a time


def timeline_tables(rows: Callable[[], Iterable[Row]], room: int) -> Iterator[Table]:
    """The timeline for people, in tables that are one to the eye, in `room` cells. What was reported is dim: nobody
    trusted saw it.

    `rows` is asked twice, first for the widths, so that no more than a page of them is held.
    """
    widths = [len(name) for name in COLUMNS]
    for row in rows():
        widths = [max(width, cell_len(cell)) for width, cell in zip(widths, _cells(row), strict=True)]
    others = sum(widths) - widths[WRAPS] + GAP * (len(COLUMNS) - 1)
    widths[WRAPS] = max(len(COLUMNS[WRAPS]), min(widths[WRAPS], room - others))
    shown, begun = iter(rows()), False
    while (page := list(islice(shown, PAGE))) or not begun:
        yield _page(page, widths, header=not begun)
        begun = True


def timeline_page(rows: Iterable[Row], room: int, *, header: bool) -> Table:
    """Some rows of a timeline whose others aren't known yet, in columns that suit most."""
    others = sum(width for place, width in enumerate(USUAL) if place != WRAPS) + GAP * (len(COLUMNS) - 1)
    widths = [max(USUAL[WRAPS], room - others) if place == WRAPS else width for place, width in enumerate(USUAL)]
    return _page(rows, widths, header=header)


def _page(rows: Iterable[Row], widths: Iterable[int], *, header: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=header)
    for place, (name, width) in enumerate(zip(COLUMNS, widths, strict=True)):
        side: JustifyMethod = "right" if name in RIGHT else "left"
        table.add_column(name, no_wrap=place != WRAPS, overflow="fold", justify=side, width=width)
    for row in rows:
        table.add_row(*map(Text, _cells(row)), style="dim" if row.assurance == "reported" else "")
    return table


def _cells(row: Row) -> tuple[str, ...]:
    at = row.as_json()["at"].replace("T", " ").removesuffix("Z")
    iteration = "" if row.iteration is None else str(row.iteration)
    return at, str(row.epoch), iteration, row.what, f"{row.seen_by} ({row.assurance})"


def result_data(result: LocalResult) -> dict[str, Any]:
    """A local run's end as plain data, named as in an AgentRun's status."""
    return {
        "name": result.name,
        "uid": result.uid,
        "phase": result.phase,
        "reason": result.reason,
        "message": result.message,
        "result": {"summary": result.summary, "commit": result.commit, "pullRequest": result.pull_request},
        "workspace": {
            "branch": result.branch,
            "repository": str(result.repository) if result.repository else None,
        },
        "usage": {"tokens": result.tokens, "costMicros": result.cost_micros},
        "journal": {"offset": result.journal_offset, "hash": result.journal_hash},
        "sandbox": result.sandbox,
        "conditions": [asdict(each) for each in result.conditions],
    }


def result_text(result: LocalResult) -> Text:
    """A local run's end for people, with what to do next."""
    text = Text.assemble((result.phase, PHASE_STYLES.get(result.phase, "")), f"  {harmless(result.reason)}")
    if result.message:
        text.append(f": {harmless(result.message)}")
    if result.summary:
        text.append(f"\n  summary  {harmless(result.summary)}")
    for word, said in _whereabouts(result):
        text.append(f"\n  {word:<8} {said}")
    if result.sandbox:
        text.append(f"\n  sandbox  {result.sandbox}")
    if any((each.type, each.reason) == ("Accepted", "Unisolated") for each in result.conditions):
        text.append("\n  accepted by commands without a sandbox of their own: reported, not proved", "yellow")
    text.append(f"\n  journal  moorage timeline {result.uid}")
    return text


def _whereabouts(result: LocalResult) -> Iterator[tuple[str, str]]:
    """Where to look at what it came to."""
    if not result.commit:
        return
    if not result.branch:
        yield "commit", f"{result.commit[:12]}, delivered to no branch"
        yield "look", f"moorage diff {result.uid}"
        return
    there = f" in {result.repository}" if result.repository else ""
    yield "branch", f"{result.branch} at {result.commit[:12]}{there}"
    if result.pull_request:
        yield "merge", harmless(result.pull_request)
    if result.repository:
        yield "look", f"git -C {shlex.quote(str(result.repository))} log -p -1 {result.branch}"


def pruned_words(gone: Pruned) -> str:
    """What stands for a journal whose retention is over."""
    times = f"sealed at {_moment(gone.sealed_at)}, pruned at {_moment(gone.pruned_at)}"
    return f"pruned: records 0 to {gone.last}, {times}, signed by key {key_of(gone.signature)}"


def _moment(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="seconds")


def repair_data(repair: Repair) -> dict[str, object]:
    """A repair as data."""
    return {"generation": repair.generation, "dropped": list(repair.dropped), "why": repair.why}


def tell_verdict(terminal: Terminal, verdict: Verdict, output: Output) -> None:
    """Print a verdict; a broken chain ends the command with exit code 1."""
    chain, header = verdict.chain, verdict.header
    intact = not isinstance(chain, Broken)
    records = chain.offset if isinstance(chain, Broken) else chain.records
    data = {
        "run": header.name if header else None,
        "namespace": header.tenant if header else None,
        "runUid": header.run_uid if header else None,
        "intact": intact,
        "records": records,
        "head": None if isinstance(chain, Broken) else chain.hash,
        "pruned": header.pruned.said() if header and header.pruned else None,
        "repairs": [] if isinstance(chain, Broken) else [repair_data(each) for each in chain.repairs],
        "firstBadRecord": None
        if not isinstance(chain, Broken)
        else {"offset": chain.offset, "recordId": chain.record_id, "why": chain.why},
    }
    if output in {Output.JSON, Output.YAML}:
        terminal.data(data, output)
    elif output is Output.NAME:
        terminal.write(f"agentrun/{data['run']}\n".encode())
    elif not isinstance(chain, Broken):
        found = pruned_words(header.pruned) if header and header.pruned else f"intact: {records} records"
        terminal.out.print(f"{found}, head {chain.hash}", highlight=False, soft_wrap=True)
        for each in chain.repairs:
            gap = f"offsets {each.dropped.first} to {each.dropped.last} dropped, because of {each.why}"
            terminal.out.print(
                f"repaired: generation {each.generation}, {gap}", highlight=False, soft_wrap=True, markup=False
            )
    if isinstance(chain, Broken):
        raise CliError(
            f"not intact: record {chain.offset} ({chain.record_id or 'unreadable'}) is the first bad one: {chain.why}",
            f"records before it, if any, are sound: {chain.offset} of them" if chain.offset else "",
        )
