"""`make torture`: the small job, killed again and again. The last line is the tally, exit code 0 a clean one."""

from __future__ import annotations

import argparse
import asyncio
import functools
import sys
import tempfile
from pathlib import Path

from moorage.testing.benches import small
from moorage.testing.killpoints import Fault
from moorage.testing.torture import Rig, Tally, report, torture


def main(argv: list[str] | None = None) -> int:
    """Torture until so many faults were met."""
    parser = argparse.ArgumentParser(prog="python -m moorage.testing", description="Kill a small run at named points.")
    parser.add_argument("--kills", type=int, default=200, help="faults to be met, over all runs")
    parser.add_argument("--seed", type=int, default=1, help="of the first run; a finding names its own")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--faults", type=Fault, nargs="+", default=[Fault.KILL], help="kill, error, delay, stop")
    asked = parser.parse_args(argv)
    return 0 if asyncio.run(_torture(asked.kills, asked.seed, asked.faults, asked.jobs)).clean else 1


async def _torture(kills: int, seed: int, faults: list[Fault], jobs: int) -> Tally:
    with tempfile.TemporaryDirectory(prefix="moorage-torture-") as folder:
        rig = Rig(functools.partial(small, Path(folder)))
        return await report(torture(rig, kills, seed, faults, jobs), _say)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
