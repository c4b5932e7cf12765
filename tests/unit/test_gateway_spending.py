"""B3: what models took on each day, of one run and of a namespace, and who may know it."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.property.run_world import record

from moorage.gateway.facts import DAY_MS, KEPT_DAYS, Facts, fold
from moorage.gateway.spending import by_day
from moorage.testing.gateway import LocalGateway

FIRST = 20_787  # 2026-11-30


def answered(facts: Facts, day: int, **usage: int) -> Facts:
    said = record(0, "MODEL_RESPONSE", {"status": 200, "usage": usage, "complete": False})
    return fold(facts, replace(said, request_id="q", recorded_at=day * DAY_MS + DAY_MS - 1))


@pytest.mark.rule("B3")
def test_each_day_has_its_own_sum_and_a_namespace_those_of_its_runs() -> None:
    one = answered(answered(answered(Facts(), FIRST, input_tokens=3), FIRST, input_tokens=4), FIRST + 1, cost_micros=9)
    other = answered(Facts(), FIRST + 1, cost_micros=1, output_tokens=2)
    first, second = by_day([one, other, Facts()])
    assert (first.day, first.runs, first.input_tokens, first.cost_micros) == ("2026-11-30", 1, 7, 0)
    assert (second.day, second.runs, second.output_tokens, second.cost_micros) == ("2026-12-01", 2, 2, 10)


def test_what_is_given_again_is_charged_to_no_day() -> None:
    said = record(0, "MODEL_RESPONSE", {"status": 200, "usage": {"input_tokens": 5}, "replayed": True})
    assert fold(Facts(), said).days == {}


def test_the_newest_days_are_kept() -> None:
    facts = Facts()
    for day in range(KEPT_DAYS + 3):
        facts = answered(facts, day, input_tokens=1)
    assert sorted(facts.days) == list(range(3, KEPT_DAYS + 3))


@pytest.mark.rule("I10")
async def test_only_who_may_read_the_namespace_is_told(tmp_path: Path) -> None:
    async with LocalGateway(tmp_path) as gateway:
        path = "/v1/namespaces/team-a/usage"
        assert (await gateway.reader("bob", "team-b").get(path)).status_code == 403
        assert (await gateway.sandbox("p1", "team-a").get(path)).status_code == 403
        told = (await gateway.reader("ada", "team-a").get(path)).json()
    assert told == {"namespace": "team-a", "days": [], "unread": 0}
