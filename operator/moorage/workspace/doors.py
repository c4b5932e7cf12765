"""The git door: what a sandbox may read from and push to its mirror, decided before git sees a byte (E5, F3, W3).

Sandboxes see upstream's branches as `refs/heads/*` and tags as `refs/tags/*`, so that a plain `git fetch` works, and
their own run's refs under their own names.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from moorage.workspace import wire
from moorage.workspace.errors import GitFailed, NetworkUnreachable, RefMissing, Refused, WorkspaceError
from moorage.workspace.git import Git
from moorage.workspace.refs import DRIFT, HEADS, RUNS, UPSTREAM, candidate_ref, check_branch, check_run, drift_ref
from moorage.workspace.wire import Command, Push

UPLOAD, RECEIVE = "git-upload-pack", "git-receive-pack"
_MAX_COMMANDS = 16
# Told to clients so that they may ask for a commit below a tip by its id. A stateless upload-pack checks such a request
# against the visible refs by itself; with uploadpack.allowReachableSHA1InWant set it would take hidden tips as well.
_BY_ID = b"allow-reachable-sha1-in-want"


@dataclass(frozen=True, slots=True)
class ReceivePolicy:
    """What one attempt may push: its own epoch's refs and drift, and `branch` as its candidate. `max_bytes` a push."""

    run: str
    epoch: int
    branch: str
    max_bytes: int = 1 << 30

    def store_name(self, ref: str) -> str:
        """Where a pushed ref is kept."""
        if ref == HEADS + self.branch:
            return candidate_ref(self.run, self.epoch)
        return ref

    def problem(self, command: Command) -> str | None:
        """Why this ref update is not taken; None when it may be."""
        own = f"{RUNS}{check_run(self.run)}/{self.epoch}/"
        if command.deletes:
            return "refs can't be removed here"
        if command.ref in {HEADS + check_branch(self.branch), drift_ref(self.run, self.epoch)}:
            return None
        if command.ref.startswith(HEADS):
            return f"this run delivers to {self.branch} and no other branch"
        if not command.ref.startswith(own):
            return f"this attempt may push below {own} only"
        try:
            check_branch(command.ref.removeprefix(own))
        except WorkspaceError:
            return "not a ref name"
        return None


@dataclass(frozen=True, slots=True)
class Update:
    """One ref update of a push; `ref` is the name in the store. `problem` None: taken, synced."""

    ref: str
    old: str
    new: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class ReceiveReport:
    """How a push ended: the body to answer with, and the updates."""

    response: bytes
    updates: tuple[Update, ...] = ()

    @property
    def taken(self) -> tuple[Update, ...]:
        """The updates that are on disk."""
        return tuple(update for update in self.updates if update.problem is None)


async def advertise(git: Git, service: str, run: str | None, policy: ReceivePolicy | None) -> bytes:
    """The body of `info/refs`. Raises Refused for an unknown service or a push without a policy."""
    if service == UPLOAD:
        answer = await _upload(git, run).run("upload-pack", "--stateless-rpc", "--http-backend-info-refs", str(git.cwd))
        return wire.advertisement(service, answer.stdout, _as_remote, _BY_ID)
    if service != RECEIVE or policy is None:
        raise Refused(f"no service {service[:40]!r} here")
    answer = await receiving(git, policy).run(
        "receive-pack", "--stateless-rpc", "--http-backend-info-refs", str(git.cwd)
    )
    candidate = candidate_ref(policy.run, policy.epoch)

    def rename(ref: str) -> str | None:
        if ref == candidate:
            return HEADS + policy.branch
        return None if ref.startswith(UPSTREAM) else ref

    return wire.advertisement(service, answer.stdout, rename)


async def upload_pack(git: Git, run: str | None, body: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Answer `POST git-upload-pack`. What the client did wrong, or that it went away, git has told it by itself."""
    with contextlib.suppress(RefMissing, NetworkUnreachable, GitFailed):
        async for chunk in _upload(git, run).stream("upload-pack", "--stateless-rpc", str(git.cwd), stdin=body):
            yield chunk


async def receive_pack(git: Git, policy: ReceivePolicy, body: AsyncIterable[bytes]) -> ReceiveReport:
    """Answer `POST git-receive-pack`. A push with one refused command is refused whole."""
    reader = wire.Reader(body)
    push = wire.parse_push(await reader.until_flush())
    if not push.commands:
        return ReceiveReport(b"")
    if any((results := problems(policy, push)).values()):
        return refused(policy, push, results)
    door = receiving(git, policy)
    out = await door.run(
        "receive-pack",
        "--stateless-rpc",
        str(git.cwd),
        stdin=joined(push.encode(policy.store_name), reader),
        ok=(0, 1, 128),
    )
    unpack, states = wire.parse_report(out.stdout, push.capabilities) if out.stdout else ("failed", {})
    results = {c.ref: states.get(policy.store_name(c.ref), words(out.stderr)) for c in push.commands}
    results = await _take_back(git, policy, push, results)
    await asyncio.to_thread(sync_folders, git.cwd, [policy.store_name(ref) for ref, why in results.items() if not why])
    return reported(policy, push, results, unpack)


def problems(policy: ReceivePolicy, push: Push) -> dict[str, str | None]:
    """Per ref why it isn't taken, decided before git sees a byte. Raises Refused."""
    if len(push.commands) > _MAX_COMMANDS:
        raise Refused(f"at most {_MAX_COMMANDS} refs in one push")
    return {command.ref: policy.problem(command) for command in push.commands}


def refused(policy: ReceivePolicy, push: Push, results: Mapping[str, str | None], unpack: str = "ok") -> ReceiveReport:
    """The answer to a push of which nothing is taken."""
    whole = {ref: why or "refused with the rest of the push" for ref, why in results.items()}
    return reported(policy, push, whole, unpack)


def reported(policy: ReceivePolicy, push: Push, results: Mapping[str, str | None], unpack: str) -> ReceiveReport:
    """The answer to a push that came to these results: None for a ref that moved."""
    updates = tuple(Update(policy.store_name(c.ref), c.old, c.new, results[c.ref]) for c in push.commands)
    return ReceiveReport(wire.report(list(results.items()), push.capabilities, unpack), updates)


async def joined(head: bytes, reader: wire.Reader) -> AsyncIterator[bytes]:
    """A request put together again."""
    yield head
    async for chunk in reader.rest():
        yield chunk


async def _take_back(
    git: Git, policy: ReceivePolicy, push: Push, results: dict[str, str | None]
) -> dict[str, str | None]:
    """Refs of ours name commits, and only a candidate may be rewritten. Git enforces that below refs/heads alone, so a
    ref that breaks it is put back here, before anybody was told that it moved."""
    taken = [command for command in push.commands if results[command.ref] is None]
    asked = "".join(f"{command.new}\n" for command in taken).encode()
    kinds = (await git.text("cat-file", "--batch-check=%(objecttype)", stdin=asked)).split() if taken else []
    for command, kind in zip(taken, kinds, strict=True):
        problem = None if kind == "commit" else f"a {kind} is no commit"
        problem = problem or await rewrite(git, policy, command)
        if problem:
            await git.run("update-ref", policy.store_name(command.ref), command.old, command.new)
            results[command.ref] = problem
    return results


async def rewrite(git: Git, policy: ReceivePolicy, command: Command) -> str | None:
    """Why a ref may not move like that; None where it may."""
    if command.creates or policy.store_name(command.ref) == candidate_ref(policy.run, policy.epoch):
        return None
    forward = await git.test("merge-base", "--is-ancestor", command.old, command.new)
    return None if forward else "non-fast-forward"


def words(stderr: str) -> str:
    """What git said at its end."""
    lines = [line.removeprefix("fatal: ").removeprefix("error: ") for line in stderr.splitlines() if line.strip()]
    return "; ".join(lines[-3:]) or "the push ended early"


def _as_remote(ref: str) -> str | None:
    """A stored ref as sandboxes see it when they fetch."""
    if ref.startswith((f"{UPSTREAM}heads/", f"{UPSTREAM}tags/")):
        return "refs/" + ref.removeprefix(UPSTREAM)
    return None if ref.startswith(UPSTREAM) else ref


def _visible(run: str | None) -> tuple[tuple[str, str], ...]:
    """Hide every run's refs but this one's (the last match wins)."""
    hidden = (("transfer.hideRefs", "refs/moorage"),)
    if run is None:
        return hidden
    check_run(run)
    return (*hidden, ("transfer.hideRefs", f"!{RUNS}{run}"), ("transfer.hideRefs", f"!{DRIFT}{run}"))


def _upload(git: Git, run: str | None) -> Git:
    return git.with_(
        *_visible(run),
        ("uploadpack.allowFilter", "true"),
    )


def receiving(git: Git, policy: ReceivePolicy) -> Git:
    """Git as it takes a stranger's push."""
    return git.with_(
        *_visible(policy.run),
        ("transfer.fsckObjects", "true"),
        ("receive.fsckObjects", "true"),
        ("receive.maxInputSize", str(policy.max_bytes)),
        ("receive.unpackLimit", "1"),
        ("receive.autogc", "false"),
    )


def sync_folders(store: Path, refs: list[str]) -> None:
    """Git syncs files; the entries of new files are durable once their folders are synced too."""
    folders = {store / "objects" / "pack", store / "objects"} if refs else set()
    for ref in refs:
        folders |= {store / parent for parent in Path(ref).parents}
    for folder in folders:
        if folder.is_dir():
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
