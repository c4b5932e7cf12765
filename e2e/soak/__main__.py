"""`make soak`: a real gateway under everyday load. The last line is the tally; exit code 0 says that all of it held.

python -m e2e.soak --seconds 3600
"""

import argparse
import asyncio
import contextlib
import random
import signal
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import aiohttp

from e2e.bench.loopback import answers, listening
from e2e.cluster.console import duration
from e2e.cluster.errors import HarnessError
from e2e.cluster.paths import CHECKOUT
from e2e.soak.judge import FEWEST, Load, Sample, judge, tally
from e2e.soak.load import Amount, Soak, session
from e2e.soak.world import World

INTERRUPTED = 130
TOLD_S = 30
"""How often a person hears where it stands."""


def main(argv: Sequence[str] | None = None) -> int:
    """Soak for so long."""
    parser = argparse.ArgumentParser(prog="python -m e2e.soak", description="A real gateway under everyday load.")
    parser.add_argument("--seconds", type=int, default=3_600, help=f"how long, {FEWEST} at least")
    parser.add_argument("--seed", type=int, default=1, help="of when readers come and go, and how agents pace")
    asked = parser.parse_args(argv)
    if asked.seconds < FEWEST:
        parser.error(f"--seconds: {FEWEST} at least, or nothing can be told of growth")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # either ends what was started
    try:
        samples, load = asyncio.run(soak(Amount(asked.seconds), asked.seed))
    except KeyboardInterrupt:
        return INTERRUPTED
    findings = judge(samples, load)
    _say(*findings, tally(asked.seconds, samples, load, findings))
    return 1 if findings else 0


async def soak(amount: Amount, seed: int) -> tuple[list[Sample], Load]:
    """All of it: a look at the gateway for each second, and what came. It ends as soon as nobody can look any more."""
    load, samples = Load(), list[Sample]()
    async with processes() as (gateway, url, model), _started("e2e.soak.lag") as idle, session() as http:
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(watch(gateway, idle, samples, load))
                await Soak(World(http, url, model), amount, load, random.Random(seed)).run()
                watching.cancel()
        except* (HarnessError, aiohttp.ClientError, TimeoutError) as broken:
            for error in _each(broken):
                load.fail(f"it came to a stop: {error!r}")
    return samples, load


def _each(group: BaseExceptionGroup[Exception]) -> Iterator[Exception]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _each(error)
        else:
            yield error


@contextlib.asynccontextmanager
async def processes() -> AsyncIterator[tuple[Process, str, str]]:
    """The gateway and the model, each in a process: the gateway's, and the addresses of both."""
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="moorage-soak-"))
        _, model = await stack.enter_async_context(_serving("e2e.bench.proxy_servers", "model"))
        gateway, ours = await stack.enter_async_context(_serving("e2e.soak.gateway", folder))
        yield gateway, ours, model


@contextlib.asynccontextmanager
async def _serving(module: str, *argv: str) -> AsyncIterator[tuple[Process, str]]:
    """A process that serves at a port of its own, and the address. Who asks before it is up waits for it."""
    async with contextlib.AsyncExitStack() as stack:
        with listening() as taken:
            port, fd = taken.getsockname()[1], taken.fileno()
            process = await stack.enter_async_context(_started(module, *argv, str(fd), fds=(fd,)))
        await answers(port)
        yield process, f"http://127.0.0.1:{port}"


@contextlib.asynccontextmanager
async def _started(module: str, *argv: str, fds: tuple[int, ...] = ()) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *argv), cwd=CHECKOUT, stdout=asyncio.subprocess.PIPE, pass_fds=fds
    )
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def watch(gateway: Process, idle: Process, samples: list[Sample], load: Load) -> None:
    """A look for each lag that the gateway tells. Raise HarnessError where it tells none any more."""
    process = Path(f"/proc/{gateway.pid}")
    while True:
        lag, idly = await _told(gateway, "the gateway"), await _told(idle, "the idle loop")
        files = len(list((process / "fd").iterdir()))
        samples.append(Sample(_resident_kib(process), files, lag, idly))
        if len(samples) % TOLD_S == 0:
            _say(_standing(samples, load))


async def _told(process: Process, name: str) -> float:
    line = await process.stdout.readline() if process.stdout else b""
    if not line:
        raise HarnessError(f"{name} has ended")
    try:
        return float(line)
    except ValueError:
        raise HarnessError(f"{name} said {line.decode(errors='replace')!r} where its lag was to come") from None


def _standing(samples: Sequence[Sample], load: Load) -> str:
    last = samples[-1]
    return (
        f"[{duration(len(samples))}] {load.requests:,} requests, {load.lines:,} lines, {load.chunks:,} chunks; memory "
        f"{last.resident_kib / 1024:.0f} MiB, {last.files} files, lag {last.lag_ms:.0f} ms (idle {last.idle_ms:.0f})"
    )


def _resident_kib(process: Path) -> int:
    lines = (process / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
