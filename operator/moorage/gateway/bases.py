"""The commit that a run starts from: resolved once, its objects fetched into the mirror, and pinned there.

Fetching takes as long as the remote likes. So it begins when the operator registers the run's sandbox, whose pod is
still seconds from its first question; that question waits for what is on its way. What fails ahead of time is not told:
it is tried again when the sandbox asks, and answered then.
"""

from __future__ import annotations

import asyncio
import contextlib

from moorage.api.wire import ResolvedOrigin, ResolvedParent, ResolvedRun
from moorage.core.journal.errors import JournalError
from moorage.core.journal.record import RecordType
from moorage.core.run.phases import RunPhase
from moorage.gateway.elders import lost
from moorage.gateway.errors import Refusal, StillFetching, Unavailable, UpstreamRefused
from moorage.gateway.gate import BASE_PIN, Gate, base_of, mirror_key
from moorage.gateway.ledger import Overtaken, Run
from moorage.gateway.mirroring import ORIGIN_PIN, fixed_base, there
from moorage.gateway.upstream import upstream_of
from moorage.store.errors import SpecUnreadable, StoreError
from moorage.store.specs import stored_spec
from moorage.workspace.errors import WorkspaceError
from moorage.workspace.refs import pin_ref


class BranchTaken(Unavailable):
    """W2: another live run delivers to the branch. `closing`: that one only waits for its end."""

    reason = "BranchTaken"

    def __init__(self, message: str, *, closing: bool) -> None:
        self.closing = closing
        super().__init__(message)


class Bases:
    """Finds and fixes base commits. Shared by the door that registers pods and the one that answers them."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._mirrors = gate.deps.mirrors
        self._under_way: set[asyncio.Task[str]] = set()

    async def soon(self, run: Run, epoch: int) -> str:
        """The base, for a sandbox of that epoch. What takes longer than `assignment_wait_ms` goes on beside, and its
        end, good or bad, is the answer to who asks next.

        Raise StillFetching, and as `base`.
        """
        task = self._fetching(run, epoch)
        await asyncio.wait({task}, timeout=self._gate.deps.settings.assignment_wait_ms / 1000)
        if not task.done():
            raise StillFetching
        if run.fetching is not None and run.fetching[1] is task:
            run.fetching = None
        return task.result()

    def _fetching(self, run: Run, epoch: int) -> asyncio.Task[str]:
        """What is under way already, also for an earlier attempt; but how that one's ended is no answer to this one."""
        if run.fetching is not None and (run.fetching[0] == epoch or not run.fetching[1].done()):
            return run.fetching[1]
        task = asyncio.create_task(self.base(run))
        run.fetching = epoch, task
        self._under_way.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[str]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # told to who asks next, and nobody may

    async def close(self) -> None:
        """Stop what is still being fetched."""
        tasks = tuple(self._under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def ahead(self, run: Run) -> None:
        """Prepare the base before it is asked for, unless an attempt has started from it already."""
        if run.state.workspace_base is None and not run.preparing.locked():
            try:
                await self.base(run)
            except (WorkspaceError, Refusal) as error:
                self._gate.deps.log.debug("base_not_ahead", run=run.uid, reason=error.reason)
            except StoreError as error:  # the run was let go of meanwhile, or the store is away
                self._gate.deps.log.debug("base_not_ahead", run=run.uid, reason=type(error).__name__)

    async def base(self, run: Run) -> str:
        """The base, its objects in the mirror. The remote is asked only where they aren't there yet.

        Raise UpstreamRefused, BranchTaken, Unavailable, WorkspaceError.
        """
        async with run.preparing:
            refuse_ended(run)
            return await self._base(run)

    async def _base(self, run: Run) -> str:
        key, known = mirror_key(run), await base_of(self._mirrors, run)
        if known is not None and await there(self._mirrors, run, known):
            if (begun := await self._again(run)) is not None:
                return begun
            base = await self._fixed(run, known)
            if base == known:
                await self._pinned(run, base)
            await self._kept(run)
            return base
        upstream = await upstream_of(run.spec, self._gate.deps.secrets)
        await self._refuse_taken(run)
        delivery = run.spec.delivery
        if known is None and upstream is not None and delivery is not None and delivery.push:
            await self._mirrors.check_branch_free(upstream, delivery.branch)
        if run.spec.parent is not None:
            return await self._of_parent(run, run.spec.parent)
        if run.spec.origin is not None and (begun := await self._of_origin(run, run.spec.origin)) is not None:
            return begun
        fetched = await self._mirrors.ensure(key, upstream)
        base = await self._fixed(run, known or fetched.revision)
        if base != fetched.revision and not await self._mirrors.has_commit(key, base):
            await self._mirrors.ensure(key, upstream)  # another gateway saw it there a moment later than we
        if not await self._mirrors.has_commit(key, base):
            raise UpstreamRefused(f"the base {base} is gone from the remote", reason="GitRefNotFound")
        await self._mirrors.pin(key, run.uid, BASE_PIN, base)
        return base

    async def _of_parent(self, run: Run, parent: ResolvedParent) -> str:
        """O2: its parent's work, which this mirror has once it says of that run what was acknowledged."""
        await self._gate.refs.current(run)
        base = await self._fixed(run, await self._gate.refs.beginning(run, parent))
        if not await there(self._mirrors, run, base):
            why = f"the commit {base} of its parent {parent.name} isn't kept any more"
            raise UpstreamRefused(why, reason="GitRefNotFound")
        await self._mirrors.pin(mirror_key(run), run.uid, BASE_PIN, base)
        return base

    async def _of_origin(self, run: Run, origin: ResolvedOrigin) -> str | None:
        """O2: where the run before it ended. None where that never had a worktree: then it begins like any other."""
        await self._gate.refs.current(run)
        found = await self._begun(run) or await self._gate.refs.next_after(run, origin)
        if found is None:
            return None
        base = await self._fixed(run, *found)
        await self._mirrors.pin(mirror_key(run), run.uid, BASE_PIN, base)
        await self._kept(run)
        return base

    async def _again(self, run: Run) -> str | None:
        """I1: a repair has dropped where the run began, and the mirror's pin of its base says no checkpoint. None where
        the journal says it, and where the run goes on with no other one's work.
        """
        origin = run.spec.origin
        return None if origin is None or fixed_base(run) is not None else await self._of_origin(run, origin)

    async def _begun(self, run: Run) -> tuple[str, str | None, str | None] | None:
        """What it began at before, where that is here: the run keeps it itself."""
        base, begins = run.facts.base, run.facts.resume
        wanted = [each for each in (base, begins) if each is not None]
        here = [await there(self._mirrors, run, each) for each in wanted]
        return (base, begins, run.facts.root) if base is not None and all(here) else None

    async def _kept(self, run: Run) -> None:
        """What attempts begin at is the run's own, whatever becomes of the run that made it. Whoever fixed it may have
        died before, and this mirror may have no more of it than the base. Raise UpstreamRefused.
        """
        made = run.facts.base if run.facts.root is not None else None
        begins = run.facts.resume or made
        if begins is not None and await self._mirrors.ref(mirror_key(run), pin_ref(run.uid, ORIGIN_PIN)) != begins:
            await self._gate.refs.current(run)
            if run.spec.origin is not None and not await there(self._mirrors, run, begins):
                raise lost(run.spec.origin.name, (begins,))
            await self._gate.refs.pin(run, run.state.epoch, ORIGIN_PIN, begins)

    async def _pinned(self, run: Run, base: str) -> None:
        """Whoever fixed it may have died before it was pinned."""
        key = mirror_key(run)
        if await self._mirrors.ref(key, pin_ref(run.uid, BASE_PIN)) != base:
            await self._mirrors.pin(key, run.uid, BASE_PIN, base)

    async def _fixed(self, run: Run, found: str, resume: str | None = None, root: str | None = None) -> str:
        """The run's base from now on: what the journal says first. A branch may move between two gateways' looks."""
        if run.facts.base is None:
            said = {"base": found, "resume": resume, "root": root}
            told = {name: commit for name, commit in said.items() if commit is not None}
            draft = self._gate.ledger.observed(RecordType.BASE_FIXED, told)
            with contextlib.suppress(Overtaken):
                await self._gate.ledger.append(run, None, [draft], _no_base)
        return run.facts.base or found

    async def _refuse_taken(self, run: Run) -> None:
        """W2: one writer per branch. Of two live runs, the one that was admitted later waits; the end of that is its
        caller's to say.
        """
        if run.spec.delivery is None or not run.spec.delivery.push:
            return
        for row in await self._gate.deps.store.list_pending(run.tenant):
            earlier = (row.created_at, row.run_uid) < (run.now.row.created_at, run.uid)
            if row.identity.workspace != run.spec.workspace.key or not earlier:
                continue
            other = await self._readable(row.run_uid)
            if other is not None and other.contends_with(run.spec):
                branch = run.spec.delivery.branch
                why = f"run {other.name} delivers to {branch} already: name another branch, or wait for its end"
                raise BranchTaken(why, closing=await self._closing(row.run_uid))

    async def _closing(self, uid: str) -> bool:
        """Nothing new comes of that run. A journal that can't be read says no such thing."""
        try:
            phase = (await self._gate.ledger.open(uid)).state.phase
        except JournalError:
            return False
        return phase is RunPhase.CANCELLING or phase.terminal

    async def _readable(self, uid: str) -> ResolvedRun | None:
        """None for one that no gateway of this version can push on: should another, the push compares first (E5)."""
        try:
            return await stored_spec(self._gate.deps.store, uid)
        except SpecUnreadable as error:
            self._gate.deps.log.warning("spec_unreadable", run=uid, why=error.why)
            return None


def _no_base(run: Run) -> None:
    """Raise Overtaken where it is fixed already."""
    if run.facts.base is not None:
        raise Overtaken(run.uid)


def refuse_ended(run: Run) -> None:
    """Raise where the run has ended: nothing may be pinned for it any more."""
    if run.state.end is not None:
        raise Refusal(f"the run has ended: {run.state.end.reason}", status=409, reason="RunEnded")
