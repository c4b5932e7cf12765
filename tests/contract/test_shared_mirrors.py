"""Any gateway serves any run: each has a mirror in a folder of its own, and none of them is needed (W3, P5, F3)."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.gateway_script import (
    BRANCH,
    PASSWORD,
    Operator,
    agent_at_work,
    checkpoint,
    commit,
    ok,
    push,
    resolved,
    result,
    told,
    verification,
    worktree,
)
from tests.gateway_script import verifying as begun

from moorage.api.wire import ResolvedParent
from moorage.core.journal.heads import SigningKey
from moorage.gateway.settings import GatewaySettings
from moorage.points import Point, _Armed
from moorage.store.blobs import BlobStore
from moorage.store.blobs_s3 import S3Blobs
from moorage.store.bucket import Bucket
from moorage.store.errors import StoreUnavailable
from moorage.store.postgres import PostgresStore
from moorage.store.postgres_peers import PostgresPeers
from moorage.testing.clock import StepClock
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer
from moorage.testing.s3 import S3Server
from moorage.testing.trees import git
from moorage.workspace.refs import candidate_ref, checkpoint_ref, drift_ref

pytestmark = pytest.mark.timeout(240)  # several gateways, and git at each step
CHECKPOINTS = checkpoint_ref("u1", 1)


class Installation:
    """Gateways over one PostgreSQL and one bucket."""

    def __init__(
        self, stack: contextlib.AsyncExitStack, dsn: str, blobs: BlobStore, clock: StepClock, at: Path
    ) -> None:
        self._stack, self._dsn, self._clock, self.root = stack, dsn, clock, at
        self.blobs, self._key, self._serial = blobs, SigningKey.new(), 0

    async def gateway(self, wait_ms: int = 60_000, idle_ms: int = 86_400_000) -> LocalGateway:
        """One more, with an empty folder."""
        settings = GatewaySettings(mirrors_shared=True, assignment_wait_ms=wait_ms, mirror_idle_ms=idle_ms)
        self._serial += 1
        store = await self._stack.enter_async_context(await PostgresStore.open(self._dsn))
        peers = await self._stack.enter_async_context(await PostgresPeers.open(self._dsn, self._clock))
        made = LocalGateway(
            self.root / f"gateway-{self._serial}", store=store, blobs=self.blobs, clock=self._clock, peers=peers,
            settings=settings, head_key=self._key,
        )  # fmt: skip
        made.secrets.give("team-a", "git", username="ada", password=PASSWORD)
        for pod in ("p1", "p2", "v1"):
            made.token_for_pod(pod, "team-a")
        return await self._stack.enter_async_context(made.serving())

    def lose(self, gateway: LocalGateway) -> None:
        """Its volume is gone."""
        shutil.rmtree(gateway.deps.mirrors._root, ignore_errors=True)


@pytest.fixture
async def installation(
    postgres: str, s3_server: S3Server, tmp_path: Path, clock: StepClock
) -> AsyncIterator[Installation]:
    bucket = Bucket(s3_server.bucket(), s3_server.url, access_key="a", secret_key="b", patience_s=60.0)
    async with contextlib.AsyncExitStack() as stack:
        yield Installation(stack, postgres, S3Blobs(bucket, clock.now_ms), clock, tmp_path)


async def by_way_of(gateway: LocalGateway, tree: Path) -> None:
    """The worktree speaks to that gateway from now on."""
    await asyncio.to_thread(git, tree, "remote", "set-url", "origin", f"{gateway.url}/git/run.git")


async def write(tree: Path, name: str, text: str = "x\n") -> str:
    return await asyncio.to_thread(commit, tree, name, text)


async def pushed(gateway: LocalGateway, operator: Operator, tmp_path: Path, *refspecs: str) -> tuple[Path, str]:
    """An agent is at work, and the first commit of its worktree is pushed, as a checkpoint if nothing else is said."""
    await agent_at_work(gateway, operator)
    tree = await worktree(gateway, tmp_path, "p1")
    head = await write(tree, "file-1")
    await push(tree, *(refspecs or [f"HEAD:{CHECKPOINTS}"]))
    return tree, head


async def take_over(operator: Operator) -> None:
    """Attempt 1 is lost, attempt 2 has a pod."""
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "NodeLost"}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)


async def seen(gateway: LocalGateway, tmp_path: Path, pod: str = "p1") -> dict[str, str]:
    """What a sandbox sees of its run's refs."""
    header = f"http.extraHeader=Authorization: Bearer token-of-{pod}"
    listed = await asyncio.to_thread(git, tmp_path, "-c", header, "ls-remote", f"{gateway.url}/git/run.git")
    return {ref: commit for commit, _, ref in (line.partition("\t") for line in listed.splitlines())}


def mirror_refs(gateway: LocalGateway) -> dict[str, str]:
    paths = list(gateway.deps.mirrors._root.glob("*/*.git"))
    listed = [git(path, "for-each-ref", "--format=%(refname) %(objectname)", "refs/moorage") for path in paths]
    return dict(line.split(" ") for lines in listed for line in lines.splitlines())


@pytest.mark.rule("R1", "P5", "W3")
async def test_the_next_attempt_goes_on_at_another_gateway_and_delivers(
    installation: Installation, upstream: GitServer, tmp_path: Path
) -> None:
    """Attempt 1 pushes checkpoints through one gateway, which is lost with its volume. A new one has all of it."""
    one = await installation.gateway()
    operator = Operator(one, resolved(upstream))
    runner = await agent_at_work(one, operator)
    tree = await worktree(one, tmp_path, "p1")
    for iteration in (1, 2, 3):
        head = await write(tree, f"file-{iteration}")
        await push(tree, f"HEAD:{CHECKPOINTS}")
        await ok(await runner.post("/v1/self/checkpoint", json=checkpoint(iteration, head)))
    await push(tree, f"HEAD~1:{drift_ref('u1', 1)}")
    installation.lose(one)

    two = await installation.gateway()
    operator = Operator(two, resolved(upstream))
    await take_over(operator)
    runner = two.sandbox("p2", "team-a")
    assignment = await ok(await runner.get("/v1/self"))
    assert assignment["git"]["resume"]["commit"] == head
    again = await worktree(two, tmp_path, "p2", "again")
    await asyncio.to_thread(git, again, "fetch", "-q", "origin", CHECKPOINTS, drift_ref("u1", 1))
    await asyncio.to_thread(git, again, "checkout", "-q", head)
    assert sorted(path.name for path in again.glob("file-*")) == ["file-1", "file-2", "file-3"]
    last = await write(again, "file-4")
    await push(again, f"HEAD:refs/heads/{BRANCH}")
    base = {"base": assignment["git"]["base"], "branch": BRANCH}
    await ok(await runner.post("/v1/self/records", json=told("WORKSPACE_READY", base, epoch=2)))
    await ok(await runner.post("/v1/self/records", json=told("AGENT_STARTED", {}, epoch=2)))
    await ok(await runner.post("/v1/self/result", json=result(last, epoch=2)))
    installation.lose(two)

    three = await installation.gateway()
    operator = Operator(three, resolved(upstream))
    await operator.register("v1", 2, "verifier", last)
    verifier = three.sandbox("v1", "team-a")
    verifying = await worktree(three, tmp_path, "v1", "verifying")
    await asyncio.to_thread(git, verifying, "fetch", "-q", "origin", last)
    state = await operator.state()
    assert state["proposal"]["commit"] == last
    bundle = await three.reader("ada", "team-a").get(f"{operator.door}/result")
    assert bundle.status_code == 200
    (tmp_path / "result.bundle").write_bytes(bundle.content)
    named = await asyncio.to_thread(git, tmp_path, "bundle", "list-heads", str(tmp_path / "result.bundle"))
    assert named == f"{last} refs/heads/result"
    diff = await three.reader("ada", "team-a").get(f"{operator.door}/diff")
    assert "file-4" in diff.text
    await ok(await verifier.post("/v1/self/records", json=begun(epoch=2)))
    await ok(await verifier.post("/v1/self/verification", json=verification(last, epoch=2)))
    installation.lose(three)
    four = await installation.gateway()
    operator = Operator(four, resolved(upstream))
    await ok(await operator.deliver(2, last))
    assert await asyncio.to_thread(git, tmp_path / "srv" / "shop.git", "rev-parse", BRANCH) == last


@pytest.mark.rule("P5", "W3")
async def test_two_gateways_take_pushes_of_one_run_in_turn(
    installation: Installation, upstream: GitServer, tmp_path: Path
) -> None:
    one, two = await installation.gateway(), await installation.gateway()
    await agent_at_work(one, Operator(one, resolved(upstream)))
    tree = await worktree(one, tmp_path, "p1")
    for n in range(6):
        await by_way_of(two if n % 2 else one, tree)
        head = await write(tree, f"file-{n}")
        await push(tree, f"HEAD:{CHECKPOINTS}", f"+HEAD:refs/heads/{BRANCH}")
    for gateway in (one, two):
        refs = await seen(gateway, tmp_path)
        assert refs[CHECKPOINTS] == refs[candidate_ref("u1", 1)] == head
    kept = await one.deps.store.kept_pushes("u1")
    assert [one.number for one in kept] == list(range(6))
    assert all(one.pack is not None and one.pack.size < 2000 for one in kept)  # each brings what is new, no more
    counts = [gateway.deps.metrics for gateway in (one, two)]
    assert sum(each.pushes_kept._value.get() for each in counts) == len(kept)
    assert sum(each.push_bytes_kept._value.get() for each in counts) == sum(push.pack.size for push in kept)


@pytest.mark.rule("P5")
async def test_of_two_pushes_at_one_moment_one_is_told_to_fetch_first(
    installation: Installation, upstream: GitServer, tmp_path: Path
) -> None:
    """Both move the same ref from the same commit, at two gateways: one of them would take the other's work back."""
    one, two = await installation.gateway(), await installation.gateway()
    await agent_at_work(one, Operator(one, resolved(upstream)))
    trees = [await worktree(gateway, tmp_path, "p1", f"tree-{n}") for n, gateway in enumerate((one, two))]
    heads = [await write(tree, f"file-{n}") for n, tree in enumerate(trees)]
    pushes = (push(tree, f"HEAD:{CHECKPOINTS}") for tree in trees)
    ends = await asyncio.gather(*pushes, return_exceptions=True)
    (taken,) = [n for n, end in enumerate(ends) if end is None]
    for gateway in (one, two):
        assert (await seen(gateway, tmp_path))[CHECKPOINTS] == heads[taken]
    assert len(await one.deps.store.kept_pushes("u1")) == 1


async def test_pushes_of_different_refs_at_one_moment_are_all_taken(
    installation: Installation, upstream: GitServer, tmp_path: Path
) -> None:
    one, two = await installation.gateway(), await installation.gateway()
    await agent_at_work(one, Operator(one, resolved(upstream)))
    trees = [await worktree(gateway, tmp_path, "p1", f"tree-{n}") for n, gateway in enumerate((one, two))]
    for n, tree in enumerate(trees):
        await write(tree, f"file-{n}")
    await asyncio.gather(*(push(tree, f"HEAD:refs/moorage/runs/u1/1/by-{n}") for n, tree in enumerate(trees)))
    for gateway in (one, two):
        assert {f"refs/moorage/runs/u1/1/by-{n}" for n in (0, 1)} <= (await seen(gateway, tmp_path)).keys()


@pytest.mark.rule("F3")
async def test_a_fenced_epochs_push_is_kept_by_nobody(
    installation: Installation, upstream: GitServer, tmp_path: Path
) -> None:
    """Its pack was on its way while the epoch rose at another gateway: the store refuses the row."""
    one, two = await installation.gateway(), await installation.gateway()
    operator, other = Operator(one, resolved(upstream)), Operator(two, resolved(upstream))
    tree, first = await pushed(one, operator, tmp_path)
    await write(tree, "file-2")
    put = one.deps.blobs.put_file

    async def overtaken(*args: Any, **more: Any) -> Any:
        await take_over(other)
        return await put(*args, **more)

    installation.blobs.put_file = overtaken  # type: ignore[method-assign]
    with pytest.raises(Exception, match="409"):
        await push(tree, f"HEAD:{CHECKPOINTS}")
    assert [kept.epoch for kept in await two.deps.store.kept_pushes("u1")] == [1]
    for gateway in (one, two):
        assert (await seen(gateway, tmp_path, "p2"))[CHECKPOINTS] == first
        assert not [ref for ref in mirror_refs(gateway) if "staged" in ref]
    assert "FENCE_REFUSED" in await operator.types()
    assert one.deps.metrics.fence_refusals.labels("git")._value.get() == 1


@pytest.mark.rule("K1", "P5")
@pytest.mark.parametrize("point", [Point.KEEP_BEFORE, Point.KEEP_WITHIN, Point.KEEP_AFTER])
async def test_a_push_that_is_lost_on_its_way_is_pushed_again(
    installation: Installation, upstream: GitServer, tmp_path: Path, monkeypatch: Any, point: Point
) -> None:
    """The gateway dies there: what its client was told is what any gateway says afterwards, also the same one."""
    one = await installation.gateway()
    await agent_at_work(one, Operator(one, resolved(upstream)))
    tree = await worktree(one, tmp_path, "p1")
    head = await write(tree, "file-1")
    dies_at(monkeypatch, point)
    with pytest.raises(Exception, match="503"):
        await push(tree, f"HEAD:{CHECKPOINTS}")
    assert CHECKPOINTS not in mirror_refs(one)  # never ahead of what is kept
    one.restart()
    two = await installation.gateway()
    kept = {CHECKPOINTS: head} if point is Point.KEEP_AFTER else {}
    for gateway in (two, one):
        refs = await seen(gateway, tmp_path)
        assert {ref: commit for ref, commit in refs.items() if ref == CHECKPOINTS} == kept
    await push(tree, f"HEAD:{CHECKPOINTS}")
    for gateway in (two, one):
        assert (await seen(gateway, tmp_path))[CHECKPOINTS] == head
    assert len(await one.deps.store.kept_pushes("u1")) == 1


def dies_at(monkeypatch: Any, point: Point) -> None:
    """Once, at that point: what comes after it isn't done."""

    def hook(there: Point) -> None:
        if there is point:
            monkeypatch.setattr(_Armed, "hook", None)
            raise StoreUnavailable("killed")

    monkeypatch.setattr(_Armed, "hook", hook)


async def test_a_push_that_breaks_the_rules_is_refused_as_ever(
    installation: Installation, upstream: GitServer, tmp_path: Path
) -> None:
    one = await installation.gateway()
    tree, _ = await pushed(one, Operator(one, resolved(upstream)), tmp_path)
    await asyncio.to_thread(git, tree, "commit", "--amend", "-qm", "another")
    blob = await asyncio.to_thread(git, tree, "rev-parse", "HEAD:file-1")
    for refspec, why in (
        (f"+HEAD:{CHECKPOINTS}", "non-fast-forward"),
        (f"{blob}:refs/moorage/runs/u1/1/blob", "no commit"),
        ("HEAD:refs/moorage/runs/u2/1/checkpoints", "may push below"),
        ("HEAD:refs/moorage/staged/x/1", "may push below"),
    ):
        with pytest.raises(Exception, match=why):
            await push(tree, refspec)
    assert len(await one.deps.store.kept_pushes("u1")) == 1
    assert not [ref for ref in mirror_refs(one) if "staged" in ref]


@pytest.mark.rule("O2", "W7", "W3")
async def test_a_child_and_its_parent_have_each_others_commits_at_any_gateway(
    installation: Installation, upstream: GitServer, tmp_path: Path
) -> None:
    """The child starts at another gateway than its parent's, and the parent fetches what it proposes at a third."""
    one, two = await installation.gateway(), await installation.gateway()
    parent = Operator(one, resolved(upstream))
    _, point = await pushed(one, parent, tmp_path)
    runner = one.sandbox("p1", "team-a")
    await ok(await runner.post("/v1/self/checkpoint", json=checkpoint(1, point)))

    above = ResolvedParent(uid="u1", name="fix", commit=point)
    child = Operator(two, resolved(upstream, "u2", name="kid", parent=above, delivery=None, acceptance=()))
    theirs = await child.start(pod="p2")
    told_git = (await ok(await theirs.get("/v1/self")))["git"]
    base = told_git["base"]
    tree = await worktree(two, tmp_path, "p2", "kid")
    await asyncio.to_thread(git, tree, "fetch", "-q", "origin", base)
    await asyncio.to_thread(git, tree, "checkout", "-q", base)
    for kind, said in (("WORKSPACE_READY", {"base": base, "branch": told_git["branch"]}), ("AGENT_STARTED", {})):
        await ok(await theirs.post("/v1/self/records", json=told(kind, said)))
    head = await write(tree, "kid.txt")
    await push(tree, f"HEAD:refs/heads/{told_git['branch']}")
    await ok(await theirs.post("/v1/self/result", json=result(head)))
    await ok(await child.report(1, "RUN_SUCCEEDED", {"reason": "Completed", "message": "", "commit": head}))
    state = (await ok(await two.operator.post("/v1/runs/u1/children", json={})))["state"]
    assert (state["children"][0]["outcome"], state["children"][0]["commit"]) == ("Succeeded", head)
    await ok(await two.operator.post(f"{child.door}/release"))

    three = await installation.gateway()
    elder = tmp_path / "tree"
    await by_way_of(three, elder)
    await asyncio.to_thread(git, elder, "fetch", "-q", "origin", head)
    assert git(elder, "rev-parse", "FETCH_HEAD^") == base
    assert git(elder, "diff-tree", base, point) == ""
