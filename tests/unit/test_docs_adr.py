"""Each decision has a number of its own, and says it in its title."""

import re
from collections import Counter
from pathlib import Path

ADR = Path(__file__).parents[2] / "docs" / "adr"


def test_each_decision_has_a_number_of_its_own_and_says_it() -> None:
    files = [path for path in sorted(ADR.glob("*.md")) if path.name != "README.md"]
    numbers = [int(path.name.split("-")[0]) for path in files]
    assert [number for number, count in Counter(numbers).items() if count > 1] == []
    for path, number in zip(files, numbers, strict=True):
        assert re.match(rf"# {number}\. \S", path.read_text()), path.name
