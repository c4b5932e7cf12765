"""The main job without a cluster, on a copy of this repository's own example."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import Template

from e2e import upstream
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.cluster.paths import CHECKOUT
from e2e.cluster.processes import identify, read_pid_file, write_pid_file
from e2e.demo.agenda import Agenda

NAME = "fix-slugify"
BRANCH = "moorage/demo-local"
SEED = "a git repository with failing tests"
RUN = "moorage run: an agent mends it in a sandbox, a second sandbox runs the tests"
STEPS = {SEED: 1.0, RUN: 10.0}
_PREFIX = "moorage-demo-"
_OWNER = "owner.pid"


def play(console: Console) -> None:
    """Make a repository, run an agent on it, show the branch that it made; nothing stays.

    Raises:
        HarnessError: the run failed.
    """
    agenda = Agenda(console, STEPS)
    with _folder() as folder:
        repository, run = folder / "demo", folder / "run.yaml"
        with agenda.step(SEED):
            _seed(repository)
        template = Template((CHECKOUT / "e2e" / "manifests" / "local.yaml").read_text())
        run.write_text(template.substitute(path=repository, branch=BRANCH))
        with agenda.step(RUN):
            show([program("moorage"), "run", "-f", str(run), "--state", f"{folder}/state"])
        print(_git(repository, "diff", "main", BRANCH), flush=True)
        print(_git(repository, "log", "--oneline", "--graph", "--all"), flush=True)
        show([program("moorage"), "timeline", NAME, "--state", f"{folder}/state"])
    console.say("that was on a copy, which is gone again; for your own: moorage run -f examples/local.yaml")


def sweep() -> None:
    """Remove the folders of demos that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = read_pid_file(folder / _OWNER)
        if owner and not owner.alive():
            shutil.rmtree(folder)


def program(name: str) -> str:
    """Path of a program of this environment."""
    return str(Path(sys.executable).parent / name)


def show(argv: list[str]) -> None:
    """Run a program whose output is for the user.

    Raises:
        HarnessError: it failed.
    """
    if subprocess.run(argv, check=False).returncode:
        raise HarnessError(f"{' '.join(argv)} failed (see above)")


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder that says whose it is, so that a killed demo's can be told from a living one's."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        folder, owner = Path(name), identify(os.getpid())
        assert owner is not None
        write_pid_file(folder / _OWNER, owner)
        yield folder


def _seed(repository: Path) -> None:
    repository.mkdir()
    for name, text in upstream.demo_files().items():
        (repository / name).write_text(text)
    _git(repository, "init", "-q", "-b", "main")
    _git(repository, "add", "-A")
    _git(repository, "-c", "user.name=demo", "-c", "user.email=demo@example.test", "commit", "-qm", "Add slugify")


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HarnessError(f"git {' '.join(arguments)}: {done.stderr}")
    return done.stdout
