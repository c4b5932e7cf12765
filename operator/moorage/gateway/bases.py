"""The commit that a run starts from: resolved once, its objects fetched into the mirror, and pinned there.

Fetching takes as long as the remote likes. So it begins when the operator registers the run's sandbox, whose pod is
still seconds from its first question; that question waits for what is on its way. What fails ahead of time is not told:
it is tried again when the sandbox asks, and answered then.
"""

from __future__ import annotations

import contextlib

from moorage.api.wire import ResolvedRun
from moorage.core.journal.record import RecordType
from moorage.gateway.errors import Refusal, UpstreamRefused
from moorage.gateway.gate import BASE_PIN, Gate, base_of, mirror_key
from moorage.gateway.ledger import Overtaken, Run
from moorage.gateway.upstream import upstream_of
from moorage.store.errors import SpecUnreadable, StoreError
from moorage.store.specs import stored_spec
from moorage.workspace.errors import NotFound, WorkspaceError


class Bases:
    """Finds and fixes base commits. Shared by the door that registers pods and the one that answers them."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._mirrors = gate.deps.mirrors

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

        Raise UpstreamRefused, Unavailable, WorkspaceError.
        """
        async with run.preparing:
            refuse_ended(run)
            return await self._base(run)

    async def _base(self, run: Run) -> str:
        key, known = mirror_key(run), await base_of(self._mirrors, run)
        if known is not None and await self._there(run, known):
            return await self._fixed(run, known)
        upstream = await upstream_of(run.spec, self._gate.deps.secrets)
        await self._refuse_taken(run)
        delivery = run.spec.delivery
        if known is None and upstream is not None and delivery is not None and delivery.push:
            await self._mirrors.check_branch_free(upstream, delivery.branch)
        fetched = await self._mirrors.ensure(key, upstream)
        base = await self._fixed(run, known or fetched.revision)
        if base != fetched.revision and not await self._mirrors.has_commit(key, base):
            await self._mirrors.ensure(key, upstream)  # another gateway saw it there a moment later than we
        if not await self._mirrors.has_commit(key, base):
            raise UpstreamRefused(f"the base {base} is gone from the remote", reason="GitRefNotFound")
        await self._mirrors.pin(key, run.uid, BASE_PIN, base)
        return base

    async def _fixed(self, run: Run, found: str) -> str:
        """The run's base from now on: what the journal says first. A branch may move between two gateways' looks."""
        if run.facts.base is None:
            draft = self._gate.ledger.observed(RecordType.BASE_FIXED, {"base": found})
            with contextlib.suppress(Overtaken):
                await self._gate.ledger.append(run, None, [draft], _no_base)
        return run.facts.base or found

    async def _there(self, run: Run, commit: str) -> bool:
        try:
            return await self._mirrors.has_commit(mirror_key(run), commit)
        except NotFound:
            return False

    async def _refuse_taken(self, run: Run) -> None:
        """W2: one writer per branch. Of two live runs, the one that was admitted later is refused."""
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
                raise UpstreamRefused(why, reason="BranchTaken")

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
