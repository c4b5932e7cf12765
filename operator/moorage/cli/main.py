"""The entry point of `moorage` and of the plugin `kubectl moorage`, which are one program."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from moorage import points
from moorage.cli import (
    commanding,
    listing,
    proving,
    reading,
    replaying,
    resolving,
    running,
    tenant,
    top,
    usage,
    watching,
)
from moorage.cli.doctor import doctor
from moorage.cli.exits import CliError, Exit
from moorage.cli.ports import App
from moorage.cli.render import terminal
from moorage.cli.session import Session, Where, looking, session_of

PLUGIN = "kubectl-moorage"
EPILOG = "Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 unreachable, 5 denied, 6 paused, 130 interrupted."

COMMANDS = (
    running.run,
    watching.logs,
    top.top,
    usage.usage,
    reading.timeline,
    reading.diff,
    proving.verify,
    reading.export,
    proving.evidence,
    resolving.resolve,
    resolving.repair,
    replaying.replay,
)


def program() -> typer.Typer:
    """Return the whole program, without having run any of it."""
    cli = typer.Typer(
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        epilog=EPILOG,
    )
    cli.callback()(_top)
    for command in (*COMMANDS, *commanding.COMMANDS, doctor):
        cli.command()(command)
    cli.command("list")(listing.listed)
    cli.add_typer(tenant.tenant(), name="tenant")
    cli.command()(running.torture)
    for process in (running.operator, running.gateway):
        cli.command(rich_help_panel="Processes")(process)
    cli.command()(running.version)
    return cli


@looking
def _top(
    ctx: typer.Context,
    *,
    where: Where,
) -> None:
    """Durable AI agent runs: on this machine, or on the cluster that a namespace, context or kubeconfig names."""
    session_of(ctx).where = where


def load_app() -> App:
    """Return the composition root; loaded only by commands that need it."""
    from moorage import app  # noqa: PLC0415  brings the gateway, the store and the drivers with it

    return app


def invoke(argv: Sequence[str], session: Session) -> int:
    """Run one command line (without the program's name); return its exit code."""
    command = typer.main.get_command(program())
    name = "kubectl moorage" if session.plugin else "moorage"
    try:
        command.main(args=list(argv), prog_name=name, obj=session)
    except CliError as error:
        session.terminal.fault(error)
        return error.code
    except BrokenPipeError:  # the reader of our output has gone: `moorage logs … | head`
        _drop_output()
        return Exit.OK
    except OSError as error:  # a full disk below our output, a folder that can't be read
        _drop_output()
        what = f"{error.filename}: " if error.filename else ""
        session.terminal.fault(CliError(f"{what}{error.strerror or error}"))
        return Exit.FAILED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else Exit.OK if end.code is None else Exit.FAILED
    return Exit.OK


def _drop_output() -> None:
    """What couldn't be written isn't tried again at the process's end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run this process's command line."""
    points.arm(os.environ)
    session = Session(terminal(), load_app, os.environ, plugin=Path(sys.argv[0]).name == PLUGIN)
    sys.exit(invoke(sys.argv[1:], session))
