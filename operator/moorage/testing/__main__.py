"""`make torture`: the small job, killed again and again. The last line is the tally, exit code 0 a clean one."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from moorage.testing.benches import small, small_on
from moorage.testing.killpoints import Fault, parse_shots
from moorage.testing.nursery import nursery
from moorage.testing.postgres import PostgresServer
from moorage.testing.torture import Benches, Rig, Tally, Wanted, torture

INTERRUPTED = 130
PATIENCE_S = 300.0
JOBS = 4 * (os.cpu_count() or 1)  # a run that was killed waits most of the time
AGAIN = "python -m moorage.testing"


class Store(StrEnum):
    """What the journal is in."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"


def main(argv: Sequence[str] | None = None) -> int:
    """Torture until so many faults were met."""
    parser = argparse.ArgumentParser(prog=AGAIN, description="Kill a small run at named points.")
    parser.add_argument("--kills", type=int, default=200, help="faults to be met, over all runs")
    parser.add_argument("--seed", type=int, default=1, help="of the first run; a finding names its own")
    parser.add_argument("--jobs", type=int, default=JOBS, help="runs at the same time")
    parser.add_argument("--faults", type=Fault, nargs="+", default=[Fault.KILL], help="kill, error, delay, stop")
    parser.add_argument("--store", type=Store, default=Store.SQLITE, help="sqlite, or postgres: a server of its own")
    parser.add_argument("--shots", type=parse_shots, default=(), help="one run with these: 'append/within:3:kill …'")
    asked = parser.parse_args(argv)
    again = f"{AGAIN} --store {asked.store}"
    wanted = Wanted(asked.kills, asked.seed, asked.faults, asked.jobs, asked.shots, again)
    try:
        return 0 if asyncio.run(_torture(wanted, asked.store)).clean else 1
    except KeyboardInterrupt:
        return INTERRUPTED


async def _torture(wanted: Wanted, store: Store) -> Tally:
    with tempfile.TemporaryDirectory(prefix="moorage-torture-") as folder, _benches(store, Path(folder)) as benches:
        async with nursery() as start:
            return await torture(Rig(benches, PATIENCE_S, start=start), wanted, _say)


@contextlib.contextmanager
def _benches(store: Store, folder: Path) -> Iterator[Benches]:
    if store is Store.SQLITE:
        yield functools.partial(small, folder)
        return
    with PostgresServer() as server:
        yield functools.partial(small_on, server, folder)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
