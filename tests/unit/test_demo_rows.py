"""The demo's watch: every row is shown, the last one too, and nothing is waited for after it."""

import sys

from e2e.demo.cluster import show_rows

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
