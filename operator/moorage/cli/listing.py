"""`moorage list`: which runs this machine knows. Those of a cluster are listed by kubectl."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from moorage.cli.exits import Usage
from moorage.cli.ports import ListedRun
from moorage.cli.render import PHASE_STYLES, Output, Terminal
from moorage.cli.session import Format, Where, looking, past_runs, session_of, state_folder, wait
from moorage.cli.timeline import bounded, rfc3339

UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000))


@looking
def listed(ctx: typer.Context, *, output: Format = Output.TEXT, where: Where) -> None:
    """List the runs of this machine, newest first."""
    session = session_of(ctx)
    if where.on_cluster(session):
        raise Usage("only runs of this machine are listed here", "on a cluster: kubectl get agentruns")
    folder = state_folder(session, where.state)

    async def work() -> Sequence[ListedRun]:
        if not folder.is_dir():
            return ()
        async with past_runs(session, folder) as local:
            return await local.listed()

    _tell(session.terminal, wait(work()), output)


def _tell(terminal: Terminal, runs: Sequence[ListedRun], output: Output) -> None:
    if output is Output.NAME:
        terminal.write("".join(f"agentrun/{each.name}\n" for each in runs).encode())
    elif output is not Output.TEXT:
        terminal.data([_data(each) for each in runs], output)
    elif runs:
        terminal.out.print(_table(runs, time.time_ns() // 1_000_000))
    else:
        terminal.note("no run was made here yet")


def _data(run: ListedRun) -> dict[str, Any]:
    return {
        "name": run.name,
        "uid": run.uid,
        "phase": run.phase,
        "createdAt": rfc3339(run.created_at),
        "branch": run.branch,
    }


def _table(runs: Sequence[ListedRun], now: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("NAME", "PHASE", "AGE", "BRANCH", "UID"):
        table.add_column(name, no_wrap=name in {"AGE", "UID"}, overflow="fold")
    for each in runs:
        phase = Text(each.phase, style=PHASE_STYLES.get(each.phase, ""))
        table.add_row(Text(each.name), phase, age(now - each.created_at), Text(bounded(each.branch or "")), each.uid)
    return table


def age(ms: int) -> str:
    """In the largest unit of which it is one at least: `3h`, and `0s` where clocks have stepped back."""
    for unit, size in UNITS:
        if ms >= size:
            return f"{ms // size}{unit}"
    return f"{max(0, ms) // 1000}s"
