"""The commands that start something: a run on this machine, the operator, the gateway."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from moorage import __version__
from moorage.cli.exits import CliError, Exit, NotFound, Usage
from moorage.cli.ports import STDIN, LocalResult, ManifestRefused, RunRefused, SettingsRefused
from moorage.cli.render import Output, Terminal, result_data, result_text
from moorage.cli.session import Format, Session, State, session_of, state_folder, wait


def run(
    ctx: typer.Context,
    *,
    file: Annotated[Path, typer.Option("--file", "-f", help="Manifest of an AgentRun, - for standard input.")],
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Close interrupted runs of this manifest or its branch, and begin anew.")
    ] = False,
    output: Format = Output.TEXT,
    state: State = None,
) -> None:
    """Run an AgentRun on this machine, without a cluster; exit code 0 only if it succeeded, 6 where it is paused.

    Where an earlier `run` of the same manifest was interrupted, or paused at a limit that is raised now, this goes on
    with it.
    """
    session = session_of(ctx)
    if session.where and session.where.names_cluster:
        raise Usage("a run of this machine has no namespace, context or kubeconfig", "on a cluster: kubectl apply -f")
    _demand_there(file)
    outer = session.where.state if session.where else None

    def tell(result: LocalResult) -> None:
        try:
            tell_result(session.terminal, result, output)
        except BrokenPipeError:
            raise
        except OSError as error:
            why = f"{result.name} is {result.phase}, and that can't be written here: {error.strerror}"
            raise CliError(why, "the same command tells it again") from None

    result = wait(_run(session, file, state_folder(session, state or outer), tell, fresh=fresh))
    if not result.succeeded:
        raise typer.Exit(Exit.PAUSED if result.paused else Exit.FAILED)


def _demand_there(file: Path) -> None:
    """A pipe is as good as a file, and `-` is standard input."""
    if file != STDIN and not file.exists():
        raise NotFound(f"there is no file {file}", "name the manifest of an AgentRun with -f")


async def _run(
    session: Session, file: Path, state: Path, tell: Callable[[LocalResult], None], *, fresh: bool
) -> LocalResult:
    try:
        return await session.app().run_local(file, state=state, listener=session.terminal, tell=tell, fresh=fresh)
    except ManifestRefused as error:
        raise Usage(f"{file}: {error}") from None
    except RunRefused as error:
        raise CliError(error.message, error.hint) from None


def tell_result(terminal: Terminal, result: LocalResult, output: Output) -> None:
    """Print how a local run ended."""
    if output is Output.TEXT:
        terminal.out.print(result_text(result), highlight=False, soft_wrap=True)
    elif output is Output.NAME:
        terminal.write(f"agentrun/{result.name}\n".encode())
    else:
        terminal.data(result_data(result), output)


def torture(
    ctx: typer.Context,
    *,
    file: Annotated[Path, typer.Option("--file", "-f", help="Manifest of an AgentRun on a local repository.")],
    kills: Annotated[int, typer.Option("--kills", min=1, help="How often to kill, over all runs.")] = 200,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the first run; a finding names its own.")] = 1,
    shots: Annotated[
        str, typer.Option("--shots", help="One run with just these, as a finding names them: 'append/within:3:kill …'.")
    ] = "",
    any_tree: Annotated[
        bool, typer.Option("--any-tree", help="The agent's files may differ from run to run; the run's end may not.")
    ] = False,
) -> None:
    """Run an AgentRun again and again on clones, killed at named points; exit code 0 only if nothing was found.

    Prints duplicates, losses, divergences and what was left behind, each with the command that shows it again; the last
    line is the tally.
    """
    session = session_of(ctx)
    if not file.is_file():
        raise NotFound(f"there is no file {file}", "name the manifest of an AgentRun with -f")
    if not wait(_torture(session, file, kills, seed, shots, same_tree=not any_tree)):
        raise typer.Exit(Exit.FAILED)


async def _torture(session: Session, file: Path, kills: int, seed: int, shots: str, *, same_tree: bool) -> bool:
    def tell(line: str) -> None:
        session.terminal.write(f"{line}\n".encode())

    try:
        return await session.app().torture(file, kills=kills, seed=seed, shots=shots, same_tree=same_tree, tell=tell)
    except ManifestRefused as error:
        raise Usage(f"{file}: {error}") from None
    except RunRefused as error:
        raise CliError(error.message, error.hint) from None


def operator(ctx: typer.Context) -> None:
    """Be the operator; settings come from MOORAGE_* variables, as the chart sets them."""
    _process(session_of(ctx).app().run_operator)


def gateway(ctx: typer.Context) -> None:
    """Be the gateway; settings come from MOORAGE_* variables, as the chart sets them."""
    _process(session_of(ctx).app().run_gateway)


def _process(run: Callable[[], None]) -> None:
    try:
        run()
    except SettingsRefused as error:
        raise Usage(str(error), "the chart starts it, and sets what it needs; `moorage run` needs neither") from None


def version(ctx: typer.Context) -> None:
    """Print the version."""
    session_of(ctx).terminal.write(f"{__version__}\n".encode())
