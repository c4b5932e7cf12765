"""The driver `command` in a real runner, against a real gateway, store and git remote."""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moorage.gateway.settings import GatewaySettings
from moorage.runner.exitcodes import Exit
from moorage.testing.trees import git
from moorage.testing.world import BRANCH, MODEL_KEY, PASSWORD, World

pytestmark = pytest.mark.timeout(180)  # each case starts one or two runners

WAIT = "while [ ! -e ../go ]; do sleep 0.05; done\n"
ITERATION = """echo '{"moorage": {"event": "iteration"}}'\n"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path, settings=GatewaySettings(cancel_grace_ms=1_000)) as made:
        yield made


def sh(script: str) -> tuple[str, ...]:
    return ("sh", "-euc", script)


def python(script: str) -> tuple[str, ...]:
    return (sys.executable, "-c", script)


async def output(run: Any) -> bytes:
    told = await run.content("AGENT_OUTPUT")
    return b"".join(base64.b64decode(p["data"]) if "data" in p else p["text"].encode() for p in told)


@pytest.mark.rule("V3", "E1", "P5")
async def test_from_a_command_to_a_branch_at_the_remote(world):
    script = f"echo two > a.txt\n{ITERATION}echo new > b.txt\n" + (
        """echo '{"moorage": {"event": "summary", "text": "Two files."}}'; echo plain words"""
    )
    run = await world.admit(command=sh(script))
    assert await (await run.start()).ended() == 0
    state = await run.state()
    assert (state["phase"], state["agent_end"]["summary"]) == ("Verifying", "Two files.")
    assert state["iteration"] == 1
    assert await (await run.verify()).ended() == 0
    assert (await run.state())["verification"]["passed"] is True
    await run.deliver()
    remote = world.remote.root / "shop.git"
    head = git(remote, "rev-parse", BRANCH)
    assert head == state["proposal"]["commit"]
    assert git(remote, "diff", "--name-only", "main", BRANCH).split() == ["a.txt", "b.txt"]
    assert git(remote, "log", "-1", "--format=%s", BRANCH) == "Two files."
    types = await run.types()
    assert types.index("CHECKPOINT") < types.index("ITERATION_COMPLETE") < types.index("RESULT_PROPOSED")
    assert b"plain words\n" in await output(run)


@pytest.mark.parametrize(
    ("script", "reason", "code"),
    [
        ("echo 1 > x; exit 7", "AgentFailed", 7),
        ("kill -KILL $$", "AgentKilled", -9),
        ("kill -USR1 $$", "AgentKilled", -10),
    ],
)
async def test_an_agent_that_ends_badly_has_failed(world, script, reason, code):
    run = await world.admit(command=sh(script))
    assert await (await run.start()).ended() == 0
    state = await run.state()
    assert (state["agent_end"]["outcome"], state["agent_end"]["reason"]) == ("failed", reason)
    assert state["agent_end"]["exit_code"] == code
    assert state["proposal"] is None


@pytest.mark.parametrize(("argv", "reason"), [(("/no/such/agent",), "CommandNotStarted"), (("",), "CommandNotStarted")])
async def test_a_program_that_is_not_there_is_told_by_name(world, argv, reason):
    run = await world.admit(command=argv)
    assert await (await run.start()).ended() == 0
    assert (await run.state())["agent_end"]["reason"] == reason


async def test_an_unknown_driver_is_told_with_those_that_are_there(world):
    run = await world.admit(command=("true",))
    run = await world.admit(
        uid="u2", agent=run.spec.agent.model_copy(update={"driver": "no-such"}), command=("true",), delivery=None
    )
    assert await (await run.start()).ended() == 0
    end = (await run.state())["agent_end"]
    assert end["reason"] == "UnknownDriver"
    assert "command" in end["message"]


@pytest.mark.rule("N4")
async def test_no_change_is_told_as_such(world):
    run = await world.admit(command=sh("echo looked"))
    assert await (await run.start()).ended() == 0
    proposal = (await run.state())["proposal"]
    assert (proposal["empty"], proposal["commit"]) == (True, proposal["base"])


@pytest.mark.rule("T2", "L4")
async def test_the_agent_sees_no_secret(world):
    script = "env > env.txt; git config --list --show-origin > config.txt; cat .git ../.moorage/*/config* >> config.txt"
    run = await world.admit(command=sh(f"({script}) 2>&1 || true; cat env.txt config.txt"))
    sandbox = await run.start()
    assert await sandbox.ended() == 0
    seen = (sandbox.tree / "env.txt").read_text() + (sandbox.tree / "config.txt").read_text()
    assert "ANTHROPIC_API_KEY=moorage-dummy" in seen
    for secret in (sandbox.token, PASSWORD, MODEL_KEY, world.url, str(sandbox.token_file)):
        assert secret not in seen
    files = [path for path in sandbox.volume.rglob("*") if path.is_file()]
    assert not [path for path in files if sandbox.token.encode() in path.read_bytes()]
    kept = [path for folder in ("blobs", "mirrors") for path in (world.root / folder).rglob("*") if path.is_file()]
    assert not [path for path in (*kept, world.root / "moorage.db") if PASSWORD.encode() in path.read_bytes()]


@pytest.mark.rule("L4")
async def test_the_relay_leads_to_model_and_git_only(world):
    script = """
import os, socket, urllib.error, urllib.request
relay = os.environ["ANTHROPIC_BASE_URL"].removesuffix("/model")
def status(path, **headers):
    try:
        return urllib.request.urlopen(urllib.request.Request(relay + path, headers=headers)).status
    except urllib.error.HTTPError as error:
        return error.code
print("self", status("/v1/self"))
print("records", status("/v1/self/records", Authorization="Bearer operator-token"))
print("runs", status("/git/../v1/runs?pending=true", Authorization="Bearer operator-token"))
print("refs", status("/git/run.git/info/refs?service=git-upload-pack", Authorization="Bearer stolen"))
host, port = relay.removeprefix("http://").split(":")
with socket.create_connection((host, int(port))) as raw:
    raw.sendall(b"GET /model/x HTTP/1.1\\nhost: a\\n\\nGET /v1/self HTTP/1.1\\r\\nhost: a\\r\\n\\r\\n")
    print("smuggled", raw.recv(65536).split(b" ")[1].decode())
"""
    run = await world.admit(command=python(script))
    assert await (await run.start()).ended() == 0
    said = (await output(run)).decode()
    assert said.split() == ["self", "404", "records", "404", "runs", "404", "refs", "200", "smuggled", "400"]


NASTY = f"""
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def forever():
    while True:
        time.sleep(1)
if os.fork() == 0:
    forever()                                   # a plain child
if os.fork() == 0:
    if os.fork() == 0:
        forever()                               # double-forked
    os._exit(0)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        forever()                               # a daemon by the book, holding our stdout
    os._exit(0)
open("half.txt", "w").write("half")
print('{json.dumps({"moorage": {"event": "iteration"}})}', flush=True)
"""


@pytest.mark.rule("X1", "X2")
async def test_cancel_leaves_nothing_of_an_agent_that_resists(world):
    run = await world.admit(command=python(NASTY + "forever()"))
    sandbox = await run.start()
    await run.until("ITERATION_COMPLETE")
    assert len(sandbox.left()) >= 5
    await run.report("CANCEL_REQUESTED", {"reason": "user"})
    assert await sandbox.ended() == 0
    assert sandbox.left() == []
    state = await run.state()
    assert (state["agent_end"]["outcome"], state["cancel_stage"]) == ("cancelled", "acknowledged")
    stages = [t for t in await run.types() if t.startswith("CANCEL_")]
    assert stages == ["CANCEL_REQUESTED", "CANCEL_PROPAGATED", "CANCEL_ACKNOWLEDGED"]


@pytest.mark.rule("X2")
async def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_end(world):
    run = await world.admit(command=python(NASTY))
    sandbox = await run.start()
    assert await sandbox.ended(within_s=30) == 0
    assert sandbox.left() == []
    assert (await run.state())["phase"] == "Verifying"


@pytest.mark.parametrize("habit", ["time.sleep(0.2)", "sys.stdout.write('x' * 65536)"])
async def test_a_grandchild_that_goes_on_writing_does_not_hold_the_end_either(world, habit):
    script = f"""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    while True:
        print("drip", flush=True)
        {habit}
open("b.txt", "w").write("done")
"""
    run = await world.admit(command=python(script))
    sandbox = await run.start()
    assert await sandbox.ended(within_s=30) == 0
    assert sandbox.left() == []
    assert (await run.state())["phase"] == "Verifying"


@pytest.mark.rule("X3", "R3")
async def test_a_cancelled_agents_files_are_saved(world):
    run = await world.admit(command=sh(f"echo half > half.txt\necho ready\n{WAIT}"))
    sandbox = await run.start()
    await run.until("AGENT_OUTPUT")
    await run.report("CANCEL_REQUESTED", {"reason": "user"})
    await run.report("CANCEL_REQUESTED", {"reason": "user"})
    assert await sandbox.ended() == 0
    assert (await run.state())["drift"] == 1


async def test_sigterm_ends_the_attempt_and_saves_what_stands(world):
    run = await world.admit(command=sh(f"echo half > half.txt\necho ready\n{WAIT}"))
    sandbox = await run.start()
    await run.until("AGENT_OUTPUT")
    sandbox.terminate()
    assert await sandbox.ended() == Exit.TERMINATED
    assert json.loads(sandbox.log.read_text())["reason"] == "Terminated"
    assert sandbox.left() == []
    state = await run.state()
    assert (state["agent_end"], state["drift"]) == (None, 1)


@pytest.mark.rule("F3")
async def test_a_fenced_runner_stops_at_once_and_nothing_of_it_is_taken(world):
    run = await world.admit(command=python(NASTY + "forever()"))
    sandbox = await run.start()
    await run.until("ITERATION_COMPLETE")
    await run.report("ATTEMPT_ENDED", {"epoch": 1, "reason": "NodeLost", "message": "no heartbeat"})
    await run.fence(2)
    assert await sandbox.ended() == Exit.FENCED
    assert json.loads(sandbox.log.read_text())["reason"] == "Fenced"
    assert sandbox.left() == []
    records = await run.records()
    raised = next(at for at, record in enumerate(records) if record.type == "EPOCH_RAISED" and record.epoch == 2)
    assert {record.type for record in records[raised + 1 :]} <= {"FENCE_REFUSED"}


@pytest.mark.rule("R1", "R3", "E2")
async def test_a_killed_runner_is_followed_by_one_that_goes_on_from_the_checkpoint(world):
    script = f"""
        if [ "$MOORAGE_NEXT_ITERATION" = 1 ]; then
            echo two > a.txt
            {ITERATION}
            {WAIT}
            echo lost > half.txt
            echo ready
            sleep 60
        fi
        test "$(cat a.txt)" = two
        test ! -e half.txt
        test -n "$MOORAGE_HANDOFF"
        echo done > done.txt
        {ITERATION}
    """
    run = await world.admit(command=sh(script))
    first = await run.start()
    await run.until("ITERATION_COMPLETE")
    (first.volume / "go").touch()
    await run.until("AGENT_OUTPUT")
    await first.kill()
    assert first.left() == []
    await run.report("ATTEMPT_ENDED", {"epoch": 1, "reason": "NodeLost", "message": "power"})
    second = await run.start(epoch=2)
    assert await second.ended() == 0, second.said.read_text()
    state = await run.state()
    assert (state["phase"], state["iteration"], state["drift"]) == ("Verifying", 2, 1)
    drift = next(iter(await run.content("DRIFT_SAVED")))
    mirror = next((world.root / "mirrors").rglob("HEAD")).parent
    assert git(mirror, "show", f"{drift['commit']}:half.txt") == "lost"
    assert git(second.tree, "show", f"{state['proposal']['commit']}:done.txt") == "done"


async def test_a_gateway_that_restarts_changes_nothing_of_the_result(world):
    script = f"echo two > a.txt\n{ITERATION}{WAIT}echo three > b.txt\n{ITERATION}echo said meanwhile"
    run = await world.admit(command=sh(script))
    sandbox = await run.start()
    await run.until("ITERATION_COMPLETE")
    await world.stop_gateway()
    (sandbox.volume / "go").touch()
    await asyncio.sleep(1.5)
    await world.start_gateway()
    assert await sandbox.ended() == 0, sandbox.said.read_text()
    state = await run.state()
    assert (state["phase"], state["iteration"]) == ("Verifying", 2)
    types = await run.types()
    assert (types.count("ITERATION_COMPLETE"), types.count("AGENT_FINISHED")) == (2, 1)
    assert b"said meanwhile\n" in await output(run)


async def test_a_flood_of_output_costs_no_memory(world):
    run = await world.admit(command=sh(f"echo start; yes 0123456789 | head -c 209715200; echo 1 > b.txt; {WAIT}"))
    sandbox = await run.start()
    await run.until("AGENT_OUTPUT")
    before = peak(sandbox.process.pid)
    async with asyncio.timeout(40):
        while not (sandbox.tree / "b.txt").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert peak(sandbox.process.pid) - before < 32 * 1024
    (sandbox.volume / "go").touch()
    assert await sandbox.ended() == 0
    kept = await output(run)
    assert len(kept) < 10 * 1024 * 1024
    assert b"bytes of output dropped here" in kept


def peak(pid: int) -> int:
    """Highest resident memory so far, KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


async def test_any_bytes_are_kept_as_they_are(world):
    script = (
        "printf 'a\\000b\\n'; printf '\\377\\376\\200\\n'; printf 'ж\\r\\n\\342\\200\\250 no newline'; echo 1 > b.txt"
    )
    run = await world.admit(command=sh(script))
    assert await (await run.start()).ended() == 0
    assert await output(run) == b"a\0b\n\xff\xfe\x80\n\xd0\xb6\r\n\xe2\x80\xa8 no newline"
    assert (await run.state())["phase"] == "Verifying"
