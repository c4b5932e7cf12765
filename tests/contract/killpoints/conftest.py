"""The small job of `moorage.testing.benches` under the matrices of kill points: its shots, and what must hold."""

import asyncio
import contextlib
import functools
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.contract.births import Births
from tests.contract.local_machine import Machine

from moorage.points import Point
from moorage.testing.benches import small, small_on
from moorage.testing.killpoints import Fault, Shot
from moorage.testing.nursery import nursery
from moorage.testing.torture import Reference, Rig, Verdict

SEED = 4
BY_TIME = ("append/", "blob/", "renewal/")
"""How often these are passed depends on how long things take, and no run takes as long as another: half is sure."""
Fire = Callable[[Fault, Sequence[Point]], Verdict]


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A user's, its sandboxes ordinary processes; nothing of it runs on afterwards."""
    with tempfile.TemporaryDirectory(prefix="moorage-") as folder:
        made = Machine(Path(folder), isolated=False)
        try:
            yield made
            assert made.silent()
        finally:
            made.close()


@pytest.fixture(scope="session")
def births(unseen: set[int]) -> Iterator[Births]:
    with asyncio.Runner() as loop:
        kept = contextlib.AsyncExitStack()
        try:
            start = loop.run(kept.enter_async_context(nursery()))
            unseen.add(start.process.pid)
            yield Births(start, loop)
        finally:
            loop.run(kept.aclose())


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def rig(request: pytest.FixtureRequest, births: Births) -> Iterator[Rig]:
    """The job's journal in either store."""
    with tempfile.TemporaryDirectory(prefix="moorage-") as folder:
        benches = functools.partial(small, Path(folder))
        if request.param == "postgres":
            benches = functools.partial(small_on, request.getfixturevalue("postgres_server"), Path(folder))
        yield Rig(benches, start=births.start)


@pytest.fixture(scope="session")
def undisturbed(rig: Rig, births: Births) -> Reference:
    return births.loop.run(rig.reference())


@pytest.fixture
def fire(rig: Rig, undisturbed: Reference, births: Births) -> Fire:
    """Meet a fault at points, each at one of the times that it is passed, by the seed, and judge."""
    return functools.partial(_fired, births.loop, rig, undisturbed)


def _fired(loop: asyncio.Runner, rig: Rig, undisturbed: Reference, fault: Fault, points: Sequence[Point]) -> Verdict:
    shots = [Shot(point, _number(point, fault, undisturbed), fault) for point in points]
    verdict = loop.run(rig.trial("disturbed", shots, undisturbed))
    again = " ".join(map(str, shots))
    assert not verdict.findings, (again, [str(each) for each in verdict.findings], verdict.said)
    assert set(verdict.shots) == set(shots), f"not all of them were reached: {again}"
    return verdict


def _number(point: Point, fault: Fault, undisturbed: Reference) -> int:
    times = undisturbed.points[point]
    most = max(1, times // 2) if point.startswith(BY_TIME) else times
    return random.Random(f"{SEED} {point} {fault}").randint(1, most)
