"""One place per action. Each may be repeated, and each says what it learned, so that the pass tells the newest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from moorage.api import names
from moorage.api.children import SettleRequest
from moorage.api.wire import (
    DeliverRequest,
    FenceRequest,
    PodRegistration,
    ReportedRecord,
    ResolvedRun,
    Role,
)
from moorage.clock import Clock
from moorage.controller.deliveries import Deliveries
from moorage.controller.gateway_client import GatewayClient
from moorage.controller.ports import Objects
from moorage.controller.spawned import make_child
from moorage.core.run import actions as a
from moorage.core.run.attempts import LEASE_MS
from moorage.core.run.observed import LeaseView, Observed, SandboxView
from moorage.core.run.phases import RunPhase
from moorage.core.run.view import RunView
from moorage.sandbox.port import Conflict, RunKey, Substrate, Which
from moorage.telemetry.metrics import OperatorMetrics

T = TypeVar("T")


@dataclass(frozen=True)
class Known:
    """What is known so far in this pass."""

    observed: Observed
    view: RunView | None = None

    @property
    def spec(self) -> ResolvedRun:
        """The spec that sandboxes are made from."""
        if self.observed.spec is None:
            raise Conflict("the run's spec is not known")
        return self.observed.spec

    def heard(self, view: RunView) -> Known:
        """The gateway answered."""
        observed = replace(self.observed, journal=view.state, signature=view.signature)  # J6: of that very head
        return replace(self, view=view, observed=observed)

    def leased(self, lease: LeaseView) -> Known:
        """A Lease stands."""
        return replace(self, observed=replace(self.observed, lease=lease))

    def saw(self, sandbox: SandboxView) -> Known:
        """A sandbox stands."""
        others = tuple(v for v in self.observed.sandboxes if v.uid != sandbox.uid)
        return replace(self, observed=replace(self.observed, sandboxes=(*others, sandbox)))


class Applier:
    """Applies a plan's actions in order; the first that fails ends the pass, and the next one finishes it."""

    def __init__(
        self,
        *,
        substrate: Substrate,
        gateway: GatewayClient,
        deliveries: Deliveries,
        objects: Objects,
        clock: Clock,
        metrics: OperatorMetrics,
    ) -> None:
        self._substrate, self._gateway, self._objects = substrate, gateway, objects
        self._deliveries = deliveries
        self._clock, self._metrics = clock, metrics

    async def apply(self, run: RunKey, actions: Sequence[a.Action], known: Known) -> AsyncIterator[Known]:
        """All of them, telling what is known after each step; the Lease is raised while the volume is created, and
        records are reported together.
        """
        for group in grouped(actions):
            match group:
                case [a.Begin() as begin]:
                    known, failure = await self._begin(run, begin, known)
                    if failure is not None:
                        yield known
                        raise failure
                case _:
                    known = await self._group(run, group, known)
            for action in group:
                self._metrics.actions.labels(type(action).__name__, "done").inc()
            yield known

    async def _begin(self, run: RunKey, action: a.Begin, known: Known) -> tuple[Known, BaseException | None]:
        """What is known then, and what went wrong first. All three are awaited, also where one has failed: nothing of
        this pass is on its way any more when the next one looks.
        """
        fence = self._fence(run, action.epoch, 1, "Start")
        (answer,), (lease, volume) = await asyncio.gather(
            asyncio.gather(self._gateway.admit(action.spec, fence), return_exceptions=True),
            asyncio.gather(
                self._lease(run, action.epoch),
                self._substrate.ensure_volume(run, action.spec),
                return_exceptions=True,
            ),
        )
        if lease is None:
            known = known.leased(LeaseView(action.epoch, fence.holder, self._clock.now_ms(), LEASE_MS))
        if volume is None:
            known = replace(known, observed=replace(known.observed, volume=True))
        failures = [each for each in (answer, lease, volume) if isinstance(each, BaseException)]
        if not isinstance(answer, BaseException):
            known = known.heard(answer)
            failures += _late(answer, action)
        return known, next(iter(failures), None)

    async def _group(self, run: RunKey, group: Sequence[a.Action], known: Known) -> Known:
        match group:
            case [a.RaiseEpoch() as rise, a.EnsureVolume()]:
                return await _both(self._raise(run, rise, known), self._substrate.ensure_volume(run, known.spec))
            case [a.Report(), *_]:
                return await self._report(run, [r for r in group if isinstance(r, a.Report)], known)
            case [action]:
                return await self._one(run, action, known)
        raise AssertionError(f"no such group: {group}")

    async def _one(self, run: RunKey, action: a.Action, known: Known) -> Known:
        match action:
            case a.Admit(spec):
                return known.heard(await self._gateway.admit(spec))
            case a.RaiseEpoch():
                return await self._raise(run, action, known)
            case a.StartSandbox():
                view = await self._substrate.start(run, known.spec, which(action))
                return await self._register(run, view, which(action), known.saw(view))
            case a.RegisterSandbox(name, uid, epoch, role, commit):
                pod = PodRegistration(pod_uid=uid, pod_name=name, epoch=epoch, role=role, commit=commit)
                return known.heard(await self._gateway.register(run.uid, pod))
            case a.SettleChildren(gone, over, why):
                asked = SettleRequest(gone=gone, over=over, why=dict(why))
                return known.heard(await self._gateway.settle(run.uid, asked))
            case a.Deliver(commit):
                request = DeliverRequest(epoch=_epoch(known), commit=commit)
                answer = await self._deliveries.deliver(run, known.spec.workspace, request)
                known = known.heard(answer) if answer else known
            case _:
                await self._remove(run, action, known)
        return known

    async def _remove(self, run: RunKey, action: a.Action, known: Known) -> None:
        match action:
            case a.EnsureLease(epoch):
                await self._lease(run, epoch)
            case a.EnsureVolume():
                await self._substrate.ensure_volume(run, known.spec)
            case a.StopSandbox(name, uid, _, grace_ms, force):
                await self._substrate.stop(run, name, uid, grace_ms, force=force)
            case a.ReleaseLease():
                await self._substrate.release_lease(run)
            case a.ReleaseVolume():
                await self._substrate.release_volume(run)
            case a.ReleaseRun():
                await _both(self._substrate.release(run), self._gateway.release(run.uid))
            case a.DeleteObject():
                await self._objects.delete(run)
            case a.CreateChild(name):
                await make_child(run, name, self._objects, self._gateway)

    async def _raise(self, run: RunKey, action: a.RaiseEpoch, known: Known) -> Known:
        """F2: the Lease first, then the fence."""
        await self._lease(run, action.epoch)
        request = self._fence(run, action.epoch, action.attempt, action.reason)
        return known.heard(await self._gateway.fence(run.uid, request))

    async def _lease(self, run: RunKey, epoch: int) -> None:
        """F1. A Lease that is further on is somebody else's work: look again."""
        raised = await self._substrate.raise_epoch(run, epoch, holder(run, epoch))
        if raised != epoch:
            raise Conflict(f"the Lease is at epoch {raised}, {epoch} was meant")

    def _fence(self, run: RunKey, epoch: int, attempt: int, reason: str) -> FenceRequest:
        lease = names.lease_name(run.uid, run.name)
        return FenceRequest(epoch=epoch, attempt=attempt, holder=holder(run, epoch), lease=lease, reason=reason)

    async def _register(self, run: RunKey, view: SandboxView, which: Which, known: Known) -> Known:
        pod = PodRegistration(
            pod_uid=view.uid, pod_name=view.name, epoch=which.epoch, role=which.role, commit=which.commit
        )
        return known.heard(await self._gateway.register(run.uid, pod))

    async def _report(self, run: RunKey, reports: Sequence[a.Report], known: Known) -> Known:
        now = self._clock.now_ms()
        records = [
            ReportedRecord(record_id=r.record_id, type=r.type, payload=r.payload, recorded_at=now) for r in reports
        ]
        return known.heard(await self._gateway.report(run.uid, _epoch(known), records))


async def _both(one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, object]) -> T:
    """What the one gives; what went wrong first is raised once both have ended: nothing of this pass is on its way any
    more when the next one looks.
    """
    first, second = await asyncio.gather(one, other, return_exceptions=True)
    if failed := next((each for each in (first, second) if isinstance(each, BaseException)), None):
        raise failed
    return cast("T", first)


def _late(view: RunView, action: a.Begin) -> list[Conflict]:
    """Somebody else was there before: what stands must be looked at before a sandbox starts."""
    s = view.state
    if s.phase is RunPhase.PROVISIONING and s.epoch == action.epoch and not s.sandboxes:
        return []
    return [Conflict(f"somebody else has brought the run to {s.phase} under epoch {s.epoch}")]


def grouped(actions: Sequence[a.Action]) -> list[list[a.Action]]:
    """What may go together: a volume with the epoch's rise, records with each other; order is kept otherwise.

    Never a volume with its sandbox: a scheduler that sees the pod first backs off for a second or two.
    """
    groups: list[list[a.Action]] = []
    for action in actions:
        last = groups[-1] if groups else []
        pair = len(last) == 1 and isinstance(last[0], a.RaiseEpoch) and isinstance(action, a.EnsureVolume)
        batch = bool(last) and isinstance(last[0], a.Report) and isinstance(action, a.Report)
        if pair or batch:
            last.append(action)
        else:
            groups.append([action])
    return groups


def which(action: a.StartSandbox) -> Which:
    """The sandbox that an action means."""
    return Which(action.epoch, action.role, action.serial, action.commit)


def holder(run: RunKey, epoch: int) -> str:
    """F1: the Lease's holder is the attempt, named as its runner's sandbox is."""
    return names.sandbox_name(run.uid, run.name, epoch, Role.RUNNER.value, 0)


def _epoch(known: Known) -> int:
    return known.observed.journal.epoch if known.observed.journal else 0
