"""Each fault of docs/faults.md names a test that is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_that_the_page_of_faults_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "faults.md").read_text()))
    files = (*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("e2e/cases/test_*.py"))
    there = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert len(named) > 8
    assert named - there == set()
