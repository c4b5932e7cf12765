"""P2: an agent's own session files go with the tree, in one checkpoint, over real git."""

import asyncio
import hashlib
import os
import shutil
import threading
from pathlib import Path

import pytest
from tests.workspace_place import RUN, Place

from moorage.testing.trees import git
from moorage.workspace import statefiles
from moorage.workspace.beginnings import gone_on
from moorage.workspace.errors import Corrupt
from moorage.workspace.git import Git
from moorage.workspace.refs import checkpoint_ref
from moorage.workspace.statefiles import CHUNK, TITLE, StateFiles, read_index
from moorage.workspace.worktree import RunWorktree

KEPT = ".agent/sessions"


@pytest.fixture
def home(place: Place) -> Path:
    return place.root / ".moorage" / "agent" / "home"


def kept(home: Path, **options: int) -> StateFiles:
    return StateFiles(home, (KEPT, ".moorage/session"), (".agent",), **options)


def say(home: Path, name: str, text: str) -> Path:
    path = home / KEPT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)
    return path


async def taken(worktree: RunWorktree, number: int, **more: bool) -> str:
    point = await worktree.checkpoint(number, 1, **more)
    await worktree.push_checkpoint(point)
    return point.commit


@pytest.mark.rule("P2", "R1", "W3")
@pytest.mark.parametrize("options", [{}, {"depth": 1}, {"filter": "blob:none"}], ids=["whole", "shallow", "partial"])
async def test_tree_and_conversation_come_back_together_on_a_new_volume(place: Place, home: Path, options) -> None:
    worktree = await place.prepare(state=kept(home), **options)
    (worktree.tree / "a.txt").write_text("two\n")
    say(home, "day/s-1.jsonl", '{"n":1}\n')
    (home / ".moorage").mkdir()
    (home / ".moorage" / "session").write_text("s-1")
    point = await taken(worktree, 1)
    assert await place.stored(checkpoint_ref(RUN, 1)) == point
    place.release()
    place.lose_volume()
    again = await place.prepare(2, point, state=kept(home), **options)
    assert (again.tree / "a.txt").read_text() == "two\n"
    assert (home / KEPT / "day/s-1.jsonl").read_text() == '{"n":1}\n'
    assert (home / ".moorage" / "session").read_text() == "s-1"
    assert not (await again.checkpoint(2, 2)).changed, "what was put back is what is there"


@pytest.mark.rule("P2", "R3")
async def test_what_came_after_the_safe_point_is_moved_aside_and_so_is_what_was_made_of_it(place, home) -> None:
    worktree = await place.prepare(state=kept(home))
    say(home, "s.jsonl", '{"n":1}\n')
    point = await taken(worktree, 1)
    say(home, "s.jsonl", '{"n":2}\n')
    say(home, "t.jsonl", "{}\n")
    (home / ".agent" / "index.db").write_text("of both")
    (home / ".bashrc").write_text("nothing of theirs")
    await place.prepare(2, point, state=kept(home))
    assert [path.name for path in (home / KEPT).iterdir()] == ["s.jsonl"]
    assert (home / KEPT / "s.jsonl").read_text() == '{"n":1}\n'
    assert not (home / ".agent" / "index.db").exists()
    assert (home / ".bashrc").exists()
    aside = place.root / ".moorage" / "aside" / "2" / "home" / ".agent"
    assert (aside / "index.db").read_text() == "of both"
    assert (aside / "sessions" / "s.jsonl").read_text() == '{"n":1}\n{"n":2}\n'


@pytest.mark.rule("R1")
async def test_without_a_safe_point_there_is_no_conversation_to_go_on_with(place, home) -> None:
    await place.prepare(state=kept(home))
    say(home, "s.jsonl", '{"n":1}\n')
    await place.prepare(2, None, state=kept(home))
    assert not (home / KEPT).exists()


async def test_a_safe_point_of_the_tree_alone_drops_the_conversation(place, home) -> None:
    worktree = await place.prepare(state=kept(home))
    say(home, "s.jsonl", '{"n":1}\n')
    await taken(worktree, 1)
    (worktree.tree / "a.txt").write_text("two\n")
    point = await taken(worktree, 2, conversation=False)
    again = await place.prepare(2, point, state=kept(home))
    assert (again.tree / "a.txt").read_text() == "two\n"
    assert not (home / KEPT).exists()


@pytest.mark.rule("P2")
async def test_a_conversation_that_grows_is_a_checkpoint_and_an_unchanged_one_is_none(place, home) -> None:
    worktree = await place.prepare(state=kept(home))
    say(home, "s.jsonl", "x" * CHUNK + "\n" + "y" * CHUNK + "\n")
    one = await worktree.checkpoint(1, 1)
    assert (one.changed, one.tree_changed) == (True, False)
    assert not (await worktree.checkpoint(2, 1)).changed
    objects = int(git(worktree.tree, "count-objects").split()[0])
    say(home, "s.jsonl", "z\n")
    assert (await worktree.checkpoint(3, 1)).changed
    fresh = int(git(worktree.tree, "count-objects").split()[0]) - objects
    assert fresh == 5, "its last chunk, its index, their tree, and two commits"


async def test_while_a_conversation_is_kept_the_event_loop_goes_on(place, home, monkeypatch) -> None:
    worktree = await place.prepare(state=kept(home))
    say(home, "s.jsonl", '{"n":1}\n')
    begun, go, before = threading.Event(), threading.Event(), statefiles._content

    def slow(path: Path, most: int) -> bytes:
        begun.set()
        assert go.wait(40), "nobody else has had a turn"
        return before(path, most)

    monkeypatch.setattr(statefiles, "_content", slow)
    taking = asyncio.create_task(worktree.checkpoint(1, 1))
    async with asyncio.timeout(40):
        while not begun.is_set():  # noqa: ASYNC110  another thread sets it
            await asyncio.sleep(0.01)
    go.set()
    assert (await taking).changed


async def test_only_what_has_changed_is_read_again(place, home, monkeypatch) -> None:
    read, before = list[str](), statefiles._content

    def counted(path: Path, most: int) -> bytes:
        read.append(path.name)
        return before(path, most)

    monkeypatch.setattr(statefiles, "_content", counted)
    worktree = await place.prepare(state=kept(home, settled_ns=-1))
    old, new = say(home, "old.jsonl", "x" * CHUNK + "\n"), say(home, "new.jsonl", '{"n":1}\n')
    await worktree.checkpoint(1, 1)
    assert sorted(read) == ["new.jsonl", "old.jsonl"]
    new.write_text('{"n":22}\n')
    point = await worktree.checkpoint(2, 1)
    assert read[2:] == ["new.jsonl"]
    chunk = hashes(old)[0]
    (worktree.volume.repo / "objects" / chunk[:2] / chunk[2:]).unlink()
    assert (await worktree.checkpoint(3, 1)).commit == point.commit
    assert read[3:] == ["old.jsonl"], "whose chunk is not where it was"
    await worktree.push_checkpoint(point)
    place.release()
    place.lose_volume()
    await place.prepare(2, point.commit, state=kept(home))
    assert (home / KEPT / "new.jsonl").read_text() == '{"n":22}\n'
    assert (home / KEPT / "old.jsonl").read_text() == "x" * CHUNK + "\n"


async def test_what_has_just_changed_is_read_again_since_a_coarse_clock_may_hide_the_next_change(
    place, home, monkeypatch
) -> None:
    worktree = await place.prepare(state=kept(home, settled_ns=10**15))
    file = say(home, "s.jsonl", '{"n":1}\n')
    await worktree.checkpoint(1, 1)
    monkeypatch.setattr(statefiles, "_sign", lambda _: (7,))
    file.write_text('{"n":2}\n')
    assert (await worktree.checkpoint(2, 1)).changed


def hashes(path: Path) -> list[str]:
    content = path.read_bytes()
    parts = [content[at : at + CHUNK] for at in range(0, len(content), CHUNK)]
    return [hashlib.sha1(b"blob %d\0%b" % (len(part), part)).hexdigest() for part in parts]


@pytest.mark.rule("W3", "W5")
async def test_what_is_delivered_never_has_the_conversation_for_an_ancestor(place, home) -> None:
    worktree = await place.prepare(state=kept(home))
    (worktree.tree / "a.txt").write_text("two\n")
    say(home, "s.jsonl", '{"secret":"thought"}\n')
    point = await taken(worktree, 1)
    assert TITLE in git(worktree.tree, "log", "--format=%s", point)
    git(worktree.tree, "reset", "-q", "--hard", point)  # the agent's own doing
    (worktree.tree / "b.txt").write_text("b\n")
    git(worktree.tree, "add", "-A")
    git(worktree.tree, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "mine")
    proposal = await worktree.propose("Done")
    assert git(worktree.tree, "log", "--format=%s", f"{place.base}..{proposal.commit}") == "Done"
    assert git(worktree.tree, "show", f"{proposal.commit}:a.txt") == "two"
    await worktree.push_candidate(proposal)


@pytest.mark.rule("J12")
async def test_what_is_no_plain_file_or_too_much_is_left_out_by_name(place, home) -> None:
    worktree = await place.prepare(state=kept(home, cap_bytes=100))
    say(home, "old.jsonl", "o" * 60 + "\n")
    os.utime(home / KEPT / "old.jsonl", (1, 1))
    say(home, "new.jsonl", '{"n":1}\n{"half')
    say(home, "huge.jsonl", "h" * 101 + "\n")
    (home / KEPT / "link").symlink_to("/etc/passwd")
    os.mkfifo(home / KEPT / "pipe")
    (home / KEPT / os.fsdecode(b"\xff")).write_text("no text")
    point = await worktree.checkpoint(1, 1)
    await worktree.push_checkpoint(point)
    assert [entry.path for entry in point.left_out] == [f"{KEPT}/huge.jsonl"]
    shutil.rmtree(home)
    await place.prepare(2, point.commit, state=kept(home))
    assert sorted(path.name for path in (home / KEPT).iterdir()) == ["new.jsonl", "old.jsonl"]
    assert (home / KEPT / "new.jsonl").read_text() == '{"n":1}\n', "half a line would be gone on with"


@pytest.mark.rule("T3", "J12")
@pytest.mark.parametrize("name", ["../../escaped", "/etc/escaped", f"{KEPT}/../../../escaped", "elsewhere", "", "a\0"])
def test_a_path_that_leads_elsewhere_is_not_put_back(tmp_path: Path, name: str) -> None:
    files = kept(tmp_path)
    assert not files.covers(name)
    assert files.covers(f"{KEPT}/day/s.jsonl")


@pytest.mark.rule("J12")
@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"a":1}', b'{"a":["x"]}', b'{"a":[["' + b"0" * 40 + b'"]]}', b"\xff", b"[" * 100_000]
)
def test_an_index_that_makes_no_sense_is_refused(text: bytes) -> None:
    with pytest.raises(Corrupt):
        read_index(text)


@pytest.mark.rule("O2", "I10")
async def test_what_a_message_alone_calls_a_conversation_is_nobodys_to_go_on_with(tmp_path: Path) -> None:
    """A sandbox wrote it, and may have named whatever it knows the id of: another run's conversation, or nothing."""
    for command in ("init -q", "config user.name a", "config user.email a@b", "commit -q --allow-empty -m base"):
        git(tmp_path, *command.split())
    base = git(tmp_path, "rev-parse", "HEAD")
    said = git(tmp_path, "commit-tree", "HEAD^{tree}", "-m", TITLE)

    def checkpoint(state: str, *parents: str) -> str:
        on = [option for parent in (base, *parents) for option in ("-p", parent)]
        told = f"Checkpoint 1\n\nparent {state}\nMoorage-Head: {base}\nMoorage-State: {state}\n"
        return git(tmp_path, "commit-tree", "HEAD^{tree}", *on, "-m", told)

    made = await gone_on(Git(tmp_path), checkpoint(said, said), base, "fix")
    assert made is not None
    assert git(tmp_path, "log", "-1", "--format=%P", made) == f"{base} {said}"
    for forged in (said, "a" * 40):
        assert await gone_on(Git(tmp_path), checkpoint(forged), base, "fix") is None
