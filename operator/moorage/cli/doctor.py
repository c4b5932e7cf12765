"""`moorage doctor`: looks at this machine, or at a cluster, and says what to mend."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from moorage.cli.checks import Check, fail, interrupted, machine
from moorage.cli.exits import CliError, Exit, Usage
from moorage.cli.render import CHECK_STYLES, Output, Terminal
from moorage.cli.session import Format, Session, Where, looking, past_runs, session_of, state_folder, wait


@looking
def doctor(
    ctx: typer.Context,
    *,
    output: Format = Output.TEXT,
    inside: Annotated[bool, typer.Option("--in-cluster", help="From a pod: the API server and the gateway.")] = False,
    readers: Annotated[
        bool, typer.Option("--readers", help="Make what reading runs of this namespace takes (once per namespace).")
    ] = False,
    where: Where,
) -> None:
    """Check this machine for local runs; with a namespace, context or kubeconfig, or as a plugin, the cluster."""
    session = session_of(ctx)
    if output is Output.NAME:
        raise Usage("checks have no names to print", "use -o text, json or yaml")
    if inside:
        checks = wait(_inside(session))
    elif readers or where.on_cluster(session):
        checks = wait(_outside(where, readers=readers))
    else:
        folder = state_folder(session, where.state)
        checks = [*machine(folder), *(wait(_interrupted(session, folder)) if folder.is_dir() else ())]
    tell_checks(session.terminal, checks, output)
    if any(check.state == "fail" for check in checks):
        raise typer.Exit(Exit.FAILED)


async def _outside(where: Where, *, readers: bool) -> list[Check]:
    from moorage.cli import cluster, cluster_checks  # noqa: PLC0415  takes most of a second to load

    target = cluster.Target(where.kubeconfig, where.context, where.namespace, where.system_namespace)
    async with cluster.connected(target) as connection:
        if readers:
            await cluster.make_reader(connection)
        return await cluster_checks.installation(connection)


async def _interrupted(session: Session, folder: Path) -> list[Check]:
    """R7: what was left unfinished on this machine."""
    try:
        async with past_runs(session, folder) as local:
            return [interrupted(each) for each in await local.interrupted()]
    except CliError as error:
        return [fail("state", f"{folder}: {error.message}", "name another folder with --state, or mend this one")]
    except OSError as error:
        return [fail("state", f"{folder}: {error.strerror}", "name another folder with --state, or mend this one")]


async def _inside(session: Session) -> list[Check]:
    from moorage.cli import cluster, cluster_checks  # noqa: PLC0415  takes most of a second to load

    url = session.env.get("MOORAGE_GATEWAY_URL")
    if not url:
        raise Usage("MOORAGE_GATEWAY_URL is not set", "the chart's test pod sets it")
    async with cluster.in_cluster() as connection:
        return [await cluster_checks.definitions(connection), await cluster_checks.ready(url)]


def tell_checks(terminal: Terminal, checks: list[Check], output: Output) -> None:
    """Print findings: a table with hints for people, a list for programs."""
    if output is not Output.TEXT:
        terminal.data([check.as_json() for check in checks], output)
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for check in checks:
        said = Text(check.message)
        if check.hint:
            said.append(f"\n→ {check.hint}", style="dim")
        table.add_row(Text(check.state, style=CHECK_STYLES[check.state]), check.name, said)
    terminal.out.print(table)
