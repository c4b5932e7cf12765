"""Only what the agent writes is in its result: what git would make of the other files' bytes today is not."""

from pathlib import Path

import pytest

from moorage.testing.trees import git
from moorage.workspace.snapshot import Change

OLD = b"one\r\ntwo\r\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Blobs with CRLF, committed before the attributes that would convert them."""
    work = tmp_path / "source"
    (work / "lib").mkdir(parents=True)
    git(work, "init", "-q", "-b", "main")
    for name in ("old.txt", "lib/deep.txt", "run.bat"):
        (work / name).write_bytes(OLD)
    (work / "plain.md").write_bytes(b"one\n")
    git(work, "add", "-A")
    git(work, "commit", "-qm", "bytes")
    (work / ".gitattributes").write_text("*.txt text\n*.bat text eol=crlf\n*.md text eol=crlf\n")
    git(work, "add", ".gitattributes")
    git(work, "commit", "-qm", "attributes")
    return work


@pytest.mark.rule("P2")
async def test_an_agent_that_writes_nothing_changes_nothing(place):
    worktree = await place.prepare()
    assert not (await worktree.checkpoint(1, 1)).changed
    assert (await worktree.propose("nothing")).empty
    again = await place.prepare(epoch=2)
    assert again.drift is None
    assert (await again.propose("nothing")).empty


async def test_only_written_files_are_in_the_result_and_those_as_git_would_store_them(place):
    worktree = await place.prepare()
    assert (worktree.tree / "plain.md").read_bytes() == b"one\r\n"
    (worktree.tree / "lib/deep.txt").write_bytes(b"new\r\n")
    (worktree.tree / "plain.md").write_bytes(b"one\r\ntwo\r\n")
    one = await worktree.checkpoint(1, 1)
    await worktree.push_checkpoint(one)
    before = {name: (worktree.tree / name).read_bytes() for name in ("old.txt", "run.bat", "plain.md")}
    place.lose_volume()
    again = await place.prepare(epoch=2, resume=one.commit)
    assert {name: (again.tree / name).read_bytes() for name in before} == before
    assert not (await again.checkpoint(2, 2)).changed
    proposal = await again.propose("written")
    changed = git(again.tree, "diff", "--name-only", place.base, proposal.commit).split()
    assert changed == ["lib/deep.txt", "plain.md"]
    assert proposal.files == 2
    sizes = [git(again.tree, "cat-file", "-s", f"{proposal.commit}:{name}") for name in changed]
    assert sizes == [str(len(b"new\n")), str(len(b"one\ntwo\n"))]


async def test_a_file_whose_mode_alone_changed_keeps_its_bytes(place):
    worktree = await place.prepare()
    (worktree.tree / "old.txt").chmod(0o755)
    proposal = await worktree.propose("mode")
    assert "100644 => 100755 old.txt" in git(worktree.tree, "diff", "--summary", place.base, proposal.commit)
    assert git(worktree.tree, "diff", "--numstat", place.base, proposal.commit).split() == ["0", "0", "old.txt"]


async def test_attributes_that_the_agent_adds_convert_no_file_that_it_did_not_write(place):
    worktree = await place.prepare()
    (worktree.tree / "lib/.gitattributes").write_text("* text\n")
    (worktree.tree / "lib/deep.txt").touch()
    proposal = await worktree.propose("attributes")
    assert git(worktree.tree, "diff", "--name-only", place.base, proposal.commit) == "lib/.gitattributes"


async def test_no_change_is_compared_with_every_other(place, monkeypatch: pytest.MonkeyPatch):
    """There may be as many as the repository has files, and every one of them unwritten."""
    compared: list[Change] = []

    def told(self: Change, other: object) -> bool:
        compared.append(self)
        return self is other

    monkeypatch.setattr(Change, "__eq__", told)
    worktree = await place.prepare()
    assert not (await worktree.checkpoint(1, 1)).changed
    assert compared == []


WRITTEN = {"new.txt": b"a\r\nb\r\n", "mixed.md": b"a\r\nb\n", "new.dat": b"a\r\nb\r\n", "bytes.txt": b"\0\r\n\xff\r\n"}


@pytest.mark.rule("P2", "R3")
async def test_line_ends_stay_on_the_volume_and_are_gits_where_the_tree_is_made_anew(place):
    """As docs/concepts.md has it: a checkpoint holds what `git add` would, and not a byte more."""
    worktree = await place.prepare()
    for name, content in WRITTEN.items():
        (worktree.tree / name).write_bytes(content)
    one = await worktree.checkpoint(1, 1)
    await worktree.push_checkpoint(one)
    again = await place.prepare(epoch=2, resume=one.commit)
    assert again.drift is None
    assert {name: (again.tree / name).read_bytes() for name in WRITTEN} == WRITTEN
    place.lose_volume()
    anew = await place.prepare(epoch=3, resume=one.commit)
    assert {name: (anew.tree / name).read_bytes() for name in WRITTEN} == {
        "new.txt": b"a\nb\n",
        "mixed.md": b"a\r\nb\r\n",
        "new.dat": WRITTEN["new.dat"],
        "bytes.txt": b"\0\n\xff\n",
    }
    assert not (await anew.checkpoint(2, 3)).changed
