"""The command of the three replays: `replay` (P4)."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import httpx
import orjson
import typer

from moorage.cli.evidence import Evidence
from moorage.cli.exits import CliError, NotFound, Unreachable, Usage
from moorage.cli.reading import chunks_of, records_of, spooled
from moorage.cli.render import Output, Terminal, tell_verdict
from moorage.cli.session import Format, RunName, Where, evidence_of, looking, session_of, wait
from moorage.cli.writing import is_file, writing
from moorage.clock import SystemClock
from moorage.core.evidence import tar
from moorage.core.journal.chain import Broken
from moorage.core.journal.export import header_line, record_line, verify_export
from moorage.core.journal.plain import plain
from moorage.core.journal.record import Record, Retention
from moorage.core.models.anthropic import MESSAGES
from moorage.core.models.spoken import PROTOCOLS
from moorage.core.recovery.counterfactual import Answer, Fork, NoSuchQuestion, WhatIf, counterfactual, fork
from moorage.core.recovery.replays import Report, audit, state_hash
from moorage.core.run.phases import IllegalMove
from moorage.core.run.reducer import Replay
from moorage.core.run.state import RunState

PATIENCE = httpx.Timeout(600.0, connect=10.0)


@looking
def replay(
    ctx: typer.Context,
    *,
    run: RunName,
    audited: Annotated[bool, typer.Option("--audit", help="Check and explain every record.")] = False,
    what_if: Annotated[
        str, typer.Option("--what-if", metavar="URL", help="Ask this model provider what the run had asked one.")
    ] = "",
    at: Annotated[int | None, typer.Option("--at", min=0, help="With --what-if: the request at or before.")] = None,
    model: Annotated[str, typer.Option("--model", help="With --what-if: another model.")] = "",
    key_env: Annotated[str, typer.Option("--key-env", help="Variable with the provider's key.")] = "ANTHROPIC_API_KEY",
    file: Annotated[Path | None, typer.Option("--into", help="With --what-if: journal to write.")] = None,
    output: Format = Output.TEXT,
    where: Where,
) -> None:
    """Rebuild a run's state from its journal; check it; or ask a model again, in the journal of a new run."""
    session = session_of(ctx)
    if bool(what_if) != (file is not None) or (audited and what_if):
        raise Usage(
            "--what-if and --into FILE go together, and without --audit", "moorage replay RUN --what-if URL --into new"
        )
    if file and not is_file(file):
        raise Usage(f"--into {file}: that is no file", "the answer is written beside the journal")
    if output is Output.NAME:
        raise Usage("a replay has no names to print", "use -o text, json or yaml")

    async def work() -> None:
        async with evidence_of(session, where, run) as found, spooled(found) as journal:
            verdict = verify_export(chunks_of(journal))
            if isinstance(verdict.chain, Broken):
                tell_verdict(session.terminal, verdict, Output.TEXT)
            if verdict.header and verdict.header.pruned:
                raise NotFound(f"the journal of {run} was pruned: its retention is over")
            records = records_of(journal, verdict.sound)
            if what_if and file:
                asked = Asked(what_if, model, os.environ.get(key_env, ""), b"")
                made = await _what_if(found, records, at, asked)
                _keep(made, file, session.terminal)
                tell_what_if(session.terminal, made, file, output)
            elif audited:
                tell_audit(session.terminal, audit(records), output)
            else:
                tell_state(session.terminal, _recovered(records), output)

    wait(work())


class Asked:
    """A provider that is asked what a run had asked, once."""

    def __init__(self, url: str, model: str, key: str, content: bytes) -> None:
        self._url, self._model, self._key, self.content = url.rstrip("/"), model, key, content

    def __call__(self, forked: Fork) -> Answer:
        """Ask, not streamed, in the protocol of the recorded request. Raise CliError."""
        protocol = PROTOCOLS.get(str((forked.request.payload or {}).get("protocol")), MESSAGES)
        try:
            body = orjson.loads(self.content) | {"stream": False}
            body.pop("stream_options", None)  # which goes with a stream only
        except (orjson.JSONDecodeError, TypeError):
            raise CliError("what had been asked is no request that can be sent again") from None
        body["model"] = self._model or body.get("model")
        headers = {"content-type": "application/json", **protocol.versioned}
        if self._key:
            headers |= protocol.credential(self._key)
        try:
            with httpx.Client(timeout=PATIENCE, trust_env=False) as client:
                answer = client.post(f"{self._url}{protocol.path}", content=orjson.dumps(body), headers=headers)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise Unreachable(f"{self._url} can't be asked: {str(error) or type(error).__name__}") from None
        if not answer.is_success:
            raise CliError(f"{self._url} gave no answer: HTTP {answer.status_code}", "see --model and --key-env")
        usage, _estimated = protocol.read(answer.content).settled()
        return Answer(answer.status_code, answer.content, usage, str(body["model"]))


async def _what_if(evidence: Evidence, records: Iterator[Record], at: int | None, asked: Asked) -> WhatIf:
    try:
        forked = fork(records, at)
    except (NoSuchQuestion, IllegalMove) as error:
        raise CliError(str(error)) from None
    demand_readable(forked)
    asked.content = await _content(evidence, forked.content.sha256)
    return counterfactual(forked, str(uuid.uuid4()), SystemClock().now_ms(), asked)


def _keep(made: WhatIf, file: Path, terminal: Terminal) -> None:
    with writing(file, terminal.raw) as target:
        target.write(header_line(made.header))
        target.writelines(record_line(each) for each in made.records)
    with writing(file.with_name(file.name + ".answer"), terminal.raw) as target:
        target.write(made.answer.body)


def demand_readable(forked: Fork) -> None:
    """Raise CliError where what had been asked was kept for a recovery alone."""
    if forked.content.retention == Retention.REPLAY:
        why = "what had been asked is kept encrypted, for a recovery alone"
        raise CliError(why, "for runs to come, set `capture: true` in the ModelProvider")


async def _content(evidence: Evidence, sha256: str) -> bytes:
    """What was asked, out of all that the journal cites."""
    with tempfile.TemporaryFile() as file:
        async for chunk in evidence.blobs():
            file.write(chunk)
        for member in tar.members(file):
            if member.name == f"blobs/{sha256}":
                return b"".join(tar.content(file, member))
    raise NotFound("what had been asked was erased")


def _recovered(records: Iterator[Record]) -> RunState:
    replayed = Replay()
    try:
        for record in records:
            replayed.feed(record)
    except (IllegalMove, KeyError, TypeError, ValueError) as error:
        raise CliError(f"the records don't follow from each other: {error}", "--audit says where") from None
    return replayed.state


def tell_state(terminal: Terminal, state: RunState, output: Output) -> None:
    """Print what a recovery comes to."""
    if output is Output.TEXT:
        line = f"{state.phase.value} at offset {state.offset}, epoch {state.epoch}, iteration {state.iteration}"
        terminal.write(f"{line}\nstate {state_hash(state)}\n".encode())
    else:
        terminal.data({"stateHash": state_hash(state), "state": plain(state)}, output)


def tell_audit(terminal: Terminal, report: Report, output: Output) -> None:
    """Print what an audit found; findings end the command with exit code 1."""
    if output is Output.TEXT:
        lines = [f"{each.offset:>8}  {each.old} → {each.new} ({each.type})" for each in report.moves]
        lines += [f"{each.offset:>8}  ! {each.what}" for each in report.findings]
        terminal.write("".join(f"{line}\n" for line in lines).encode())
        if report.more:
            terminal.note(f"and {report.more} more")
    else:
        terminal.data(
            {
                "records": report.records,
                "stateHash": state_hash(report.state),
                "moves": [{"offset": m.offset, "type": m.type, "from": m.old, "to": m.new} for m in report.moves],
                "findings": [{"offset": f.offset, "what": f.what} for f in report.findings],
            },
            output,
        )
    if not report.sound:
        raise CliError(f"{len(report.findings)} findings in {report.records} records")
    terminal.note(f"sound: {report.records} records, state {state_hash(report.state)}")


def tell_what_if(terminal: Terminal, made: WhatIf, file: Path, output: Output) -> None:
    """Print which new run there is."""
    if output is Output.TEXT:
        word = "the same" if made.same else "another"
        terminal.write(f"{made.header.run_uid}: {word} answer, status {made.answer.status}\n".encode())
        terminal.note(f"wrote {file} and {file}.answer; check it anywhere: moorage verify -f {file}")
    else:
        terminal.data(
            {"runUid": made.header.run_uid, "same": made.same, "status": made.answer.status, "file": str(file)}, output
        )
