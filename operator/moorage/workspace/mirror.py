"""The gateway's git store: one bare repository per tenant and workspace (W2, W3, W5).

Refs in it:
    refs/upstream/heads/*, refs/upstream/tags/*      what upstream has; the only refs that a fetch or prune touches
    refs/moorage/runs/<run>/<epoch>/checkpoints      an attempt's checkpoints, each the child of the one before
    refs/moorage/runs/<run>/<epoch>/candidate        what the attempt proposes; sandboxes push it as refs/heads/<branch>
    refs/moorage/runs/<run>/pins/<name>              commits kept for the run by the gateway (its base)
    refs/moorage/drift/<run>/<epoch>                 R3

Objects and refs that a push brings are synced before its answer (P5). Reflogs keep what a moved ref left behind, for
the retention that `gc` is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from moorage.workspace import beginnings, doors, staging
from moorage.workspace import upstream as far
from moorage.workspace.bundle import packed
from moorage.workspace.doors import ReceivePolicy, ReceiveReport
from moorage.workspace.errors import (
    BadUrl,
    BranchExists,
    HoldsConversation,
    LockHeld,
    NonFastForward,
    NotFound,
    RefMissing,
    WorkspaceError,
)
from moorage.workspace.git import Git
from moorage.workspace.locks import lock, nobody, remove_stale_locks
from moorage.workspace.refs import DRIFT, RUNS, UPSTREAM, MirrorKey, check_branch, check_run, is_sha, pin_ref
from moorage.workspace.shared import Begun, Shared
from moorage.workspace.staging import Staged
from moorage.workspace.upstream import AnyUpstream, LocalUpstream, PushKind, PushOutcome, Seen, Upstream, taken

__all__ = [
    "LocalUpstream",
    "MirrorKey",
    "MirrorState",
    "Mirrors",
    "PushKind",
    "PushOutcome",
    "ReceivePolicy",
    "Upstream",
]

_STORE = (
    ("core.fsync", "all"),
    ("core.fsyncMethod", "fsync"),
    ("core.logAllRefUpdates", "always"),
    ("fetch.writeCommitGraph", "false"),
    ("fetch.unpackLimit", "1"),
    # What strangers push must not fill our memory: large blobs are streamed and never diffed.
    ("core.bigFileThreshold", "16m"),
    ("pack.windowMemory", "64m"),
)
_LOCK_WAIT_SECONDS = 300.0
_PUSHES = ".pushes"
_SCRATCH = ".scratch-"
_DETACHED = f"{UPSTREAM}commits/HEAD"


@dataclass(frozen=True, slots=True)
class MirrorState:
    """A mirror after a fetch. `revision` is the commit of the ref asked for; `fetched_at` in ms since the epoch."""

    path: Path
    revision: str
    head_ref: str
    fetched_at: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FileStat:
    """One changed file; None counts for binary content."""

    path: str
    added: int | None
    removed: int | None


@dataclass(frozen=True, slots=True)
class Patch:
    """A unified diff; `truncated` when there was more than the limit."""

    data: bytes
    truncated: bool


class Mirrors:
    """All mirrors below one folder. One instance per process; several processes may share the folder."""

    def __init__(
        self, root: Path, *, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000, timeout: float = 600.0
    ) -> None:
        self._root = root
        self._now_ms = now_ms
        self._timeout = timeout
        self._locks: dict[str, asyncio.Lock] = {}
        self._began, self._used, self._removals = time.monotonic(), dict[Path, float](), dict[Path, int]()
        self._fetches: Shared[MirrorState] = Shared()

    def path(self, key: MirrorKey) -> Path:
        """Where the mirror is or would be."""
        return self._root / key.folder()

    async def ensure(self, key: MirrorKey, upstream: AnyUpstream | None) -> MirrorState:
        """Make the mirror if it is not there, fetch, and resolve the ref asked for. Without an upstream (ephemeral) it
        has one empty root commit. Of many that ask at once one fetches, after all of them have asked.

        Raises BadUrl, AuthFailed, NotFound, NetworkUnreachable, RefMissing, DiskFull.
        """
        return await self._fetches.do((key, upstream), lambda begun: self._ensure(key, upstream, begun))

    async def _ensure(self, key: MirrorKey, upstream: AnyUpstream | None, begun: Begun) -> MirrorState:
        async with self._exclusive(key) as inherit:
            begun()
            git = await self._created(key, inherit)
            if upstream is None:
                await beginnings.seed(git)
            else:
                await _fetch(git, upstream)
            revision = await _resolve(git, upstream.ref if upstream else None)
            head = await git.text("symbolic-ref", "HEAD")
            return MirrorState(self.path(key), revision, head, self._now_ms(), await _size(git))

    async def begin(self, key: MirrorKey, point: str, base: str, run: str) -> str:
        """O2: the commit for a child of that run to start from, at its checkpoint `point`. Raises RefMissing."""
        async with self._beside(key) as git:
            return await beginnings.begun(git, point, base, run)

    async def go_on(self, key: MirrorKey, point: str, base: str, run: str) -> str | None:
        """O2: the checkpoint for a run to begin at that goes on with that one, whose work `base` holds and whose
        conversation its checkpoint `point`; None where there was none. Raises RefMissing.
        """
        async with self._beside(key) as git:
            return await beginnings.gone_on(git, point, base, run)

    async def resolve(self, key: MirrorKey, ref: str | None) -> str:
        """The commit of an upstream branch or tag, a full commit id, or the default branch. Raises RefMissing."""
        return await _resolve(self._git(key), ref)

    async def pin(self, key: MirrorKey, run: str, name: str, commit: str) -> None:
        """Keep a commit for a run, and let the run fetch it, whatever becomes of the branch that it was on."""
        async with self._beside(key) as git:
            await git.run("update-ref", pin_ref(run, name), commit)

    async def ref(self, key: MirrorKey, name: str) -> str | None:
        """What a ref of the store points at; None when it is not there."""
        out = await self._git(key).run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", ok=(0, 1, 128))
        return out.text if out.code == 0 else None

    async def advertise(
        self, key: MirrorKey, service: str, run: str | None, policy: ReceivePolicy | None = None
    ) -> bytes:
        """The body of `info/refs?service=…`. For `git-receive-pack` the policy is needed."""
        return await doors.advertise(self._git(key), service, run, policy)

    def upload_pack(self, key: MirrorKey, run: str | None, body: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """Answer a fetch: upstream's refs and those of `run`, nothing else, also not by object id."""
        return doors.upload_pack(self._git(key), run, body)

    async def receive_pack(self, key: MirrorKey, policy: ReceivePolicy, body: AsyncIterable[bytes]) -> ReceiveReport:
        """Take a push under a policy; what the report calls taken is on disk, synced."""
        async with self._beside(key) as git:
            return await doors.receive_pack(git, policy, body)

    # --- in two steps, where pushes are kept elsewhere ----------------------------------------------------------------

    async def stage(
        self, key: MirrorKey, policy: ReceivePolicy, token: str, body: AsyncIterable[bytes]
    ) -> Staged | ReceiveReport:
        """Take a push's objects, synced, and none of its refs. What is refused at once has its report already."""
        async with self._beside(key) as git:
            return await staging.stage(git, policy, token, body)

    async def judge(self, key: MirrorKey, staged: Staged) -> Staged:
        """Which of its refs may move as they are now."""
        return await staging.judge(self._git(key), staged)

    async def publish(self, key: MirrorKey, staged: Staged) -> None:
        """Move its refs, synced, all or none."""
        await self._moved(key, lambda git: staging.publish(git, staged))

    async def discard(self, key: MirrorKey, staged: Staged) -> None:
        """Forget a push whose refs don't move; harmless where they did."""
        async with self._beside(key) as git:
            await staging.discard(git, staged)

    async def discard_all_but(self, key: MirrorKey, tokens: Collection[str]) -> None:
        """Forget the pushes that killed processes left half taken."""
        async with self._beside(key) as git:
            await staging.discard_all_but(git, tokens)

    async def runs(self, key: MirrorKey) -> set[str]:
        """The runs that have refs here."""
        return await staging.runs(self._git(key))

    async def pack(self, key: MirrorKey, wanted: Iterable[str], known: Iterable[str], path: Path) -> bool:
        """Write what commits need beyond known ones to a file; whether that is anything."""
        return await staging.write_pack(self._git(key), wanted, known, path)

    async def unpack(self, key: MirrorKey, path: Path) -> None:
        """Bring the objects of a pack in, synced."""
        await staging.read_pack(self._git(key), path)

    async def follow(self, key: MirrorKey, moves: Mapping[str, str]) -> None:
        """Move refs to where they were moved elsewhere, synced, all or none."""
        await self._moved(key, lambda git: staging.follow(git, moves))

    async def _moved(self, key: MirrorKey, move: Callable[[Git], Awaitable[None]]) -> None:
        """Move refs, also where a killed process left its lock on one."""
        try:
            async with self._beside(key) as git:
                await move(git)
        except LockHeld:
            async with self._exclusive(key), self._beside(key) as git:
                await move(git)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder for files on their way in or out, on the mirrors' own disk."""
        self._root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=self._root))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def sweep(self, older_s: float) -> None:
        """Remove the scratch folders that killed processes left."""
        for folder in self._root.glob(f"{_SCRATCH}*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - folder.stat().st_mtime > older_s:
                    shutil.rmtree(folder, ignore_errors=True)

    def touch(self, key: MirrorKey) -> int:
        """Use it: it stays for a while. How many were removed in its place: what was known of those is not so of it."""
        self._used[self.path(key)] = time.monotonic()
        return self._removals.get(self.path(key), 0)

    async def remove_unused(self, kept: Collection[MirrorKey], idle_s: float) -> int:
        """Remove mirrors but those `kept`, where nobody has used them for so long; how many. Only for who can make each
        of them anew, and shares the folder with no other process."""
        unused = set(self._root.glob("*/*.git")) - {self.path(key) for key in kept}
        return sum([await self._removed(path, idle_s) for path in sorted(unused)])

    async def _removed(self, path: Path, idle_s: float) -> bool:
        """It goes out of sight in one step, between any two uses. Its locks stay: others may wait for them."""
        async with self._exclusive_at(path):
            if time.monotonic() - self._used.get(path, self._began) < idle_s:
                return False
            folder = self._put_aside(path)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return True

    def _put_aside(self, path: Path) -> Path:
        folder = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=self._root))
        path.rename(folder / "mirror")
        self._used.pop(path, None)
        self._removals[path] = self._removals.get(path, 0) + 1
        return folder

    # --- what is there ------------------------------------------------------------------------------------------------

    async def has_commit(self, key: MirrorKey, commit: str) -> bool:
        """The commit is in the store, whole."""
        return await _is_commit(self._git(key), commit)

    async def has_commits(self, key: MirrorKey, commits: Collection[str]) -> bool:
        """All of them are in the store, whole."""
        return all([await self.has_commit(key, commit) for commit in commits])

    async def tree_of(self, key: MirrorKey, commit: str) -> str:
        """The tree's id. Raises RefMissing."""
        return await self._git(key).text("rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}")

    async def is_ancestor(self, key: MirrorKey, ancestor: str, descendant: str) -> bool:
        """`descendant` builds on `ancestor` (or is it)."""
        return await self._git(key).test("merge-base", "--is-ancestor", ancestor, descendant)

    async def diff(self, key: MirrorKey, base: str, head: str, limit: int = 8 << 20) -> Patch:
        """The patch from base to head, its first `limit` bytes."""
        git = self._git(key, limit)
        flags = ("--no-ext-diff", "--no-textconv", "--no-color", "--full-index")
        out = await git.run("diff", *flags, base, head, "--", truncate=True)
        return Patch(out.stdout, out.truncated)

    def bundle(self, key: MirrorKey, base: str, commit: str) -> AsyncIterator[bytes]:
        """The commit down to its base as a git bundle that can be looked at without the repository."""
        return packed(self._git(key), base, commit)

    async def diff_stat(self, key: MirrorKey, base: str, head: str) -> tuple[FileStat, ...]:
        """The changed files; a rename is a removal and an addition."""
        out = await self._git(key).run("diff", "--numstat", "--no-renames", "-z", "--no-textconv", base, head, "--")
        return tuple(_file_stat(entry) for entry in os.fsdecode(out.stdout).split("\0") if entry)

    async def push_upstream(
        self, key: MirrorKey, upstream: AnyUpstream, commit: str, branch: str, expected_old: str | None
    ) -> PushOutcome:
        """E5: move the upstream branch from `expected_old` (None: it must not exist) to `commit`, or say why not."""
        git = self._git(key)
        check_branch(branch)
        if not await _is_commit(git, commit):
            raise RefMissing(f"{commit} is not in the store")
        if expected_old and not await _builds_on(git, expected_old, commit):
            words = f"{commit} does not build on {expected_old}"
            return PushOutcome(PushKind.CONFLICT, branch, expected_old, commit, NonFastForward.reason, words)
        if await beginnings.tells(git, commit):
            raise HoldsConversation(f"{commit} builds on a checkpoint")
        return await far.push(git, upstream, commit, branch, expected_old)

    async def look_upstream(self, upstream: AnyUpstream, branch: str) -> Seen:
        """The branch upstream, now; with `closure` it settles a push that has no receipt."""
        self._root.mkdir(parents=True, exist_ok=True)
        return await far.look(Git(self._root, timeout=self._timeout), upstream, branch)

    async def check_branch_free(self, upstream: AnyUpstream, branch: str) -> None:
        """Raises BranchExists where the branch that a run wants to create is there already, or can't be made."""
        seen = await self.look_upstream(upstream, check_branch(branch))
        if seen.at or seen.obstacle:
            raise BranchExists(taken(branch, seen))

    async def drop_run(self, key: MirrorKey, run: str) -> int:
        """Remove the run's refs, drift included; how many there were. Objects stay until `gc`."""
        check_run(run)
        if not self.path(key).is_dir():
            return 0
        async with self._exclusive(key) as inherit:
            git = self._git(key, inherit=inherit)
            refs = await git.text("for-each-ref", "--format=%(refname)", f"{RUNS}{run}/", f"{DRIFT}{run}/")
            commands = "".join(f"delete {name}\n" for name in refs.splitlines())
            await git.run("update-ref", "--stdin", stdin=commands.encode("utf-8", "surrogateescape"))
            return commands.count("\n")

    async def gc(self, key: MirrorKey, retention_seconds: int, *, borrowed: bool = False) -> None:
        """Repack, and forget what no ref has held for the retention. A mirror that worktrees borrow objects from
        (`borrowed`) is repacked but nothing in it is ever forgotten."""
        keep = f"{retention_seconds}.seconds.ago"
        expire = ("never", "never") if borrowed else (keep, keep)
        config = (("gc.reflogExpire", expire[0]), ("gc.reflogExpireUnreachable", expire[1]), ("gc.packRefs", "true"))
        async with self._exclusive(key) as inherit:
            prune = "--no-prune" if borrowed else f"--prune={keep}"
            await self._git(key, inherit=inherit).with_(*config).run("gc", "--quiet", prune)

    def _git(self, key: MirrorKey, limit: int = 64 << 20, inherit: tuple[int, ...] = ()) -> Git:
        path = self.path(key)
        if not path.is_dir():
            raise NotFound("this workspace has no mirror yet")
        self._used[path] = time.monotonic()
        return Git(path, {"GIT_DIR": str(path)}, _STORE, timeout=self._timeout, limit=limit, inherit=inherit)

    async def _created(self, key: MirrorKey, inherit: tuple[int, ...]) -> Git:
        path = self.path(key)
        path.mkdir(parents=True, exist_ok=True)
        git = self._git(key, inherit=inherit)
        if not (path / "config").is_file() or not (path / "HEAD").is_file():
            await git.run("init", "--quiet", "--bare", "--template=", "--initial-branch=main", str(path))
        return git

    def _exclusive(self, key: MirrorKey) -> AbstractAsyncContextManager[tuple[int, ...]]:
        """One fetch, repack or removal of refs in a mirror at a time, over all processes, those that a killed gateway
        left included: they inherit what is yielded. Pushes and fetches by sandboxes go on."""
        return self._exclusive_at(self.path(key))

    @contextlib.asynccontextmanager
    async def _exclusive_at(self, path: Path) -> AsyncIterator[tuple[int, ...]]:
        async with self._locks.setdefault(str(path), asyncio.Lock()):
            held = await lock(path.with_suffix(".lock"), _LOCK_WAIT_SECONDS, "another process works on this mirror")
            try:
                with nobody(path.with_suffix(_PUSHES)) as alone:
                    remove_stale_locks(path, alone=alone)
                yield (held,)
            finally:
                os.close(held)

    @contextlib.asynccontextmanager
    async def _beside(self, key: MirrorKey) -> AsyncIterator[Git]:
        """Git that moves refs beside others, and beside whoever works on the mirror alone: while any such git lives,
        also one that a killed gateway left, lock files may be its own."""
        self._git(key)
        path = self.path(key).with_suffix(_PUSHES)
        held = await lock(path, _LOCK_WAIT_SECONDS, "another process tidies this mirror", shared=True)
        try:
            yield self._git(key, inherit=(held,))
        finally:
            os.close(held)


async def _fetch(git: Git, upstream: AnyUpstream) -> None:
    branch = await far.default_branch(git, upstream)
    tags = () if upstream.depth else (f"+refs/tags/*:{UPSTREAM}tags/*",)
    await _fetch_refs(git, upstream, "--prune", f"+refs/heads/*:{UPSTREAM}heads/*", *tags)
    if branch:
        await git.run("symbolic-ref", "HEAD", UPSTREAM + branch.removeprefix("refs/"))
    elif isinstance(upstream, LocalUpstream) and await far.head(git, upstream):
        await _fetch_refs(git, upstream, f"+HEAD:{_DETACHED}")
        await git.run("symbolic-ref", "HEAD", _DETACHED)
    if upstream.ref and not await _found(git, upstream.ref):
        await _fetch_refs(git, upstream, _single(upstream.ref))


async def _fetch_refs(git: Git, upstream: AnyUpstream, *options: str) -> None:
    flags = [option for option in options if option.startswith("--")]
    refspecs = [option for option in options if not option.startswith("--")]
    depth = await _depth(git, upstream.depth)
    address = upstream.address("fetch")
    common = ("--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules", "--quiet")
    if isinstance(upstream, LocalUpstream):
        flags.append("--update-shallow")  # a clone on this machine may lack history, as in most CI
    await upstream.reach(git).run("fetch", *common, *flags, *depth, *address, *refspecs)


def _single(ref: str) -> str:
    """The refspec for a ref that the wildcards did not bring: a tag of a shallow mirror, or a commit by its id."""
    if is_sha(ref):
        return f"+{ref}:{UPSTREAM}commits/{ref}"
    name = ref.removeprefix("refs/tags/")
    return f"+refs/tags/{check_branch(name)}:{UPSTREAM}tags/{name}"


async def _depth(git: Git, wanted: int | None) -> tuple[str, ...]:
    """A full mirror is never cut back, and a cut one is filled up when the workspace asks for all."""
    if wanted is not None and wanted < 1:
        raise BadUrl("depth is at least 1")
    shallow = (git.cwd / "shallow").exists()
    if wanted is None:
        return ("--unshallow",) if shallow else ()
    fresh = not (git.cwd / "refs/upstream").exists() and not (git.cwd / "packed-refs").exists()
    return (f"--depth={wanted}",) if shallow or fresh else ()


async def _resolve(git: Git, ref: str | None) -> str:
    found = await _found(git, ref)
    if found:
        return found
    if ref is None:
        raise RefMissing("the repository has no default branch: it may be empty; push a first commit, or name a ref")
    raise RefMissing(f"{ref[:300]!r} is neither a branch nor a tag nor a full commit id there")


async def _found(git: Git, ref: str | None) -> str | None:
    if ref is None:
        names = ["HEAD"]
    elif is_sha(ref):
        return ref if await _is_commit(git, ref) else None
    elif ref.startswith(("refs/heads/", "refs/tags/")):
        names = [UPSTREAM + ref.removeprefix("refs/")]
    else:
        names = [f"{UPSTREAM}heads/{check_branch(ref)}", f"{UPSTREAM}tags/{ref}"]
    for name in names:
        out = await git.run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", ok=(0, 1, 128))
        if out.code == 0:
            return out.text
    return None


async def _is_commit(git: Git, commit: str) -> bool:
    if not is_sha(commit):
        return False
    out = await git.text("cat-file", "--batch-check=%(objecttype)", stdin=commit.encode() + b"\n")
    return out == "commit"


async def _builds_on(git: Git, old: str, new: str) -> bool:
    try:
        return await git.test("merge-base", "--is-ancestor", old, new)
    except WorkspaceError:
        return False  # `old` is not in the store, so nothing there builds on it


async def _size(git: Git) -> int:
    """Bytes on disk of the store's objects."""
    fields = dict(line.split(": ", 1) for line in (await git.text("count-objects", "-v")).splitlines())
    return 1024 * (int(fields["size"]) + int(fields["size-pack"]))


def _file_stat(entry: str) -> FileStat:
    added, removed, path = entry.split("\t", 2)
    return FileStat(path, None if added == "-" else int(added), None if removed == "-" else int(removed))
