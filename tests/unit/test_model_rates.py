"""Token buckets in integers."""

from hypothesis import given
from hypothesis import strategies as st

from moorage.core.models.rates import MINUTE_MS, Bucket

limits = st.integers(min_value=1, max_value=1_000_000)


def test_a_minutes_worth_is_there_at_first_and_comes_back_evenly() -> None:
    bucket = Bucket.full(60, 0)
    assert bucket.wait_ms(1) == 0
    empty = bucket.less(60)
    assert empty.wait_ms(1) == 1_000
    assert empty.after(60, 999).wait_ms(1) == 1
    assert empty.after(60, 1_000).wait_ms(1) == 0
    assert empty.after(60, 10 * MINUTE_MS) == Bucket.full(60, 10 * MINUTE_MS)


def test_what_was_used_beyond_it_is_owed() -> None:
    owing = Bucket.full(60, 0).less(90)
    assert owing.wait_ms(1) == 31_000
    assert owing.less(-90).wait_ms(60) == 0


def test_what_is_larger_than_a_minutes_asks_when_it_is_full() -> None:
    assert Bucket.full(60, 0).wait_ms(1_000) == 0
    assert Bucket.full(60, 0).less(1).wait_ms(1_000) == 1_000


def test_another_limit_holds_from_now_on() -> None:
    assert Bucket.full(60, 0).after(30, 0) == Bucket.full(30, 0)
    assert Bucket.full(60, 0).less(60).after(120, 1_000).wait_ms(1) == 0


@given(limits, st.lists(st.integers(min_value=0, max_value=200_000), min_size=1, max_size=30))
def test_however_often_one_looks_nothing_is_lost_or_gained(per_minute: int, steps: list[int]) -> None:
    stepped, now = Bucket.full(per_minute, 0).less(10 * per_minute), 0
    at_once = stepped
    for step in steps:
        now += step
        stepped = stepped.after(per_minute, now)
    assert stepped == at_once.after(per_minute, now)


@given(limits, st.integers(min_value=1, max_value=1_000_000), st.integers(min_value=-50, max_value=50))
def test_after_the_wait_and_no_sooner_it_is_there(per_minute: int, amount: int, level: int) -> None:
    bucket = Bucket(per_minute, level * MINUTE_MS, 0)
    wait = bucket.wait_ms(amount)
    assert bucket.after(per_minute, wait).wait_ms(amount) == 0
    if wait:
        assert bucket.after(per_minute, wait - 1).wait_ms(amount) > 0
