"""One run on this machine: the same engine, with the objects of a manifest in memory instead of an API server's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any

from moorage.api.merge import patched
from moorage.api.runstatus import AgentRunStatus
from moorage.api.wire import ResolvedRun
from moorage.clock import Clock
from moorage.controller.apply import Applier
from moorage.controller.changes import ask, follow
from moorage.controller.deliveries import Deliveries
from moorage.controller.engine import Engine
from moorage.controller.gateway_client import GatewayClient
from moorage.controller.gather import Gatherer
from moorage.controller.operator import Operator
from moorage.controller.ports import Body
from moorage.controller.roll import Roll
from moorage.controller.signs import Signs
from moorage.controller.told import key_of
from moorage.core.run.observed import Problem
from moorage.core.run.resolve import Defaults
from moorage.core.run.status import ENDS
from moorage.sandbox.port import RunKey, Substrate
from moorage.telemetry.metrics import OperatorMetrics

Told = Callable[[AgentRunStatus], None]


class ManifestObjects:
    """Implements controller.ports.Objects: one AgentRun and what the manifest brings beside it."""

    def __init__(self, run: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> None:
        self.body: dict[str, Any] = dict(run)
        self._others = {(str(each.get("kind")), str(each["metadata"]["name"])): each for each in others}

    async def run(self, tenant: str, name: str) -> Body | None:
        """See the port."""
        key = key_of(self.body)
        return self.body if (key.tenant, key.name) == (tenant, name) else None

    async def get(self, kind: str, tenant: str, name: str) -> Body | None:
        """See the port: what the manifest holds is in the run's namespace."""
        found = self._others.get((kind, name))
        if found is None:
            return None
        return {**found, "metadata": {**found["metadata"], "namespace": tenant}}

    async def runtime_classes(self) -> frozenset[str] | None:
        """Runtime classes are a cluster's."""
        return None

    async def write_status(self, run: RunKey, status: Mapping[str, Any], version: str) -> Body | None:
        """See the port. Who cancels it changes another field: there is nothing to lose."""
        del version
        if key_of(self.body) != run:
            return None
        self._put({"status": patched(self.body.get("status") or {}, status)})
        return self.body

    def cancel(self) -> None:
        """What `kubectl patch` would do."""
        self._put({"spec": {**self.body["spec"], "cancel": True}}, generation=1)

    async def delete(self, run: RunKey) -> None:
        """Nothing keeps it but this process."""

    async def create_run(self, body: Body) -> None:
        """None is ever asked for: a local run is refused `agent.children`."""
        raise NotImplementedError(body["metadata"]["name"])

    async def runs(self) -> frozenset[RunKey]:
        """See the port."""
        return frozenset({key_of(self.body)})

    def _put(self, changed: Mapping[str, Any], generation: int = 0) -> None:
        meta = dict(self.body["metadata"])
        meta["resourceVersion"] = str(int(meta.get("resourceVersion", "0")) + 1)
        meta["generation"] = int(meta.get("generation", 1)) + generation
        self.body = {**self.body, **changed, "metadata": meta}


def admitted_body(manifest: Mapping[str, Any], uid: str, tenant: str, now_ms: int) -> dict[str, Any]:
    """The manifest's AgentRun as an API server would keep it."""
    meta = {
        **manifest["metadata"],
        "namespace": tenant,
        "uid": uid,
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return {**manifest, "metadata": meta}


@dataclass(frozen=True)
class _Telling:
    """Hands statuses to the command line."""

    told: Told

    def changed(self, run: RunKey, old: AgentRunStatus, new: AgentRunStatus) -> None:
        """See the port."""
        del run, old
        self.told(new)

    def unwritable(self, run: RunKey, why: str) -> None:
        """See the port; what is in memory can be written."""


class Left(Exception):
    """Somebody wouldn't wait for the run's end. Whoever goes on with it finds it interrupted."""


class LocalRun:
    """Pushes one run to its end."""

    def __init__(
        self,
        objects: ManifestObjects,
        substrate: Substrate,
        gateway: GatewayClient,
        *,
        clock: Clock,
        metrics: OperatorMetrics,
        log: Any,
        drivers: frozenset[str],
        constraints: frozenset[str] = frozenset(),
        told: Told,
    ) -> None:
        self._objects, self._gateway, self._log = objects, gateway, log
        self._stops = 0
        self._ended = asyncio.Event()
        self._told = told
        self._chance = Random()  # noqa: S311  jitter, not a secret
        roll, self._signs = Roll(limit=1), Signs(clock)
        self._gatherer = Gatherer(
            objects=objects,
            substrate=substrate,
            gateway=gateway,
            roll=roll,
            defaults=Defaults(placement="local"),
            drivers=drivers,
            constraints=constraints,
            signs=self._signs,
        )
        self._deliveries = Deliveries(gateway, ended=self.look, log=log)
        applier = Applier(
            substrate=substrate,
            gateway=gateway,
            deliveries=self._deliveries,
            objects=objects,
            clock=clock,
            metrics=metrics,
        )
        engine = Engine(
            gatherer=self._gatherer,
            applier=applier,
            objects=objects,
            roll=roll,
            clock=clock,
            telling=_Telling(self._status),
            metrics=metrics,
        )
        self._operator = Operator(engine=engine, roll=roll, metrics=metrics, log=log, workers=1, chance=self._chance)

    async def resolve(self) -> ResolvedRun | Problem:
        """What it would be admitted as now (O6)."""
        return await self._gatherer.resolve(self._objects.body)

    async def run(self, *, begun: bool = False) -> AgentRunStatus:
        """Until the status says how it ended, or that it is paused. `begun`: an earlier process has worked on it.

        Raises Left.
        """
        self._operator.run_changed(None if begun else "ADDED", self._objects.body)
        jobs = [
            asyncio.create_task(self._operator.queue.run()),
            asyncio.create_task(
                follow(self._gateway, self._operator, self._log, self._chance, heard=self._signs.heard)
            ),
            asyncio.create_task(ask(self._gateway, self._signs)),
        ]
        ended = asyncio.create_task(self._ended.wait())
        try:
            done, _ = await asyncio.wait({*jobs, ended}, return_when=asyncio.FIRST_COMPLETED)
            for job in done - {ended}:
                job.result()
        finally:
            for each in (*jobs, ended):
                each.cancel()
            await asyncio.gather(*jobs, ended, return_exceptions=True)
            await self._deliveries.close()
            self._operator.queue.close()
        status = AgentRunStatus.model_validate(self._objects.body.get("status") or {})
        if self._stops > 1 and status.phase not in ENDS:
            raise Left
        return status

    def look(self, run: RunKey) -> None:
        """Something of the run's ended."""
        self._operator.look(run)

    def stop(self) -> None:
        """Ask for its end, which comes as a status; asked again, leave it as it is: its journal may take no more."""
        self._stops += 1
        if self._stops > 1:
            self._ended.set()
            return
        self._objects.cancel()
        self._operator.run_changed("MODIFIED", self._objects.body)

    def _status(self, status: AgentRunStatus) -> None:
        self._told(status)
        if status.phase in ENDS or status.phase == "Pending" or _parked(status):
            self._ended.set()


def _parked(status: AgentRunStatus) -> bool:
    """It waits for a person, for whom nobody keeps a process."""
    return status.phase == "Paused" and status.reason != "Queued"
