"""W7: what a child proposes, into the tree of its parent, whole or not at all."""

from pathlib import Path
from typing import Any

import pytest
from tests.workspace_place import KEY, RUN, Place

from moorage.testing.trees import git, snapshot
from moorage.workspace.errors import WorkspaceError
from moorage.workspace.refs import pin_ref


def a_child(place: Place, source: Path, name: str, changes: dict[str, str | bytes | None]) -> str:
    """A commit on the base, kept at the gateway for the parent."""
    git(source, "checkout", "-q", "-B", name, place.base)
    for path, content in changes.items():
        target = source / path
        if content is None:
            target.unlink()
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
    git(source, "add", "-A")
    git(source, "commit", "-qm", name)
    mirror = place.door.mirrors.path(KEY)
    git(mirror, "fetch", "-q", str(source), f"{name}:{pin_ref(RUN, f'child-{name}')}")
    return git(source, "rev-parse", "HEAD")


@pytest.mark.rule("W7")
async def test_what_children_did_comes_into_a_tree_that_has_changes_of_its_own(place: Place, source: Path) -> None:
    worktree = await place.prepare()
    tree = worktree.tree
    (tree / "own.txt").write_text("uncommitted\n")
    (tree / "x.log").write_text("ignored\n")
    first = a_child(place, source, "first", {"lib/b.py": "b = 2\n", "new/deep.bin": b"\0\1\xff", "run.sh": None})
    second = a_child(place, source, "second", {"a.txt": "one\ntwo\n"})
    merged = await worktree.merge(first, place.base)
    assert (merged.ok, merged.files) == (True, 3)
    assert (await worktree.merge(second, place.base)).files == 1
    assert (tree / "lib/b.py").read_text() == "b = 2\n"
    assert (tree / "new/deep.bin").read_bytes() == b"\0\1\xff"
    assert not (tree / "run.sh").exists()
    assert (tree / "a.txt").read_text() == "one\ntwo\n"
    assert (tree / "own.txt").read_text() == "uncommitted\n"
    assert (tree / "x.log").read_text() == "ignored\n"
    assert (await worktree.merge(first, place.base)).files == 0, "it is there already"
    taken = await worktree.checkpoint(1, 1)
    assert git(tree, "show", f"{taken.commit}:lib/b.py") == "b = 2"
    proposal = await worktree.propose("all of it")
    assert "new/deep.bin" in git(tree, "ls-tree", "-r", "--name-only", proposal.commit).split()


@pytest.mark.rule("W7")
@pytest.mark.parametrize("options", [{"depth": 1}, {"filter": "blob:none"}, {"depth": 1, "sparse": ("lib",)}])
async def test_a_workspace_that_is_not_whole_takes_it_too(place: Place, source: Path, options: dict[str, Any]) -> None:
    worktree = await place.prepare(**options)
    (worktree.tree / "own.txt").write_text("uncommitted\n")
    theirs = a_child(place, source, "theirs", {"lib/b.py": "b = 1\nc = 2\n"})
    merged = await worktree.merge(theirs, place.base)
    assert (merged.ok, merged.files) == (True, 1)
    assert (worktree.tree / "lib/b.py").read_text() == "b = 1\nc = 2\n"
    assert (worktree.tree / "own.txt").read_text() == "uncommitted\n"


@pytest.mark.rule("W7")
async def test_what_the_parent_had_done_before_its_child_began_is_no_change_of_the_childs(
    place: Place, source: Path
) -> None:
    """The parent's history and the child's have nothing but the parent's base in common."""
    worktree = await place.prepare()
    (worktree.tree / "lib/b.py").write_text("b = 2\n")
    began = a_child(place, source, "began", {"lib/b.py": "b = 2\n"})
    (source / "a.txt").write_text("one\ntwo\n")
    git(source, "commit", "-qam", "theirs")
    theirs = git(source, "rev-parse", "HEAD")
    git(place.door.mirrors.path(KEY), "fetch", "-q", str(source), f"+began:{pin_ref(RUN, 'child-began')}")
    (worktree.tree / "lib/b.py").write_text("b = 3\n")
    merged = await worktree.merge(theirs, began)
    assert (merged.ok, merged.files) == (True, 1)
    assert (worktree.tree / "lib/b.py").read_text() == "b = 3\n"
    assert (worktree.tree / "a.txt").read_text() == "one\ntwo\n"


@pytest.mark.rule("W7")
async def test_a_conflict_names_its_files_and_changes_nothing(place: Place, source: Path) -> None:
    worktree = await place.prepare()
    (worktree.tree / "a.txt").write_text("mine\n")
    theirs = a_child(place, source, "theirs", {"a.txt": "theirs\n", "lib/b.py": "b = 3\n"})
    before = snapshot(worktree.tree), git(worktree.tree, "status", "--porcelain")
    merged = await worktree.merge(theirs, place.base)
    assert (merged.ok, merged.conflicts) == (False, ("a.txt",))
    assert (snapshot(worktree.tree), git(worktree.tree, "status", "--porcelain")) == before


@pytest.mark.rule("W7")
async def test_an_ignored_file_in_the_way_is_not_written_over(place: Place, source: Path) -> None:
    worktree = await place.prepare()
    (worktree.tree / "x.log").write_text("precious\n")
    git(source, "config", "core.excludesFile", "/dev/null")
    theirs = a_child(place, source, "logged", {"lib/b.py": "b = 4\n", ".gitignore": "build/\n", "x.log": "theirs\n"})
    before = snapshot(worktree.tree)
    merged = await worktree.merge(theirs, place.base)
    assert not merged.ok
    assert "x.log" in merged.problem
    assert snapshot(worktree.tree) == before


async def test_a_commit_that_is_not_kept_for_the_run_is_not_merged(place: Place) -> None:
    worktree = await place.prepare()
    before = snapshot(worktree.tree)
    with pytest.raises(WorkspaceError):
        await worktree.merge("a" * 40, place.base)
    assert snapshot(worktree.tree) == before
