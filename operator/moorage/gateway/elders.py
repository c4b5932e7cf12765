"""W3, O2: a child starts from a commit of its parent's, which a mirror has once it follows the parent."""

from __future__ import annotations

from collections.abc import AsyncIterable, Collection

from moorage.gateway.ledger import Ledger
from moorage.gateway.mirroring import RunRefs
from moorage.gateway.reduced import Run
from moorage.workspace.doors import ReceivePolicy, ReceiveReport
from moorage.workspace.mirror import MirrorKey


class EldersFirst:
    """Implements RunRefs: those of `inner`, which follows a run's parents before the run itself."""

    def __init__(self, inner: RunRefs, ledger: Ledger) -> None:
        self.inner, self._ledger = inner, ledger

    async def current(self, run: Run) -> None:
        """See the port. A run has few above it (MAX_DEPTH)."""
        if run.spec.parent is not None:
            await self.current(await self._ledger.open(run.spec.parent.uid))
        await self.inner.current(run)

    async def receive(self, run: Run, policy: ReceivePolicy, body: AsyncIterable[bytes]) -> ReceiveReport:
        """See the port."""
        return await self.inner.receive(run, policy, body)

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
