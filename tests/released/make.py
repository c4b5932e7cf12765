"""Make the databases of every released schema, each by the last code that had it: git keeps that code.

    python tests/released/make.py [NUMBER …]    all numbers that have no files yet, where none is named

Writes sqlite-NNNN.db.xz, postgres-NNNN.sql.xz and runs-NNNN.json beside this file. What is there is never made anew but
by name: it is what that version wrote.
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


def last_commit_with(number: int) -> str:
    """The last one before the next migration came, in either dialect; the present one where there is none."""
    later = [
        git("log", "--reverse", "--format=%H", "--diff-filter=A", "--", path).split()[0]
        for dialect in ("sqlite", "postgres")
        for path in committed(dialect)
        if Path(path).name.startswith(f"{number + 1:04}_")
    ]
    return git("rev-parse", f"{min(later, key=distance)}^" if later else "HEAD")


def distance(commit: str) -> int:
    """How many commits lead to it."""
    return int(git("rev-list", "--count", commit))


def make(number: int, scratch: Path, server: PostgresServer) -> None:
    commit = last_commit_with(number)
    tree = scratch / f"tree-{number}"
    git("worktree", "add", "--quiet", "--detach", tree, commit)
    try:
        path, dsn = scratch / f"{number}.db", server.create_database()
        facts = {"sqlite": write(tree, str(path)), "postgres": write(tree, dsn)}
    finally:
        git("worktree", "remove", "--force", tree)
    with sqlite3.connect(path) as db:
        db.execute("VACUUM")
    keep(f"sqlite-{number:04}.db.xz", path.read_bytes())
    keep(f"postgres-{number:04}.sql.xz", dumped(dsn))
    (HERE / f"runs-{number:04}.json").write_text(json.dumps(facts, indent=1) + "\n")


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
    all_of_them = range(1, len(committed("sqlite")) + 1)
    numbers = [int(each) for each in named] or [
        number for number in all_of_them if not (HERE / f"runs-{number:04}.json").exists()
    ]
    with tempfile.TemporaryDirectory() as scratch, PostgresServer() as server:
        for number in numbers:
            make(number, Path(scratch), server)


if __name__ == "__main__":
    main(sys.argv[1:])
