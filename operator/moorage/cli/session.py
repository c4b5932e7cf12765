"""What one invocation has: its terminal, the composition root, and where runs are to be looked for."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from moorage.api.streaming import RunNow
from moorage.cli.evidence import Evidence, no_reason, runs_of
from moorage.cli.exits import CliError, Exit, NotFound
from moorage.cli.following import Following
from moorage.cli.ports import App, LocalRuns, RunRefused
from moorage.cli.render import Output, Terminal

T = TypeVar("T")
SHOWN_RUNS = 5

Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace of the run.", show_default=False)]
Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.", show_default=False)]
Kubeconfig = Annotated[str | None, typer.Option("--kubeconfig", help="Path of the kubeconfig.", show_default=False)]
System = Annotated[
    str,
    typer.Option("--system-namespace", envvar="MOORAGE_SYSTEM_NAMESPACE", help="Namespace of Moorage's own pods."),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        envvar="MOORAGE_STATE_DIR",
        help="Folder of local runs. Default: $XDG_STATE_HOME/moorage, else ~/.local/state/moorage.",
        show_default=False,
    ),
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.")]
Format = Annotated[Output, typer.Option("--output", "-o", help="How objects are printed.")]
SYSTEM_NAMESPACE = "moorage-system"


@dataclass
class Session:
    """One invocation. `plugin` is true as `kubectl moorage`: then runs are on the cluster unless said otherwise."""

    terminal: Terminal
    app: Callable[[], App]
    env: Mapping[str, str]
    plugin: bool = False
    where: Where | None = None  # what was named before the command


@dataclass(frozen=True)
class Where:
    """Where to look for a run: on this machine, or on a cluster as soon as anything of a cluster is named."""

    namespace: str | None
    context: str | None
    kubeconfig: str | None
    system_namespace: str
    state: Path | None

    def under(self, outer: Where | None) -> Where:
        """What is named at the command outranks what is named before it."""
        if outer is None:
            return self
        chosen = self.system_namespace if self.system_namespace != SYSTEM_NAMESPACE else outer.system_namespace
        return Where(
            self.namespace or outer.namespace,
            self.context or outer.context,
            self.kubeconfig or outer.kubeconfig,
            chosen,
            self.state or outer.state,
        )

    def on_cluster(self, session: Session) -> bool:
        """The plugin means the cluster; `moorage` means this machine, until something of a cluster is named."""
        return self.names_cluster or (session.plugin and self.state is None)

    @property
    def names_cluster(self) -> bool:
        """Whether anything of a cluster is named."""
        return any(each is not None for each in (self.namespace, self.context, self.kubeconfig))


def looking(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say where runs are; it takes what they came to as its argument `where`."""

    @functools.wraps(command)
    def called(ctx: typer.Context, **given: Any) -> None:
        named = {name: given.pop(name) for name in options}
        command(ctx, where=Where(**named).under(session_of(ctx).where), **given)

    options = inspect.signature(_options, eval_str=True).parameters
    own = inspect.signature(command, eval_str=True).parameters
    shown = [each for name, each in own.items() if name != "where"] + list(options.values())
    called.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # what typer reads
    called.__annotations__ = {each.name: each.annotation for each in shown}
    return called


def _options(
    *,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    system_namespace: System = SYSTEM_NAMESPACE,
    state: State = None,
) -> None:
    """What `looking` adds; by the names of Where's fields."""


def session_of(ctx: typer.Context) -> Session:
    """The session that `main` put into the context."""
    found = ctx.find_object(Session)
    if found is None:
        raise CliError("the command was called without a session")
    return found


def state_folder(session: Session, chosen: Path | None) -> Path:
    """Folder of local runs, by the XDG base directories; absolute, since sandboxes have other working folders."""
    if chosen is not None:
        return chosen.absolute()
    base = session.env.get("XDG_STATE_HOME") or str(
        Path(session.env.get("HOME", "~")).expanduser() / ".local" / "state"
    )
    return Path(base).absolute() / "moorage"


def wait(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine to its end; Ctrl-C cancels it and is exit code 130."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None


@contextlib.asynccontextmanager
async def evidence_of(session: Session, where: Where, run: str, *, resolving: bool = False) -> AsyncIterator[Evidence]:
    """The gateway's reader doors for a run, wherever it is; with `resolving` as somebody who may resolve effects."""
    cluster = where.on_cluster(session)
    opened = _on_cluster(session, where, run, resolving) if cluster else _on_machine(session, where, run)
    async with opened as found:
        yield found


@contextlib.asynccontextmanager
async def _on_cluster(session: Session, where: Where, run: str, resolving: bool) -> AsyncIterator[Evidence]:
    from moorage.cli.cluster import (  # noqa: PLC0415  takes most of a second to load
        READING,
        RESOLVING,
        Target,
        connected,
        evidence,
    )

    account = RESOLVING if resolving else READING
    target = Target(where.kubeconfig, where.context, where.namespace, where.system_namespace)
    async with connected(target) as cluster, evidence(cluster, run, session.terminal.note, account) as found:
        yield found


@contextlib.asynccontextmanager
async def _on_machine(session: Session, where: Where, run: str) -> AsyncIterator[Evidence]:
    folder = state_folder(session, where.state)
    if not folder.is_dir():
        raise NotFound(f"no run was ever made here: {folder} doesn't exist", "name a namespace to look on a cluster")
    async with past_runs(session, folder) as local:
        name, uid = await chosen_run(local, run)
        abandoned = functools.partial(local.abandoned, uid)
        yield Evidence(local.client, uid, name, user=session.env.get("USER", ""), abandoned=abandoned)


@dataclass(frozen=True)
class Watched:
    """A namespace whose runs can be watched. `waiting` are runs that no gateway knows yet; `abandoned`: whether nobody
    pushes a run of it on that has not ended.
    """

    name: str
    following: Following
    waiting: Callable[[], Awaitable[list[RunNow]]] | None = None
    abandoned: Callable[[str], Awaitable[bool]] | None = None


@contextlib.asynccontextmanager
async def watched(session: Session, where: Where, *, everywhere: bool, follow: bool) -> AsyncIterator[list[Watched]]:
    """The namespaces that were named, each with the stream of its runs."""
    if not where.on_cluster(session) and not everywhere:
        async with _watched_machine(session, where, follow=follow) as one:
            yield [one]
        return
    from moorage.cli.cluster import Target  # noqa: PLC0415  takes most of a second to load
    from moorage.cli.namespaces import streams  # noqa: PLC0415  the same

    target = Target(where.kubeconfig, where.context, where.namespace, where.system_namespace)
    async with streams(target, session.terminal.note, everywhere=everywhere, follow=follow) as found:
        yield [Watched(*each) for each in found]


@contextlib.asynccontextmanager
async def _watched_machine(session: Session, where: Where, *, follow: bool) -> AsyncIterator[Watched]:
    folder = state_folder(session, where.state)
    if not folder.is_dir():
        raise NotFound(f"no run was ever made here: {folder} doesn't exist", "name a namespace to look on a cluster")
    async with past_runs(session, folder) as local:
        stream = runs_of(local.client, local.namespace, no_reason, session.terminal.note, follow=follow)
        yield Watched(local.namespace, stream, abandoned=local.abandoned)


@contextlib.asynccontextmanager
async def past_runs(session: Session, folder: Path) -> AsyncIterator[LocalRuns]:
    """The runs of a state folder that is there."""
    try:
        async with session.app().open_local(folder) as local:
            yield local
    except RunRefused as error:
        raise CliError(error.message, error.hint) from None


async def chosen_run(local: LocalRuns, run: str) -> tuple[str, str]:
    """The newest run of that name, or the one of that UID."""
    runs = await local.runs()
    for each in runs:
        if run in {each.name, each.uid}:
            return each.name, each.uid
    latest = ", ".join(dict.fromkeys(each.name for each in runs[: SHOWN_RUNS * 4]))
    raise NotFound(f"no run {run} was made on this machine", f"the latest are: {latest}" if latest else "there is none")
