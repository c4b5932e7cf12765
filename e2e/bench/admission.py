"""Part `admission`: what a turn of the queue costs with 5,000 runs in it, and how fair the turns come out.

Turns are taken as the operator takes them, from its own roll: a run ends, whose turn is it, may it begin, it begins.
Fairness is simulated time: ten slots, runs of 45 to 75 s, against one line by age, which is what the cap alone was.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from e2e.bench.figures import Aim, Figure, Report
from e2e.cluster.errors import HarnessError
from moorage.api.meta import format_time
from moorage.controller.roll import Roll
from moorage.controller.told import Standing
from moorage.core.scheduling.fair import FairQueue, Share, rank
from moorage.sandbox.port import RunKey

TENANTS, QUEUED, SLOTS, TURNS, ROUNDS = 50, 5_000, 500, 2_000, 5
FAIR_SLOTS, SMALL = 10, 9
T0 = 1_800_000_000_000
Key = tuple[str, int]
Began = dict[Key, int]


def measure() -> Report:
    """No cluster, no disk: processor time alone."""
    ours, line = [], []
    for _ in range(ROUNDS):
        ours.append(_turns_a_second())
        line.append(_line_turns_a_second())
    crowd, small = {"big": 1000} | _small(10), _small(10)
    fair, unfair = _simulate(crowd), _simulate(crowd, by_age=True)
    alone = _simulate(small)
    weighted = _simulate({"heavy": 3000, "light": 1000}, {"heavy": Share(weight=3)})
    figures = [
        Figure("turns a second with 5,000 queued and 500 live, in 50 namespaces", "/s", ours, line, "a heap by age"),
        Figure(
            "Jain's index of service, 1,000 runs beside nine times 10, while all wait",
            "",
            [_jain(fair, crowd)],
            [_jain(unfair, crowd)],
            "one line by age",
            Aim(0.99, least=True),
        ),
        Figure(
            "the nine's mean wait beside the thousand",
            "s",
            [_delay(fair)],
            [_delay(alone)],
            "the nine alone",
            Aim(1.2, "ratio"),
        ),
        Figure("service by weights 3:1", "times the light one's", [_share(weighted)], [3.0], "3"),
    ]
    return Report(
        "admission",
        figures,
        ["each turn was taken once, and none while all slots were held"],
        ["One process; the API server and the gateway have no part in it. A pass of the operator costs far more."],
        {"ours": ours, "line": line},
    )


def _small(count: int) -> dict[str, int]:
    return {f"small-{n}": count for n in range(SMALL)}


def _body(n: int) -> dict[str, Any]:
    meta = {"name": f"run-{n}", "namespace": f"team-{n % TENANTS}", "uid": f"uid-{n}", "resourceVersion": "1"}
    return {"metadata": meta | {"creationTimestamp": format_time(T0 + n * 1000)}, "spec": {}}


def _turns_a_second() -> float:
    now = T0 + QUEUED * 1000
    roll = Roll(SLOTS, lambda: now)
    for n in range(QUEUED + SLOTS):
        roll.saw(_body(n))
    live: list[RunKey] = []
    while turns := roll.next_waiting():
        for key in turns:
            roll.note(key, Standing.LIVE)
            live.append(key)
    if len(live) != SLOTS:
        raise HarnessError(f"{len(live)} of {SLOTS} slots are held")
    chance, taken = Random(1), set(live)
    began = time.perf_counter()
    for _ in range(TURNS):
        now += 100
        at = chance.randrange(SLOTS)
        roll.note(live[at], Standing.ENDED)
        (key,) = roll.next_waiting()
        if not roll.slots(key).free or key in taken:
            raise HarnessError(f"{key.name} was told that it is its turn, and it is not")
        roll.note(key, Standing.LIVE)
        live[at] = key
        taken.add(key)
    return TURNS / (time.perf_counter() - began)


def _line_turns_a_second() -> float:
    waiting = [(n, f"run-{n}") for n in range(QUEUED)]
    heapq.heapify(waiting)
    began = time.perf_counter()
    for _ in range(TURNS):
        heapq.heappop(waiting)
    return TURNS / (time.perf_counter() - began)


class Simulation:
    """Who was served for how long, and who waited for how long, in ms."""

    def __init__(self, tenants: Mapping[str, int], shares: Mapping[str, Share], *, by_age: bool) -> None:
        def tenant(name: str) -> str:
            return "all" if by_age else name

        self.now, self.tenant = T0, tenant
        self.queue: FairQueue[Key] = FairQueue(FAIR_SLOTS, lambda name: shares.get(name, Share()))
        self.waiting = Counter(tenants)
        self.served: Counter[str] = Counter()
        self.waits: dict[Key, int] = {}
        self.began: Began = {}
        self.ends: list[tuple[int, Key]] = []
        for name, count in tenants.items():
            for n in range(count):
                self.queue.wait((name, n), tenant(name), rank(f"{name}-{n:04}", T0), T0)

    def run(self, until: Callable[[Simulation], bool]) -> None:
        """Turn after turn."""
        while not until(self):
            for key in list(self.queue.turns(self.now)):
                self.queue.begin(key, self.tenant(key[0]), self.now)
                self.waiting[key[0]] -= 1
                self.waits[key], self.began[key] = self.now - T0, self.now
                heapq.heappush(self.ends, (self.now + Random(f"{key}").randint(45_000, 75_000), key))
            self.now, key = heapq.heappop(self.ends)
            self.queue.leave(key, self.now)
            self.served[key[0]] += self.now - self.began[key]


def _simulate(
    tenants: Mapping[str, int], shares: Mapping[str, Share] | None = None, *, by_age: bool = False
) -> Simulation:
    """Until one of them waits no more, then until all small ones have begun."""
    made = Simulation(tenants, shares or {}, by_age=by_age)
    made.run(lambda s: any(count <= 0 for count in s.waiting.values()) or s.now > T0 + 4 * 3_600_000)
    at_once = made.served.copy()
    made.run(lambda s: all(s.waiting[name] <= 0 for name in tenants if name.startswith("small")))
    made.served = at_once
    return made


def _jain(found: Simulation, tenants: Mapping[str, int]) -> float:
    values = [found.served[name] for name in tenants]
    return float(sum(values)) ** 2 / (len(values) * sum(float(v) * v for v in values))


def _delay(found: Simulation) -> float:
    waits = [ms for (name, _), ms in found.waits.items() if name.startswith("small")]
    return sum(waits) / len(waits) / 1000


def _share(found: Simulation) -> float:
    return found.served["heavy"] / found.served["light"]
