"""docs/effects.md says for every kind of effect what "once" covers, with the levels and times of the sources."""

import re
from pathlib import Path

import pytest

from moorage.api.agentrun import Timeouts
from moorage.core.effects.calls import MAX_CALLS, MAX_NAMED
from moorage.core.effects.levels import Level, queryable
from moorage.core.run.reducing.effects import CLOSURES
from moorage.core.run.waiting import ASK_AGAIN_CAP_MS, ASK_AGAIN_MS
from moorage.gateway.delivery import QUIET_MS
from moorage.gateway.settings import GatewaySettings

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "effects.md").read_text()
SOURCES = ROOT / "operator" / "moorage"


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    section = PAGE.partition(f"## {heading}")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:] if not line.startswith("|--")]


def kinds_in_sources() -> set[str]:
    """Kinds that some module writes intents of."""
    texts = (path.read_text() for path in SOURCES.rglob("*.py"))
    return {kind for text in texts for kind in re.findall(r'^KIND = "(\w+)"', text, re.MULTILINE)}


@pytest.mark.rule("E7")
def test_every_kind_says_what_once_covers_who_reconciles_and_what_can_remain() -> None:
    table = rows("Each kind")
    assert kinds_in_sources() == {"git_push", "http_request", "pull_request", "tunnel"}
    for kind in kinds_in_sources():
        assert [row[0] for row in table if f"`{kind}`" in row[0]]
    for about in ("push", "objects that the operator makes", "files", "commands", "model requests", "network"):
        assert [row for row in table if about in row[0]], about
    assert {len(row) for row in table} == {5}
    assert [row[0] for row in table if not (row[1] and row[2])] == []


@pytest.mark.rule("E3", "E7")
def test_the_levels_are_those_of_the_sources() -> None:
    table = rows("How repeatable")
    assert [row[0].strip("`") for row in table] == [level.value for level in Level]
    assert {row[0].strip("`") for row in table if "is asked, and" in row[2] or "is asked;" in row[2]} == {
        level.value for level in Level if queryable(level.value)
    }


@pytest.mark.rule("E7", "I8")
def test_closures_and_times_are_those_of_the_sources() -> None:
    assert {name for name in CLOSURES if f"`{name}`" not in PAGE} == set()
    assert (Timeouts().delivery.ms, Timeouts().settle.ms) == (30 * 60_000, 60_000)
    assert (MAX_CALLS, MAX_NAMED) == (1_024, 4_096)
    assert (GatewaySettings().egress_open, GatewaySettings().egress_tries) == (64, 3)
    assert (GatewaySettings().egress_total_ms, GatewaySettings().egress_grace_ms) == (600_000, 10_000)
    assert (QUIET_MS, ASK_AGAIN_MS, ASK_AGAIN_CAP_MS) == (10_000, 60_000, 3_600_000)
    text = " ".join(PAGE.split())
    for said in (
        "`timeouts.delivery` (30 minutes)",
        "`timeouts.settle` (a minute)",
        "ten seconds later",
        "64 requests and tunnels",
        "1,024 effects of HTTP since one safe point",
        "1,024 of before whose end nobody knows",
        "4,096 that the agent has named",
        "under the same key, three times at most",
        "a request has ten minutes",
        "ten more seconds for its answer",
        "after 1, 3, 7, … minutes, later every hour",
        "nothing here claims exactly-once in general",
    ):
        assert said.lower() in text.lower()
