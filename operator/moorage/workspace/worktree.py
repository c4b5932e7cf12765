"""The run's own worktree, inside the sandbox (W2, W4, R3). `volume` says what lies where.

`prepare` takes the volume for itself, and over from whatever a killed predecessor left: what stands in the tree and in
no checkpoint is saved and pushed first, then the tree is put at the resume point. It is idempotent. No credential comes
here: the remote is a relay on loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from moorage.points import Point, reached
from moorage.workspace.errors import (
    Corrupt,
    GitFailed,
    RefMissing,
    Refused,
    SubmodulesUnsupported,
    WorkspaceError,
)
from moorage.workspace.fetching import fetch_whole
from moorage.workspace.git import Git
from moorage.workspace.locks import lock
from moorage.workspace.merging import Merged, merge_into
from moorage.workspace.plumbing import (
    attach,
    author_and_committer,
    batch,
    names,
    read_ref,
    recorded_head,
    tree_of,
    write_commit,
    write_ref,
)
from moorage.workspace.pushing import push
from moorage.workspace.refs import HEADS, candidate_ref, check_branch, check_run, checkpoint_ref, drift_ref, is_sha
from moorage.workspace.snapshot import LeftOut, Shadow, printable
from moorage.workspace.statefiles import INDEX, TITLE, Kept, Known, read_index, recorded_state, trailer
from moorage.workspace.volume import Volume, WorktreeOptions, write_sparse

__all__ = ["Checkpoint", "Drift", "LeftOut", "Proposal", "RunWorktree", "WorktreeOptions"]

_LOCK_WAIT_SECONDS = 30.0
_DEFAULTS = WorktreeOptions()
_BASE, _LAST, _HEAD, _STATE = (f"refs/moorage/{name}" for name in ("base", "last", "head", "state"))
_MERGED, _MERGED_BASE = "refs/moorage/merged", "refs/moorage/merged-base"
_MOORAGE = "Moorage <noreply@moorage.dev>"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A picture of the tree, and of the program's conversation, at a safe point. `changed` False: the commit is the
    last one, and nothing was written. `tree_changed` False: what was written is of the conversation alone."""

    iteration: int
    epoch: int
    commit: str
    tree: str
    parent: str
    changed: bool
    left_out: tuple[LeftOut, ...] = ()
    tree_changed: bool = False


@dataclass(frozen=True, slots=True)
class Drift:
    """R3: what stood in the tree and in no checkpoint. `aside`: files moved to .moorage/aside. `pushed` False: the
    gateway would not take it and it is on this volume only."""

    epoch: int
    commit: str
    tree: str
    left_out: tuple[LeftOut, ...] = ()
    aside: tuple[str, ...] = ()
    pushed: bool = True


@dataclass(frozen=True, slots=True)
class Proposal:
    """The commit to deliver. `empty`: its tree is the base's, and the commit is the base. `lost`: those of `left_out`
    that base, agent's commits or index hold: other content, or none, stands under their names."""

    commit: str
    tree: str
    base: str
    empty: bool
    files: int
    left_out: tuple[LeftOut, ...] = ()
    lost: tuple[LeftOut, ...] = ()


@dataclass(slots=True)
class RunWorktree:
    """A prepared worktree. `drift` is what `prepare` saved, `lfs_pointers` the files left as pointers."""

    volume: Volume
    remote_url: str
    run: str
    epoch: int
    base: str
    branch: str
    options: WorktreeOptions
    shadow: Shadow
    last: str = ""
    last_tree: str = ""
    base_tree: str = ""
    head: str = ""
    state: str | None = None
    state_tree: str | None = None
    drift: Drift | None = None
    lfs_pointers: tuple[str, ...] = ()
    _staged: bool = field(default=False, repr=False)
    _known: Mapping[str, Known] = field(default_factory=dict, repr=False)
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    @classmethod
    async def prepare(
        cls,
        root: Path,
        remote_url: str,
        *,
        run: str,
        epoch: int,
        base: str,
        branch: str,
        resume: str | None = None,
        options: WorktreeOptions = _DEFAULTS,
    ) -> RunWorktree:
        """A worktree at `resume` (a checkpoint's commit) or at `base`, on `branch`. Raises RefMissing, DiskFull,
        NetworkUnreachable, SubmodulesUnsupported, …; a damaged repository is fetched afresh once."""
        check_run(run)
        check_branch(branch)
        if not is_sha(base):
            raise RefMissing("the base is a full commit id")
        volume = Volume(root)
        held = await lock(volume.state / "lock", _LOCK_WAIT_SECONDS, "another runner lives on this volume")
        shadow = Shadow(volume.repo, volume.tree, volume.index, (held,))
        worktree = cls(volume, remote_url, run, epoch, base, branch, options, shadow)
        try:
            await worktree._take_over_or_afresh(resume)
        except BaseException:
            worktree.close()
            raise
        return worktree

    def close(self) -> None:
        """Let go of the volume; the next `prepare` waits for this, or for this process's end. May be repeated."""
        for fd in self.shadow.inherit:
            os.close(fd)
        self.shadow = replace(self.shadow, inherit=())

    @property
    def tree(self) -> Path:
        """Where the agent works."""
        return self.volume.tree

    @property
    def agent_environment(self) -> dict[str, str]:
        """What the agent's own git needs: no prompt, and no quarrel about who owns the volume."""
        return {
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
        }

    async def checkpoint(
        self, iteration: int, epoch: int, size_cap_bytes: int | None = None, *, conversation: bool = True
    ) -> Checkpoint:
        """Staged, unstaged and untracked files as a commit on the last checkpoint; ignored files are left out. With it
        the program's conversation, unless that is known not to be of the same moment."""
        async with self._busy:
            return await self._checkpoint(iteration, epoch, size_cap_bytes, conversation=conversation)

    async def _checkpoint(
        self, iteration: int, epoch: int, size_cap_bytes: int | None, *, conversation: bool
    ) -> Checkpoint:
        reached(Point.STAGE_BEFORE)
        left = await self._stage(size_cap_bytes)
        reached(Point.STAGE_WITHIN)
        tree = await self.shadow.write_tree() if self._staged else self.last_tree
        self._staged = tree != self.last_tree
        kept = await self._keep_state() if conversation else Kept()
        reached(Point.STATE_WITHIN)
        left += kept.left_out
        if not self._staged and kept.tree == self.state_tree:
            return Checkpoint(iteration, epoch, self.last, tree, self.last, False, tuple(left))
        parent, head, moved = self.last, await self._agent_head() or self.head, self._staged
        state = self._state_commit(kept.tree)
        message = _message(f"Checkpoint {iteration}", self.run, epoch, iteration, head) + trailer(state)
        reached(Point.CHECKPOINT_BEFORE)
        commit = self._commit(tree, dict.fromkeys([parent, head, *([state] if state else [])]), message)
        reached(Point.CHECKPOINT_WITHIN)
        self._set_last(commit, tree, head)
        self.state, self.state_tree = state, kept.tree
        reached(Point.CHECKPOINT_AFTER)
        self._staged = False
        return Checkpoint(iteration, epoch, commit, tree, parent, True, tuple(left), moved)

    async def _keep_state(self) -> Kept:
        if not self.options.state.paths:
            return Kept()
        kept = await asyncio.to_thread(self.options.state.keep, self.volume.repo, self._known)
        self._known = kept.files
        return kept

    def _state_commit(self, tree: str | None) -> str | None:
        """What a checkpoint has as one more parent; that of an unchanged conversation is the last one's."""
        if tree is None or tree == self.state_tree:
            return self.state if tree else None
        return self._commit(tree, (), TITLE)

    async def merge(self, commit: str, base: str) -> Merged:
        """W7: what was changed from `base` to that commit, into the tree. Raises WorkspaceError where they can't be
        fetched.
        """
        async with self._busy:
            await self._stage(None)
            tree = await self.shadow.write_tree()
            await self._fetch({_MERGED: commit, _MERGED_BASE: base})
            trees = [await self._tree(each) for each in (base, commit)]
            return await merge_into(self.shadow.git, self._commit, base=trees[0], ours=tree, theirs=trees[1])

    async def push_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Bring a checkpoint to the gateway; when this returns it is synced there (P5). Raises Refused, …"""
        if checkpoint.changed:
            await self.push({checkpoint_ref(self.run, checkpoint.epoch): checkpoint.commit})
            reached(Point.SAFE_POINT_BEFORE)

    async def push_candidate(self, proposal: Proposal) -> None:
        """Bring the commit to deliver to the gateway, as this attempt's candidate."""
        reached(Point.PROPOSAL_BEFORE)
        await self.push({candidate_ref(self.run, self.epoch): proposal.commit}, force=True)
        reached(Point.PROPOSAL_AFTER)

    async def push(self, refs: Mapping[str, str], *, force: bool = False) -> None:
        """Push commits to refs of the gateway. Raises Refused with the gateway's words, NetworkUnreachable, …"""
        await push(self.shadow.git, self.remote_url, refs, self.base, force=force)

    async def propose(self, message: str, author: str = _MOORAGE, size_cap_bytes: int | None = None) -> Proposal:
        """The commit to deliver: the agent's own commits where they build on the base, and one more for what it did not
        commit. `author` as `Name <email>`. Branch, index and HEAD stay as they are."""
        async with self._busy:
            return await self._propose(message, author, size_cap_bytes)

    async def _propose(self, message: str, author: str, size_cap_bytes: int | None) -> Proposal:
        left = await self._stage(size_cap_bytes)
        await self.shadow.drop_ignored()
        self._staged = True
        tree = await self.shadow.write_tree()
        commit = parent = await self._deliverable_head()
        known = await self.shadow.known([entry.raw for entry in left], self.base_tree, parent)
        told = (tuple(left), tuple(entry for entry in left if entry.raw in known))
        if tree == self.base_tree:
            return Proposal(self.base, tree, self.base, True, 0, *told)
        if parent == self.base or await self._tree(parent) != tree:
            commit = self._commit(tree, [parent], message, author)
        write_ref(self.volume.repo, "refs/moorage/candidate", commit)
        flags = ("-r", "-z", "--name-only", "--no-renames")
        changed = await self.shadow.git.run("diff-tree", *flags, self.base_tree, tree)
        return Proposal(commit, tree, self.base, False, changed.stdout.count(b"\0"), *told)

    async def save_drift(self, epoch: int) -> Drift | None:
        """Commit and push what stands in the tree and not in the last checkpoint; None when there is no such thing.
        Saved twice under one epoch, the second builds on the first."""
        async with self._busy:
            return await self._save_drift(epoch)

    async def _save_drift(self, epoch: int) -> Drift | None:
        left = await self._stage(None)
        tree, head = await self.shadow.write_tree(), await self._agent_head() or self.head
        aside = await self._move_aside(left, epoch)
        if tree == self.last_tree and head == self.head and not aside:
            return None
        ref = drift_ref(self.run, epoch)
        earlier = await self._commit_at(ref)
        parents = [earlier, head] if earlier else [self.last, head]
        message = _message("Drift", self.run, epoch, 0, head)
        commit = self._commit(tree, dict.fromkeys(parents), message)
        write_ref(self.volume.repo, ref, commit)
        return Drift(epoch, commit, tree, tuple(left), tuple(aside), await self._is_taken(ref, commit))

    async def _is_taken(self, ref: str, commit: str) -> bool:
        """Push; False where the gateway says no. That it can't be reached is an error: nothing is reset then."""
        try:
            await self.push({ref: commit})
        except Refused:
            return False
        return True

    async def _restore(self) -> None:
        """Put files and index at the last checkpoint's, and the branch at its head. What is to be kept is saved."""
        self._attach(self.head)
        # by way of the tree's own .git: what the agent's git will find is where the files go, never a ghost folder
        await self._in_tree(GIT_INDEX_FILE=str(self.volume.index)).run("read-tree", "--reset", "-u", self.last_tree)
        shutil.copy2(self.volume.index, self.volume.admin / "index")
        if self.head != self.last and await self._tree(self.head) != self.last_tree:
            await self._in_tree().run("reset", "--quiet", "--mixed", self.head)

    async def _restore_state(self) -> None:
        """Put the program's conversation at the last checkpoint's too: none where that holds none. What stood there is
        moved aside."""
        index: dict[str, bytes] = {}
        if self.state is not None:
            files = self.options.state
            told = {path: ids for path, ids in (await self._state_index(self.state)).items() if files.covers(path)}
            wanted = dict.fromkeys(each for ids in told.values() for each in ids)
            answer = (await self._bare().run("cat-file", "--batch", stdin=_lines(wanted))).stdout
            chunks = dict(batch(answer))
            index = {path: b"".join(chunks[each] for each in ids) for path, ids in told.items()}
        self.options.state.put_back(index, self.volume.aside(self.epoch) / "home")

    async def _state_index(self, state: str) -> dict[str, list[str]]:
        """Which chunks make which file; the commit is fetched where a shallow fetch ended above it. Raises Corrupt."""
        if not await self._commit_at(state):
            await self._fetch({_STATE: state})
        asked = _lines([f"{state}:{INDEX}", f"{state}^{{tree}}"])
        (_, index), (self.state_tree, _) = batch((await self._bare().run("cat-file", "--batch", stdin=asked)).stdout)
        return read_index(index)

    async def _take_over_or_afresh(self, resume: str | None) -> None:
        try:
            await self._take_over(resume)
        except (Corrupt, GitFailed):
            if not self.volume.put_repository_aside(self.epoch):
                raise
            await self._take_over(resume)

    async def _take_over(self, resume: str | None) -> None:
        start = resume or self.base
        reached(Point.WORKTREE_BEFORE)
        new = not self.volume.repo.exists()
        self.volume.make_fit(self.remote_url, self.options)
        await self._fetch({_BASE: self.base, _LAST: start}, new=new)
        attributed = await self._look(start, resumed=resume is not None)
        if any(self.tree.iterdir()):
            await self._index_for_existing()
            self.drift = await self.save_drift(self.epoch)
        reached(Point.WORKTREE_WITHIN)
        await self._restore()
        await self._restore_state()
        reached(Point.WORKTREE_AFTER)
        self.lfs_pointers = await self._lfs() if attributed else ()

    async def _fetch(self, wanted: Mapping[str, str], *, new: bool = False) -> None:
        """These commits, unless they are there: their refs are written only once all their objects are."""
        options, git = self.options, self.shadow.git
        part = options.depth or options.filter or options.alternates
        if new and not part and await fetch_whole(git, self.remote_url, [*wanted.values()]):
            for ref, commit in wanted.items():
                write_ref(self.volume.repo, ref, commit)
            return
        have = {} if new else dict(line.split(" ") for line in (await _refs(git)).splitlines())
        specs = [f"+{commit}:{ref}" for ref, commit in wanted.items() if have.get(ref) != commit]
        if not specs:
            return
        flags = [
            *([f"--depth={options.depth}"] if options.depth else []),
            *([f"--filter={options.filter}"] if options.filter else []),
        ]
        common = ("--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules", "--quiet")
        flags.append("--update-shallow")  # where the mirror lacks history, so do we
        await git.with_(("fetch.unpackLimit", "1")).run("fetch", *common, *flags, "origin", *specs)

    async def _look(self, start: str, *, resumed: bool) -> bool:
        """Find out the trees of base and start point, and the HEAD to put the branch at. True: there are attributes.

        Raises SubmodulesUnsupported, Corrupt.
        """
        asked = f"{start}^{{commit}}\n{start}^{{tree}}\n{self.base}^{{tree}}\n"
        answer = (await self.shadow.git.run("cat-file", "--batch", stdin=asked.encode())).stdout
        (_, commit), (_, at_start), (self.base_tree, at_base) = batch(answer)
        id_bytes = len(start) // 2
        if not self.options.submodules and b".gitmodules" in names(at_base, id_bytes):
            raise SubmodulesUnsupported("there is a .gitmodules in the base commit")
        head = (recorded_head(commit) if resumed else None) or self.base
        if head != self.base and not await self._commit_at(head):  # a shallow fetch ends above it
            await self._fetch({_HEAD: head})
        self._set_last(start, tree_of(commit), head)
        self.state, self.state_tree = recorded_state(commit) if resumed else None, None
        return b".gitattributes" in names(at_start, id_bytes)

    async def _index_for_existing(self) -> None:
        """A private index to compare the found tree with; the one that was left, if git can read it."""
        if self.volume.index.exists():
            with contextlib.suppress(WorkspaceError):
                await self.shadow.git.run("ls-files", "--error-unmatch", "--", ".", ok=(0, 1))
                return
        self.volume.index.unlink(missing_ok=True)
        await self.shadow.git.run("read-tree", self.last_tree)

    def _attach(self, head: str) -> None:
        """Make `tree` the worktree of the run's branch at `head`, whatever stood in for it."""
        volume, ref = self.volume, HEADS + self.branch
        volume.clear_git_file(self.epoch)
        shutil.rmtree(volume.admin, ignore_errors=True)
        write_ref(volume.repo, ref, head)
        attach(volume.admin, volume.tree, f"ref: {ref}")  # also where the agent has the branch checked out elsewhere
        write_sparse(volume.admin, self.options.sparse)

    async def _lfs(self) -> tuple[str, ...]:
        git = self.shadow.git.with_(GIT_LITERAL_PATHSPECS="0")
        out = await git.run("ls-files", "-z", "--", ":(attr:filter=lfs)")
        return tuple(printable(path) for path in out.stdout.split(b"\0") if path)

    async def _stage(self, cap: int | None) -> list[LeftOut]:
        """Bring the private index to the tree's state, also after a stage that was cancelled or failed half-way."""
        was, self._staged = self._staged, True
        cap = self.options.size_cap_bytes if cap is None else cap
        self.volume.break_own_locks()
        try:
            changed, left = await self.shadow.stage(cap)
        except (Corrupt, GitFailed):
            self.volume.configure(self.remote_url, self.options)
            changed, left = await self.shadow.stage(cap)
        self._staged = was or changed
        return left

    async def _agent_head(self) -> str | None:
        """The agent's HEAD commit, also with the tree's .git file gone; None when it has none that is whole."""
        head = read_ref(self.volume.admin, self.volume.repo)
        return head if head == self.head else await self._commit_at("worktrees/tree/HEAD")

    async def _commit_at(self, ref: str) -> str | None:
        out = await self._bare().run("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", ok=(0, 1, 128))
        return out.text if out.code == 0 and is_sha(out.text) else None

    async def _deliverable_head(self) -> str:
        """The agent's HEAD where it builds on the base, else the base."""
        head = await self._agent_head()
        if head and await self.shadow.git.test("merge-base", "--is-ancestor", self.base, head):
            return self.base if await self._holds_state(head) else head
        return self.base

    async def _holds_state(self, head: str) -> bool:
        """It was made on a checkpoint of ours: with it a conversation would be delivered."""
        roots = ("--max-parents=0", "--format=%s", head, "--not", self.base)
        return head != self.base and TITLE in (await self.shadow.git.text("log", *roots)).splitlines()

    async def _move_aside(self, left: list[LeftOut], epoch: int) -> list[str]:
        paths = [entry.raw for entry in left]
        touched = await self.shadow.known(paths, self.last_tree)
        for path in sorted(touched):
            name = os.fsdecode(path)
            target = self.volume.aside(epoch) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.tree / name).rename(target)
        return [printable(path) for path in sorted(touched)]

    def _commit(self, tree: str, parents: Iterable[str], message: str, author: str = _MOORAGE) -> str:
        return write_commit(self.volume.repo, tree, parents, message, author_and_committer(author))

    def _set_last(self, commit: str, tree: str, head: str) -> None:
        """Remember the checkpoint where `git gc` sees it, and where `status` compares with it."""
        write_ref(self.volume.repo, _LAST, commit)
        write_ref(self.volume.repo, "HEAD", commit)
        self.last, self.last_tree, self.head = commit, tree, head

    async def _tree(self, commit: str) -> str:
        """The tree of a commit that is known to be there. Raises Corrupt where it is not."""
        try:
            return await self.shadow.git.text("rev-parse", "--verify", f"{commit}^{{tree}}")
        except RefMissing as error:
            raise Corrupt(error.detail) from None

    def _bare(self) -> Git:
        return replace(self.shadow.git, cwd=self.volume.repo, env={"GIT_DIR": str(self.volume.repo)})

    def _in_tree(self, **env: str) -> Git:
        """Git as the agent's finds its way: by the tree's .git file."""
        git = self.shadow.git
        config = tuple(item for item in git.config if item[0] != "core.bare")
        return replace(git, cwd=self.tree, env=env, config=config)


def _message(title: str, run: str, epoch: int, iteration: int, head: str) -> str:
    facts = f"Moorage-Run: {run}\nMoorage-Epoch: {epoch}\nMoorage-Iteration: {iteration}\nMoorage-Head: {head}\n"
    return f"{title}\n\n{facts}"


def _lines(words: Iterable[str]) -> bytes:
    return "".join(f"{word}\n" for word in words).encode()


async def _refs(git: Git) -> str:
    return await git.text("for-each-ref", "--format=%(refname) %(objectname)", "refs/moorage")
