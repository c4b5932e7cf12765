"""Q1, Q2: fairness over simulated time. No clock runs: runs hold their slots for as long as they are said to."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.core.scheduling.explain import ordinal
from moorage.core.scheduling.fair import PATIENCE_MS, SLACK_MS, WINDOW_MS, FairQueue, Share, rank

T0 = 1_800_000_000_000
SECOND = 1000
Key = tuple[str, int]


@dataclass
class World:
    """A cluster of `limit` slots. Runs come as `arrive` says, and each takes its slot for `lasts` ms."""

    limit: int
    lasts: Callable[[Key], int]
    shares: Mapping[str, Share] = field(default_factory=dict)
    now: int = T0
    restart_every: int | None = None
    delays: dict[Key, int] = field(default_factory=dict)
    served: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.came: dict[Key, int] = {}
        self.live: dict[Key, int] = {}
        self.over: list[tuple[str, int, int]] = []
        self.ends: list[tuple[int, Key]] = []
        self.queue = self._queue()

    def _queue(self) -> FairQueue[Key]:
        return FairQueue(self.limit, lambda tenant: self.shares.get(tenant, Share()))

    def arrive(self, tenant: str, count: int) -> None:
        for n in range(count):
            self.came[tenant, n] = self.now
            self.queue.wait((tenant, n), tenant, rank(f"run-{n:05}", self.now), self.now)

    def restart(self) -> None:
        """All that is left is what objects tell."""
        self.queue = self._queue()
        for key in self.came.keys() - self.delays.keys():
            self.queue.wait(key, key[0], rank(f"run-{key[1]:05}", self.came[key]), self.now)
        for key, began in self.live.items():
            self.queue.begin(key, key[0], began)
        for tenant, began, ended in self.over:
            if ended > self.now - WINDOW_MS:
                self.queue.was(tenant, began, ended)

    def run(self, until: Callable[["World"], bool]) -> None:
        while not until(self):
            for key in list(self.queue.turns(self.now)):
                self.queue.begin(key, key[0], self.now)
                self.live[key], self.delays[key] = self.now, self.now - self.came[key]
                heappush(self.ends, (self.now + self.lasts(key), key))
            if not self.ends:
                return
            self.now, key = heappop(self.ends)
            began = self.live.pop(key)
            self.queue.leave(key, self.now)
            self.over.append((key[0], began, self.now))
            self.served[key[0]] += self.now - began
            if self.restart_every and len(self.over) % self.restart_every == 0:
                self.restart()

    def backlogged(self, tenants: list[str]) -> bool:
        waiting = Counter(key[0] for key in self.came.keys() - self.delays.keys())
        return all(waiting[each] for each in tenants)


def jain(values: list[float]) -> float:
    return sum(values) ** 2 / (len(values) * sum(v * v for v in values))


def minute(key: Key) -> int:
    return Random(f"{key}").randint(45, 75) * SECOND


SMALL = [f"small-{n}" for n in range(9)]


@pytest.mark.rule("Q1")
@pytest.mark.parametrize("restart_every", [None, 7])
def test_a_tenant_with_a_thousand_runs_slows_nobody_else(restart_every: int | None) -> None:
    def delays(tenants: Mapping[str, int]) -> tuple[World, float]:
        world = World(10, minute, restart_every=restart_every)
        for name, count in tenants.items():
            world.arrive(name, count)
        world.run(lambda w: not w.backlogged(list(tenants)))
        index = jain([float(world.served[name]) for name in tenants])
        assert index >= 0.99, dict(world.served)
        world.run(lambda w: all((name, 9) in w.delays for name in SMALL))
        return world, sum(world.delays[name, n] for name in SMALL for n in range(10)) / 90

    small = dict.fromkeys(SMALL, 10)
    _, alone = delays(small)
    world, beside = delays({"big": 1000} | small)
    assert beside <= 1.2 * alone, (alone, beside)
    assert len(world.delays) < 250, "and the big one had no more than its share meanwhile"


@pytest.mark.rule("Q1")
def test_weights_of_three_to_one_come_out_three_to_one() -> None:
    world = World(8, minute, {"a": Share(weight=3)})
    world.arrive("a", 3000)
    world.arrive("b", 1000)
    world.run(lambda w: not w.backlogged(["a", "b"]) or len(w.over) > 2000)
    assert world.served["a"] / world.served["b"] == pytest.approx(3, rel=0.02)


@pytest.mark.rule("Q1")
def test_it_is_slot_time_that_is_shared_and_not_the_number_of_runs() -> None:
    world = World(4, lambda key: (240 if key[0] == "long" else 30) * SECOND)
    world.arrive("long", 200)
    world.arrive("short", 2000)
    world.run(lambda w: not w.backlogged(["long", "short"]) or len(w.over) > 1500)
    assert world.served["long"] / world.served["short"] == pytest.approx(1, rel=0.25)


@pytest.mark.rule("Q1")
def test_nobody_saves_up_more_than_the_window_by_waiting() -> None:
    world = World(4, minute)
    world.arrive("busy", 2000)
    world.run(lambda w: w.now > T0 + 4 * WINDOW_MS)
    before, since = world.served["busy"], world.now
    world.arrive("late", 2000)
    world.run(lambda w: w.now > since + 3 * WINDOW_MS)
    late, busy = world.served["late"], world.served["busy"] - before
    assert late - busy <= 4 * WINDOW_MS, "four slots for one window at most"
    assert busy > 0


@pytest.mark.rule("Q1")
@given(
    st.integers(1, 4),
    st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(1, 8), st.integers(1, 3)), min_size=1),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_no_slot_is_idle_while_somebody_may_have_it_and_restarts_change_no_turn(
    limit: int, tenants: dict[str, tuple[int, int]], most: int, chance: Random
) -> None:
    world = World(limit, lambda _: chance.randint(1, 900) * SECOND, {"a": Share(most=most), "b": Share(closed="no")})
    for name, (count, _) in tenants.items():
        world.arrive(name, count)

    def looked(world: World) -> bool:
        turns = list(world.queue.turns(world.now))
        open_ = {"a": max(0, most - sum(1 for key in world.live if key[0] == "a")), "b": 0}
        waiting = Counter(key[0] for key in world.came.keys() - world.delays.keys())
        could = sum(min(count, open_.get(name, count)) for name, count in waiting.items())
        assert len(turns) == min(limit - len(world.live), could)
        assert len(set(turns)) == len(turns)
        world.restart()
        assert list(world.queue.turns(world.now)) == turns
        return False

    world.run(looked)
    assert {key[0] for key in world.came.keys() - world.delays.keys()} <= {"b"}


@pytest.mark.rule("Q2")
@given(
    st.lists(st.tuples(st.integers(0, 10_000_000), st.booleans(), st.none() | st.integers(1, 20_000_000)), max_size=20)
)
def test_nobody_is_overtaken_by_what_comes_much_later(runs: list[tuple[int, bool, int | None]]) -> None:
    ranks = sorted(rank(str(n), at, background=bg, deadline_ms=by) for n, (at, bg, by) in enumerate(runs))
    for n, each in enumerate(ranks):
        assert all(later.created_at >= each.created_at - PATIENCE_MS - SLACK_MS for later in ranks[n:])


@pytest.mark.rule("Q2")
def test_class_deadline_and_age_order_a_tenants_runs() -> None:
    people, program = rank("people", T0 + 60_000), rank("program", T0, background=True)
    urgent = rank("urgent", T0 + 120_000, background=True, deadline_ms=1_800_000)
    old = rank("old", T0 - PATIENCE_MS, background=True)
    assert sorted([program, people, urgent, old]) == [urgent, old, people, program]


@given(st.integers(1, 10_000))
def test_ordinals_end_as_english_does(n: int) -> None:
    ending = ordinal(n)[-2:]
    expected = {"1": "st", "2": "nd", "3": "rd"}.get(str(n)[-1], "th") if str(n)[-2:-1] != "1" else "th"
    assert ending == expected
