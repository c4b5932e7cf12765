"""Whose word a run's git refs are: this gateway's mirror alone, or the store's, which each mirror follows (W3).

Where several gateways serve the same runs, what a push brings is kept before its answer (P5): its objects as a blob,
then a row in the store, under the run's epoch and in one order for all gateways (F3). Only then do the refs of this
mirror move. So a mirror is never ahead of the store, and what it lacks is brought before anything is read from it or
pushed to it: the base from its remote, the rest from the packs. A volume may be lost, and another gateway goes on.

Every so often a pack holds all that the run has beyond its base, so that few are needed to catch up.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from moorage.core.journal.record import BlobRef
from moorage.gateway.errors import StillFetching
from moorage.gateway.ports import Secrets
from moorage.gateway.reduced import Run
from moorage.gateway.settings import GatewaySettings
from moorage.gateway.upstream import upstream_of
from moorage.points import Point, reached
from moorage.store.blobs import BlobStore
from moorage.store.errors import PushConflict, StoreBusy
from moorage.store.port import DurableExecutionStore, KeptPush
from moorage.telemetry.metrics import GatewayMetrics
from moorage.workspace.doors import ReceivePolicy, ReceiveReport
from moorage.workspace.errors import NotFound, WorkspaceError
from moorage.workspace.mirror import MirrorKey, Mirrors
from moorage.workspace.refs import pin_ref
from moorage.workspace.shared import Begun, Shared
from moorage.workspace.staging import Staged

BASE_PIN = "base"
PROPOSAL_PIN = "proposal"
ORIGIN_PIN = "origin"
ROOT_PIN = "root"
WHOLE_EVERY = 32  # pushes; so many packs at most are brought from the blob store to catch up
RETRIES = 32  # others push to the run, each time: one of them gets on, and a run has few who push
TROUBLE_S = 60.0  # who is told to ask again does so within seconds; later it says nothing of how things are
SCRATCH_S = 86_400  # what a killed process left on its way in or out goes after a day


def mirror_key(run: Run) -> MirrorKey:
    """Where the run's git objects are."""
    return MirrorKey(run.tenant, run.spec.workspace.key)


def fixed_base(run: Run) -> str | None:
    """The commit that the run's attempts start from, as the journal says; None until it does."""
    return run.state.workspace_base or run.facts.base


def rooted(run: Run) -> str | None:
    """The commit that upstream has, and beyond which all lies that is kept for the run. Its base is that, but for a run
    that goes on with what another one has made: upstream may never have had that, or have it no more.
    """
    return run.facts.root or fixed_base(run)


async def base_of(mirrors: Mirrors, run: Run) -> str | None:
    """The commit that the run's attempts start from; None until it is fixed, at the first contact of a sandbox."""
    if base := fixed_base(run):
        return base
    try:
        return await mirrors.ref(mirror_key(run), pin_ref(run.uid, BASE_PIN))
    except NotFound:
        return None


async def there(mirrors: Mirrors, run: Run, commit: str) -> bool:
    """Whether the run's mirror has the commit."""
    try:
        return await mirrors.has_commit(mirror_key(run), commit)
    except NotFound:
        return False  # there is no mirror of this workspace here yet


class RunRefs(Protocol):
    """The refs of runs, whoever keeps them. Raises WorkspaceError and StoreError."""

    async def current(self, run: Run) -> None:
        """Have the mirror say of the run's refs what was acknowledged anywhere, before somebody reads from it. Raise
        StillFetching where that takes long; it goes on beside.
        """

    async def receive(self, run: Run, policy: ReceivePolicy, body: AsyncIterable[bytes]) -> ReceiveReport:
        """Take a push. What the report calls taken outlives whatever this installation may lose."""

    async def pin(self, run: Run, epoch: int, name: str, commit: str) -> None:
        """Keep a commit for the run, whatever becomes of the branch that it was on, and of the run that made it."""

    async def drop(self, run: Run) -> int:
        """Remove the run's refs from the mirror; how many there were."""

    async def tidy(self, key: MirrorKey, over: Collection[str]) -> None:
        """Remove from a mirror what killed processes left there, and the refs of runs that are over."""

    async def forget(self, needed: Collection[MirrorKey]) -> int:
        """Remove mirrors that can be made anew and that no run needs, and what was left of others; how many."""

    async def close(self) -> None:
        """Stop what goes on beside."""


class OwnRefs:
    """The refs of the one gateway that there is: its mirror has the word."""

    def __init__(self, mirrors: Mirrors) -> None:
        self._mirrors = mirrors

    async def current(self, run: Run) -> None:
        """Nobody else was told anything."""

    async def receive(self, run: Run, policy: ReceivePolicy, body: AsyncIterable[bytes]) -> ReceiveReport:
        """See the port."""
        return await self._mirrors.receive_pack(mirror_key(run), policy, body)

    async def pin(self, run: Run, epoch: int, name: str, commit: str) -> None:  # noqa: ARG002  the port's signature
        """See the port."""
        await self._mirrors.pin(mirror_key(run), run.uid, name, commit)

    async def drop(self, run: Run) -> int:
        """See the port."""
        return await self._mirrors.drop_run(mirror_key(run), run.uid)

    async def tidy(self, key: MirrorKey, over: Collection[str]) -> None:
        """Nothing is left: pushes are taken in one step, and what is over was dropped here."""

    async def forget(self, needed: Collection[MirrorKey]) -> int:  # noqa: ARG002  the port's signature
        """None can be made anew: each has the word."""
        return 0

    async def close(self) -> None:
        """Nothing goes on beside."""


@dataclass(frozen=True)
class _Trouble:
    """How following ended, in the loop's time, when nobody waited for it any more."""

    error: BaseException
    at: float


@dataclass(eq=False)
class _Followed:
    """How far this mirror, the one after so many `removals`, has come with a run. `base` is None until it is known to
    be here. `trouble` is the answer to who asks next, unless following has succeeded since.
    """

    removals: int = 0
    number: int = 0
    refs: dict[str, str] = field(default_factory=dict)
    base: str | None = None
    whole: int = 0
    trouble: _Trouble | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def on(self, pushes: Iterable[KeptPush]) -> None:
        for push in pushes:
            self.number = push.number + 1
            self.refs |= dict(push.moves)
            self.whole = push.number if push.whole else self.whole


class SharedRefs:
    """The refs of one of several gateways, as the store has them. Pushes of one run come one after the other here."""

    def __init__(
        self,
        mirrors: Mirrors,
        store: DurableExecutionStore,
        blobs: BlobStore,
        keys: Secrets,
        log: Any,
        *,
        settings: GatewaySettings,
        metrics: GatewayMetrics,
    ) -> None:
        self._mirrors, self._store, self._blobs, self._keys, self._log = mirrors, store, blobs, keys, log
        self._wait_s, self._idle_s = settings.assignment_wait_ms / 1000, settings.mirror_idle_ms / 1000
        self._metrics = metrics
        self._runs: dict[str, _Followed] = {}
        self._following: Shared[None] = Shared()
        self._beside: set[asyncio.Task[None]] = set()
        self._staging: set[str] = set()

    async def current(self, run: Run) -> None:
        """See the port. Whoever comes while nothing is new waits for no push that is under way."""
        if run.now.row.sealed:
            return  # its refs are gone
        at = self._at(run)
        if at.base != rooted(run) or await self._store.kept_pushes(run.uid, at.number):
            await self._caught_up(run, at)

    async def receive(self, run: Run, policy: ReceivePolicy, body: AsyncIterable[bytes]) -> ReceiveReport:
        """See the port."""
        key, token = mirror_key(run), secrets.token_hex(8)
        self._staging.add(token)
        try:
            staged = await self._mirrors.stage(key, policy, token, body)
            if isinstance(staged, ReceiveReport):
                return staged
            at = self._at(run)
            try:
                async with at.turn:
                    return await self._take(run, at, staged)
            finally:
                await self._forget(key, staged)
        finally:
            self._staging.discard(token)

    async def pin(self, run: Run, epoch: int, name: str, commit: str) -> None:
        """See the port."""
        at, moves = self._at(run), {pin_ref(run.uid, name): commit}
        async with at.turn:
            for _ in range(RETRIES):
                await self._follow(run, at)
                if moves.items() <= at.refs.items() or await self._pinned(run, at, epoch, moves):
                    return
        raise _busy(run)

    async def forget(self, needed: Collection[MirrorKey]) -> int:
        """See the port."""
        await asyncio.to_thread(self._mirrors.sweep, SCRATCH_S)
        return await self._mirrors.remove_unused(needed, self._idle_s)

    async def close(self) -> None:
        """See the port."""
        tasks = tuple(self._beside)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def drop(self, run: Run) -> int:
        """See the port. The seal takes the rows; the mirrors of other gateways are tidied."""
        return await self._mirrors.drop_run(mirror_key(run), run.uid)

    async def tidy(self, key: MirrorKey, over: Collection[str]) -> None:
        """See the port."""
        for uid in over:
            self._runs.pop(uid, None)
        await self._mirrors.discard_all_but(key, self._staging)
        for uid in sorted(set(over) & await self._mirrors.runs(key)):
            await self._mirrors.drop_run(key, uid)

    def _at(self, run: Run) -> _Followed:
        removals, at = self._mirrors.touch(mirror_key(run)), self._runs.get(run.uid)
        if at is None or at.removals != removals:
            at = self._runs[run.uid] = _Followed(removals)
        return at

    # --- keeping ------------------------------------------------------------------------------------------------------

    async def _take(self, run: Run, at: _Followed, staged: Staged) -> ReceiveReport:
        """Keep a push as the next one, if its refs may move as they are once all before it are known here."""
        for _ in range(RETRIES):
            await self._follow(run, at)
            staged = await self._mirrors.judge(mirror_key(run), staged)
            if staged.refused:
                return staged.report()
            reached(Point.KEEP_BEFORE)
            push = await self._written(run, at, staged.policy.epoch, staged.moves)
            reached(Point.KEEP_WITHIN)
            if await self._kept(push):
                reached(Point.KEEP_AFTER)
                self._count(push)
                await self._mirrors.publish(mirror_key(run), staged)
                at.on([push])
                return staged.report()
        raise _busy(run)

    async def _pinned(self, run: Run, at: _Followed, epoch: int, moves: Mapping[str, str]) -> bool:
        """Whether pins were the next push. They bring objects where the commit is another run's (W7)."""
        known = {commit for commit in (at.base, *at.refs.values()) if commit is not None}
        pack = await self._packed(run, set(moves.values()), known) if set(moves.values()) - known else None
        push = KeptPush(
            run_uid=run.uid, number=at.number, epoch=epoch, moves=tuple(moves.items()), base=at.base, pack=pack
        )
        if not await self._kept(push):
            return False
        await self._mirrors.follow(mirror_key(run), moves)
        at.on([push])
        return True

    async def _kept(self, push: KeptPush) -> bool:
        try:
            await self._store.keep_push(push)
        except PushConflict:
            return False
        return True

    async def _written(self, run: Run, at: _Followed, epoch: int, moves: Mapping[str, str]) -> KeptPush:
        """The push as a row, what it brings being durable already."""
        whole = at.number - at.whole >= WHOLE_EVERY
        brought = at.refs | dict(moves) if whole else dict(moves)
        known = {at.base, *(() if whole else at.refs.values())} - {None}
        pack = await self._packed(run, set(brought.values()), known)
        return KeptPush(
            run_uid=run.uid,
            number=at.number,
            epoch=epoch,
            moves=tuple(brought.items()),
            base=at.base,
            pack=pack,
            whole=whole,
        )

    async def _packed(self, run: Run, wanted: Collection[str], known: Collection[str]) -> BlobRef | None:
        with self._mirrors.scratch() as folder:
            path = folder / "pack"
            if not await self._mirrors.pack(mirror_key(run), wanted, known, path):
                return None
            return await self._blobs.put_file(run.tenant, path)

    def _count(self, push: KeptPush) -> None:
        self._metrics.pushes_kept.inc()
        self._metrics.push_bytes_kept.inc(push.pack.size if push.pack else 0)

    async def _forget(self, key: MirrorKey, staged: Staged) -> None:
        """What is held of it goes now or, where a lock is in the way, with the next tidying: it changes no answer."""
        try:
            await self._mirrors.discard(key, staged)
        except WorkspaceError as error:
            self._log.warning("push_not_forgotten", reason=error.reason)

    # --- following ----------------------------------------------------------------------------------------------------

    async def _caught_up(self, run: Run, at: _Followed) -> None:
        """Follow. An empty mirror fetches a whole repository: what takes longer than a request may goes on beside."""
        trouble, at.trouble = at.trouble, None
        if trouble is not None and _now() - trouble.at < TROUBLE_S:
            raise trouble.error
        task = asyncio.create_task(self._following.do(at, partial(self._in_turn, run, at)))
        self._beside.add(task)
        task.add_done_callback(self._ended)
        try:
            await asyncio.wait({task}, timeout=self._wait_s)
        finally:
            if not task.done():
                task.add_done_callback(partial(self._unheard, run, at))
        if not task.done():
            raise StillFetching
        task.result()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._beside.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits has it from the task

    def _unheard(self, run: Run, at: _Followed, task: asyncio.Task[None]) -> None:
        """Nobody waits for it now: its failure is told to who asks next. Many may have left before the same one."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        if at.trouble is None or at.trouble.error is not error:
            self._log.warning("following_failed", run_uid=run.uid, reason=type(error).__name__)
        at.trouble = _Trouble(error, _now())

    async def _in_turn(self, run: Run, at: _Followed, begun: Begun) -> None:
        async with at.turn:
            begun()
            await self._follow(run, at)

    async def _follow(self, run: Run, at: _Followed) -> None:
        """Bring what was kept elsewhere: first objects, then refs."""
        pushes = await self._store.kept_pushes(run.uid, at.number)
        base = rooted(run) or next((push.base for push in pushes if push.base), None)
        if base != at.base:
            await self._bring_base(run, at, base)
        if pushes:
            await self._bring_pushes(run, at, pushes)
        at.trouble = None

    async def _bring_pushes(self, run: Run, at: _Followed, pushes: Sequence[KeptPush]) -> None:
        reached(Point.FOLLOW_BEFORE)
        key, moves = mirror_key(run), dict[str, str]()
        with self._mirrors.scratch() as folder:
            for push in pushes:
                await self._bring(run, push, folder / "pack")
                moves |= dict(push.moves)
        reached(Point.FOLLOW_WITHIN)
        await self._mirrors.follow(key, moves)
        at.on(pushes)
        reached(Point.FOLLOW_AFTER)
        self._log.info("mirror_followed", run_uid=run.uid, pushes=len(pushes), number=at.number)

    async def _bring_base(self, run: Run, at: _Followed, base: str | None) -> None:
        """The base is upstream's, and is fetched from there with what is new, or by its id."""
        if base is not None and not await there(self._mirrors, run, base):
            upstream = await upstream_of(run.spec, self._keys)
            await self._mirrors.ensure(mirror_key(run), replace(upstream, ref=base) if upstream else None)
        if base is not None:
            pin = BASE_PIN if run.facts.root is None else ROOT_PIN
            await self._mirrors.pin(mirror_key(run), run.uid, pin, base)
        at.base = base

    async def _bring(self, run: Run, push: KeptPush, path: Path) -> None:
        key = mirror_key(run)
        if push.pack is None or await self._mirrors.has_commits(key, {commit for _, commit in push.moves}):
            return
        await self._blobs.get_file(run.tenant, push.pack, path)
        await self._mirrors.unpack(key, path)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _busy(run: Run) -> StoreBusy:
    return StoreBusy(f"other gateways push to run {run.uid} all the time: ask again")
