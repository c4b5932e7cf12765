"""docs/continuation.md and the builtin driver's page say the numbers that the code has."""

import re
from pathlib import Path

import pytest

from moorage.api.agent import Continuation
from moorage.core.continuation import chain, checks
from moorage.core.continuation.loops import Thresholds
from moorage.core.run import resolve, rework
from moorage.drivers.builtin import context, conversation

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, BUILTIN = (DOCS / "continuation.md").read_text(), (DOCS / "drivers" / "builtin.md").read_text()
IN_WORDS = {"twice": 2, "once": 1, "three": 3, "eight": 8, "twelve": 12, "Three": 3, "Eight": 8}
AT = Thresholds()


def number(text: str) -> float:
    return float(IN_WORDS.get(text) or text.replace(",", ""))


@pytest.mark.parametrize(
    ("page", "told", "true"),
    [
        (PAGE, r"checkRounds: (\d+)", Continuation().check_rounds),
        (PAGE, r"acceptanceRounds: (\d+)", resolve.ACCEPTANCE_ROUNDS),
        (PAGE, r"the last (\d+) lines of its output", checks.TAIL_LINES),
        (PAGE, r"asked again, (\w+) at most in a row; then `ContextExceeded`", chain.COMPACTIONS),
        (PAGE, r"did not run\. (\w+) times in a row, then `OutputLimit`", chain.CUTS),
        (PAGE, r"asked again, (\w+) in a row; then `EmptyAnswer`", chain.EMPTIES),
        (PAGE, r"(\w+) ends were put off", chain.MOST),
        (PAGE, r"(\w+) turns in a row called tools", chain.BUSY_TURNS),
        (PAGE, r"fewer than (\d+) characters", chain.SHORT),
        (PAGE, r"is repeated (\w+)\. After", chain.IDLE - 1),
        (PAGE, r"at most (\w+) until something new", chain.FRUITLESS),
        (PAGE, r"same arguments, (\d+) times", AT.calls),
        (PAGE, r"same arguments, \d+ times[^|]*\| told so \| at (\d+), ended", 2 * AT.calls),
        (PAGE, r"no less in (\d+) checks in a row", AT.verifications),
        (PAGE, r"checks in a row \| told so \| at (\d+), ended", 2 * AT.verifications),
        (PAGE, r"(\d+) decisions in a row that called no tool", AT.idle),
        (PAGE, r"begins the count anew \| told so \| at (\d+), ended", 2 * AT.idle),
        (PAGE, r"(\d+) % of a hard limit", AT.share),
        (PAGE, r"last changed, in (\d+) turns at least", AT.turns),
        (PAGE, r"is asked for \| told so \| at (\d+) %, ended", 2 * AT.share),
        (PAGE, r"(\w+) in a row that got no better", rework.UNSHRUNK),
        (BUILTIN, r"([\d,]+) tokens unless it says so", resolve.WINDOW),
        (BUILTIN, r"says so; ([\d,]+)\nof them are left for the answer", conversation.MAX_OUTPUT_TOKENS),
        (BUILTIN, r"all but the last (\d) turns", context.LATEST),
        (BUILTIN, r"results over ([\d,]+) characters lose", context.SNIPPED),
        (BUILTIN, r"results over ([\d,]+) characters become a line", context.LINE),
        *((BUILTIN, rf"\*\*{stage}\*\* \| (\d+) %", at) for stage, at in context.AT.items()),
    ],
)
def test_numbers_are_the_true_ones(page: str, told: str, true: int) -> None:
    assert [number(found) for found in re.findall(told, page)] == [float(true)]
