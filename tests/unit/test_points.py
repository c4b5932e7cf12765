"""Kill points: nothing where nothing is armed, one fault once where one is, and no harness in production."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from moorage.points import VARIABLE, Point, _Armed, arm, inherited, reached
from moorage.store.errors import StoreUnavailable
from moorage.testing import killpoints
from moorage.testing.killpoints import DSN, Fault, Shot, begin, environment, error_at, fired, hook, passed

ROOT = Path(__file__).resolve().parents[2]
WALK = "import os; from moorage import points; points.arm(os.environ)\nfor p in points.Point: points.reached(p)"


def walk(env: dict[str, str]) -> int:
    """A process that passes every point once."""
    paths = {"PYTHONPATH": str(ROOT / "operator"), "PATH": os.environ["PATH"]}
    return subprocess.run(
        [sys.executable, "-c", WALK], env={**paths, **env}, check=False, capture_output=True
    ).returncode


def test_unarmed_a_point_is_nothing() -> None:
    arm({})
    assert _Armed.hook is None
    reached(Point.APPEND_AFTER)


def test_nothing_of_the_harness_is_loaded_where_nothing_is_armed() -> None:
    told = f"{WALK}\nimport sys; sys.exit(any(name.startswith('moorage.testing') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", told], cwd=ROOT / "operator", env={}, check=False).returncode == 0


def test_a_kill_is_a_kill_and_comes_once(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    shot = Shot(Point.BLOB_WITHIN)
    env = environment(trace, shot)
    assert walk(env) == -signal.SIGKILL
    assert passed(trace) == list(Point)[: list(Point).index(Point.BLOB_WITHIN) + 1]
    assert fired(trace, shot)
    assert walk(env) == 0
    begin(trace)
    assert passed(trace) == []
    assert walk(env) == -signal.SIGKILL


def test_a_point_is_counted_over_all_processes(tmp_path: Path) -> None:
    env = environment(tmp_path / "trace", Shot(Point.BLOB_WITHIN, 2))
    assert walk(env) == 0
    assert walk(env) == -signal.SIGKILL


def test_several_shots_fire_each_once_and_in_their_turn(tmp_path: Path) -> None:
    trace, shots = tmp_path / "trace", (Shot(Point.BLOB_AFTER, 2), Shot(Point.BLOB_WITHIN), Shot(Point.BLOB_WITHIN, 9))
    env = environment(trace, *shots)
    assert walk(env) == -signal.SIGKILL
    assert [fired(trace, shot) is not None for shot in shots] == [False, True, False]
    assert walk(env) == 0
    assert walk(env) == -signal.SIGKILL
    assert [fired(trace, shot) is not None for shot in shots] == [True, True, False]
    assert walk(env) == 0


@pytest.mark.parametrize(
    ("point", "error"),
    [
        (Point.APPEND_WITHIN, sqlite3.OperationalError),
        (Point.APPEND_AFTER, StoreUnavailable),
        (Point.CHECKPOINT_BEFORE, OSError),
    ],
)
def test_an_error_is_what_fails_there(tmp_path: Path, point: Point, error: type[Exception]) -> None:
    there = hook(environment(tmp_path / "trace", Shot(point, 1, Fault.ERROR)))
    with pytest.raises(error):
        there(point)
    there(point)


def test_in_postgres_it_is_the_drivers_own(tmp_path: Path) -> None:
    there = hook({**environment(tmp_path / "trace", Shot(Point.APPEND_WITHIN, 1, Fault.ERROR)), DSN: "postgresql://"})
    with pytest.raises(psycopg.OperationalError):
        there(Point.APPEND_WITHIN)


def test_at_every_point_there_is_something_to_fail() -> None:
    assert all(isinstance(error_at(point), Exception) for point in Point)


def test_a_delay_holds_up_and_a_shot_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("moorage.testing.killpoints.time.sleep", waited.append)
    shot = Shot(Point.PUSH_WITHIN, 1, Fault.DELAY)
    assert Shot.parse(str(shot)) == shot
    hook(environment(tmp_path / "trace", shot))(Point.PUSH_WITHIN)
    assert waited == [killpoints.DELAY_S]


def test_children_are_told_no_more_than_how_they_are_armed(tmp_path: Path) -> None:
    env = environment(tmp_path / "trace", Shot(Point.PUSH_WITHIN))
    assert inherited({**env, "CANARY": "1"}) == env
    assert all(name.startswith(VARIABLE) for name in env)
