"""The small job of `moorage.testing.benches` under the matrices of kill points: one shot, and what must hold."""

import asyncio
import functools
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.contract.local_machine import Machine

from moorage.points import Point
from moorage.testing.benches import small, small_on
from moorage.testing.killpoints import Fault, Shot
from moorage.testing.owner import PROGRAM
from moorage.testing.postgres import PostgresServer
from moorage.testing.torture import Executed, Reference, Rig, Verdict

SEED = 4
Fire = Callable[..., Verdict]


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    with tempfile.TemporaryDirectory(prefix="moorage-") as folder:
        yield Rig(functools.partial(small, Path(folder)), start=Executed(PROGRAM))


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
def undisturbed(rig: Rig) -> Reference:
    return asyncio.run(rig.reference())


@pytest.fixture
def fire(rig: Rig, undisturbed: Reference) -> Fire:
    """Meet a fault at one of the times that the point is passed, by the seed, and judge."""
    return functools.partial(_fired, rig, undisturbed)


def _fired(rig: Rig, undisturbed: Reference, point: Point, fault: Fault) -> Verdict:
    number = random.Random(f"{SEED} {point} {fault}").randint(1, undisturbed.points[point])
    shot = Shot(point, number, fault)
    verdict = asyncio.run(rig.trial("disturbed", [shot], undisturbed))
    assert not verdict.findings, (str(shot), [str(each) for each in verdict.findings], verdict.said)
    assert verdict.shots == (shot,), "the point was not reached"
    return verdict


@pytest.fixture(scope="session")
def rig_on_postgres(postgres_server: PostgresServer) -> Iterator[Rig]:
    with tempfile.TemporaryDirectory(prefix="moorage-") as folder:
        yield Rig(functools.partial(small_on, postgres_server, Path(folder)), start=Executed(PROGRAM))


@pytest.fixture(scope="session")
def undisturbed_on_postgres(rig_on_postgres: Rig) -> Reference:
    return asyncio.run(rig_on_postgres.reference())


@pytest.fixture
def fire_on_postgres(rig_on_postgres: Rig, undisturbed_on_postgres: Reference) -> Fire:
    """The same, the journal in PostgreSQL."""
    return functools.partial(_fired, rig_on_postgres, undisturbed_on_postgres)
