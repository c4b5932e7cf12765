"""Q3: recoveries have a rate of their own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.core.scheduling.rate import FORGOTTEN_MS, Rate

T0 = 1_800_000_000_000


@pytest.mark.rule("Q3")
@given(
    per_second=st.sampled_from([0.5, 1, 3, 10, 200]),
    burst=st.integers(1, 20),
    comes=st.lists(st.integers(0, 3_000), min_size=1, max_size=60),
)
def test_no_more_begin_than_the_rate_allows_and_everyone_does_in_the_end(
    per_second: float, burst: int, comes: list[int]
) -> None:
    rate: Rate[int] = Rate(per_second, burst)
    waiting, began, now = {key: T0 + at for key, at in enumerate(sorted(comes))}, list[int](), T0
    while waiting:
        key, now = min(waiting.items(), key=lambda each: (each[1], each[0]))
        wait = rate.wait_ms(key, now)
        if wait:
            waiting[key] = now + wait
        else:
            began.append(now)
            del waiting[key]
    for first in range(len(began)):
        for last in range(first, len(began)):
            assert last - first + 1 <= burst + (began[last] - began[first]) * per_second / 1000 + 1
    assert now <= T0 + max(comes) + 1000 * len(comes) / per_second + len(comes)
    assert rate._turns == {}


@pytest.mark.rule("Q3")
def test_who_has_waited_is_overtaken_by_nobody_and_who_went_away_is_forgotten() -> None:
    rate: Rate[str] = Rate(1, 1)
    assert [rate.wait_ms(key, T0) for key in "abc"] == [0, 1_000, 2_000]
    assert rate.wait_ms("d", T0 + 1_000) == 2_000
    assert [rate.wait_ms(key, T0 + 1_000) for key in "bc"] == [0, 1_000]
    later = T0 + FORGOTTEN_MS + 10_000
    assert [rate.wait_ms(key, later) for key in "xyz"] == [0, 1_000, 2_000]
    assert set(rate._turns) == {"y", "z"}
