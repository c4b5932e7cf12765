"""A gateway that can't follow the pushes of others, or dies over it: it says so, and loses nothing (P5, R1, K1)."""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs
from tests.contract.test_shared_mirrors import (
    CHECKPOINTS,
    Installation,
    by_way_of,
    dies_at,
    installation,
    mirror_refs,
    pushed,
    seen,
    write,
)
from tests.gateway_script import (
    BRANCH,
    Operator,
    agent_at_work,
    push,
    refused,
    resolved,
    worktree,
)

from moorage.gateway.mirroring import SharedRefs
from moorage.points import Point, _Armed
from moorage.store.errors import StoreUnavailable
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer
from moorage.testing.trees import git
from moorage.workspace.errors import BeingFetched, LockHeld
from moorage.workspace.git import Git
from moorage.workspace.mirror import MirrorKey
from moorage.workspace.staging import Staged

__all__ = ["installation"]  # a fixture
pytestmark = pytest.mark.timeout(240)  # several gateways, and git at each step

REFUSED = '{"reason":'


@pytest.mark.rule("K1")
@pytest.mark.parametrize("point", [Point.FOLLOW_BEFORE, Point.FOLLOW_WITHIN, Point.FOLLOW_AFTER])
async def test_a_gateway_that_dies_while_it_follows_follows_again(
    installation: Installation, upstream: GitServer, tmp_path: Path, monkeypatch: Any, point: Point
) -> None:
    one, two = await installation.gateway(), await installation.gateway()
    _, head = await pushed(one, Operator(one, resolved(upstream)), tmp_path)
    dies_at(monkeypatch, point)
    with pytest.raises(Exception, match="503"):
        await seen(two, tmp_path)
    two.restart()
    assert (await seen(two, tmp_path))[CHECKPOINTS] == head
    (mirror,) = two.deps.mirrors._root.glob("*/*.git")
    await asyncio.to_thread(git, mirror, "rev-list", "--objects", "--quiet", "--all")


async def told_at_last(ask: Callable[[], Awaitable[httpx.Response]], not_yet: str) -> httpx.Response:
    """The first answer that says anything else."""
    while not_yet in (answer := await ask()).text:
        pass
    return answer


@pytest.mark.rule("R1")
async def test_who_asks_a_gateway_with_an_empty_mirror_is_told_to_ask_again(
    installation: Installation, upstream: GitServer, tmp_path: Path, monkeypatch: Any
) -> None:
    """Bringing a repository may take minutes: no request lasts as long, and git's caller knows that from an outage."""
    one = await installation.gateway()
    operator = Operator(one, resolved(upstream))
    _, head = await pushed(one, operator, tmp_path, f"HEAD:{CHECKPOINTS}", f"HEAD:refs/heads/{BRANCH}")
    two = await installation.gateway(wait_ms=20)
    get_file, on, asked = installation.blobs.get_file, asyncio.Event(), list[str]()

    async def slow(tenant: str, ref: Any, path: Path) -> None:
        asked.append(ref.sha256)
        await on.wait()
        await get_file(tenant, ref, path)

    monkeypatch.setattr(installation.blobs, "get_file", slow)
    diff = partial(two.reader("ada", "team-a").get, f"{operator.door}/diff")
    for _ in range(3):
        answer = await diff()
        refused(answer, 503, "WorkspaceFetching")
        assert answer.headers["retry-after"] == "1"
    sandboxes = Git(tmp_path, config=(("http.extraHeader", "Authorization: Bearer token-of-p1"),))
    with pytest.raises(BeingFetched):
        await sandboxes.run("ls-remote", f"{two.url}/git/run.git")
    on.set()
    assert "file-1" in (await told_at_last(diff, REFUSED)).text
    assert mirror_refs(two)[CHECKPOINTS] == head
    assert len(asked) == 1  # whoever asked meanwhile waited for the same


@pytest.mark.rule("R1")
async def test_what_goes_wrong_beside_is_told_to_who_asks_next(
    installation: Installation, upstream: GitServer, tmp_path: Path, monkeypatch: Any
) -> None:
    one = await installation.gateway()
    operator = Operator(one, resolved(upstream))
    await pushed(one, operator, tmp_path, f"HEAD:refs/heads/{BRANCH}")
    two = await installation.gateway(wait_ms=20)
    on = asyncio.Event()

    async def away(*_: Any) -> None:
        await on.wait()
        raise StoreUnavailable("the bucket is away")

    diff = partial(two.reader("ada", "team-a").get, f"{operator.door}/diff")
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(installation.blobs, "get_file", away)
        refused(await diff(), 503, "WorkspaceFetching")
        on.set()
        last = await told_at_last(diff, "WorkspaceFetching")
        assert "the bucket is away" in refused(last, 503, "StoreUnavailable")
    assert "file-1" in (await told_at_last(diff, REFUSED)).text


@pytest.fixture
async def troubled(
    installation: Installation, upstream: GitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[LocalGateway, LocalGateway, Path]:
    """Two gateways and a worktree of the first. Whoever asked the second has left, then it failed to follow."""
    one = await installation.gateway()
    tree, _ = await pushed(one, Operator(one, resolved(upstream)), tmp_path)
    two = await installation.gateway()
    run, refs = await two.gate.ledger.open("u1"), two.gate.refs.inner
    assert isinstance(refs, SharedRefs)
    here, on = asyncio.Event(), asyncio.Event()

    async def away(*_: Any) -> None:
        here.set()
        await on.wait()
        raise StoreUnavailable("the bucket is away")

    with monkeypatch.context() as meanwhile, capture_logs() as logs:
        meanwhile.setattr(installation.blobs, "get_file", away)
        asking = asyncio.create_task(refs.current(run))
        await here.wait()
        asking.cancel()
        await asyncio.wait({asking})
        on.set()
        await asyncio.wait(set(refs._beside))
    told = {"event": "following_failed", "log_level": "warning", "run_uid": "u1", "reason": "StoreUnavailable"}
    assert [each for each in logs if each["event"] == "following_failed"] == [told]
    return one, two, tree


async def test_what_went_wrong_beside_is_told_to_nobody_once_it_is_over(
    troubled: tuple[LocalGateway, LocalGateway, Path], tmp_path: Path
) -> None:
    one, two, tree = troubled
    run = await two.gate.ledger.open("u1")
    await two.gate.refs.pin(run, 1, "kept", await asyncio.to_thread(git, tree, "rev-parse", "HEAD"))
    head = await write(tree, "file-2")
    await by_way_of(one, tree)
    await push(tree, f"HEAD:{CHECKPOINTS}")
    assert (await seen(two, tmp_path))[CHECKPOINTS] == head


async def test_what_went_wrong_beside_long_ago_is_told_to_nobody(
    troubled: tuple[LocalGateway, LocalGateway, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, two, _ = troubled
    monkeypatch.setattr("moorage.gateway.mirroring.TROUBLE_S", 0)
    assert CHECKPOINTS in await seen(two, tmp_path)


@pytest.mark.rule("W4")
async def test_a_lock_that_a_killed_process_left_on_a_ref_is_taken_away(
    installation: Installation, upstream: GitServer, tmp_path: Path
) -> None:
    one = await installation.gateway()
    await agent_at_work(one, Operator(one, resolved(upstream)))
    tree = await worktree(one, tmp_path, "p1")
    (mirror,) = one.deps.mirrors._root.glob("*/*.git")
    left = mirror / f"{CHECKPOINTS}.lock"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.touch()
    os.utime(left, (0, 0))
    head = await write(tree, "file-1")
    await push(tree, f"HEAD:{CHECKPOINTS}")
    assert mirror_refs(one)[CHECKPOINTS] == head


@pytest.mark.rule("P5", "W4")
async def test_a_push_that_is_kept_is_told_so_whatever_is_left_of_it(
    installation: Installation, upstream: GitServer, tmp_path: Path
) -> None:
    """A killed process left the lock that forgetting it takes. The next tidying sees to that."""
    one = await installation.gateway()
    await agent_at_work(one, Operator(one, resolved(upstream)))
    tree = await worktree(one, tmp_path, "p1")
    discard, refused_by = one.deps.mirrors.discard, list[str]()

    async def locked(key: MirrorKey, staged: Staged) -> None:
        (left := one.deps.mirrors.path(key) / "packed-refs.lock").touch()
        try:
            await discard(key, staged)
        except LockHeld as error:
            refused_by.append(error.reason)
            raise
        finally:
            left.unlink(missing_ok=True)

    one.deps.mirrors.discard = locked  # type: ignore[method-assign]
    head = await write(tree, "file-1")
    await push(tree, f"HEAD:{CHECKPOINTS}")
    assert (mirror_refs(one)[CHECKPOINTS], refused_by) == (head, ["LockHeld"])


@pytest.mark.rule("P5")
async def test_what_a_bucket_didnt_take_isnt_taken(
    installation: Installation, upstream: GitServer, tmp_path: Path
) -> None:
    one = await installation.gateway()
    await agent_at_work(one, Operator(one, resolved(upstream)))
    tree = await worktree(one, tmp_path, "p1")
    await write(tree, "file-1")
    put = installation.blobs.put_file

    async def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the bucket is away")

    installation.blobs.put_file = away  # type: ignore[method-assign]
    with pytest.raises(Exception, match="503"):
        await push(tree, f"HEAD:{CHECKPOINTS}")
    installation.blobs.put_file = put  # type: ignore[method-assign]
    assert CHECKPOINTS not in await seen(one, tmp_path)
    await push(tree, f"HEAD:{CHECKPOINTS}")


@pytest.mark.rule("P5", "K1")
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_no_acknowledged_push_is_lost_whatever_dies(
    installation: Installation, upstream: GitServer, tmp_path: Path, monkeypatch: Any, seed: int
) -> None:
    """Three gateways take pushes by chance, die at points by chance, with their volumes or without."""
    monkeypatch.setattr("moorage.gateway.mirroring.WHOLE_EVERY", 3)
    chance, points = random.Random(seed), [point for point in Point if point.startswith(("keep/", "follow/"))]
    gateways = [await installation.gateway() for _ in range(3)]
    await agent_at_work(gateways[0], Operator(gateways[0], resolved(upstream)))
    tree = await worktree(gateways[0], tmp_path, "p1")
    acknowledged = None
    for n in range(8):
        if chance.random() < 0.4:
            dies_at(monkeypatch, chance.choice(points))
        if chance.random() < 0.3:
            lost = chance.choice(gateways)
            installation.lose(lost)
            lost.restart()
        await by_way_of(chance.choice(gateways), tree)
        head = await write(tree, f"file-{n}")
        try:
            await push(tree, f"HEAD:{CHECKPOINTS}")
        except AssertionError:  # git says that the gateway answered 503
            pass
        else:
            acknowledged = head
        monkeypatch.setattr(_Armed, "hook", None)
        told = {(await seen(gateway, tmp_path)).get(CHECKPOINTS) for gateway in gateways}
        assert len(told) == 1
        assert told <= {acknowledged, head}
        acknowledged = told.pop()
    assert acknowledged is not None
