"""Part `durable` of the bench: what the neighbours' environments are made from, and how its table is put together."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from e2e.bench import durable, environments
from e2e.bench.durable import MOORAGE, MOORAGE_PG, Process, Taken
from e2e.bench.environments import RECIPES, AbsentError
from e2e.bench.figures import TIMES
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError


@pytest.mark.parametrize("lock", sorted(RECIPES.glob("*.lock")), ids=lambda path: path.stem)
def test_every_package_is_locked_with_hashes_and_no_address(lock: Path) -> None:
    text = lock.read_text()
    packages = re.findall(r"^[a-z0-9_.-]+==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
    assert packages
    assert len(packages) == text.count("==")
    assert "://" not in text


def test_the_server_is_locked_with_hashes_and_no_address() -> None:
    text = (RECIPES / "restate-server" / "package-lock.json").read_text()
    packages = {name: each for name, each in json.loads(text)["packages"].items() if name}
    assert packages
    assert all(each["integrity"].startswith("sha512-") for each in packages.values())
    assert "://" not in text


def test_a_neighbour_that_cannot_be_had_is_told_by_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_UV", tmp_path / "uv")
    with pytest.raises(
        AbsentError, match=r"`uv pip install --require-hashes --requirement dbos\.lock` failed: uv isn't"
    ):
        environments.python("dbos", tmp_path, Console())
    assert not list(tmp_path.glob("programs/neighbour-dbos-*"))


def contender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int) -> Process:
    monkeypatch.setattr(durable, "ALONE", [])  # namespaces are the superuser's
    script = f"""
import sys, turns
turns.serve({{"somebody": "1.0"}}, lambda steps: turns.Turn([1.0] * steps, [0.5] * steps, {kept}))
"""
    return Process([sys.executable, "-c", f"import sys; sys.path.append({str(RECIPES)!r})\n{script}"], tmp_path / "log")


def test_a_contender_takes_turns_until_it_isnt_asked_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contender(tmp_path, monkeypatch, kept=3) as process:
        assert process.versions == {"somebody": "1.0"}
        assert process.take(3)["steps"] == [1.0, 1.0, 1.0]


def test_a_step_that_was_acknowledged_and_is_not_in_the_store_ends_the_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        contender(tmp_path, monkeypatch, kept=2) as process,
        pytest.raises(HarnessError, match="2 of 3 acknowledged steps are in the store"),
    ):
        process.take(3)


def _taken(**p50: float) -> dict[str, Taken]:
    return {name.replace("_", "-"): Taken([[ms, ms]], [[ms / 2, ms / 2]]) for name, ms in p50.items()}


def test_moorage_stands_beside_the_fastest_that_keeps_its_word() -> None:
    taken = _taken(moorage_sqlite=0.3, moorage_postgres=1.0, dbos_sqlite=2.0, langgraph_sync=1.2, langgraph_async=0.1)
    rows = durable._report(taken, {}, {"restate": "`npm ci` failed: E404"}).markdown("one core").splitlines()
    beside = [row for row in rows if row.startswith("| … against")]
    assert len(beside) == 1  # nobody else was measured on PostgreSQL
    assert "LangGraph, sqlite saver, `sync`" in beside[0]
    assert beside[0].endswith(f"| 0.25 {TIMES} | ≤ 0.333 {TIMES} | yes |")
    assert "- Not measured: Restate: `ctx.run` (its log synced, as shipped): `npm ci` failed: E404." in rows


def test_moorage_on_postgresql_stands_beside_those_on_postgresql() -> None:
    taken = _taken(moorage_sqlite=0.4, moorage_postgres=1.0, dbos_sqlite=0.9, dbos_postgres=2.0)
    best = {name: durable._best(taken, among) for name, among in ((MOORAGE, ""), (MOORAGE_PG, "postgres"))}
    assert {name: each and each.name for name, each in best.items()} == {
        MOORAGE: "dbos-sqlite",
        MOORAGE_PG: "dbos-postgres",
    }
