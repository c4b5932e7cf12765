"""Agents that say strange things, fill the disk, or break what they stand on: each ends by its own name, work kept."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from moorage.testing.trees import git
from moorage.testing.world import Run, World

pytestmark = pytest.mark.timeout(180)  # each case starts a runner

ITERATION = """echo '{"moorage": {"event": "iteration"}}'\n"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path) as made:
        yield made


def sh(script: str) -> tuple[str, ...]:
    return ("sh", "-euc", script)


def python(script: str) -> tuple[str, ...]:
    return (sys.executable, "-c", script)


def mirror(world: World) -> Path:
    return next((world.root / "mirrors").rglob("HEAD")).parent


async def subject(world: World, run: Run) -> str:
    return git(mirror(world), "log", "-1", "--format=%s", (await run.state())["proposal"]["commit"])


@pytest.mark.parametrize(
    ("summary", "first_line"),
    [
        ("   \\n ", "make the tests pass"),
        ("\\n\\nTwo files.\\nAnd more.", "Two files."),
        ("half \\ud800 a character", "half ? a character"),
        ("a \\u0000 b \\u001b[31m c", "a  b [31m c"),
        ("x" * 300, "x" * 72),
    ],
)
async def test_whatever_the_summary_is_the_work_is_handed_over(world, summary, first_line):
    line = f'{{"moorage": {{"event": "summary", "text": "{summary}"}}}}'
    run = await world.admit(command=python(f"open('b.txt', 'w').write('new')\nprint(r'''{line}''')"))
    sandbox = await run.start()
    assert await sandbox.ended() == 0, sandbox.said.read_text()
    assert await subject(world, run) == first_line


async def test_lines_that_are_no_event_after_all_are_output(world):
    script = """
print('{"moorage": ' + "[" * 30_000)
print('{"moorage": ' + '{"a":' * 4_000 + "1" + "}" * 4_001)
print('{"moorage": {"event": "iteration"')
print('{"moorage": {"event": "no such event", "deep": ' + "[" * 900 + "]" * 900 + "}}")
print('{"moorage": {"event": ["iteration"]}}')
open("b.txt", "w").write("new")
"""
    run = await world.admit(command=python(script))
    sandbox = await run.start()
    assert await sandbox.ended() == 0, sandbox.said.read_text()
    kept = "".join(each["text"] for each in await run.content("AGENT_OUTPUT"))
    assert len(kept.splitlines()) == 5
    assert (await run.state())["iteration"] == 0


@pytest.mark.rule("R3")
async def test_what_a_failed_agent_left_is_kept(world):
    run = await world.admit(command=sh(f"echo one > one.txt\n{ITERATION}sleep 0.2; echo two > two.txt\nexit 3"))
    assert await (await run.start()).ended() == 0
    state = await run.state()
    assert (state["agent_end"]["reason"], state["agent_end"]["exit_code"]) == ("AgentFailed", 3)
    saved = (await run.content("DRIFT_SAVED"))[-1]["commit"]
    assert git(mirror(world), "show", f"{saved}:two.txt") == "two"
    assert git(mirror(world), "show", f"{state['checkpoint']['commit']}:one.txt") == "one"


@pytest.mark.parametrize("ruin", ["rm -rf .git", "rm -rf .git; mkdir .git", "git checkout -q --orphan x; rm -rf a.txt"])
async def test_an_agent_that_breaks_its_repository_still_delivers_its_files(world, ruin):
    run = await world.admit(command=sh(f"{ruin}; echo new > b.txt"))
    sandbox = await run.start()
    assert await sandbox.ended() == 0, sandbox.said.read_text()
    state = await run.state()
    assert state["phase"] == "Verifying", state["agent_end"]
    assert git(mirror(world), "show", f"{state['proposal']['commit']}:b.txt") == "new"


@pytest.fixture
def small_volume(tmp_path: Path) -> Iterator[Path]:
    """Where the run's volume will be: a file system of 4 MiB."""
    place = tmp_path / "volume-u1"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("only root can make a small file system")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.parametrize("end", ["true", "exit 1", ITERATION])
async def test_a_full_volume_has_its_name_and_the_last_checkpoint_is_kept(small_volume, world, end):
    fill = "dd if=/dev/urandom of=big bs=64k count=1000 2>/dev/null || true"
    run = await world.admit(command=sh(f"echo one > one.txt\n{ITERATION}sleep 1\n{fill}\n{end}"))
    sandbox = await run.start()
    assert await sandbox.ended() == 0, sandbox.said.read_text()
    state = await run.state()
    assert (state["agent_end"]["outcome"], state["agent_end"]["reason"]) == ("failed", "DiskFull")
    assert git(mirror(world), "show", f"{state['checkpoint']['commit']}:one.txt") == "one"


async def test_a_volume_that_is_full_from_the_start_has_its_name(small_volume, world):
    _fill(small_volume)
    run = await world.admit(command=sh("echo one > one.txt"))
    sandbox = await run.start()
    assert await sandbox.ended() == 0, sandbox.said.read_text()
    assert (await run.state())["agent_end"]["reason"] == "DiskFull"


def _fill(place: Path) -> None:
    subprocess.run(["dd", "if=/dev/zero", f"of={place / 'stuff'}", "bs=4k"], check=False, capture_output=True)
