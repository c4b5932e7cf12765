"""What an agent wrote outlives its end, its sandbox and its run, however these came about: its last words, too.

Neighbours lost logs at a timeout or a cancel, looked for the result in the last fifty lines, and cut it at 4 KiB.
"""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moorage.api.sse import Event, Parser
from moorage.drivers.program import MORE, SUMMARY_CAP
from moorage.gateway.settings import GatewaySettings
from moorage.runner.output import FULL, KEPT_BYTES
from moorage.testing.world import Run, World

pytestmark = pytest.mark.timeout(240)  # each starts a runner

FLOOD = 24 * 1024 * 1024
HEAD = "import os, signal, sys, time, pathlib\ndef say(*words): print(*words, flush=True)\n"
WAIT = "pathlib.Path('../ready').touch()\nwhile True: time.sleep(0.05)\n"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path, settings=GatewaySettings(cancel_grace_ms=20_000)) as made:
        yield made


def agent(script: str) -> tuple[str, ...]:
    return (sys.executable, "-c", HEAD + script)


async def events(run: Run) -> list[Event]:
    """All that there is of the run's log."""
    path = f"/v1/runs/{run.spec.uid}/logs/stream?follow=false"
    answer = await run.world.gateway.operator.get(path, timeout=100)
    assert answer.status_code == 200, answer.text
    return list(Parser().feed(answer.content))


async def log(run: Run) -> bytes:
    said = [json.loads(event.data) for event in await events(run) if event.kind == "output"]
    return b"".join(each["text"].encode() if "text" in each else base64.b64decode(each["data"]) for each in said)


async def ready(run: Run) -> None:
    while not (run.volume / "ready").exists():  # noqa: ASYNC110  another process's doing
        await asyncio.sleep(0.05)


LAST_WORDS = f"""
def last(*_):
    say("last words")
    os._exit(3)
signal.signal(signal.SIGTERM, last)
for number in range({FLOOD} // 1000): say(str(number), "x" * 990)
say("at work")
{WAIT}"""


@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_the_last_words_before_a_cancel_or_a_timeout_are_there_after_a_flood_too(world: World, how: str) -> None:
    """A timeout of the attempt is the kubelet's SIGTERM to the runner."""
    run = await world.admit(command=agent(LAST_WORDS))
    sandbox = await run.start()
    await ready(run)
    if how == "cancel":
        await run.report("CANCEL_REQUESTED", {"reason": "user"})
    else:
        sandbox.terminate()
    await sandbox.ended(within_s=120)
    kept = await log(run)
    assert kept.startswith(b"0 xxx")
    assert kept.endswith(b"at work\nlast words\n")
    assert len(kept) <= KEPT_BYTES + 4096
    missing = sum(json.loads(each.data)["size"] for each in await events(run) if each.kind == "gap")
    written = sum(len(f"{number} {'x' * 990}\n") for number in range(FLOOD // 1000)) + len("at work\nlast words\n")
    ours = kept.count(FULL) * len(FULL)
    assert len(kept) - ours + missing == written, "each byte is there or accounted for"


async def test_the_last_lines_before_a_sigkill_are_there_and_outlive_sandbox_volume_and_run(world: World) -> None:
    """The agent is killed, as by its memory limit; its runner hands its output over."""
    script = "for number in range(200): say('line', number)\nos.kill(os.getpid(), signal.SIGKILL)"
    run = await world.admit(command=agent(script))
    sandbox = await run.start()
    assert await sandbox.ended(within_s=120) == 0
    whole = b"".join(b"line %d\n" % number for number in range(200))
    assert await log(run) == whole
    await run.report("RUN_FAILED", {"reason": "AgentKilled", "message": ""})
    await run.call("POST", "/release")
    await sandbox.kill()
    await world.restart_gateway()
    assert await log(run) == whole
    assert [event.kind for event in await events(run)][-1] == "end"


async def test_what_was_shipped_before_the_whole_sandbox_is_killed_is_there(world: World) -> None:
    """A node that loses its power leaves no time for anything: what was written since the last flush is lost."""
    run = await world.admit(command=agent(f"say('early')\n{WAIT}"))
    sandbox = await run.start()
    await run.until("AGENT_OUTPUT", within_s=120)
    await sandbox.kill()
    assert await log(run) == b"early\n"
    await run.report("ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "NodeLost", "message": ""})
    second = await run.start(epoch=2)
    await run.until("AGENT_OUTPUT", 2, within_s=120)
    await run.report("CANCEL_REQUESTED", {"reason": "user"})
    await second.ended(within_s=120)
    assert await log(run) == b"early\nearly\n"
    epochs = [json.loads(event.data)["epoch"] for event in await events(run) if event.kind == "output"]
    assert epochs == [1, 2]


async def test_a_result_is_found_wherever_it_stands_and_words_of_any_length_are_whole(world: World) -> None:
    """A hundred kilobytes of words, and a summary before ten thousand lines of noise. What status has of it is bounded,
    says so, and lacks nothing that the log hasn't.
    """
    script = """
say("w" * 100_000)
say('{"moorage": {"event": "summary", "text": "' + "s" * 6_000 + '"}}')
for number in range(10_000): say("noise", number)
open("b.txt", "w").write("new")
"""
    run = await world.admit(command=agent(script))
    sandbox = await run.start()
    assert await sandbox.ended(within_s=120) == 0
    state = await run.state()
    summary = state["agent_end"]["summary"]
    assert (len(summary), summary.endswith(MORE), set(summary.removesuffix(MORE))) == (SUMMARY_CAP, True, {"s"})
    kept = await log(run)
    assert kept.startswith(b"w" * 100_000 + b"\n" + b"s" * 6_000 + b"\n")
    assert kept.endswith(b"noise 9999\n")


async def test_a_line_of_16_mib_bytes_and_strange_separators_stop_neither_log_nor_events(world: World) -> None:
    script = """
out = sys.stdout.buffer
out.write("a\\u2028b\\u2029c\\x85d\\r\\n".encode()); out.write(b"\\xff\\x00\\xfe\\n"); out.flush()
time.sleep(2)
out.write(b"y" * 2**24 + b"\\n"); out.flush()
say('{"moorage": {"event": "iteration"}}')
say("after it")
open("b.txt", "w").write("new")
"""
    run = await world.admit(command=agent(script))
    sandbox = await run.start()
    assert await sandbox.ended(within_s=120) == 0
    kept = await log(run)
    assert kept.startswith("a\u2028b\u2029c\x85d\r\n".encode() + b"\xff\x00\xfe\n")
    assert kept.endswith(b"y\nafter it\n")
    assert (await run.state())["iteration"] == 1
