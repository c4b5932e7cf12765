"""`moorage top`: the runs that are live now, what each is doing, and what it spends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from moorage.api.quantity import dollars
from moorage.api.streaming import RunNow, StreamKind
from moorage.cli.exits import Usage
from moorage.cli.listing import age
from moorage.cli.render import PHASE_STYLES, Output, Terminal
from moorage.cli.session import Format, Watched, Where, looking, session_of, wait, watched
from moorage.cli.timeline import bounded, rfc3339

KEPT_MS = 60_000  # a run that has ended is shown for so long
REFRESH_S = 0.5  # of a terminal
LOOK_S = 5.0  # between two looks at what no stream tells
INTERRUPTED = "Interrupted"
PAUSED = "Paused"
COLUMNS = {
    "NAMESPACE": 12,
    "NAME": 20,
    "PHASE": 12,
    "DOING": 20,
    "ITER": 4,
    "TOKENS": 8,
    "TOKENS/MIN": 10,
    "COST": 6,
    "AGE": 4,
}
"""Each with the cells that it has at least: lines that are printed apart stand below each other."""

RIGHT = {"ITER", "TOKENS", "TOKENS/MIN", "COST", "AGE"}


@looking
def top(
    ctx: typer.Context,
    *,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Of all namespaces that you may read.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until interrupted.")] = False,
    output: Format = Output.TEXT,
    where: Where,
) -> None:
    """Show the live runs: what each is doing, its iterations, tokens, cost, and tokens a minute lately."""
    session = session_of(ctx)
    if watch and output not in {Output.TEXT, Output.JSON}:
        raise Usage("what goes on is no list", "use -o text, or -o json for one object a line")
    terminal, screen = session.terminal, Screen()

    async def work() -> None:
        async with watched(session, where, everywhere=everywhere, follow=watch) as namespaces:
            if not watch:
                await asyncio.gather(*(_fed(screen, each) for each in namespaces))
                await asyncio.gather(*(_looked_after(screen, each) for each in namespaces))
                _tell(terminal, screen.shown(), output, everywhere=everywhere)
                return
            in_place = output is Output.TEXT and terminal.out.is_terminal
            showing = (
                _shown_live(terminal, screen, everywhere=everywhere)
                if in_place
                else _listed_on(terminal, screen, output, everywhere=everywhere)
            )
            await _together(showing, *_feeding(screen, namespaces))

    wait(work())


@dataclass
class Screen:
    """What is known of the runs. `changed` is set whenever that is more than before; `fresh` are the runs it was of;
    `known` are those that a gateway told of.
    """

    runs: dict[str, RunNow] = field(default_factory=dict)
    fresh: list[RunNow] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, run: RunNow) -> None:
        """A run is told, perhaps not for the first time."""
        before = self.runs.get(run.uid)
        self.runs[run.uid] = run
        if before is None or before.model_copy(update={"now": run.now}) != run:
            self.fresh.append(run)
            self.changed.set()

    def wait(self, namespace: str, runs: Sequence[RunNow]) -> None:
        """These wait for their admission, and nobody else does."""
        still = {run.uid for run in runs}
        for uid in [uid for uid, run in self.runs.items() if run.namespace == namespace]:
            if uid not in self.known | still:
                del self.runs[uid]
                self.changed.set()
        for run in runs:
            if run.uid not in self.known:
                self.take(run)

    def shown(self) -> list[RunNow]:
        """Those that spend most come first; ended ones go after a while."""
        now = max((run.now for run in self.runs.values()), default=0)
        gone = [uid for uid, run in self.runs.items() if run.ended_at is not None and run.ended_at < now - KEPT_MS]
        for uid in gone:
            del self.runs[uid]
        return sorted(self.runs.values(), key=lambda run: (-run.tokens_per_minute, -run.cost_micros, run.name, run.uid))


async def _fed(screen: Screen, namespace: Watched) -> None:
    """Each run as it is told, to the stream's end."""
    async with aclosing(namespace.following.events()) as events:
        async for event in events:
            if event.kind == StreamKind.RUN:
                run = RunNow.model_validate_json(event.data)
                screen.known.add(run.uid)
                screen.take(await _standing(namespace, run))


async def _standing(namespace: Watched, run: RunNow) -> RunNow:
    """Runs of this machine may have lost their owner, of which no gateway knows."""
    if (
        run.ended_at is None
        and run.phase != PAUSED
        and namespace.abandoned is not None
        and await namespace.abandoned(run.uid)
    ):
        return run.model_copy(update={"phase": INTERRUPTED, "doing": "nobody works on it", "tokens_per_minute": 0})
    return run


async def _looked_after(screen: Screen, namespace: Watched) -> None:
    """What no gateway tells: that an owner has died, and which runs wait for their admission."""
    for run in list(screen.runs.values()) if namespace.abandoned is not None else ():
        screen.take(await _standing(namespace, run))
    if namespace.waiting is not None:
        screen.wait(namespace.name, await namespace.waiting())


async def _kept_looked_after(screen: Screen, namespace: Watched) -> None:
    while True:
        await _looked_after(screen, namespace)
        await asyncio.sleep(LOOK_S)


async def _together(*work: Coroutine[Any, Any, None]) -> None:
    """All at once; the first that fails ends the others."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _feeding(screen: Screen, namespaces: Iterable[Watched]) -> Iterator[Coroutine[Any, Any, None]]:
    for each in namespaces:
        yield _fed(screen, each)
        yield _kept_looked_after(screen, each)


async def _shown_live(terminal: Terminal, screen: Screen, *, everywhere: bool) -> None:
    """One table that changes in its place."""
    with Live(_table([], everywhere=everywhere), console=terminal.out, auto_refresh=False) as live:
        while True:
            live.update(_table(screen.shown(), everywhere=everywhere), refresh=True)
            await screen.changed.wait()
            screen.changed.clear()
            await asyncio.sleep(REFRESH_S)


async def _listed_on(terminal: Terminal, screen: Screen, output: Output, *, everywhere: bool) -> None:
    """A line for each change."""
    header = True
    while True:
        await screen.changed.wait()
        screen.changed.clear()
        fresh, screen.fresh = screen.fresh, []
        for run in fresh if output is Output.JSON else ():
            terminal.line(_data(run))
        if output is not Output.JSON:
            terminal.out.print(_table(fresh, everywhere=everywhere, header=header))
            header = False


def _tell(terminal: Terminal, runs: Sequence[RunNow], output: Output, *, everywhere: bool) -> None:
    if output is Output.NAME:
        terminal.write("".join(f"agentrun/{run.name}\n" for run in runs).encode())
    elif output is not Output.TEXT:
        terminal.data([_data(run) for run in runs], output)
    elif runs:
        terminal.out.print(_table(runs, everywhere=everywhere))
    else:
        terminal.note("no run is live")


def _data(run: RunNow) -> dict[str, Any]:
    return {
        "namespace": run.namespace,
        "name": run.name,
        "uid": run.uid,
        "phase": run.phase,
        "doing": run.doing,
        "attempt": run.attempt,
        "iteration": run.iteration,
        "tokens": run.tokens,
        "tokensPerMinute": run.tokens_per_minute,
        "costMicros": run.cost_micros,
        "createdAt": rfc3339(run.created_at),
        "endedAt": rfc3339(run.ended_at) if run.ended_at is not None else None,
    }


def _table(runs: Iterable[RunNow], *, everywhere: bool, header: bool = True) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=header)
    for name, width in COLUMNS.items():
        if name != "NAMESPACE" or everywhere:
            table.add_column(name, no_wrap=True, min_width=width, justify="right" if name in RIGHT else "left")
    for run in runs:
        table.add_row(*_cells(run)[0 if everywhere else 1 :])
    return table


def _cells(run: RunNow) -> tuple[Text, ...]:
    return (
        Text(run.namespace),
        Text(run.name),
        Text(run.phase, style=PHASE_STYLES.get(run.phase, "")),
        Text(bounded(run.doing)),
        Text(str(run.iteration)),
        Text(str(run.tokens)),
        Text(str(run.tokens_per_minute)),
        Text(dollars(run.cost_micros)),
        Text(age(run.now - run.created_at)),
    )
