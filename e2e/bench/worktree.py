"""Part `worktree`: a worktree of 20,000 files over a real gateway and relay, and checkpoints, beside plain git."""

import asyncio
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.bench.figures import Aim, Figure, Report
from e2e.cluster.errors import HarnessError
from moorage.api.wire import ResolvedDelivery
from moorage.runner.relay import Relay
from moorage.testing.trees import ENV, git
from moorage.testing.world import PASSWORD, Run, Sandbox, World
from moorage.workspace.worktree import RunWorktree

FILES, FOLDERS, CHANGED, ROUNDS = 20_000, 200, 10, 5
PLAIN = "temporary index, `add -A`, `write-tree`"


@dataclass
class Found:
    """Seconds, one sample each round."""

    ready: list[float] = field(default_factory=list)
    added: list[float] = field(default_factory=list)
    cloned: list[float] = field(default_factory=list)
    taken: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    pushed: list[float] = field(default_factory=list)
    none: list[float] = field(default_factory=list)
    plain_none: list[float] = field(default_factory=list)


def measure() -> Report:
    """In a temporary folder, deleted only at the end: a deletion between two rounds slows the next checkout tenfold."""
    with tempfile.TemporaryDirectory(prefix="moorage-bench-") as folder:
        return _report(asyncio.run(_measure(Path(folder))))


async def _measure(folder: Path) -> Found:
    found = Found()
    async with World(folder / "world", files=_files()) as world:
        url = world.remote.url("shop.git").replace("http://", f"http://ada:{PASSWORD.replace(' ', '%20')}@")
        plain = folder / "plain"
        git(folder, "clone", "-q", url, str(plain))
        await _round(world, plain, Found(), 0)  # the mirror's first fetch, caches
        for n in range(1, ROUNDS + 1):
            await _round(world, plain, found, n)
    return found


def _files() -> dict[str, str]:
    """Text of 200 to 4,000 bytes, the same each time."""
    chance = random.Random(7)
    word = "".join(chance.choices("abcdefghij klmnopqrst\n", k=8_000))
    return {
        f"pkg{n % FOLDERS:03}/mod{n:05}.py": f"{n}\n{word[n % 4000 :][: chance.randint(200, 4000)]}"
        for n in range(FILES)
    }


async def _round(world: World, plain: Path, found: Found, n: int) -> None:
    folder, url = plain.parent, git(plain, "remote", "get-url", "origin")
    clone, tree = folder / f"clone-{n}", folder / f"tree-{n}"
    found.cloned.append(_timed(lambda: git(folder, "clone", "-q", url, str(clone))))
    found.added.append(_timed(lambda: git(plain, "worktree", "add", "-q", "--detach", str(tree), "origin/main")))
    run = await world.admit(command=("true",), uid=f"u{n}", delivery=ResolvedDelivery(branch=f"moorage/b{n}"))
    sandbox, relay, task = await _registered(world, run)
    began = time.monotonic()
    ours = await _prepare(sandbox, relay, task)
    found.ready.append(time.monotonic() - began)
    _same(ours.tree, tree)
    try:
        await _checkpoints(ours, tree, folder / f"index-{n}", found, n)
    finally:
        ours.close()
        await relay.stop()


async def _registered(world: World, run: Run) -> tuple[Sandbox, Relay, Any]:
    """A sandbox of that run as its runner finds it: fenced, registered, its relay up."""
    await run.fence(1)
    sandbox = Sandbox(world, f"{run.spec.uid}-p1", run.volume)
    await run.register(sandbox, 1, "runner")
    world.sandboxes.remove(sandbox)  # it has no process that the world would have to end
    sandbox.token_file.write_text(sandbox.token)
    relay = Relay(world.url, sandbox.token_file)
    await relay.start()
    task = (await world.gateway.client(sandbox.token).get("/v1/self")).json()
    return sandbox, relay, task


async def _prepare(sandbox: Sandbox, relay: Relay, task: Any) -> RunWorktree:
    about = task["git"]
    remote = relay.url + about["path"]
    return await RunWorktree.prepare(
        sandbox.volume, remote, run=task["run_uid"], epoch=task["epoch"], base=about["base"], branch=about["branch"]
    )


async def _checkpoints(ours: RunWorktree, tree: Path, index: Path, found: Found, n: int) -> None:
    common = git(tree, "rev-parse", "--git-path", "index")
    shutil.copy2(tree / common, index)
    await asyncio.sleep(1.1)  # files as old as the index are compared by content, once
    _picture(tree, index)
    await ours.checkpoint(1, 1)
    _change(ours.tree, n)
    _change(tree, n)
    found.plain.append(_timed(lambda: _picture(tree, index)))
    began = time.monotonic()
    taken = await ours.checkpoint(2, 1)
    found.taken.append(time.monotonic() - began)
    if taken.tree != _picture(tree, index):
        raise HarnessError("the checkpoint's tree isn't the one that git would write")
    found.pushed.append(await _timed_async(lambda: ours.push_checkpoint(taken)))
    await asyncio.sleep(1.1)
    _picture(tree, index)
    await ours.checkpoint(3, 1)
    found.plain_none.append(_timed(lambda: _picture(tree, index)))
    found.none.append(await _timed_async(lambda: ours.checkpoint(4, 1)))


def _picture(tree: Path, index: Path) -> str:
    """Git's own way: a temporary index, and its tree."""
    env = {**ENV, "GIT_INDEX_FILE": str(index)}
    subprocess.run(["git", "add", "-A"], cwd=tree, env=env, check=True)
    return subprocess.run(
        ["git", "write-tree"], cwd=tree, env=env, check=True, capture_output=True, text=True
    ).stdout.strip()


def _change(tree: Path, n: int) -> None:
    for path in sorted(tree.glob("pkg*/mod*0.py"))[n * CHANGED : (n + 1) * CHANGED]:
        path.write_text(path.read_text() + f"changed in round {n}\n")


def _same(one: Path, other: Path) -> None:
    counts = [sum(len(files) for folder, _, files in os.walk(each) if ".git" not in folder) for each in (one, other)]
    if abs(counts[0] - counts[1]) > 1 or counts[0] < FILES:
        raise HarnessError(f"the worktree has {counts[0]} files, git's own {counts[1]}")


def _timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


async def _timed_async(call: Callable[[], Awaitable[object]]) -> float:
    began = time.monotonic()
    await call()
    return time.monotonic() - began


def _report(found: Found) -> Report:
    def ms(samples: list[float]) -> list[float]:
        return [each * 1e3 for each in samples]

    return Report(
        "worktree",
        [
            Figure(
                f"worktree of {FILES:,} files ready, through relay and gateway",
                "s",
                found.ready,
                found.added,
                "`git worktree add`",
                Aim(1.2, "ratio"),
            ),
            Figure("… the same, beside a clone", "s", found.ready, found.cloned, "`git clone` over HTTP"),
            Figure(
                f"checkpoint of {CHANGED} changed files in {FILES:,}",
                "ms",
                ms(found.taken),
                ms(found.plain),
                PLAIN,
                Aim(1.2, "ratio"),
            ),
            Figure("… its push, synced at the gateway", "ms", ms(found.pushed)),
            Figure(
                f"checkpoint of none in {FILES:,}", "ms", ms(found.none), ms(found.plain_none), PLAIN, Aim(1.2, "ratio")
            ),
        ],
        ["each checkpoint's tree is the one that plain git writes; each worktree has every file"],
        ["Gateway, relay and git server in the bench's own process; the mirror had been fetched before. No gVisor."],
        found.__dict__,
    )
