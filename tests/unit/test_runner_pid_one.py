"""The same as PID 1, as in a pod: orphans are adopted, the dead collected, and nothing outlives the end."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).parents[2] / "operator"
NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")

BEGIN = """
import asyncio, contextlib, json, os, signal, sys, time
from pathlib import Path
from moorage.runner.processes import become_subreaper, descendants, kill_everything, processes, reap_orphans, spawn

AGENT = '''
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(3)
time.sleep(float(sys.argv[1]))
'''

def zombies():
    return [pid for pid, entry in processes().items() if entry.zombie]

async def until(true):
    async with asyncio.timeout(15):
        while not true():
            await asyncio.sleep(0.05)

async def agent(seconds):
    here = Path("/")
    return await spawn([sys.executable, "-c", AGENT, str(seconds)], env={"PATH": os.environ["PATH"]}, cwd=here)
"""


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    if subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("may not make a PID namespace here")


def as_pid_one(script: str) -> Any:
    """What the script prints as JSON, run as the first process of a PID namespace."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(
        [*NAMESPACE, sys.executable, "-c", BEGIN + script], env=env, check=False, capture_output=True, timeout=45
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.rule("X2")
def test_everything_is_killed_and_collected_but_pid_one() -> None:
    told = as_pid_one("""
async def main():
    become_subreaper()
    child = await agent(600)
    await until(lambda: len(descendants()) == 21)
    gone = await kill_everything()
    left = descendants()
    code = await child.wait()
    reaper = asyncio.create_task(reap_orphans())
    await until(lambda: not zombies())
    reaper.cancel()
    child.close()
    print(json.dumps([os.getpid(), gone, left, code, sorted(processes())]))
asyncio.run(main())
""")
    assert told == [1, True, [], -9, [1]]


def test_orphans_that_end_by_themselves_are_collected_and_exit_codes_are_not_stolen() -> None:
    told = as_pid_one("""
async def main():
    reaper = asyncio.create_task(reap_orphans())
    shells = [await spawn(["sh", "-c", f"(sleep 0.2 &) ; sleep 1; exit {n}"], env=os.environ, cwd=Path("/"))
              for n in range(5)]
    codes = [await shell.wait() for shell in shells]
    await until(lambda: not zombies())
    reaper.cancel()
    for shell in shells:
        shell.close()
    print(json.dumps([codes, sorted(processes())]))
asyncio.run(main())
""")
    assert told == [[0, 1, 2, 3, 4], [1]]


@pytest.mark.rule("X2")
def test_an_agent_cannot_stop_its_runner() -> None:
    told = as_pid_one("""
async def main():
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    shell = await spawn(["sh", "-c", "kill -KILL 1; kill -STOP 1; kill -TERM 1; exit 5"], env=os.environ, cwd=Path("/"))
    code = await shell.wait()
    await asyncio.wait_for(told.wait(), 5)
    shell.close()
    print(json.dumps(code))
asyncio.run(main())
""")
    assert told == 5
