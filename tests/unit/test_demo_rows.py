"""The demo's watch: every row is shown, the last one too, and nothing is waited for after it. And its last word."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from e2e.demo.cluster import look_around, show_rows

WATCH = """
import time
print("NAME   PHASE       REASON", flush=True)
for row in {rows}:
    print("fix    " + row, flush=True)
time.sleep(600)
"""


def watch(*rows: str) -> list[str]:
    return [sys.executable, "-c", WATCH.format(rows=rows)]


def test_the_row_that_tells_the_end_is_the_last_one(capfd) -> None:
    show_rows(watch("Running     Running", "Delivering  Delivering", "Succeeded   Completed", "Succeeded   again"), 50)
    shown = capfd.readouterr().out.splitlines()
    assert shown[-1].split() == ["fix", "Succeeded", "Completed"]
    assert len(shown) == 4


def test_a_watch_that_breaks_off_is_no_end_and_holds_nothing_up(capfd) -> None:
    show_rows([sys.executable, "-c", "print('fix  Running  Failed')"], 50)
    assert capfd.readouterr().out == "fix  Running  Failed\n"


@pytest.mark.parametrize("absolute", [True, False], ids=["a kubectl of ours", "the user's own"])
def test_what_it_says_to_look_around_by_finds_its_programs(absolute: bool, tmp_path: Path) -> None:
    kubectl = tmp_path / "programs" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text('#!/bin/sh\necho "$KUBECONFIG: $*"; command -v kubectl-moorage\n')
    kubectl.chmod(0o755)
    name = str(kubectl) if absolute else "kubectl"
    backend: Any = SimpleNamespace(kubeconfig=lambda: tmp_path / "config", kubectl_argv=lambda: [name])
    path = f"{'' if absolute else f'{kubectl.parent}:'}/usr/bin:/bin"
    shell = ["sh", "-euc", look_around(backend)]
    told = subprocess.run(shell, env={"PATH": path}, capture_output=True, text=True, check=True)
    plugin = str(Path(sys.executable).parent / "kubectl-moorage")
    asked = ["get ar -A", "moorage timeline fix-slugify -n moorage-demo"]
    assert told.stdout.splitlines() == [line for each in asked for line in (f"{tmp_path}/config: {each}", plugin)]
