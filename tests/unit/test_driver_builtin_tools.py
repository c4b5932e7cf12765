"""The builtin agent's tools on a real folder, with real processes."""

import asyncio
import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from moorage.drivers.builtin.tools import Toolbox
from moorage.drivers.telling import RESULT_CHARACTERS, ToolResult
from moorage.procfs import processes
from moorage.runner.processes import PR_SET_CHILD_SUBREAPER, ChildProcess, become_subreaper, family, spawn


class Here:
    """As much of a host as tools need: real processes, in the tree."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.stopping = asyncio.Event()
        self.spawned: list[ChildProcess] = []

    async def spawn(self, argv: Sequence[str], env: Mapping[str, str]) -> ChildProcess:
        self.spawned.append(await spawn(argv, env={"PATH": os.environ["PATH"], **env}, cwd=self.tree))
        return self.spawned[-1]


@pytest.fixture(autouse=True)
def subreaper() -> Iterator[None]:
    """What a command leaves behind becomes ours, as in a sandbox."""
    become_subreaper()
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "tree"
    (made / "lib").mkdir(parents=True)
    (made / "a.txt").write_text("one\ntwo\nthree\n")
    (made / ".git").write_text("gitdir: elsewhere\n")
    (tmp_path / "outside.txt").write_text("secret")
    (made / "out").symlink_to(tmp_path / "outside.txt")
    return made


@pytest.fixture
def tools(tree: Path, tmp_path: Path) -> Toolbox:
    return Toolbox(tree, tmp_path / "tmp", Here(tree))  # type: ignore[arg-type]


async def run(tools: Toolbox, name: str, **arguments: Any) -> ToolResult:
    return await tools.run(name, arguments)


async def test_a_command_has_the_agents_environment(tree, tmp_path) -> None:
    tools = Toolbox(tree, tmp_path / "tmp", Here(tree), {"GREETING": "hello"})  # type: ignore[arg-type]
    assert (await run(tools, "bash", command="echo $GREETING")).text.startswith("hello\n")


async def test_read_numbers_lines_and_pages(tools) -> None:
    assert (await run(tools, "read", path="a.txt")).text == "1\tone\n2\ttwo\n3\tthree"
    assert (await run(tools, "read", path="a.txt", offset=2, limit=1)).text == "2\ttwo\n(1 more lines)"
    assert "has 3 lines" in (await run(tools, "read", path="a.txt", offset=9)).text
    assert (await run(tools, "read", path=".")).text.splitlines() == [".git", "a.txt", "lib/", "out"]


async def test_an_absolute_path_into_the_tree_is_understood(tools, tree) -> None:
    assert (await run(tools, "read", path=str(tree / "a.txt"))).ok


@pytest.mark.rule("W1")
@pytest.mark.parametrize("path", ["../outside.txt", "/etc/passwd", "out", "lib/../../outside.txt", "a\0b"])
@pytest.mark.parametrize("tool", ["read", "write", "edit"])
async def test_nothing_outside_the_tree_is_touched(tools, tmp_path, tool, path) -> None:
    more = {"read": {}, "write": {"content": "x"}, "edit": {"old": "secret", "new": "x"}}[tool]
    result = await run(tools, tool, path=path, **more)
    assert not result.ok
    assert "secret" not in result.text
    assert (tmp_path / "outside.txt").read_text() == "secret"


@pytest.mark.parametrize("path", [".git", ".git/config", "lib/.GIT/hooks/x"])
async def test_gits_own_files_are_not_written(tools, tree, path) -> None:
    assert "git" in (await run(tools, "write", path=path, content="x")).text
    assert (tree / ".git").read_text() == "gitdir: elsewhere\n"


async def test_write_makes_folders_and_keeps_the_mode(tools, tree) -> None:
    assert "made" in (await run(tools, "write", path="new/deep/b.txt", content="жук\n")).text
    assert (tree / "new/deep/b.txt").read_text() == "жук\n"
    (tree / "run.sh").write_text("#!/bin/sh\n")
    (tree / "run.sh").chmod(0o755)
    assert "replaced" in (await run(tools, "write", path="run.sh", content="#!/bin/sh\ntrue\n")).text
    assert (tree / "run.sh").stat().st_mode & 0o777 == 0o755
    assert not (await run(tools, "write", path="lib", content="x")).ok


async def test_edit_wants_exactly_one_match(tools, tree) -> None:
    assert "line 2" in (await run(tools, "edit", path="a.txt", old="two\n", new="2\n")).text
    assert (tree / "a.txt").read_text() == "one\n2\nthree\n"
    assert "not in the file" in (await run(tools, "edit", path="a.txt", old="two", new="x")).text
    assert "2 times" in (await run(tools, "edit", path="a.txt", old="e\n", new="x")).text
    assert "old" in (await run(tools, "edit", path="a.txt", old="", new="x")).text
    assert "not there" in (await run(tools, "edit", path="none.txt", old="x", new="y")).text


async def test_edit_keeps_every_other_byte(tools, tree) -> None:
    (tree / "dos.txt").write_bytes(b"one\r\ntwo\r\n\x0c\r\nlast")
    assert (await run(tools, "edit", path="dos.txt", old="two", new="2")).ok
    assert (tree / "dos.txt").read_bytes() == b"one\r\n2\r\n\x0c\r\nlast"


async def test_a_failed_write_leaves_the_old_file_and_no_scrap(tools, tree, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    result = await run(tools, "write", path="a.txt", content="new")
    assert (result.ok, result.text) == (False, "No space left on device")
    assert (tree / "a.txt").read_text() == "one\ntwo\nthree\n"
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_files_that_are_no_text_are_named_as_such(tools, tree) -> None:
    (tree / "bin").write_bytes(b"\xff\xfe\0")
    os.mkfifo(tree / "pipe")
    assert "UTF-8" in (await run(tools, "read", path="bin")).text
    assert "regular" in (await run(tools, "read", path="pipe")).text
    assert "regular" in (await run(tools, "edit", path="pipe", old="x", new="y")).text


async def test_bash_tells_both_streams_and_the_code(tools) -> None:
    result = await run(tools, "bash", command="echo out; echo err >&2; exit 3")
    assert (result.ok, result.exit_code, result.timed_out) == (False, 3, False)
    assert set(result.text.splitlines()) == {"out", "err", "[exit code 3]"}
    assert (await run(tools, "bash", command="[[ a == a ]] && pwd")).ok


async def test_bash_keeps_beginning_and_end_of_much_output(tools) -> None:
    result = await run(tools, "bash", command="echo first; yes | head -c 50000000; echo last")
    assert result.text.startswith("first\n")
    assert result.text.endswith("last\n[exit code 0]")
    assert (result.truncated, result.size) == (True, 50_000_011)
    assert len(result.text) < RESULT_CHARACTERS + 100


@pytest.mark.rule("X2")
async def test_a_command_ends_with_its_time_and_all_that_it_started(tools) -> None:
    host = tools._host
    result = await run(tools, "bash", command="trap '' TERM; (sleep 60 &) ; sleep 60", timeout_s=1)
    assert (result.ok, result.timed_out, result.exit_code) == (False, True, None)
    assert family(host.spawned[0].pid) == []
    assert result.duration_ms is not None
    assert 900 < result.duration_ms < 10_000


@pytest.mark.rule("X2")
async def test_what_a_command_leaves_running_is_ended(tools, tree) -> None:
    result = await run(tools, "bash", command="sleep 60 & echo $! > pid; echo started")
    assert result.text == "started\n[exit code 0]"
    entry = processes().get(int((tree / "pid").read_text()))
    assert entry is None or entry.zombie


async def test_a_cancelled_command_is_stopped(tools, tree) -> None:
    task = asyncio.create_task(run(tools, "bash", command="echo $$ > pid; sleep 60"))
    async with asyncio.timeout(40):
        while not (tree / "pid").exists() or not (tree / "pid").read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tree / "pid").read_text()), 0)


async def test_todo_keeps_the_plan(tools) -> None:
    result = await run(tools, "todo", items=[{"text": "look", "status": "done"}, {"text": "mend"}])
    assert result.text == "2 items, 1 left"
    assert [item.text for item in tools.todo] == ["look", "mend"]


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("grep", {}, "there is no tool"),
        ("", {}, "there is no tool"),
        ("read", {}, "path: Field required"),
        ("read", {"path": 3}, "path: Input should be a valid string"),
        ("read", {"path": "a.txt", "lines": 3}, "lines: Extra inputs"),
        ("bash", {"command": "true", "timeout_s": 0}, "timeout_s"),
        ("bash", {"command": "true\0"}, "NUL byte"),
        ("todo", {"items": "all"}, "items"),
    ],
)
async def test_wrong_arguments_are_answered_in_words(tools, name, arguments, told) -> None:
    result = await tools.run(name, arguments)
    assert not result.ok
    assert told in result.text


def test_definitions_say_what_each_argument_is(tools) -> None:
    by_name = {tool.name: tool for tool in tools.definitions()}
    assert set(by_name) == {"read", "write", "edit", "bash", "todo"}
    assert by_name["edit"].schema["required"] == ["path", "old", "new"]
    assert "exactly once" in by_name["edit"].description
