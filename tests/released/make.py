"""Make the databases of every released schema, each by the last code that had it: git keeps that code.

    python tests/released/make.py [DIALECT-NUMBER …]    all that have no files yet, where none is named

Writes sqlite-NNNN.db.xz or postgres-NNNN.sql.xz, and what is in it as JSON of the same name. What is there is only made
anew where it is named: it is what that version wrote.
"""

import json
import lzma
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

from moorage.testing.postgres import PostgresServer, programs

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
JOURNAL = CHECKOUT / "tests" / "replay" / "golden" / "local-command.journal"
MIGRATIONS = "operator/moorage/store/migrations"


def git(*arguments: str | Path) -> str:
    return subprocess.run(["git", *arguments], cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout.strip()


def committed(dialect: str) -> list[str]:
    """The migrations that git has, in their order: what another is writing at this moment isn't released."""
    return sorted(git("ls-tree", "--name-only", "HEAD", f"{MIGRATIONS}/{dialect}/").split())


def last_commit_with(dialect: str, number: int) -> str:
    """The last one before the next migration came; the present one where there is none."""
    later = [path for path in committed(dialect) if Path(path).name.startswith(f"{number + 1:04}_")]
    if not later:
        return git("rev-parse", "HEAD")
    return git("rev-parse", git("log", "--reverse", "--format=%H", "--diff-filter=A", "--", *later).split()[0] + "^")


def make(dialect: str, number: int, scratch: Path, server: PostgresServer) -> None:
    tree, path = scratch / f"tree-{dialect}-{number}", scratch / f"{number}.db"
    git("worktree", "add", "--quiet", "--detach", tree, last_commit_with(dialect, number))
    try:
        where = str(path) if dialect == "sqlite" else server.create_database()
        told = write(tree, where)
    finally:
        git("worktree", "remove", "--force", tree)
    name = f"{dialect}-{number:04}"
    (HERE / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")
    if dialect == "postgres":
        keep(f"{name}.sql.xz", dumped(where))
        return
    with sqlite3.connect(path) as db:
        db.execute("VACUUM")
    keep(f"{name}.db.xz", path.read_bytes())


def write(tree: Path, where: str) -> object:
    environment = os.environ | {"PYTHONPATH": str(tree / "operator")}
    argv = [sys.executable, str(HERE / "write_runs.py"), str(JOURNAL), where]
    return json.loads(subprocess.run(argv, env=environment, check=True, capture_output=True, text=True).stdout)


def dumped(dsn: str) -> bytes:
    """SQL alone: what is meant for psql is left out."""
    argv = [programs() / "pg_dump", "--no-owner", "--no-privileges", "--inserts", dsn]
    found = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    lines = [line for line in found.splitlines() if line and not line.startswith(("--", "\\"))]
    return ("\n".join(lines) + "\n").encode()


def keep(name: str, data: bytes) -> None:
    (HERE / name).write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))


def main(named: list[str]) -> None:
    every = [f"{dialect}-{n:04}" for dialect in ("sqlite", "postgres") for n in range(1, len(committed(dialect)) + 1)]
    wanted = named or [name for name in every if not (HERE / f"{name}.json").exists()]
    with tempfile.TemporaryDirectory() as scratch, PostgresServer() as server:
        for dialect, number in (name.split("-") for name in wanted):
            make(dialect, int(number), Path(scratch), server)


if __name__ == "__main__":
    main(sys.argv[1:])
