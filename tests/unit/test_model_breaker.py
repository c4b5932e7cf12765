"""A provider's breaker: its table, and what holds over every history."""

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from moorage.core.models.breaker import Breaker, Policy
from moorage.core.models.retries import Failed
from moorage.gateway.breakers import Breakers, ProviderDown
from moorage.telemetry.metrics import GatewayMetrics
from moorage.testing.clock import StepClock

POLICY = Policy(failures=3, open_ms=1_000, longest_ms=8_000, probe_ms=30_000)
OPEN = Breaker(failed=3, opened=1, until=1_000)
PROBING = Breaker(failed=3, opened=1, until=1_000, probed=1_000)


def failing(times: int, now: int = 0) -> Breaker:
    breaker = Breaker()
    for _ in range(times):
        breaker = breaker.failure(POLICY, now)
    return breaker


@pytest.mark.rule("Q3")
def test_it_opens_at_so_many_failures_in_a_row_and_no_others() -> None:
    assert failing(2) == Breaker(failed=2)
    assert failing(2).succeeded() == Breaker()
    assert failing(3) == OPEN


@pytest.mark.parametrize(
    ("breaker", "now", "wait"),
    [
        (Breaker(failed=2), 0, 0),
        (OPEN, 0, 1_000),
        (OPEN, 999, 1),
        (OPEN, 1_000, 0),
        (PROBING, 1_001, 1_000),
        (PROBING, 30_999, 1),
        (PROBING, 31_000, 0),
    ],
)
def test_who_may_pass(breaker: Breaker, now: int, wait: int) -> None:
    assert breaker.wait_ms(POLICY, now) == wait


def test_one_asks_first_when_its_time_is_over() -> None:
    assert OPEN.passed(1_000) == PROBING
    assert Breaker(failed=2).passed(5) == Breaker(failed=2)
    assert PROBING.succeeded() == Breaker()
    assert PROBING.dropped() == OPEN
    assert PROBING.failure(POLICY, 1_500) == Breaker(failed=4, opened=2, until=3_500)


def test_who_passed_before_it_opened_changes_nothing_by_failing_and_closes_it_by_an_answer() -> None:
    assert OPEN.failure(POLICY, 900).until == OPEN.until
    assert OPEN.succeeded().closed


def test_a_provider_that_says_how_long_it_needs_is_left_alone_for_so_long() -> None:
    assert failing(2).failure(POLICY, 0, 5_000).until == 5_000
    assert failing(2).failure(POLICY, 0, 60_000).until == 8_000


@given(st.lists(st.tuples(st.sampled_from(["failure", "succeeded", "dropped"]), st.integers(0, 9_000)), max_size=40))
def test_it_never_stays_open_for_longer_than_the_longest_and_lets_one_through_then(
    history: list[tuple[str, int]],
) -> None:
    breaker, now = Breaker(), 0
    for end, later in history:
        now += later
        if breaker.wait_ms(POLICY, now) == 0:
            before, breaker = breaker, breaker.passed(now)
            assert before.closed or breaker.wait_ms(POLICY, now) > 0, "one probe at a time"
        breaker = breaker.failure(POLICY, now) if end == "failure" else getattr(breaker, end)()
        assert breaker.until <= now + POLICY.longest_ms
        assert breaker.wait_ms(POLICY, now + POLICY.probe_ms + POLICY.longest_ms) == 0


@pytest.mark.rule("I10", "Q3")
def test_a_provider_that_is_left_alone_is_one_tenants_and_no_others_of_that_name() -> None:
    breakers = Breakers(POLICY, StepClock(), GatewayMetrics(CollectorRegistry()), structlog.get_logger())
    for _ in range(POLICY.failures):
        breakers.passing(("team-a", "models"))
        breakers.ended(("team-a", "models"), Failed(503))
    with pytest.raises(ProviderDown):
        breakers.demand(("team-a", "models"))
    breakers.demand(("team-b", "models"))
    breakers.ended(("team-b", "models"), None)
    with pytest.raises(ProviderDown):
        breakers.demand(("team-a", "models"))
