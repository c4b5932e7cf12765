"""W3, O2: a child starts from a commit that is made of its parent's work, by any gateway that follows the parent.

A checkpoint itself has the conversation of the parent's agent for an ancestor. The child would bring it upstream, and
could read it.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Collection, Iterable

from prometheus_client import Counter

from moorage.api.wire import ResolvedOrigin, ResolvedParent
from moorage.core.run.sessions import Ending, ending
from moorage.gateway.errors import UpstreamRefused
from moorage.gateway.ledger import Ledger
from moorage.gateway.mirroring import RunRefs, base_of, fixed_base, mirror_key, rooted, there
from moorage.gateway.reduced import Run
from moorage.telemetry.metrics import Violation
from moorage.workspace.doors import ReceivePolicy, ReceiveReport
from moorage.workspace.mirror import MirrorKey, Mirrors
from moorage.workspace.refs import own_ref


def ended_with(elder: Run) -> Ending | None:
    """Where its work stands; None where it never had a worktree."""
    return ending(elder.state, fixed_base(elder), elder.facts.resume)


def lost(elder: str, commits: Collection[str]) -> UpstreamRefused:
    """What that run has ended with was let go of."""
    why = f"what AgentRun {elder}, with which this run goes on, has ended with isn't kept any more"
    advice = "begin a new run from the branch that it delivered"
    return UpstreamRefused(f"{why} ({' and '.join(commits)}): {advice}", reason="GitRefNotFound")


class EldersFirst:
    """Implements RunRefs: those of `inner`, which follows a run's parents before the run itself."""

    def __init__(self, inner: RunRefs, ledger: Ledger, mirrors: Mirrors, violations: Counter) -> None:
        self.inner, self._ledger, self._mirrors, self._violations = inner, ledger, mirrors, violations

    async def current(self, run: Run) -> None:
        """See the port. A run has few above it (MAX_DEPTH)."""
        if (above := run.spec.parent) is not None:
            await self.current(await self._ledger.kin(run, above.uid))
            fixed = fixed_base(run)
            if fixed is not None and not run.now.row.sealed and not await there(self._mirrors, run, fixed):
                await self.beginning(run, above)
        if (before := run.spec.origin) is not None:
            await self._after(run, before)
        await self.inner.current(run)

    async def _after(self, run: Run, before: ResolvedOrigin) -> None:
        """Where this mirror lacks what the run began, or will begin, at: the run keeps that itself once it has begun,
        beyond its base. Nobody reads the elder's journal for a run that needs nothing of it.
        """
        began = [each for each in (fixed_base(run), run.facts.resume) if each is not None]
        if run.now.row.sealed or (began and await self._here(run, began)):
            return
        elder = await self.worked(before)
        found = None if elder.now.row.sealed else ended_with(elder)
        if found is not None:
            await self.current(elder)
            if await self._here(run, found.commits):
                await self._checkpoint(run, elder)

    async def worked(self, before: ResolvedOrigin) -> Run:
        """The last run, from that one back, that had a worktree; the first where none had. One that ended before it had
        any passes on where it would have begun.
        """
        elder = await self._ledger.open(before.uid)
        while ended_with(elder) is None and elder.spec.origin is not None:
            elder = await self._ledger.open(elder.spec.origin.uid)
        return elder

    async def _here(self, run: Run, commits: Iterable[str]) -> bool:
        return all([await there(self._mirrors, run, each) for each in commits])

    async def next_after(self, run: Run, before: ResolvedOrigin) -> tuple[str, str | None, str | None] | None:
        """The commit that the run's result is compared with, the checkpoint that it begins at, and the commit that
        upstream has, where that is an earlier one than the first. None where no run before it had a worktree. Raise
        UpstreamRefused, WorkspaceError.
        """
        elder = await self.worked(before)
        found = ended_with(elder)
        if found is None:
            return None
        if not await self._here(run, found.commits):
            raise lost(elder.spec.name, found.commits)
        root = rooted(elder)
        return found.base, await self._checkpoint(run, elder), root if root != found.base else None

    async def _checkpoint(self, run: Run, elder: Run) -> str | None:
        """Made where the elder has delivered: its last checkpoint is of its work before that."""
        found = ended_with(elder)
        if found is None or found.point is None or not found.delivered:
            return found.point if found else None
        return await self._mirrors.go_on(mirror_key(run), found.point, found.base, elder.spec.name)

    async def beginning(self, run: Run, above: ResolvedParent) -> str:
        """The commit that a child starts from, made where it isn't there yet. Raise UpstreamRefused, WorkspaceError."""
        elder = await self._ledger.kin(run, above.uid)
        base = await base_of(self._mirrors, elder)
        if base is None or not await there(self._mirrors, run, above.commit):
            why = f"the commit {above.commit} of its parent {above.name} isn't kept any more"
            raise UpstreamRefused(why, reason="GitRefNotFound")
        return await self._mirrors.begin(mirror_key(run), above.commit, base, above.name)

    async def receive(self, run: Run, policy: ReceivePolicy, body: AsyncIterable[bytes]) -> ReceiveReport:
        """See the port. H3: what the door has taken is looked at once more, by where it is kept."""
        report = await self.inner.receive(run, policy, body)
        strange = [each for each in report.taken if not own_ref(each.ref, run.uid, policy.epoch)]
        self._violations.labels(Violation.UNAUTHORISED_PUSH).inc(len(strange))
        return report

    async def pin(self, run: Run, epoch: int, name: str, commit: str) -> None:
        """See the port."""
        await self.inner.pin(run, epoch, name, commit)

    async def drop(self, run: Run) -> int:
        """See the port."""
        return await self.inner.drop(run)

    async def tidy(self, key: MirrorKey, over: Collection[str]) -> None:
        """See the port."""
        await self.inner.tidy(key, over)

    async def forget(self, needed: Collection[MirrorKey]) -> int:
        """See the port."""
        return await self.inner.forget(needed)

    async def close(self) -> None:
        """See the port."""
        await self.inner.close()
