"""`moorage usage`: what the models of a namespace took, day by day."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import httpx
import typer
from pydantic.alias_generators import to_camel as camel
from rich.table import Table

from moorage.api.quantity import dollars
from moorage.api.wire import DayUsage, NamespaceUsage
from moorage.cli.exits import Usage
from moorage.cli.render import Output, Terminal
from moorage.cli.session import Format, Watched, Where, looking, session_of, wait, watched

COLUMNS = ("DAY", "RUNS", "REQUESTS", "RETRIES", "INPUT", "CACHE READ", "CACHE WRITE", "OUTPUT", "COST")


@looking
def usage(ctx: typer.Context, *, output: Format = Output.TEXT, where: Where) -> None:
    """Show what the models of a namespace took on each day (UTC): tokens, and cost in dollars by known prices."""
    session = session_of(ctx)
    if output is Output.NAME:
        raise Usage("days have no names to print", "use -o text, json or yaml")

    async def work() -> None:
        async with watched(session, where, everywhere=False, follow=False) as (namespace,):
            _tell(session.terminal, await _asked(namespace), output)

    wait(work())


async def _asked(namespace: Watched) -> NamespaceUsage:
    """Raise CliError."""
    stream = namespace.following
    try:
        answer = await stream.client.get(f"/v1/namespaces/{namespace.name}/usage")
    except httpx.TransportError as error:
        raise stream.lost(error) from None
    if not answer.is_success:
        raise stream.refused(answer)
    return NamespaceUsage.model_validate_json(answer.content)


def _tell(terminal: Terminal, told: NamespaceUsage, output: Output) -> None:
    if output is not Output.TEXT:
        terminal.data([_data(day) for day in told.days], output)
    elif told.days:
        terminal.out.print(_table(told.days))
    else:
        terminal.note("no model was asked anything")
    if told.unread:
        terminal.note(f"{told.unread} journals can't be read, and what they hold is missing: see moorage list")


def _data(day: DayUsage) -> dict[str, Any]:
    return {camel(name): value for name, value in day.model_dump().items()} | {"cost": dollars(day.cost_micros)}


def _table(days: Iterable[DayUsage]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        table.add_column(name, no_wrap=True, justify="left" if name == "DAY" else "right")
    for day in days:
        tokens = (day.input_tokens, day.cache_read_tokens, day.cache_write_tokens, day.output_tokens)
        counts = (day.runs, day.model_requests, day.model_retries, *tokens)
        table.add_row(day.day, *map(str, counts), dollars(day.cost_micros))
    return table
