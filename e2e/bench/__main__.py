"""`python -m e2e.bench [PART …]`: measure, each figure beside its baseline; tables into docs/benchmarks.md.

Parts: admission, allowance, journal, durable, takeover, leases, worktree, streams, proxy, restart, scale (no cluster),
runs, backlog, recovery (the real cluster), partition (a cluster of its own, with two nodes); all of them where none is
named. Raw samples go to build/bench/ (MOORAGE_BENCH_RAW says elsewhere).
"""

import os
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from e2e.bench import (
    admission,
    allowance,
    backlog,
    durable,
    journal,
    leases,
    partition,
    proxy,
    recovery,
    restart,
    runs,
    scale,
    streams,
    takeover,
    worktree,
)
from e2e.bench.figures import Report, machine
from e2e.bench.system import System
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.cluster.paths import CHECKOUT

PAGE = CHECKOUT / "docs" / "benchmarks.md"


def main(argv: list[str]) -> int:
    """Run the parts that are named; returns the exit code."""
    console = Console()
    raw = Path(os.environ.get("MOORAGE_BENCH_RAW") or CHECKOUT / "build" / "bench")
    systems: list[System] = []

    @cache
    def system() -> System:
        systems.append(System.up(console))
        return systems[0]

    parts: dict[str, Callable[[], Report]] = {
        "admission": admission.measure,
        "allowance": lambda: allowance.measure(console),
        "journal": lambda: journal.measure(raw),
        "durable": lambda: durable.measure(raw, console),
        "takeover": lambda: takeover.measure(console),
        "leases": lambda: leases.measure(console),
        "worktree": worktree.measure,
        "streams": lambda: streams.measure(console),
        "proxy": lambda: proxy.measure(console),
        "restart": lambda: restart.measure(console),
        "scale": lambda: scale.measure(console),
        "runs": lambda: runs.measure(system()),
        "backlog": lambda: backlog.measure(system()),
        "recovery": lambda: recovery.measure(system()),
        "partition": lambda: partition.measure(console),
    }
    wanted = argv[1:] or list(parts)
    if unknown := [name for name in wanted if name not in parts]:
        print(f"there is no part {', '.join(unknown)}; there are {', '.join(parts)}", file=sys.stderr)
        return 2
    try:
        for name in wanted:
            _part(name, parts[name], raw, console)
    except HarnessError as error:
        console.say(f"the bench stops here: {error}")
        return 1
    finally:
        for each in systems:
            each.close()
    return 0


def _part(name: str, measure: Callable[[], Report], raw: Path, console: Console) -> None:
    facts = machine(raw)
    with console.step(f"bench: {name}"):
        report = measure()
    table = report.markdown(facts)
    print(f"\n## {name}\n\n{table}\n", flush=True)
    report.write(raw, facts)
    _publish(name, table)


def _publish(name: str, table: str) -> None:
    """Put the table between the part's marks in the page."""
    page = PAGE.read_text()
    marks = re.compile(rf"(<!-- bench: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    replaced, count = marks.subn(lambda found: f"{found[1]}{table}\n{found[2]}", page)
    if count != 1:
        raise HarnessError(f"{PAGE.name} has no place for the part {name}")
    PAGE.write_text(replaced)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
