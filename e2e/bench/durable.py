"""Part `durable`: a durable step here and at the neighbours, each in a process and an environment of its own.

All take turns in one run, on one file system. Nobody of them sees a network: each has a namespace with loopback alone.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from e2e.bench import environments
from e2e.bench.environments import RECIPES, AbsentError
from e2e.bench.figures import Aim, Figure, Report
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.cluster.paths import CHECKOUT, cache_root
from e2e.cluster.postgres import ensure_postgres
from moorage.testing.postgres import PostgresServer

ROUNDS, STEPS, WARM = 5, 200, 20
ALONE = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
ROW, INSERT = "bare SQLite row, {}", "INSERT of 1 KiB, committed in the same round trip"
THIRD = Aim(1 / 3, "ratio")


@dataclass(frozen=True)
class Contender:
    """One of those who take turns. `strong`: a step that was acknowledged is on the disk, and nobody must ask again."""

    name: str
    label: str
    baseline: str
    strong: bool = True


MOORAGE, MOORAGE_PG, REPORTED = "moorage-sqlite", "moorage-postgres", "moorage-reported"
OURS = {MOORAGE, MOORAGE_PG, REPORTED}
CONTENDERS = [
    Contender(MOORAGE, "Moorage on SQLite: a record appended (WAL, FULL)", ROW.format("WAL, FULL")),
    Contender(MOORAGE_PG, "Moorage on PostgreSQL: a record appended", INSERT),
    Contender(REPORTED, "Moorage, reported to a gateway on SQLite: content and record", ROW.format("WAL, FULL")),
    Contender(
        "dbos-sqlite", "DBOS on SQLite as shipped (rollback journal, FULL)", ROW.format("rollback journal, FULL")
    ),
    Contender("dbos-sqlite-wal", "DBOS on SQLite, set to WAL, FULL", ROW.format("WAL, FULL")),
    Contender("dbos-postgres", "DBOS on PostgreSQL", INSERT),
    Contender("langgraph-sync", "LangGraph, sqlite saver, `sync` (WAL, FULL)", ROW.format("WAL, FULL")),
    Contender(
        "langgraph-async",
        "LangGraph as shipped: `async`, on the disk later than its next step begins",
        ROW.format("WAL, FULL"),
        strong=False,
    ),
    Contender("restate", "Restate: `ctx.run` (its log synced, as shipped)", "4 KiB and fdatasync"),
]


@dataclass
class Taken:
    """Milliseconds of every step and bare write, by turn."""

    steps: list[list[float]] = field(default_factory=list)
    bare: list[list[float]] = field(default_factory=list)

    def p50s(self) -> tuple[list[float], list[float]]:
        return [statistics.median(each) for each in self.steps], [statistics.median(each) for each in self.bare]


class Process:
    """One contender at work: it takes turns when asked."""

    def __init__(self, argv: Sequence[str | Path], log: Path) -> None:
        self._log = log
        with log.open("w") as errors:
            self._child = subprocess.Popen(
                [*ALONE, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=CHECKOUT
            )
        self.versions: dict[str, str] = self._answer()["versions"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._child:  # its standard input ends, and it with that
            pass

    def take(self, steps: int) -> Any:
        """One turn. Raises HarnessError where not every step is found in the store by another connection."""
        print(json.dumps({"steps": steps}), file=self._child.stdin, flush=True)
        turn = self._answer()
        if turn["kept"] != steps:
            raise HarnessError(f"{turn['kept']} of {steps} acknowledged steps are in the store ({self._child.args!r})")
        return turn

    def _answer(self) -> Any:
        line = self._child.stdout.readline() if self._child.stdout else ""
        if not line:
            raise HarnessError(f"it ended without an answer: {self._log.read_text(errors='replace')[-2000:]}")
        return json.loads(line)


def measure(folder: Path, console: Console) -> Report:
    """On the file system of the raw samples."""
    ensure_postgres(console, cache_root())
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place, PostgresServer({"shared_buffers": "128MB"}) as server:
        absent: dict[str, str] = {}
        with _started(Path(place), server, console, absent) as processes:
            versions = dict(item for process in processes.values() for item in process.versions.items())
            return _report(_rounds(processes), versions, absent)


@contextmanager
def _started(
    folder: Path, server: PostgresServer, console: Console, absent: dict[str, str]
) -> Iterator[dict[str, Process]]:
    """Everybody who can be had; why the others can't goes into `absent`."""
    with ExitStack() as stack:
        processes = {}
        for name, argv in _commands(folder, server, console).items():
            (folder / name).mkdir()
            try:
                processes[name] = stack.enter_context(Process(argv(), folder / f"{name}.log"))
            except AbsentError as error:
                absent[name] = str(error)
        yield processes


def _commands(folder: Path, server: PostgresServer, console: Console) -> dict[str, Callable[[], list[str | Path]]]:
    """How each is started, its environment made first."""
    cache = cache_root()

    def ours(script: str, name: str, *arguments: str) -> list[str | Path]:
        return [sys.executable, RECIPES / script, folder / name, *arguments]

    def script(environment: str, name: str, *arguments: str | Path) -> list[str | Path]:
        interpreter = environments.python(environment, cache, console)
        return [interpreter, RECIPES / f"{environment}_steps.py", folder / name, *arguments]

    return {
        MOORAGE: lambda: ours("moorage_steps.py", MOORAGE),
        MOORAGE_PG: lambda: ours("moorage_steps.py", MOORAGE_PG, server.create_database()),
        REPORTED: lambda: ours("moorage_report.py", REPORTED),
        "dbos-sqlite": lambda: script("dbos", "dbos-sqlite", "shipped"),
        "dbos-sqlite-wal": lambda: script("dbos", "dbos-sqlite-wal", "wal"),
        "dbos-postgres": lambda: script("dbos", "dbos-postgres", _url(server.create_database())),
        "langgraph-sync": lambda: script("langgraph", "langgraph-sync", "sync"),
        "langgraph-async": lambda: script("langgraph", "langgraph-async", "async"),
        "restate": lambda: script("restate", "restate", environments.restate_server(cache, console)),
    }


def _url(dsn: str) -> str:
    """The connection string as an address, which is what DBOS takes."""
    parts = dict(part.split("=", 1) for part in dsn.split())
    return f"postgresql://{parts['user']}@/{parts['dbname']}?host={parts['host']}&port={parts['port']}"


def _rounds(processes: dict[str, Process]) -> dict[str, Taken]:
    taken = {name: Taken() for name in processes}
    for process in processes.values():
        process.take(WARM)
    for _ in range(ROUNDS):
        for name, process in processes.items():
            turn = process.take(STEPS)
            taken[name].steps.append(turn["steps"])
            taken[name].bare.append(turn["bare"])
    return taken


def _report(taken: dict[str, Taken], versions: dict[str, str], absent: dict[str, str]) -> Report:
    known = {each.name: each for each in CONTENDERS}
    figures = [_figure(known[name], each) for name, each in taken.items()]
    best = _best(taken, "")
    on_postgres = _best(taken, "postgres")
    figures[1:1] = [_beside(taken, MOORAGE, best)]
    figures[3:3] = [_beside(taken, MOORAGE_PG, on_postgres)] if on_postgres else []
    notes = [
        f"A turn is {STEPS} steps one after the other, each with its bare write beside it; a sample is a turn's p50. "
        f"Results of 640 bytes. All p99 in ms, of {ROUNDS * STEPS} steps each: {_tails(taken)}.",
        "Versions: " + ", ".join(f"{name} {number}" for name, number in sorted(versions.items())) + ".",
        *(f"Not measured: {known[name].label}: {why}." for name, why in absent.items()),
    ]
    kept = "of every contender all acknowledged steps were found in its store by another connection, after each turn"
    raw = {name: {"steps": each.steps, "bare": each.bare} for name, each in taken.items()}
    return Report("durable", figures, [f"{kept}: 0 lost"], notes, raw)


def _figure(contender: Contender, taken: Taken) -> Figure:
    ours, bare = taken.p50s()
    aim = Aim(0.6) if contender.name == MOORAGE else None
    return Figure(f"{contender.label}, p50", "ms", ours, bare, contender.baseline, aim)


def _best(taken: dict[str, Taken], among: str) -> Contender | None:
    """The neighbour with the least median, of those whose acknowledged steps are on the disk."""
    strong = [each for each in CONTENDERS if each.strong and each.name in taken and among in each.name]
    others = [each for each in strong if each.name not in OURS]
    return min(others, key=lambda each: statistics.median(taken[each.name].p50s()[0]), default=None)


def _beside(taken: dict[str, Taken], ours: str, best: Contender | None) -> Figure:
    theirs = taken[best.name].p50s()[0] if best else []
    label = best.label if best else ""
    return Figure("… against the best neighbour of equal durability", "ms", taken[ours].p50s()[0], theirs, label, THIRD)


def _tails(taken: dict[str, Taken]) -> str:
    def p99(each: Taken) -> float:
        return statistics.quantiles([ms for turn in each.steps for ms in turn], n=100)[98]

    return ", ".join(f"{name} {p99(each):.2f}" for name, each in taken.items())
