"""The past of this machine's runs, and the present of those that other processes push on: reading, and no more."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client import CollectorRegistry

from moorage.app import interrupted
from moorage.app.inprocess import InProcess
from moorage.app.interrupted import Interrupted
from moorage.app.machine import Tokens, gateway_of, machine_fit, quiet
from moorage.app.manifest import TENANT, ManifestSecrets
from moorage.app.owners import Owners
from moorage.app.peers import Reading
from moorage.app.stores import Stores, open_stores
from moorage.cli.ports import InterruptedRun, ListedRun, LocalRun, LocalRuns
from moorage.clock import SystemClock
from moorage.core.run.attempts import INTERRUPTED
from moorage.store.errors import SpecUnreadable, UnknownRun
from moorage.store.port import Execution, ExecutionStatus
from moorage.store.specs import stored_spec
from moorage.telemetry.metrics import GatewayMetrics

PHASES = {
    ExecutionStatus.COMPLETED: "Succeeded",
    ExecutionStatus.FAILED: "Failed",
    ExecutionStatus.CANCELLED: "Cancelled",
}
ALL = 1_000_000  # more runs than one person makes on one machine


@contextlib.asynccontextmanager
async def open_local(state: Path) -> AsyncIterator[LocalRuns]:
    """Past runs, read through the gateway's own reader doors, in process. Raises RunRefused."""
    clock, tokens = SystemClock(), Tokens()
    async with contextlib.AsyncExitStack() as stack:
        with machine_fit():
            kept = await stack.enter_async_context(open_stores(state / "gateway", clock))
        outside = await stack.enter_async_context(httpx.AsyncClient(trust_env=False))
        app = gateway_of(
            kept,
            clock,
            tokens,
            ManifestSecrets(()),
            outside,
            log=quiet(),
            peers=Reading(),
            isolated=True,
            metrics=GatewayMetrics(CollectorRegistry()),
        )
        headers = {"authorization": f"Bearer {tokens.reader}"}
        client = httpx.AsyncClient(transport=InProcess(app), base_url="http://gateway", headers=headers)
        yield Past(state, await stack.enter_async_context(client), kept)


@dataclass(frozen=True)
class Past:
    """Implements cli.ports.LocalRuns."""

    state: Path
    client: httpx.AsyncClient
    kept: Stores
    namespace: str = TENANT

    async def runs(self) -> Sequence[LocalRun]:
        """All runs that the store knows, newest first."""
        return [LocalRun(row.name, row.run_uid, row.created_at) for row in await self._rows()]

    async def listed(self) -> Sequence[ListedRun]:
        """See the port."""
        return [
            ListedRun(row.name, row.run_uid, row.created_at, await self._phase(row), await self._branch(row.run_uid))
            for row in await self._rows()
        ]

    async def _rows(self) -> list[Execution]:
        told = await self.kept.store.changes(0, ALL)
        rows = [await self.kept.store.get(change.run_uid) for change in told if change.tenant == TENANT]
        return sorted(rows, key=lambda row: -row.created_at)

    async def _phase(self, row: Execution) -> str:
        if not row.pending:
            return PHASES[row.status]
        return INTERRUPTED if await self.abandoned(row.run_uid) else "Running"

    async def _branch(self, uid: str) -> str | None:
        with contextlib.suppress(SpecUnreadable, UnknownRun):
            delivery = (await stored_spec(self.kept.store, uid)).delivery
            return delivery.branch if delivery and delivery.push else None
        return None

    async def interrupted(self) -> Sequence[InterruptedRun]:
        """See the port."""
        owners = Owners(self.state / "owners")
        async with owners.alone():
            found = await interrupted.find(self.kept, owners, TENANT, self.state / "runs")
            for each in found:
                each.owned.let_go()
        return [_offered(each) for each in found if each.row.pending]

    async def abandoned(self, uid: str) -> bool:
        """See the port. The order matters: an owner lets go of its run after the end is written."""
        owners = Owners(self.state / "owners")
        async with owners.alone():
            alive = owners.alive(uid)
        return not alive and (await self.kept.store.get(uid)).pending


def _offered(found: Interrupted) -> InterruptedRun:
    return InterruptedRun(found.row.name, found.row.run_uid, found.since, found.manifest, found.trouble)
