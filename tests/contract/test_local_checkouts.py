"""A local run begins from what is checked out, however a CI or a hook has checked it out."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.local_machine import BRANCH, ISOLATED, Machine

from moorage.testing.trees import git

WORK = "echo x > x"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, ISOLATED)
    for n in (1, 2):
        (made.repository / "README").write_text(f"{n}\n")
        git(made.repository, "commit", "-qam", str(n))
    yield made
    made.close()


def delivered(machine: Machine, repository: Path, base: str) -> None:
    code, end, err = machine.run()
    assert (code, end.get("phase")) == (0, "Succeeded"), (end, err)
    assert git(repository, "rev-parse", f"{BRANCH}^") == base
    assert git(repository, "show", f"{BRANCH}:x") == "x"


def replaced(machine: Machine, *clone: str) -> Path:
    """The machine's repository is a clone of what it was."""
    source = machine.repository.rename(machine.root / "source")
    git(machine.root, "clone", "-q", *clone, f"file://{source}", str(machine.repository))
    return machine.repository


def test_a_detached_head_is_begun_from(machine: Machine):
    head = git(machine.repository, "rev-parse", "HEAD")
    git(machine.repository, "checkout", "-q", "--detach", "HEAD")
    git(machine.repository, "branch", "-q", "-D", "main")
    machine.write(agent=WORK, check="test $(cat README) = 2")
    delivered(machine, machine.repository, head)


@pytest.mark.parametrize("detached", [False, True], ids=["branch", "detached"])
def test_a_shallow_clone_is_begun_from_and_delivered_to(machine: Machine, detached: bool):
    repository = replaced(machine, "--depth=1")
    head = git(repository, "rev-parse", "HEAD")
    if detached:
        git(repository, "checkout", "-q", "--detach", "HEAD")
        git(repository, "branch", "-q", "-D", "main")
    machine.write(agent=WORK, check="test $(cat README) = 2")
    delivered(machine, repository, head)


@pytest.mark.parametrize("ref", ["main~1", "old"], ids=["commit", "tag"])
def test_another_ref_is_begun_from_where_it_is_named(machine: Machine, ref: str):
    base = git(machine.repository, "rev-parse", "main~1")
    git(machine.repository, "tag", "old", base)
    named = base if ref == "main~1" else ref
    machine.write(
        agent=WORK, check="test $(cat README) = 1", workspace={"local": {"path": "./repository", "ref": named}}
    )
    delivered(machine, machine.repository, base)


def test_a_bare_repository_is_begun_from_and_a_hooks_environment_is_nobodys(machine: Machine):
    elsewhere = machine.root / "elsewhere"
    git(machine.root, "init", "-q", str(elsewhere))
    repository = replaced(machine, "--bare")
    machine.armed |= {"GIT_DIR": str(elsewhere / ".git"), "GIT_WORK_TREE": str(elsewhere), "GIT_INDEX_FILE": "/none"}
    machine.write(agent=WORK, check="test $(cat README) = 2")
    delivered(machine, repository, git(repository, "rev-parse", "main"))
