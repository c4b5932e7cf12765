"""The verifier in a real runner: exactly the proposed commit, without an agent, and nothing left of any command."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moorage.api.wire import ResolvedCheck
from moorage.runner.checking import TAIL_BYTES
from moorage.runner.exitcodes import Exit
from moorage.testing.world import MODEL_KEY, PASSWORD, Run, World

pytestmark = pytest.mark.timeout(180)  # each case starts a runner and a verifier

WORK = ("sh", "-euc", "printf '*.log\\n' > .gitignore; echo two > a.txt; echo x > kept.txt; echo y > noise.log")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path) as made:
        yield made


async def proposed(world: World, *commands: str, **more: Any) -> Run:
    """A run whose agent has ended, with these acceptance commands."""
    checks = tuple(ResolvedCheck(name=f"c{n}", run=command, **more) for n, command in enumerate(commands))
    run = await world.admit(command=WORK, acceptance=checks)
    assert await (await run.start()).ended() == 0
    return run


async def verdict(run: Run) -> Any:
    sandbox = await run.verify()
    assert await sandbox.ended() == 0, sandbox.said.read_text()
    assert sandbox.left() == []
    return (await run.content("VERIFICATION_RESULT"))[-1]


async def outputs(world: World, run: Run) -> list[str]:
    record = next(each for each in await run.records() if each.type == "VERIFICATION_RESULT")
    blobs = world.gateway.deps.blobs
    found = [await blobs.get(record.tenant, ref) for _, ref in sorted((record.attachments or {}).items())]
    return [each.decode() for each in found]


@pytest.mark.rule("V3")
async def test_the_commit_is_what_is_verified_and_not_the_agents_folder(world):
    run = await proposed(
        world, "grep -q two a.txt", "test -e kept.txt", "test ! -e noise.log", "git status --porcelain"
    )
    found = await verdict(run)
    assert (found["passed"], found["commit"]) == (True, (await run.state())["proposal"]["commit"])
    assert [check["exit_code"] for check in found["checks"]] == [0, 0, 0, 0]


@pytest.mark.rule("V3", "T2")
async def test_a_verifier_has_no_way_to_a_model_and_no_secret(world):
    run = await proposed(world, "env; git config --list --show-origin; cat .git")
    await verdict(run)
    said = "".join(await outputs(world, run))
    assert "HOME=" in said
    for forbidden in ("ANTHROPIC", "MOORAGE", "token-of", PASSWORD, MODEL_KEY, world.url):
        assert forbidden not in said


FORGERY = """
import json, sys, urllib.error, urllib.request
url, token, commit = sys.argv[1:]
check = {"name": "c0", "run": "x", "exit_code": 0, "duration_ms": 1}
def post(path, body):
    head = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    try:
        urllib.request.urlopen(urllib.request.Request(url + path, json.dumps(body).encode(), head))
        print("TAKEN", path)
    except urllib.error.HTTPError as error:
        print("refused", error.code)
digest = "0" * 64
record = {"record_id": "mine", "type": "VERIFICATION_STARTED", "payload": {"key_sha256": digest}, "recorded_at": 1}
post("/v1/self/records", {"epoch": 1, "records": [record]})
post("/v1/self/verification", {"epoch": 1, "commit": commit, "checks": [check], "recorded_at": 1})
"""


@pytest.mark.rule("V3")
async def test_a_command_cannot_tell_a_verdict_of_its_own(world, tmp_path):
    script = tmp_path / "forge.py"
    script.write_text(FORGERY)
    given = tmp_path / "given"
    forge = f"until test -s {given}; do sleep 0.05; done; python3 {script} {world.url} $(cat {given})"
    run = await proposed(world, forge, "false")
    head = (await run.state())["proposal"]["commit"]
    sandbox = await run.verify()
    given.write_text(f"{sandbox.token} {head}")
    assert await sandbox.ended() == 0
    found = (await run.content("VERIFICATION_RESULT"))[-1]
    assert not found["passed"]
    said = "".join(await outputs(world, run))
    assert "TAKEN /v1/self/verification" not in said
    assert "refused 403" in said


@pytest.mark.rule("N4")
async def test_the_first_failure_is_the_verdict_with_the_commands_own_words(world):
    run = await proposed(world, "true", "echo expected 3, got 4 >&2; exit 9", "touch never")
    found = await verdict(run)
    assert (found["passed"], found["problem"]) == (False, None)
    assert [check["exit_code"] for check in found["checks"]] == [0, 9]
    assert "expected 3, got 4" in found["summary"]


async def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(world):
    stubborn = "trap '' TERM; (trap '' TERM; setsid sleep 600) & sleep 600"
    run = await proposed(world, stubborn, timeout_ms=1_000)
    found = await verdict(run)
    assert found["checks"][0] | {"duration_ms": 0} == {
        "name": "c0",
        "exit_code": None,
        "timed_out": True,
        "duration_ms": 0,
        "passed": False,
    }
    assert 1_000 <= found["checks"][0]["duration_ms"] < 10_000


async def test_what_a_command_leaves_running_meets_no_other_command(world):
    leave = "(setsid sleep 600 & echo $! > ../pid) ; true"
    run = await proposed(world, leave, "! grep -q '^State:.[RS]' /proc/$(cat ../pid)/status")
    assert (await verdict(run))["passed"] is True


async def test_of_a_flood_the_tail_is_kept(world):
    run = await proposed(world, "yes 0123456789 | head -c 100000000; printf '\\377 the end'; exit 1")
    found = await verdict(run)
    (kept,) = await outputs(world, run)
    assert kept.endswith("\ufffd the end")
    assert TAIL_BYTES - 4 <= len(kept) <= TAIL_BYTES
    assert found["summary"].endswith("the end")


async def test_a_command_that_no_process_can_have_is_a_problem_and_no_failed_check(world):
    found = await verdict(await proposed(world, "echo a\0b"))
    assert (found["passed"], found["checks"]) == (False, [])
    assert "null byte" in found["problem"]


async def test_a_full_volume_is_a_problem_and_no_failed_check(world):
    run = await proposed(world, "true")
    place = world.root / f"volume-{run.spec.uid}-v1"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if (await asyncio.to_thread(subprocess.run, mount, check=False, capture_output=True)).returncode != 0:
        pytest.skip("only root can make a small file system")
    try:
        found = await verdict(run)
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", "-l", str(place)], check=True)
    assert (found["passed"], found["checks"]) == (False, [])
    assert found["problem"].startswith("DiskFull")


async def test_sigterm_ends_a_verifier_without_a_verdict(world):
    run = await proposed(world, "touch ../begun; sleep 600")
    sandbox = await run.verify()
    async with asyncio.timeout(20):
        while not (sandbox.volume / "begun").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    sandbox.terminate()
    assert await sandbox.ended(within_s=40) == Exit.TERMINATED
    assert sandbox.left() == []
    assert "VERIFICATION_RESULT" not in await run.types()


async def test_a_gateway_that_restarts_meanwhile_gets_the_verdict(world):
    run = await proposed(world, "touch ../begun; while [ ! -e ../go ]; do sleep 0.05; done")
    sandbox = await run.verify()
    async with asyncio.timeout(20):
        while not (sandbox.volume / "begun").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await world.stop_gateway()
    (sandbox.volume / "go").touch()
    await asyncio.sleep(0.5)
    await world.start_gateway()
    assert await sandbox.ended() == 0
    assert (await run.state())["verification"]["passed"] is True
