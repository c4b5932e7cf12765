"""What killed harnesses leave: found by its state, never taken from a cluster that lives or from a harness at work."""

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.cluster import caches
from e2e.cluster.cleanup import abandoned, make_folder, remove_made_folders
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.cluster.layout import Layout, slot
from e2e.cluster.locks import exclusive, held
from e2e.cluster.processes import ProcessName, identify, write_pid_file
from e2e.demo import local
from e2e.demo.agenda import Agenda
from e2e.demo.clean import runs_from

DEAD = ProcessName(1, 1, "another boot")


@pytest.fixture
def cluster(tmp_path: Path) -> Callable[..., Layout]:
    """Make the state of a cluster: whether it came up, and whether its one process lives."""

    def make(name: str, *, up: bool, alive: bool) -> Layout:
        layout = Layout(name, tmp_path / name)
        layout.pids.mkdir(parents=True)
        me = identify(os.getpid())
        assert me is not None
        write_pid_file(layout.pids / "etcd.pid", me if alive else DEAD)
        if up:
            layout.record.write_text("{}")
        return layout

    return make


@pytest.mark.parametrize(
    ("up", "alive", "left"), [(True, True, False), (True, False, True), (False, True, True), (False, False, True)]
)
def test_a_cluster_is_left_over_unless_it_came_up_and_lives(
    cluster: Callable[..., Layout], up: bool, alive: bool, left: bool
) -> None:
    assert abandoned(cluster("some", up=up, alive=alive)) is left


def test_a_cluster_that_a_harness_works_on_is_not_left_over(cluster: Callable[..., Layout]) -> None:
    layout = cluster("some", up=False, alive=True)
    with exclusive(layout.lock):
        assert not abandoned(layout)
    assert abandoned(layout)


def test_siblings_are_the_clusters_beside(cluster: Callable[..., Layout], tmp_path: Path) -> None:
    first, second = cluster("first", up=True, alive=True), cluster("second", up=True, alive=True)
    (tmp_path / "some-kind").mkdir()
    assert [each.name for each in first.siblings()] == ["second"]
    assert [each.name for each in second.siblings()] == ["first"]


def test_folders_outside_go_with_the_last_cluster_and_lie_in_nobodys_way(
    cluster: Callable[..., Layout], tmp_path: Path
) -> None:
    """They were told to the other cluster by a file in its state, which it was just removing."""
    one, other = cluster("one", up=True, alive=True), cluster("other", up=True, alive=True)
    shared, used = tmp_path / "outside" / "shared", tmp_path / "outside" / "used"
    for each in (shared, used):
        make_folder(one, each)
    make_folder(other, shared)
    shutil.rmtree(one.state)
    remove_made_folders(one)
    assert shared.is_dir(), "the other may use it"
    assert sorted(path.name for path in other.state.iterdir()) == sorted([other.pids.name, other.record.name])
    (used / "somebody's").touch()
    shutil.rmtree(other.state)
    remove_made_folders(other)
    assert (shared.exists(), used.is_dir()) == (False, True)
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]


def test_the_demos_cluster_and_the_tests_share_no_address() -> None:
    demo, tests = Layout("moorage", Path("/s/a")), Layout("moorage-test", Path("/s/b"))
    assert slot(demo.name) != slot(tests.name)
    for part in ("node_range", "service_range", "service_address", "host_link", "fabric", "cgroup", "url"):
        assert getattr(demo, part) != getattr(tests, part), part
    assert {demo.node(n).pod_range for n in (1, 2)}.isdisjoint(tests.node(n).pod_range for n in (1, 2))


def test_a_lock_whose_holder_was_killed_locks_nothing(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from e2e.cluster.locks import exclusive\n"
        "with exclusive(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    lock = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", script, str(lock)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert held(lock)
        holder.kill()
    assert not held(lock)
    with exclusive(lock):
        assert held(lock)


def test_what_was_half_made_goes_before_the_next_begins(tmp_path: Path) -> None:
    (tmp_path / "partial-tool-killed").mkdir()
    (tmp_path / "partial-tool-killed" / "file").write_text("half")
    (tmp_path / "partial-other-alive").mkdir()
    with caches.workplace(tmp_path, "tool") as folder:
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([folder.name, "partial-other-alive"])
    assert [path.name for path in tmp_path.iterdir()] == ["partial-other-alive"]


def test_a_cache_goes_whole_and_takes_nothing_else_with_it(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name in ("programs/etcd-1", "images", "go/modules"):
        (cache / name).mkdir(parents=True)
        (cache / name / "file").write_text("x")
    (cache / "precious").write_text("the user's")
    caches.remove(cache)
    assert [path.name for path in cache.iterdir()] == ["precious"]
    (cache / "precious").unlink()
    caches.remove(cache)
    assert not cache.exists()


def test_a_cache_that_is_being_filled_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "programs" / "etcd-1").mkdir(parents=True)
    with exclusive(tmp_path / "programs" / "helm.lock"), pytest.raises(HarnessError, match="try again"):
        caches.remove(tmp_path)
    assert (tmp_path / "programs" / "etcd-1").is_dir()


def test_folders_of_killed_demos_go_and_those_of_living_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    me = identify(os.getpid())
    assert me is not None
    for name, owner in (("killed", DEAD), ("alive", me)):
        (tmp_path / f"moorage-demo-{name}").mkdir()
        write_pid_file(tmp_path / f"moorage-demo-{name}" / "owner.pid", owner)
    (tmp_path / "moorage-demo-strangers").mkdir()
    local.sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["moorage-demo-alive", "moorage-demo-strangers"]


def test_each_step_says_which_it_is_and_what_is_left() -> None:
    agenda = Agenda(Console(), {"first": 60.0, "second": 30.0})
    assert agenda.left("first") == "step 1 of 2, about 1 min 30 s left with it"
    assert agenda.left("second") == "step 2 of 2, about 30.0 s left with it"


def test_a_long_step_shows_that_it_lives_and_how_long_it_may_take() -> None:
    out = io.StringIO()
    console = Console(out, heartbeat_s=0.01)
    with console.step("outer", pulse=False), console.step("build", expected_s=420):
        while "still at it" not in out.getvalue():
            time.sleep(0.001)
    assert re.search(r"build: still at it after \d\.\d s of about 7 min 00 s", out.getvalue())
    assert "outer: still" not in out.getvalue()


def test_a_step_outlives_the_standard_error_that_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pytest's ends with its capturing: a cluster that is taken down after an interrupt is told of all the same."""
    captured, real = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", captured)
    with Console().step("take it down"):
        monkeypatch.setattr(sys, "stderr", real)
        captured.close()
    assert re.search(r"take it down: \d+\.\d s", real.getvalue())


def test_a_cache_is_in_use_where_a_clusters_process_is_a_program_of_it(cluster: Callable[..., Layout]) -> None:
    python = Path(f"/proc/{os.getpid()}/exe").readlink()
    living, dead = cluster("living", up=True, alive=True), cluster("dead", up=True, alive=False)
    assert runs_from(python.parent, living)
    assert not runs_from(living.state, living)
    assert not runs_from(python.parent, dead)


def test_what_a_killed_harness_left_running_keeps_its_lock(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from e2e.cluster.locks import exclusive; from e2e.cluster.shell import run_logged\n"
        "folder = Path(sys.argv[1])\n"
        "with exclusive(folder / 'lock'):\n"
        "    run_logged(['sh', '-c', 'echo $$ > pid; exec sleep 60'], folder / 'log', cwd=folder)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) as harness:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("\n"):
            time.sleep(0.01)
        harness.kill()
    orphan = int((tmp_path / "pid").read_text())
    assert held(tmp_path / "lock")
    os.kill(orphan, signal.SIGKILL)
    while held(tmp_path / "lock"):
        time.sleep(0.01)
