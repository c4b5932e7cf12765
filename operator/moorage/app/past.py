"""The past of this machine's runs, and the present of those that other processes push on: reading, and people's words
to them.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import httpx
from prometheus_client import CollectorRegistry

from moorage.api.commands import CommandRequest, Receipt
from moorage.api.runcommand import APPROVALS
from moorage.app import interrupted
from moorage.app.inprocess import InProcess
from moorage.app.interrupted import Interrupted
from moorage.app.machine import Tokens, gateway_of, machine_fit, quiet
from moorage.app.manifest import TENANT, ManifestSecrets
from moorage.app.owners import SOCKET, Owner, Owners
from moorage.app.peers import Reading
from moorage.app.stores import Stores, open_stores
from moorage.cli.ports import InterruptedRun, ListedRun, LocalRun, LocalRuns, OwnerSilent, RunRefused
from moorage.clock import SystemClock
from moorage.controller.gateway_client import GatewayAway, GatewayClient, GatewayRefused, session
from moorage.core.run.attempts import INTERRUPTED
from moorage.gateway.providers import HttpProviders
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
        providers = await stack.enter_async_context(HttpProviders())
        app = gateway_of(
            kept,
            clock,
            tokens,
            ManifestSecrets(()),
            outside,
            providers=providers,
            log=quiet(),
            peers=Reading(),
            isolated=True,
            metrics=GatewayMetrics(CollectorRegistry()),
        )
        headers = {"authorization": f"Bearer {tokens.reader}"}
        client = httpx.AsyncClient(transport=InProcess(app), base_url="http://gateway", headers=headers)
        yield Past(state, await stack.enter_async_context(client), kept, tokens.operator)


@dataclass(frozen=True)
class Past:
    """Implements cli.ports.LocalRuns."""

    state: Path
    client: httpx.AsyncClient
    kept: Stores
    operator: str = field(repr=False)  # a token of the gateway in this process
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
        if row.status is ExecutionStatus.PAUSED:
            return "Paused"
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

    async def _owner(self, uid: str) -> Owner | None:
        owners = Owners(self.state / "owners")
        async with owners.alone():
            return owners.living(uid)

    async def command(self, uid: str, asked: CommandRequest) -> Receipt:
        """See the port. Of an ended run the gateway of this process knows all that there is to know, and an answer to a
        question needs nobody who works on the run: it waits in the journal for who goes on with it.
        """
        owners = Owners(self.state / "owners")
        while True:
            async with owners.alone():  # nobody begins to work on it meanwhile
                if not owners.alive(uid):
                    return await self._here(uid, asked)
                owner = owners.living(uid)
            if owner is None:
                raise OwnerSilent("a process is about to work on it", "try again in a moment")
            try:
                return await _by_owner(owner, uid, asked)
            except GatewayAway as error:
                if await self._owner(uid) == owner:
                    why = f"the process {owner.pid}, which works on it, doesn't answer: {error.message}"
                    raise OwnerSilent(why, "try again in a moment") from None

    async def _here(self, uid: str, asked: CommandRequest) -> Receipt:
        """By the gateway of this process, where nobody works on the run."""
        if (row := await self.kept.store.get(uid)).pending and asked.type not in APPROVALS:
            how = "is paused" if row.status is ExecutionStatus.PAUSED else "was interrupted"
            why = f"{row.name} {how}: nobody works on it, so that nobody hears this"
            raise RunRefused(why, "`moorage run -f` of its manifest goes on with it; `moorage doctor` names that")
        headers = {"authorization": f"Bearer {self.operator}"}
        answer = await self.client.post(f"/v1/runs/{uid}/commands", content=asked.model_dump_json(), headers=headers)
        if answer.is_error:
            raise RunRefused(f"it was refused: {answer.json().get('message', answer.text)}", "")
        return Receipt.model_validate_json(answer.content)


async def _by_owner(owner: Owner, uid: str, asked: CommandRequest) -> Receipt:
    async with session(aiohttp.UnixConnector(str(owner.socket / SOCKET))) as http:
        try:
            return await GatewayClient(http, "http://gateway", lambda: owner.key).command(uid, asked)
        except GatewayRefused as error:
            raise RunRefused(f"it was refused: {error.message}", "") from None


def _offered(found: Interrupted) -> InterruptedRun:
    return InterruptedRun(found.row.name, found.row.run_uid, found.since, found.manifest, found.trouble)
