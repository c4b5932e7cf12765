"""C5: a run whose namespace has used up its day waits for the next one, or for more of this one."""

from dataclasses import replace
from typing import Any

import pytest
from tests.run_plans import records
from tests.unit.test_run_plan_pauses import drive, runner_obeys, running

from moorage.core.journal.record import RecordType
from moorage.core.run.phases import RunPhase
from moorage.core.run.plan import decide

DAY = {"perDay.tokens": 1_000}


def out_of_the_day() -> Any:
    """Paused since its namespace's day was used up, an hour before the next one."""
    world = running()
    payload = {"reason": "DayBudgetExhausted", "by": "contract", "message": "used up; it goes on tomorrow"}
    more = {"limit": "perDay.tokens", "most": 1_000, "until": world.now + 3_600_000, "kill": False}
    world.note(RecordType.PAUSE_REQUESTED, payload | more)
    runner_obeys(world)
    while world.state.phase is not RunPhase.PAUSED:
        world.step()
    return world


@pytest.mark.rule("C5")
def test_a_day_that_is_used_up_holds_a_run_until_the_next_one_and_costs_it_nothing():
    world = out_of_the_day()
    held = decide(replace(world.observed(), per_day=DAY, sandboxes=(), lease=None), world.now)
    assert (held.reason, records(held)) == ("DayBudgetExhausted", [])
    until = world.state.pause.until
    assert held.requeue_ms == until - world.now, "nobody has to ask for it"
    assert records(decide(replace(world.observed(), per_day=DAY), until)) == [("RESUMED", "DayBudgetExhausted")]
    world.now = until
    end = drive(world)
    assert (end.phase, end.attempt, end.strikes) == (RunPhase.SUCCEEDED, 2, 0)


@pytest.mark.rule("C5")
@pytest.mark.parametrize(
    ("per_day", "goes_on"),
    [({"perDay.tokens": 999}, False), ({"perDay.tokens": 1_001}, True), ({"perDay.tokens": None}, True), ({}, True)],
)
def test_a_day_that_is_raised_lets_it_go_on_at_once(per_day: dict[str, int | None], goes_on: bool):
    world = out_of_the_day()
    plan = decide(replace(world.observed(), per_day=per_day), world.now)
    assert (records(plan) != []) is goes_on


@pytest.mark.rule("C5")
def test_somebodys_word_lets_it_try_again():
    world = out_of_the_day()
    world.ask_to_go_on()
    assert records(decide(replace(world.observed(), per_day=DAY), world.now)) == [("RESUMED", "DayBudgetExhausted")]
