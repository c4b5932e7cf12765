"""PID 1 of a sandbox: `python -m moorage.runner`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from moorage import points
from moorage.api.wire import Role
from moorage.runner.client import Fenced, GatewayClient, GatewayError, GatewayLost, NotWanted
from moorage.runner.exitcodes import Exit, leave
from moorage.runner.processes import become_subreaper, kill_everything, reap_orphans
from moorage.runner.relay import Relay
from moorage.runner.settings import RunnerSettings, termination_log
from moorage.runner.verify import Verification
from moorage.runner.watch import Watch, background
from moorage.runner.work import Leave, Work
from moorage.workspace.errors import DiskFull, WorkspaceError

T = TypeVar("T")
CODES: dict[type[GatewayError], Exit] = {Fenced: Exit.FENCED, NotWanted: Exit.NOT_WANTED}


def main() -> int:
    """Do what the gateway assigns; the exit code and the termination log say how it ended."""
    become_subreaper()
    points.arm(os.environ)
    try:
        settings = RunnerSettings.from_environment(os.environ)
    except ValueError as error:
        return _tell(termination_log(os.environ), error)
    return asyncio.run(_guarded(settings))


async def _guarded(settings: RunnerSettings) -> int:
    try:
        await (_owned(_serve(settings)) if settings.lifeline else _serve(settings))
    except Exception as error:  # noqa: BLE001  the process's outermost: whatever it was, the operator hears of it
        return _tell(settings.termination_log, error)
    finally:
        await kill_everything()
    return int(Exit.DONE)


async def _owned(work: Coroutine[Any, Any, None]) -> None:
    """The work, for as long as our owner lives. After that nobody wants a result, and the volume is a successor's: no
    process of ours may write one byte more, so nothing is saved and nothing is waited for.
    """
    doing, orphaned = asyncio.ensure_future(work), asyncio.create_task(_orphaned())
    try:
        await asyncio.wait({doing, orphaned}, return_when=asyncio.FIRST_COMPLETED)
        if orphaned.done():
            await kill_everything()
            os._exit(int(Exit.ORPHANED))
        await doing
    finally:
        orphaned.cancel()


async def _orphaned() -> None:
    """Return once standard input has ended: its other end is held by our owner alone, and by nobody after it."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), lambda: ended.set() if not os.read(sys.stdin.fileno(), 64) else None)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())


def _tell(log: Path | None, error: Exception) -> int:
    code, reason, message = explain(error)
    leave(log, reason, message)
    sys.stderr.write(f"moorage-runner: {reason}: {message}\n")
    if code is Exit.FAULT:
        traceback.print_exception(error)
    return int(code)


def explain(error: BaseException) -> tuple[Exit, str, str]:
    """Exit code, typed reason and message of an end without a result."""
    match error:
        case Leave():
            return error.code, error.reason, error.message
        case GatewayError():
            return CODES.get(type(error), Exit.FAULT), error.reason, error.message
        case GatewayLost():
            return Exit.GATEWAY_LOST, "GatewayLost", str(error)
        case DiskFull():
            return Exit.DISK_FULL, error.reason, str(error)
        case WorkspaceError():
            return Exit.WORKSPACE, error.reason, str(error)
        case _:
            return Exit.FAULT, "RunnerFailed", f"{type(error).__name__}: {error}"


async def _serve(settings: RunnerSettings) -> None:
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    client = GatewayClient(settings.gateway, settings.token_file, patience_s=settings.patience_s)
    relay = Relay(settings.gateway, settings.token_file)
    await relay.start()
    reaper = asyncio.create_task(reap_orphans())
    watch = Watch(client.heartbeat, client.orders, settings.heartbeat_s)
    try:
        async with background(watch.heartbeats()):
            assignment = await _until(terminated, client.assignment())
            if assignment.role is Role.RUNNER:
                await Work(settings, client, assignment, relay, terminated, watch).run()
        if assignment.role is Role.VERIFIER:
            await _until(terminated, Verification(settings, client, assignment, relay).run())
    finally:
        reaper.cancel()
        await relay.stop()


async def _until(terminated: asyncio.Event, coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result, unless SIGTERM comes first."""
    work, told = asyncio.ensure_future(coroutine), asyncio.ensure_future(terminated.wait())
    try:
        await asyncio.wait({work, told}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise Leave(Exit.TERMINATED, "Terminated", "the sandbox was asked to stop (SIGTERM)")
        return await work
    finally:
        work.cancel()
        told.cancel()


if __name__ == "__main__":
    sys.exit(main())
