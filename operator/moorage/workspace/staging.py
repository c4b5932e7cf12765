"""A push that is taken in two steps, where something must be kept elsewhere between them: its objects, then its refs.

Its objects come in under refs that no sandbox sees and no reader asks for. Whoever keeps the push decides, and then the
run's refs move, all at once. So what the run's refs say was kept before, whenever a process dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from moorage.workspace import doors, wire
from moorage.workspace.doors import ReceivePolicy, ReceiveReport
from moorage.workspace.git import Git
from moorage.workspace.refs import DRIFT, RUNS
from moorage.workspace.wire import Push

STAGED = "refs/moorage/staged/"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Staged:
    """A push whose objects are in the store, synced, and whose refs haven't moved. `results`: None where one may."""

    token: str
    policy: ReceivePolicy
    push: Push
    results: Mapping[str, str | None]
    unpack: str = "ok"

    @property
    def refused(self) -> bool:
        """Nothing of it is taken: a push with one refused command is refused whole."""
        return any(self.results.values())

    @property
    def moves(self) -> dict[str, str]:
        """The refs of the store, and the commits that they are to be at."""
        return {self.policy.store_name(command.ref): command.new for command in self.push.commands}

    def report(self) -> ReceiveReport:
        """What to answer; where it isn't refused, once its refs have moved."""
        told = doors.refused if self.refused else doors.reported
        return told(self.policy, self.push, self.results, self.unpack)

    def places(self) -> dict[str, str]:
        """Where each ref's commit is held meanwhile."""
        return {command.ref: f"{STAGED}{self.token}/{n}" for n, command in enumerate(self.push.commands)}


async def stage(git: Git, policy: ReceivePolicy, token: str, body: AsyncIterable[bytes]) -> Staged | ReceiveReport:
    """Take a push's objects. What was refused before any came is answered at once."""
    reader = wire.Reader(body)
    push = wire.parse_push(await reader.until_flush())
    if not push.commands:
        return ReceiveReport(b"")
    staged = Staged(token, policy, push, doors.problems(policy, push))
    if staged.refused:
        return staged.report()
    places = staged.places()
    held = replace(push, commands=tuple(replace(c, old="0" * len(c.old), ref=places[c.ref]) for c in push.commands))
    git = doors.receiving(git, policy).with_(("transfer.hideRefs", f"!{STAGED}{token}"))
    head = held.encode(lambda ref: ref)
    out = await git.run(
        "receive-pack", "--stateless-rpc", str(git.cwd), stdin=doors.joined(head, reader), ok=(0, 1, 128)
    )
    unpack, states = wire.parse_report(out.stdout, push.capabilities) if out.stdout else ("failed", {})
    results = {ref: states.get(place, doors.words(out.stderr)) for ref, place in places.items()}
    await asyncio.to_thread(doors.sync_folders, git.cwd, list(places.values()))
    return replace(staged, results=results, unpack=unpack)


async def judge(git: Git, staged: Staged) -> Staged:
    """Compare with the run's refs as they are now: each is where the client saw it, and moves as it may."""
    if staged.refused:
        return staged
    now = await refs_of(git, staged.policy.run)
    asked = "".join(f"{command.new}\n" for command in staged.push.commands).encode()
    kinds = (await git.text("cat-file", "--batch-check=%(objecttype)", stdin=asked)).split()
    results: dict[str, str | None] = {}
    for command, kind in zip(staged.push.commands, kinds, strict=True):
        there = now.get(staged.policy.store_name(command.ref))
        if kind != "commit":
            results[command.ref] = f"a {kind} is no commit"
        elif there != (None if command.creates else command.old):
            results[command.ref] = "it has moved meanwhile: fetch first"
        else:
            results[command.ref] = await doors.rewrite(git, staged.policy, command)
    return replace(staged, results=results)


async def publish(git: Git, staged: Staged) -> None:
    """Move the run's refs, all or none."""
    moves = "".join(f"update {ref} {commit}\n" for ref, commit in staged.moves.items())
    gone = "".join(f"delete {place}\n" for place in staged.places().values())
    await git.run("update-ref", "--stdin", stdin=_bytes(moves + gone))
    await asyncio.to_thread(doors.sync_folders, git.cwd, list(staged.moves))


async def follow(git: Git, moves: Mapping[str, str]) -> None:
    """Move refs to where they were moved elsewhere, all or none."""
    await git.run("update-ref", "--stdin", stdin=_bytes("".join(f"update {r} {c}\n" for r, c in moves.items())))
    await asyncio.to_thread(doors.sync_folders, git.cwd, list(moves))


async def discard(git: Git, staged: Staged) -> None:
    """Forget what is held of a push whose refs don't move; harmless where they did."""
    await _delete(git, staged.places().values())


async def discard_all_but(git: Git, tokens: Collection[str]) -> None:
    """Forget what is held of pushes that aren't under way any more."""
    held = (await git.text("for-each-ref", "--format=%(refname)", STAGED)).splitlines()
    await _delete(git, [ref for ref in held if ref.removeprefix(STAGED).partition("/")[0] not in tokens])


async def runs(git: Git) -> set[str]:
    """The runs that have refs."""
    named = (await git.text("for-each-ref", "--format=%(refname)", RUNS, DRIFT)).splitlines()
    return {ref.removeprefix(RUNS).removeprefix(DRIFT).partition("/")[0] for ref in named}


async def _delete(git: Git, refs: Iterable[str]) -> None:
    await git.run("update-ref", "--stdin", stdin=_bytes("".join(f"delete {ref}\n" for ref in refs)))


async def refs_of(git: Git, run: str) -> dict[str, str]:
    """The run's refs and their commits."""
    named = await git.text("for-each-ref", "--format=%(objectname) %(refname)", f"{RUNS}{run}/", f"{DRIFT}{run}/")
    return {ref: commit for commit, _, ref in (line.partition(" ") for line in named.splitlines())}


async def write_pack(git: Git, wanted: Iterable[str], known: Iterable[str], path: Path) -> bool:
    """Write what the wanted commits need beyond the known ones, as a pack; whether that is anything at all."""
    revisions = "".join([*(f"{commit}\n" for commit in wanted), *(f"^{commit}\n" for commit in known)])
    with path.open("wb") as file:
        async for chunk in git.stream(
            "pack-objects", "--revs", "--stdout", "--delta-base-offset", "--quiet", stdin=_once(_bytes(revisions))
        ):
            await asyncio.to_thread(file.write, chunk)
    return await asyncio.to_thread(_objects, path) > 0


async def read_pack(git: Git, path: Path) -> None:
    """Bring a pack's objects into the store, synced. Raises WorkspaceError where it is none."""
    await git.run("index-pack", "--stdin", "--fix-thin", stdin=_read(path))
    await asyncio.to_thread(doors.sync_folders, git.cwd, [STAGED])


def _objects(path: Path) -> int:
    with path.open("rb") as file:
        return int.from_bytes(file.read(12)[8:], "big")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _read(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk
