"""DBOS: a step of a workflow, which is one row of its operation_outputs, committed before the step's call returns.

python dbos_steps.py FOLDER shipped|wal|postgresql://…
"""

import sqlite3
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import psycopg
from dbos import DBOS, DBOSConfig
from turns import RESULT, ROW, Turn, bare_row, count, serve

COUNT = "SELECT count(*) FROM {}operation_outputs WHERE function_name = 'durable'"


def on_sqlite(folder: Path, kind: str) -> tuple[str, Callable[[], object], Callable[[], int]]:
    """`shipped`: SQLite's rollback journal; `wal`: a write-ahead log, as Moorage and LangGraph have it."""
    path, mode = folder / "dbos.db", "WAL" if kind == "wal" else "DELETE"
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA journal_mode={mode}")  # a log, once begun, is kept by the file
    db.close()
    return f"sqlite:///{path}", bare_row(folder / "bare.db", mode), lambda: count(path, COUNT.format(""))


def on_postgres(url: str) -> tuple[str, Callable[[], object], Callable[[], int]]:
    """The server's own settings: fsync and synchronous_commit on."""
    db = psycopg.connect(url, autocommit=True)
    db.execute("CREATE TABLE bare (k BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, b BYTEA)")

    def kept() -> int:
        found = db.execute(COUNT.format("dbos.")).fetchone()  # type: ignore[arg-type]  # no text of anybody's
        return int(found[0]) if found else 0

    return url, lambda: db.execute("INSERT INTO bare (b) VALUES (%b)", (ROW,), prepare=True), kept


def workflow(turns: list[Turn], bare: Callable[[], object]) -> Callable[[int], None]:
    """Registered once; it writes into the last of `turns`."""

    @DBOS.step(name="durable")
    def durable() -> str:
        return RESULT

    @DBOS.workflow(name="steps")
    def steps(many: int) -> None:
        for _ in range(many):
            began = time.perf_counter()
            durable()
            turns[-1].step(began)
            turns[-1].beside(bare)

    return steps


def main(folder: Path, kind: str) -> None:
    url, bare, kept = on_postgres(kind) if kind.startswith("postgresql") else on_sqlite(folder, kind)
    turns: list[Turn] = []
    DBOS(config=DBOSConfig(name="steps", system_database_url=url, log_level="WARNING"))
    steps = workflow(turns, bare)
    DBOS.launch()

    def take(many: int) -> Turn:
        turns.append(Turn())
        before = kept()
        steps(many)
        turns[-1].kept = kept() - before
        return turns[-1]

    serve({"dbos": version("dbos")}, take)
    DBOS.destroy()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
