"""Agents that say strange things, fill the disk, or break what they stand on: each ends by its own name, work kept."""

import base64
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.contract.real_agents import resolved

from moorage.runner.output import KEPT_BYTES
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
    run = await world.admit(command=sh(f"echo one > one.txt\n{ITERATION}sleep 2; echo two > two.txt\nexit 3"))
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


# --- agents that speak in JSON lines, in a whole runner; test_driver_contract.py has what a driver alone can show -----
# How each is stopped has a file of its own: test_driver_odd_stops.py.

AGENT = "pi"  # one is enough here of what is the same for all
END = '{"type":"message_end","message":{"role":"assistant","stopReason":"stop"}}\n{"type":"agent_end"}'


@pytest.fixture
def posing(world: World, tmp_path: Path) -> Callable[[str], Awaitable[Run]]:
    """A run of the driver whose program is a script of ours, in Python: `say` prints, `END` is its last word."""

    async def admitted(script: str) -> Run:
        folder = tmp_path / "bin"
        folder.mkdir()
        program = folder / AGENT
        program.write_text(f"#!{sys.executable}\n{POSE}\nEND = {END!r}\n{script}")
        program.chmod(0o755)
        return await world.admit(agent=resolved(AGENT, f"{folder}:{os.environ['PATH']}"))

    return admitted


POSE = """
import json, os, signal, subprocess, sys, time
def say(text):
    data = text if isinstance(text, bytes) else text.encode()
    sys.stdout.buffer.write(data + b"\\n")
    sys.stdout.buffer.flush()
"""


async def ended(run: Run) -> tuple[str, str]:
    """How the agent ended; nothing of it is left."""
    sandbox = await run.start()
    assert await sandbox.ended(within_s=120) == 0, sandbox.said.read_text()
    assert sandbox.left() == []
    end = (await run.state())["agent_end"]
    return end["outcome"], end["reason"]


async def said(run: Run) -> str:
    kept = await run.content("AGENT_OUTPUT")
    return "".join(each.get("text") or base64.b64decode(each["data"]).decode(errors="replace") for each in kept)


async def test_success_after_a_refused_key_on_stderr_is_failure(posing):
    run = await posing("os.write(2, b'ERROR http: 4'); os.write(2, b'01 Unauthorized, no way'); say(END)")
    assert await ended(run) == ("failed", "ModelUnauthorized")


@pytest.mark.rule("X2")
async def test_one_that_has_said_its_last_word_and_stays_is_ended_with_its_tree(posing):
    run = await posing("""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("b.txt", "w").write("new")
for session in (False, True):
    subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"], start_new_session=session)
say(END)
while True: time.sleep(60)
""")
    assert await ended(run) == ("completed", "Completed")
    assert (await run.state())["phase"] == "Verifying"


@pytest.mark.rule("J12")
async def test_a_flood_is_bounded_and_its_last_word_is_heard(posing):
    run = await posing("""
line = ("{\\"type\\":\\"noise\\",\\"text\\":\\"" + "x" * 65_000 + "\\"}\\n").encode()
for _ in range(200 * 2**20 // len(line)): sys.stdout.buffer.write(line)
open("b.txt", "w").write("new")
say(END)
""")
    assert await ended(run) == ("completed", "Completed")
    kept = await run.content("AGENT_OUTPUT")
    assert sum(each["bytes"] for each in kept) <= KEPT_BYTES + 4096
    assert "of output dropped here" in await said(run)


@pytest.mark.rule("J12")
async def test_a_line_of_16_mib_and_what_is_no_text_stop_nothing(posing):
    run = await posing("""
say('{"type":"noise","text":"a\u2028b"}')
say(b"\\xff\\x00\\xfe{}")
say('{"type":"noise\u2028{"}')
say('{"type":"noise","text":"' + "x" * 2**24 + '"}')
open("b.txt", "w").write("new")
say(END)
""")
    assert await ended(run) == ("completed", "Completed")
    assert "a\u2028b" in await said(run)


@pytest.mark.rule("R3")
async def test_a_home_that_an_earlier_attempt_has_ruined_is_put_aside(posing):
    run = await posing("say(END)")
    home = run.volume / ".moorage" / "agent" / "home"
    home.mkdir(parents=True)
    (home / f".{AGENT}").write_text("no folder")
    assert await ended(run) == ("completed", "Completed")
    assert (run.volume / ".moorage" / "aside" / "1" / "home" / f".{AGENT}").read_text() == "no folder"
