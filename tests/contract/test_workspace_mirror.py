"""The gateway's end of git against a real server over HTTP with a password."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from moorage.testing.gitserver import GitServer, Request
from moorage.testing.trees import git
from moorage.workspace.errors import (
    AuthFailed,
    BadUrl,
    BranchExists,
    NetworkUnreachable,
    NotFound,
    RefMissing,
)
from moorage.workspace.git import Credential
from moorage.workspace.mirror import LocalUpstream, MirrorKey, Mirrors, PushKind, ReceivePolicy, Upstream
from moorage.workspace.upstream import Closure, closure

KEY = MirrorKey("team-a", "shop")
PASSWORD = "s3cret/with:odd@signs"


async def agit(cwd: Path, *args: str, check: bool = True) -> str:
    return await asyncio.to_thread(git, cwd, *args, check=check)


def commit(work: Path, name: str, text: str) -> str:
    (work / name).write_text(text)
    git(work, "add", "-A")
    git(work, "commit", "-qm", name)
    return git(work, "rev-parse", "HEAD")


@pytest.fixture
def server(tmp_path):
    (tmp_path / "srv").mkdir()
    with GitServer(tmp_path / "srv", "ada", PASSWORD) as running:
        bare = running.create("shop.git")
        work = tmp_path / "work"
        git(tmp_path, "clone", "-q", str(bare), str(work))
        git(work, "checkout", "-q", "-b", "main")
        commit(work, "a.txt", "one\n")
        git(work, "tag", "v1")
        git(work, "push", "-q", "origin", "main", "v1")
        yield running


@pytest.fixture
def work(tmp_path, server):
    return tmp_path / "work"


@pytest.fixture
def mirrors(tmp_path):
    return Mirrors(tmp_path / "mirrors", timeout=30.0)


@pytest.fixture
def upstream(server):
    return Upstream(server.url("shop.git"), credential=Credential("ada", PASSWORD))


async def test_fetches_and_resolves_branch_tag_commit_and_default(mirrors, upstream, work):
    first = git(work, "rev-parse", "HEAD")
    second = commit(work, "b.txt", "two\n")
    git(work, "push", "-q", "origin", "main", "main:refs/heads/side")
    state = await mirrors.ensure(KEY, upstream)
    assert state.revision == second
    assert state.head_ref == "refs/upstream/heads/main"
    assert state.size_bytes > 0
    assert await mirrors.resolve(KEY, "v1") == first
    assert await mirrors.resolve(KEY, "refs/heads/side") == second
    assert await mirrors.resolve(KEY, first) == first
    with pytest.raises(RefMissing, match="nope"):
        await mirrors.resolve(KEY, "nope")


@pytest.mark.rule("W3")
async def test_fetch_prunes_what_upstream_dropped_and_never_a_run(mirrors, upstream, work):
    git(work, "push", "-q", "origin", "main:refs/heads/side")
    state = await mirrors.ensure(KEY, upstream)
    await mirrors.pin(KEY, "run-1", "base", state.revision)
    git(work, "push", "-q", "origin", ":refs/heads/side")
    await mirrors.ensure(KEY, upstream)
    with pytest.raises(RefMissing):
        await mirrors.resolve(KEY, "side")
    assert await mirrors.ref(KEY, "refs/moorage/runs/run-1/pins/base") == state.revision


async def test_bad_addresses_and_passwords_have_names(mirrors, server, tmp_path):
    async def ensure(url, credential=None, ref=None):
        return await mirrors.ensure(MirrorKey("t", url), Upstream(url, ref, credential))

    good = Credential("ada", PASSWORD)
    with pytest.raises(AuthFailed):
        await ensure(server.url("shop.git"))
    with pytest.raises(AuthFailed):
        await ensure(server.url("shop.git"), Credential("ada", "wrong"))
    with pytest.raises(NotFound):
        await ensure(server.url("none.git"), good)
    with pytest.raises(RefMissing):
        await ensure(server.url("shop.git"), good, "no-such-branch")
    with pytest.raises(RefMissing):
        await ensure(server.url("shop.git"), good, "0" * 39 + "1")
    with pytest.raises(NetworkUnreachable):
        await ensure("http://127.0.0.1:1/x.git")
    for url in (
        "file:///etc",
        "ext::sh -c id",
        "/etc",
        "http://",
        "git@host:x",
        "http://u:p@h/x",
        "-u",
        "http://h:0/x",
    ):
        with pytest.raises(BadUrl):
            await ensure(url)
    server.create("empty.git")
    with pytest.raises(RefMissing, match="empty"):
        await ensure(server.url("empty.git"), good)
    with pytest.raises(NotFound):
        await mirrors.ensure(MirrorKey("t", "l"), LocalUpstream(tmp_path / "gone"))


@pytest.mark.rule("T2")
async def test_the_password_reaches_no_argument_environment_file_or_error(
    mirrors, upstream, server, tmp_path, monkeypatch
):
    seen = tmp_path / "seen"
    fake = tmp_path / "bin"
    fake.mkdir()
    real = shutil.which("git")
    (fake / "git").write_text(f'#!/bin/sh\n{{ env; echo "$0 $@"; }} >> {seen}\nexec {real} "$@"\n')
    (fake / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    state = await mirrors.ensure(KEY, upstream)
    outcome = await mirrors.push_upstream(KEY, upstream, state.revision, "moorage/x", None)
    assert outcome.kind is PushKind.CONFIRMED
    wrong = Credential("ada", "wrong-" + PASSWORD)
    with pytest.raises(AuthFailed) as error:
        await mirrors.ensure(KEY, Upstream(upstream.url, credential=wrong))
    assert PASSWORD not in str(error.value)
    assert PASSWORD not in repr(upstream)
    assert "fetch" in seen.read_text()
    for path in (seen, *tmp_path.joinpath("mirrors").rglob("*")):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path


async def test_a_redirect_does_not_carry_the_password_to_another_host(mirrors, upstream):
    reached = upstream.reach(
        mirrors._git.__self__ and __import__("moorage.workspace.git", fromlist=["Git"]).Git(Path("/"))
    )
    assert reached.credential_url == upstream.url


async def test_ephemeral_starts_from_one_empty_commit(mirrors):
    one = await mirrors.ensure(KEY, None)
    two = await mirrors.ensure(KEY, None)
    assert one.revision == two.revision
    assert git(one.path, "ls-tree", "-r", one.revision) == ""


async def test_local_repository_is_fetched_and_delivered_to(mirrors, work):
    local = LocalUpstream(work)
    state = await mirrors.ensure(KEY, local)
    assert state.revision == git(work, "rev-parse", "main")
    outcome = await mirrors.push_upstream(KEY, local, state.revision, "moorage/x", None)
    assert outcome.kind is PushKind.CONFIRMED
    assert git(work, "rev-parse", "moorage/x") == state.revision
    onto_checked_out = await mirrors.push_upstream(KEY, local, state.revision, "main", state.revision)
    assert onto_checked_out.kind is PushKind.CONFIRMED  # nothing to move


async def test_shallow_mirror_is_cut_and_can_be_filled_up(mirrors, server, work):
    for n in range(3):
        commit(work, "a.txt", f"{n}\n")
    git(work, "push", "-q", "origin", "main")
    url, credential = server.url("shop.git"), Credential("ada", PASSWORD)
    state = await mirrors.ensure(KEY, Upstream(url, None, credential, depth=1))
    assert git(state.path, "rev-list", "--count", state.revision) == "1"
    assert await mirrors.resolve(KEY, "main") == state.revision
    tagged = await mirrors.ensure(KEY, Upstream(url, "v1", credential, depth=1))
    assert tagged.revision == git(work, "rev-parse", "v1")
    await mirrors.ensure(KEY, Upstream(url, None, credential))
    assert git(state.path, "rev-list", "--count", state.revision) == "4"


async def test_a_shallow_mirror_delivers(mirrors, server, work):
    commit(work, "b.txt", "two\n")
    git(work, "push", "-q", "origin", "main")
    shallow = Upstream(server.url("shop.git"), None, Credential("ada", PASSWORD), depth=1)
    base = (await mirrors.ensure(KEY, shallow)).revision
    new = await candidate(mirrors, base, base)
    assert (await mirrors.push_upstream(KEY, shallow, new, "moorage/x", None)).kind is PushKind.CONFIRMED
    assert git(server.root / "shop.git", "rev-list", "--count", "moorage/x") == "3"


async def test_what_a_killed_gateway_left_is_swept_away(mirrors, upstream, work):
    path = (await mirrors.ensure(KEY, upstream)).path
    left = [path / "refs/upstream/heads/main.lock", path / "refs/moorage/runs/run-1/3/checkpoints.lock"]
    left += [path / name for name in ("HEAD.lock", "packed-refs.lock", "config.lock", "shallow.lock")]
    for lock in left:
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    new = commit(work, "b.txt", "two\n")
    git(work, "push", "-q", "origin", "main")
    assert (await mirrors.ensure(KEY, upstream)).revision == new
    assert not [lock for lock in left if lock.exists()]


@pytest.mark.rule("W4")
@pytest.mark.parametrize("name", ["packed-refs.lock", "shallow.lock", "refs/moorage/runs/run-1/3/checkpoints.lock"])
async def test_a_lock_that_a_push_may_hold_is_left_until_it_is_old(mirrors, upstream, name):
    """Also that of all packed refs: who removes a ref of a run has it, and a second writer would lose refs."""
    path = (await mirrors.ensure(KEY, upstream)).path
    begun, on = asyncio.Event(), asyncio.Event()

    async def body():
        begun.set()
        await on.wait()
        yield b"0000"

    pushing = asyncio.create_task(mirrors.receive_pack(KEY, ReceivePolicy("run-1", 3, "moorage/x"), body()))
    await begun.wait()
    lock = path / name
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    os.utime(lock, (2**31, 2**31))  # fresh, however long this takes
    await mirrors.ensure(KEY, upstream)
    assert lock.exists()
    os.utime(lock, (0, 0))
    await mirrors.ensure(KEY, upstream)
    assert not lock.exists()
    on.set()
    await pushing


async def test_a_large_delivery_arrives_whole(mirrors, upstream, server, tmp_path):
    base = (await mirrors.ensure(KEY, upstream)).revision
    path = mirrors.path(KEY)
    (tmp_path / "large").write_bytes(os.urandom(3_000_000))
    blob = git(path, "hash-object", "-w", str(tmp_path / "large"))
    tree = git(path, "mktree", stdin=f"100644 blob {blob}\tlarge\n")
    new = git(path, "commit-tree", "-m", "large", "-p", base, tree)
    assert (await mirrors.push_upstream(KEY, upstream, new, "moorage/x", None)).kind is PushKind.CONFIRMED
    assert git(server.root / "shop.git", "cat-file", "-s", "moorage/x:large") == "3000000"


@pytest.mark.rule("T2")
async def test_a_redirect_carries_no_password_to_another_host(mirrors, upstream, tmp_path):
    """`localhost` and `127.0.0.1` are two hosts to git's credential rules."""
    seen = []

    async def elsewhere(reader, writer):
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        target = upstream.url.replace("127.0.0.1", "localhost") + "/info/refs?service=git-upload-pack"
        writer.write(f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    redirector = await asyncio.start_server(elsewhere, "127.0.0.1", 0)
    async with redirector:
        port = redirector.sockets[0].getsockname()[1]
        with pytest.raises(AuthFailed):
            await mirrors.ensure(KEY, Upstream(f"http://127.0.0.1:{port}/x.git", credential=upstream.credential))
    assert seen
    assert b"Authorization" not in b"".join(seen)


@pytest.mark.skipif(os.getuid() != 0, reason="changes owners")
@pytest.mark.rule("W4")
async def test_a_local_repository_of_another_user_is_no_dubious_ownership(mirrors, work):
    for path in [work, *work.rglob("*")]:
        os.lchown(path, 1000, 1000)
    state = await mirrors.ensure(KEY, LocalUpstream(work))
    assert (
        await mirrors.push_upstream(KEY, LocalUpstream(work), state.revision, "moorage/x", None)
    ).kind is PushKind.CONFIRMED


async def test_concurrent_ensures_of_two_processes_are_one_after_the_other(mirrors, upstream, tmp_path):
    other = Mirrors(tmp_path / "mirrors")
    states = await asyncio.gather(*(m.ensure(KEY, upstream) for m in (mirrors, other) * 3))
    assert len({state.revision for state in states}) == 1


@pytest.mark.rule("W2")
async def test_many_that_ask_at_once_share_a_fetch_that_begins_after_they_asked(mirrors, upstream, server, work):
    await mirrors.ensure(KEY, upstream)
    before = len(fetches(server))
    running = asyncio.create_task(mirrors.ensure(KEY, upstream))
    while len(fetches(server)) == before:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    git(work, "commit", "--allow-empty", "-q", "-m", "after the first had begun")
    git(work, "push", "-q", "origin", "main")
    states = await asyncio.gather(*(mirrors.ensure(KEY, upstream) for _ in range(20)))
    assert {state.revision for state in states} == {git(work, "rev-parse", "HEAD")}
    await running
    each = len(fetches(server)) - before
    assert each <= 3 * before, "twenty callers were served by one fetch"


def fetches(server: GitServer) -> list[Request]:
    return [request for request in server.requests if request.service == "git-upload-pack"]


async def candidate(mirrors: Mirrors, revision: str, parent: str | None) -> str:
    path = mirrors.path(KEY)
    tree = git(path, "rev-parse", f"{revision}^{{tree}}")
    parents = ["-p", parent] if parent else []
    return git(path, "commit-tree", "-m", "work", *parents, tree)


@pytest.mark.rule("E5")
async def test_push_is_compare_and_swap(mirrors, upstream, server, work):
    base = (await mirrors.ensure(KEY, upstream)).revision
    one = await candidate(mirrors, base, base)
    done = await mirrors.push_upstream(KEY, upstream, one, "moorage/x", None)
    assert (done.kind, done.old, done.new) == (PushKind.CONFIRMED, None, one)
    assert (await mirrors.look_upstream(upstream, "moorage/x")).at == one

    taken = await mirrors.push_upstream(KEY, upstream, base, "moorage/x", None)
    assert (taken.kind, taken.reason) == (PushKind.CONFLICT, "BranchExists")
    with pytest.raises(BranchExists):
        await mirrors.check_branch_free(upstream, "moorage/x")

    two = await candidate(mirrors, base, one)
    stale = await mirrors.push_upstream(KEY, upstream, two, "moorage/x", base)
    assert (stale.kind, stale.reason) == (PushKind.CONFLICT, "NonFastForward")
    assert (await mirrors.push_upstream(KEY, upstream, two, "moorage/x", one)).kind is PushKind.CONFIRMED

    rewrite = await candidate(mirrors, base, base)
    refused = await mirrors.push_upstream(KEY, upstream, rewrite if rewrite != one else base, "moorage/x", two)
    assert (refused.kind, refused.reason) == (PushKind.CONFLICT, "NonFastForward")
    assert (await mirrors.look_upstream(upstream, "moorage/x")).at == two
    assert [u.new for u in server.updates if u.ref == "refs/heads/moorage/x"] == [one, two]
    assert not [u for u in server.updates if "moorage/runs" in u.ref or "upstream" in u.ref]


@pytest.mark.rule("E5")
async def test_a_lost_receipt_is_unknown_and_then_recovered_without_a_second_push(mirrors, upstream, server):
    base = (await mirrors.ensure(KEY, upstream)).revision
    one = await candidate(mirrors, base, base)
    server.inject("drop", "git-receive-pack")
    lost = await mirrors.push_upstream(KEY, upstream, one, "moorage/x", None)
    assert lost.kind is PushKind.UNKNOWN
    found = (await mirrors.look_upstream(upstream, "moorage/x")).at
    assert closure(found, target=one, expected_old=None) is Closure.RECOVERED
    assert len(server.updates) == 1

    server.inject("error", "git-receive-pack", times=1)
    two = await candidate(mirrors, base, one)
    never = await mirrors.push_upstream(KEY, upstream, two, "moorage/x", one)
    assert never.kind is PushKind.UNKNOWN
    found = (await mirrors.look_upstream(upstream, "moorage/x")).at
    assert closure(found, target=two, expected_old=one) is Closure.AGAIN
    assert closure("f" * 40, target=two, expected_old=one) is Closure.CONFLICT


async def test_a_denied_or_declined_push_is_rejected_by_name(mirrors, upstream, server):
    base = (await mirrors.ensure(KEY, upstream)).revision
    server.inject("deny", "git-receive-pack")
    denied = await mirrors.push_upstream(KEY, upstream, base, "moorage/x", None)
    assert (denied.kind, denied.reason) == (PushKind.REJECTED, "AuthFailed")
    hook = server.root / "shop.git/hooks/update"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho 'branch is protected by policy 7'\nexit 1\n")
    hook.chmod(0o755)
    declined = await mirrors.push_upstream(KEY, upstream, base, "moorage/x", None)
    assert (declined.kind, declined.reason) == (PushKind.REJECTED, "ProtectedBranch")
    assert "policy 7" in declined.message
