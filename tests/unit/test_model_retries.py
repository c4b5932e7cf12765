"""Whether and when a failed model request is sent again: by table, and by property."""

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.api.wire import ResolvedRetries
from moorage.core.models.retries import FIRST_MS, LONGEST_MS, Failed, pause_ms, refused, retry_after_ms

NOW = 1_800_000_000_000
POLICY = ResolvedRetries(max_attempts=4, budget=10, max_wait_ms=60_000)
MOST = 2**32 - 1
lots = st.integers(min_value=0, max_value=MOST)


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3_000),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "1.5"}, 1_500),
        ({"retry-after": "0.0001"}, 0),
        ({"retry-after-ms": "250"}, 250),
        ({"retry-after-ms": "250.5", "retry-after": "9"}, 251),
        ({"retry-after": formatdate(NOW / 1000 + 20, usegmt=True)}, 20_000),
        ({"retry-after": formatdate(NOW / 1000 - 20, usegmt=True)}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "1e9"}, None),
        ({"retry-after": "9999999999"}, None),
        ({"retry-after": "\u0663"}, None),
        ({"retry-after": ""}, None),
    ],
)
def test_what_a_provider_asks_for_is_read_exactly(headers: dict[str, str], wait: int | None) -> None:
    assert retry_after_ms(headers, NOW) == wait


@pytest.mark.parametrize(
    ("status", "passing", "fault"),
    [
        (0, True, True),
        (400, False, False),
        (401, False, False),
        (404, False, False),
        (408, True, True),
        (429, True, False),
        (500, True, True),
        (501, False, False),
        (503, True, True),
        (529, True, True),
    ],
)
def test_what_may_pass_and_what_speaks_against_a_provider(status: int, *, passing: bool, fault: bool) -> None:
    failed = refused(status, {}, b"{}", NOW)
    assert (failed.passing, failed.fault) == (passing, fault)


def test_what_the_gateway_broke_off_speaks_against_nobody() -> None:
    assert not Failed(0, hopeless=True, ours=True).fault
    assert not Failed(0, hopeless=True, ours=True).passing


def test_a_provider_may_say_that_asking_again_doesnt_help() -> None:
    assert not refused(503, {"x-should-retry": "false"}, b"", NOW).passing
    assert not refused(429, {}, b'{"error": {"code": "insufficient_quota"}}', NOW).passing


@pytest.mark.rule("Q3")
@given(st.integers(min_value=0, max_value=60_000), lots)
def test_what_is_asked_for_is_honoured_and_spread(asked: int, lot: int) -> None:
    wait = pause_ms(POLICY, Failed(429, asked), 1, 1, lot)
    assert wait is not None
    assert asked <= wait <= asked + FIRST_MS


def test_a_wait_longer_than_the_longest_is_the_agents_own() -> None:
    assert pause_ms(POLICY, Failed(429, 60_001), 1, 1, 0) is None


@pytest.mark.rule("Q3")
@given(st.integers(min_value=1, max_value=40), lots)
def test_the_jitter_is_full_and_bounded(tries: int, lot: int) -> None:
    policy = ResolvedRetries(max_attempts=100, budget=100, max_wait_ms=60_000)
    wait = pause_ms(policy, Failed(503), tries, 100, lot)
    assert wait is not None
    assert 0 <= wait <= min(FIRST_MS << (tries - 1), LONGEST_MS)
    assert pause_ms(policy, Failed(503), tries, 100, 0) == 0
    assert pause_ms(policy, Failed(503), tries, 100, MOST) == min(FIRST_MS << (tries - 1), LONGEST_MS)


@pytest.mark.rule("B3")
@given(st.integers(min_value=1, max_value=12), st.integers(min_value=-3, max_value=3), lots)
def test_nothing_is_sent_again_without_a_try_and_a_budget(tries: int, left: int, lot: int) -> None:
    again = pause_ms(POLICY, Failed(503), tries, left, lot) is not None
    assert again == (tries < POLICY.max_attempts and left > 0)


def test_what_an_older_version_resolved_has_no_retries() -> None:
    assert pause_ms(ResolvedRetries(), Failed(0), 1, 100, 0) is None
