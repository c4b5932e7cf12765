"""`moorage tenant`: a namespace with its contract, made in one go, and what it uses of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from moorage.cli.exits import Usage
from moorage.cli.render import Output, Terminal
from moorage.cli.session import Format, Where, looking, session_of, wait
from moorage.cli.tenant_objects import Terms, demand_name, demand_namespace, demand_people, spec_of
from moorage.cli.timeline import bounded

if TYPE_CHECKING:
    from moorage.cli.cluster import Cluster
    from moorage.cli.tenant_cluster import Done

SHOWN = 20  # of those that wait, or have an effect of unknown end
EDIT = "edit"  # to which the chart's roles are aggregated

Name = Annotated[str, typer.Argument(metavar="NAME", help="The namespace.")]
Weight = Annotated[int | None, typer.Option(help="Share in what all namespaces compete for, 1 to 1000.")]
Sandboxes = Annotated[int | None, typer.Option(help="Live runs at once.")]
Models = Annotated[int | None, typer.Option(help="Model requests at once.")]
Tokens = Annotated[str | None, typer.Option(help="Tokens in a day (UTC), such as 20M.")]
Cost = Annotated[str | None, typer.Option(help="Dollars in a day (UTC), such as 200.00.")]
Cpu = Annotated[str | None, typer.Option(help="Cores in all, such as 16.")]
Memory = Annotated[str | None, typer.Option(help="Memory in all, such as 64Gi.")]
Storage = Annotated[str | None, typer.Option(help="Volumes in all, such as 200Gi.")]
SandboxCpu = Annotated[str | None, typer.Option(help="The most cores of one sandbox.")]
SandboxMemory = Annotated[str | None, typer.Option(help="The most memory of one sandbox.")]
SandboxDisk = Annotated[str | None, typer.Option(help="The largest worktree.")]
AllowProvider = Annotated[
    list[str] | None, typer.Option(metavar="PROVIDER", help="A ModelProvider that runs may use; repeat it.")
]
AllowModel = Annotated[list[str] | None, typer.Option(metavar="MODEL", help="A model that runs may name; repeat it.")]
AllowClass = Annotated[list[str] | None, typer.Option(metavar="CLASS", help="A RuntimeClass likewise.")]
AllowHost = Annotated[list[str] | None, typer.Option(metavar="HOST", help="A host of sandbox.egress likewise.")]
Users = Annotated[list[str] | None, typer.Option("--user", metavar="USER", help="Who may work there; repeat it.")]
Groups = Annotated[list[str] | None, typer.Option("--group", metavar="GROUP", help="A group likewise.")]
Roles = Annotated[
    list[str] | None, typer.Option("--role", metavar="ROLE", help="ClusterRoles that they get there. Default: edit.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Tell what would be made or changed, and change nothing.")]


@looking
def create(
    ctx: typer.Context,
    *,
    name: Name,
    weight: Weight = None,
    sandboxes: Sandboxes = None,
    models: Models = None,
    tokens_per_day: Tokens = None,
    cost_per_day: Cost = None,
    cpu: Cpu = None,
    memory: Memory = None,
    storage: Storage = None,
    sandbox_cpu: SandboxCpu = None,
    sandbox_memory: SandboxMemory = None,
    sandbox_disk: SandboxDisk = None,
    allow_model: AllowModel = None,
    allow_provider: AllowProvider = None,
    allow_runtime_class: AllowClass = None,
    allow_host: AllowHost = None,
    user: Users = None,
    group: Groups = None,
    role: Roles = None,
    dry_run: DryRun = False,
    output: Format = Output.TEXT,
    where: Where,
) -> None:
    """Make a namespace for a team, with its contract, or bring both up to date: what isn't named stays."""
    session = session_of(ctx)
    _demand_cluster(where)
    demand_name(name, where.system_namespace)
    if role and not (user or group):
        raise Usage("--role says what somebody may do", "say who, with --user or --group")
    demand_people({"user": user or (), "group": group or (), "role": role or ()})
    given = {
        "weight": weight,
        "sandboxes": sandboxes,
        "models": models,
        "tokens_per_day": tokens_per_day,
        "cost_per_day": cost_per_day,
        "cpu": cpu,
        "memory": memory,
        "storage": storage,
        "sandbox_cpu": sandbox_cpu,
        "sandbox_memory": sandbox_memory,
        "sandbox_disk": sandbox_disk,
        "allow_model": allow_model,
        "allow_provider": allow_provider,
        "allow_runtime_class": allow_runtime_class,
        "allow_host": allow_host,
    }
    terms = Terms(name, spec_of(name, given), user or (), group or (), role or (EDIT,))

    async def work() -> Sequence[Done]:
        from moorage.cli.tenant_cluster import create as made  # noqa: PLC0415  takes most of a second to load

        async with _connected(where) as cluster:
            return await made(cluster, terms, dry=dry_run)

    _tell(session.terminal, wait(work()), output, dry=dry_run)


@looking
def show(ctx: typer.Context, *, name: Name, output: Format = Output.TEXT, where: Where) -> None:
    """Show what a namespace uses of its contract, which of its runs wait and for what, and what is unknown."""
    session = session_of(ctx)
    _demand_cluster(where)
    demand_namespace(name)

    async def work() -> dict[str, Any]:
        from moorage.cli.tenant_cluster import look  # noqa: PLC0415  takes most of a second to load

        async with _connected(where) as cluster:
            return await look(cluster, name)

    _show(session.terminal, wait(work()), output)


def tenant() -> typer.Typer:
    """The commands below `moorage tenant`."""
    group = typer.Typer(no_args_is_help=True, help="Make a namespace for a team, with its contract, and look at it.")
    group.command("create")(create)
    group.command("show")(show)
    return group


def _demand_cluster(where: Where) -> None:
    if where.state is not None:
        raise Usage("tenants are a cluster's", "leave --state out")
    if where.namespace is not None:
        raise Usage("the tenant's name is its namespace", "leave --namespace out")


@asynccontextmanager
async def _connected(where: Where) -> AsyncIterator[Cluster]:
    from moorage.cli.cluster import Target, connected  # noqa: PLC0415  takes most of a second to load

    async with connected(Target(where.kubeconfig, where.context, None, where.system_namespace)) as cluster:
        yield cluster


# --- telling ----------------------------------------------------------------------------------------------------------


def _tell(terminal: Terminal, done: Sequence[Done], output: Output, *, dry: bool) -> None:
    if output is Output.NAME:
        terminal.write("".join(f"{each.title}\n" for each in done).encode())
    elif output is not Output.TEXT:
        terminal.data([dict(each.body) for each in done], output)
    else:
        would = " (dry run)" if dry else ""
        for each in done:
            terminal.write(f"{each.title} {each.verb}{would}\n".encode())
            for change in each.changed:
                terminal.write(f"  {change}\n".encode("utf-8", "replace"))


def _show(terminal: Terminal, told: Mapping[str, Any], output: Output) -> None:
    if output is Output.NAME:
        terminal.write(f"namespace/{told['name']}\n".encode())
        return
    if output is not Output.TEXT:
        terminal.data(dict(told), output)
        return
    if told["podSecurity"] != "restricted":
        terminal.note(f"Pod Security isn't restricted there: kubectl moorage tenant create {told['name']} restricts it")
    if told["contracts"]:
        terminal.out.print(_lines(told["contracts"]))
    else:
        terminal.note("there is no contract: nothing bounds its runs")
    for each in told["contracts"]:
        if not each["enforced"]:
            terminal.note(f"rcon/{each['name']} isn't enforced: {each['message']}")
    _list(terminal, ("WAITING", "SINCE", "WHY"), told["waiting"], "no run waits")
    _list(terminal, ("UNKNOWN", "WHAT"), told["unknown"], "no effect's end is unknown")
    if told["bindings"]:
        terminal.out.print(_table(("WHO", "ROLE"), ((f"{b['kind']} {b['name']}", b["role"]) for b in told["bindings"])))
    elif told["bindings"] is not None:
        terminal.note("nobody is bound there by name")


def _lines(contracts: Iterable[Mapping[str, Any]]) -> Table:
    rows = [
        (each["name"], line["name"], line.get("used", ""), line["limit"], line.get("stricterIn", ""))
        for each in contracts
        for line in each["lines"]
    ]
    return _table(("CONTRACT", "LINE", "USED", "LIMIT", "STRICTER IN"), rows)


def _list(terminal: Terminal, columns: Sequence[str], runs: Sequence[Mapping[str, Any]], nothing: str) -> None:
    if not runs:
        terminal.note(nothing)
        return
    since = [[each["since"]] if "since" in each else [] for each in runs[:SHOWN]]
    why = [each["message"] or each["reason"] for each in runs[:SHOWN]]
    terminal.out.print(_table(columns, ([r["run"], *s, w] for r, s, w in zip(runs, since, why, strict=False))))
    if len(runs) > SHOWN:
        terminal.note(f"{len(runs) - SHOWN} more: -o json lists all of them")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(bounded(str(cell))) for cell in row))
    return table
