"""The commands that prove: `verify` a journal or a bundle, `evidence` to make one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from moorage.cli.bundle_check import Checked, check_bundle, is_bundle
from moorage.cli.bundling import Made, make
from moorage.cli.evidence import Evidence
from moorage.cli.exits import CliError, NotFound, Usage
from moorage.cli.reading import chunks_of, spooled
from moorage.cli.render import Output, Terminal, tell_verdict
from moorage.cli.session import Format, RunName, Session, Where, evidence_of, looking, session_of, wait
from moorage.cli.timeline import bounded
from moorage.cli.writing import STDOUT, writing
from moorage.core.journal.chain import Broken, Head
from moorage.core.journal.export import Verdict, verify_export
from moorage.core.journal.heads import HeadRefused, SignedHead, VerifyingKey
from moorage.core.journal.pruning import KIND_OF_STATEMENT

RunOrBundle = Annotated[
    str | None, typer.Argument(metavar="[RUN|BUNDLE]", help="Name of the run, or a bundle.", show_default=False)
]
Kept = Annotated[
    Path | None,
    typer.Option("--file", "-f", help="An exported journal or a bundle, checked offline.", show_default=False),
]
Key = Annotated[
    Path | None, typer.Option("--key", help="Public key (PEM) that must have signed the head.", show_default=False)
]


@looking
def verify(
    ctx: typer.Context,
    *,
    run: RunOrBundle = None,
    file: Kept = None,
    key: Key = None,
    output: Format = Output.TEXT,
    where: Where,
) -> None:
    """Check a journal, or a whole bundle of evidence; exit code 1 names the first bad record or member."""
    session = session_of(ctx)
    if (run is None) == (file is None):
        raise Usage("give either a RUN or -f FILE", "moorage verify RUN, or moorage verify -f exported.journal")
    trusted = _key(key) if key else None
    local = file or Path(run or "")
    if file is None and "/" in str(run):  # no run has such a name
        file = local
    if is_bundle(local):
        tell_bundle(session.terminal, check_bundle(local, trusted), output)
    elif file is None:
        tell_verdict(session.terminal, _of_run(session, where, run or "", trusted), output)
    else:
        tell_verdict(session.terminal, _kept(file, trusted), output)


@looking
def evidence(
    ctx: typer.Context,
    *,
    run: RunName,
    file: Annotated[
        Path, typer.Option("--output-file", "-o", help="Bundle to write, such as bundle.tar; - for standard output.")
    ],
    where: Where,
) -> None:
    """Write a run's evidence to one file that `moorage verify` checks on any machine."""
    session = session_of(ctx)

    async def work() -> Made:
        async with evidence_of(session, where, run) as found:
            whole = writing(file, session.terminal.raw)
            with tempfile.TemporaryDirectory(prefix="moorage-evidence-") as folder, whole as target:
                return await make(found, Path(folder), target)

    made = wait(work())
    lacking = f", {made.withheld} withheld" if made.withheld else ""
    session.terminal.note(f"wrote {file}: {made.members} members, {made.size} bytes{lacking}")
    if file != STDOUT:
        session.terminal.note(f"check it anywhere: moorage verify {file}")


def _of_run(session: Session, where: Where, run: str, trusted: VerifyingKey | None) -> Verdict:
    try:
        return wait(_stored(session, where, run, trusted))
    except NotFound as error:
        if Path(run).is_file():
            hint = f"{run} is a file, and no bundle: `moorage verify -f {run}` checks an exported journal"
            raise NotFound(error.message, hint) from None
        raise


async def _stored(session: Session, where: Where, run: str, trusted: VerifyingKey | None) -> Verdict:
    """A run's journal, against the head that its status names (J6)."""
    async with evidence_of(session, where, run) as found, spooled(found) as exported:
        told = found.published
        published = Head(told.offset, told.hash) if told else None
        verdict = verify_export(chunks_of(exported), published=published)
        _demand_signed(verdict, trusted or await _told_key(found), told, asked=trusted is not None)
        return verdict


def _kept(path: Path, trusted: VerifyingKey | None) -> Verdict:
    """An exported journal."""
    try:
        with path.open("rb") as file:
            verdict = verify_export(chunks_of(file))
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}") from None
    except OSError as error:
        raise CliError(f"{path} can't be read: {error.strerror}") from None
    _demand_signed(verdict, trusted, None, asked=trusted is not None)
    return verdict


def _key(path: Path) -> VerifyingKey:
    try:
        return VerifyingKey.read(path.read_bytes())
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}") from None
    except (OSError, HeadRefused) as error:
        raise Usage(f"{path}: {error}", "key.pem of a bundle is such a key") from None


async def _told_key(evidence: Evidence) -> VerifyingKey | None:
    pem = await evidence.head_key()
    return VerifyingKey.read(pem) if pem else None


def _demand_signed(verdict: Verdict, key: VerifyingKey | None, published: SignedHead | None, *, asked: bool) -> None:
    """J6: what is signed must be signed well, where the key is known; with `asked` it must be signed."""
    header = verdict.header
    if key is None or header is None or isinstance(verdict.chain, Broken):
        return
    if asked and header.signature is None:
        raise CliError(f"not intact: its head isn't signed, though it should be by key {key.id}")
    try:
        if header.pruned:
            gone = header.pruned
            key.check_said(KIND_OF_STATEMENT, gone.said(), gone.signature, of="the tombstone")
        if header.signature and header.hash:
            key.check(SignedHead(header.run_uid, header.offset, header.hash, header.signature))
        if published and published.signature:
            key.check(published)
    except HeadRefused as error:
        raise CliError(f"not intact: {error}", "see who changed the key or the status") from None


def tell_bundle(terminal: Terminal, checked: Checked, output: Output) -> None:
    """Print what a sound bundle says."""
    if output in {Output.JSON, Output.YAML}:
        terminal.data(_data(checked), output)
    elif output is Output.NAME:
        terminal.write(f"agentrun/{checked.title.name}\n".encode())
    else:
        for line in _lines(checked):
            terminal.out.print(line, highlight=False, soft_wrap=True, markup=False)


def _data(checked: Checked) -> dict[str, object]:
    title, header = checked.title, checked.examined.header
    return {
        "run": title.name,
        "namespace": title.tenant,
        "runUid": title.run_uid,
        "sound": True,
        "records": header.offset + 1,
        "head": header.hash,
        "key": checked.key,
        "blobs": checked.blobs,
        "withheld": checked.withheld,
        "verdict": checked.verdict,
        "notes": checked.notes,
    }


def _lines(checked: Checked) -> list[str]:
    title, header, verdict = checked.title, checked.examined.header, checked.verdict
    lacking = f", {checked.withheld} withheld" if checked.withheld else ""
    ended = " ".join(str(word) for word in (verdict["phase"], verdict["reason"]) if word)
    return [
        f"sound: {title.tenant}/{title.name} ({title.run_uid}) {ended}",
        f"journal  {header.offset + 1} records, head {header.hash}",
        f"content  {checked.blobs} blobs{lacking}",
        f"result   {verdict['commit'] or 'none'}",
        *(f"note     {bounded(note)}" for note in checked.notes),
    ]
