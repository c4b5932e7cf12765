"""A checkout of the last checkpoint beside a run's worktree: whole, apart, and gone afterwards."""

from pathlib import Path

import pytest
from tests.workspace_place import Place

from moorage.testing.trees import git, snapshot
from moorage.workspace.beside import beside, changes


async def test_it_holds_the_last_checkpoint_and_nothing_that_git_ignores(place: Place, tmp_path: Path) -> None:
    worktree = await place.prepare()
    (worktree.tree / "a.txt").write_text("two\n")
    (worktree.tree / "new.txt").write_text("new\n")
    (worktree.tree / "noise.log").write_text("ignored\n")
    (worktree.tree / "lib/b.py").unlink()
    await worktree.checkpoint(1, 1)
    (worktree.tree / "later.txt").write_text("after the checkpoint\n")
    before = snapshot(worktree.tree)
    async with beside(worktree, tmp_path / "there") as there:
        assert (there / "a.txt").read_text() == "two\n"
        names = {path.name for path in there.iterdir()} - {".git"}
        assert names == {".gitignore", "a.txt", "new.txt", "outside", "run.sh"}
        assert git(there, "status", "--porcelain") == ""
        assert git(there, "rev-parse", "HEAD") == worktree.last
        (there / "a.txt").write_text("changed by a check\n")
        (there / "left").mkdir()
        (there / "left" / "over").write_text("x")
        (there / "left").chmod(0o500)
    assert not (tmp_path / "there").exists()
    assert snapshot(worktree.tree) == before
    assert git(worktree.tree, "status", "--porcelain").count("later.txt") == 1, "its own git is as it was"
    assert await worktree.save_drift(1) is not None


@pytest.mark.parametrize("there", [True, False])
async def test_what_an_earlier_one_left_is_no_hindrance(place: Place, tmp_path: Path, there: bool) -> None:
    worktree = await place.prepare()
    (worktree.volume.repo / "worktrees" / "beside").mkdir(parents=True)
    if there:
        (tmp_path / "there" / "old").mkdir(parents=True)
    async with beside(worktree, tmp_path / "there") as at:
        assert not (at / "old").exists()
        assert (at / "a.txt").read_text() == "one\n"


async def test_what_changed_is_told_against_the_base(place: Place) -> None:
    worktree = await place.prepare()
    assert (await changes(worktree)).changed == frozenset()
    (worktree.tree / "a.txt").write_text("two\n")
    (worktree.tree / "lib/b.py").rename(worktree.tree / "lib/c.py")
    await worktree.checkpoint(1, 1)
    changed, present = await changes(worktree)
    assert changed == {"a.txt", "lib/b.py", "lib/c.py"}
    assert present == {".gitignore", "a.txt", "lib/c.py", "outside", "run.sh"}
