"""What all doors share: the dependencies, and the question who is calling about which run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from secrets import randbits
from typing import Any

import httpx
from starlette.requests import Request

from moorage.api.wire import ResolvedRun, Role
from moorage.clock import Clock
from moorage.core.commands.admission import Abilities
from moorage.core.constraints.judging import Factory
from moorage.core.journal.ciphers import ContentKeys
from moorage.core.journal.heads import SigningKey
from moorage.core.journal.record import Record
from moorage.gateway.addresses import Resolve, resolved
from moorage.gateway.allowances import Allowances
from moorage.gateway.auth import Authenticator, Identity, Kind, require, token_of
from moorage.gateway.constraints import Judge
from moorage.gateway.contents import Contents
from moorage.gateway.durations import Durations
from moorage.gateway.elders import EldersFirst
from moorage.gateway.errors import Forbidden, NotRegistered, Refusal, UnknownRun
from moorage.gateway.heads import Heads
from moorage.gateway.heartbeat import Heartbeats
from moorage.gateway.ledger import Appended, Ledger, Run
from moorage.gateway.mirroring import BASE_PIN, PROPOSAL_PIN, OwnRefs, RunRefs, SharedRefs, base_of, mirror_key
from moorage.gateway.ports import LeaseRenewer, Secrets
from moorage.gateway.providers import Providers
from moorage.gateway.room import Room
from moorage.gateway.settings import GatewaySettings
from moorage.gateway.snapshots import Snapshots
from moorage.store import errors as store_errors
from moorage.store.blobs import BlobStore
from moorage.store.peers import Alone, Peers
from moorage.store.port import DurableExecutionStore, Execution, Pod
from moorage.telemetry.metrics import GatewayMetrics, Violation
from moorage.workspace.mirror import Mirrors

__all__ = ["BASE_PIN", "PROPOSAL_PIN", "Caller", "Gate", "GatewayDeps", "base_of", "branch_of", "mirror_key"]


def no_abilities(driver: str) -> Abilities:  # noqa: ARG001  the port's signature
    """Of a driver that isn't known."""
    return Abilities()


def drawn() -> int:
    """A number below 2³²."""
    return randbits(32)


@dataclass(frozen=True)
class GatewayDeps:
    """Everything that the gateway needs from outside; who makes them also closes them. `abilities`: what a driver, by
    its name, can do with commands.
    """

    store: DurableExecutionStore
    blobs: BlobStore
    mirrors: Mirrors
    authenticator: Authenticator
    secrets: Secrets
    leases: LeaseRenewer
    http: httpx.AsyncClient
    providers: Providers
    clock: Clock
    head_key: SigningKey
    metrics: GatewayMetrics
    log: Any
    settings: GatewaySettings = field(default_factory=GatewaySettings)
    resolve: Resolve = resolved
    peers: Peers = field(default_factory=Alone)
    abilities: Callable[[str], Abilities] = no_abilities
    appended: Appended | None = None
    content_keys: ContentKeys | None = None
    lot: Callable[[], int] = drawn
    """Draws a number below 2³²: jitter."""
    constraints: Mapping[str, Factory] = field(default_factory=dict)  # C4: entry points by name


@dataclass(frozen=True)
class Caller:
    """A sandbox at a door: its registered pod, the run it works for, and whose token it was."""

    identity: Identity
    pod: Pod
    run: Run

    @property
    def epoch(self) -> int:
        """The epoch that the pod was registered with."""
        return self.pod.epoch


class Gate:
    """Shared by all rooms of one application."""

    def __init__(self, deps: GatewayDeps) -> None:
        self.deps, self._durations = deps, Durations(deps.metrics)
        snapshots = Snapshots(deps.store, deps.head_key, deps.metrics, deps.log, deps.settings)
        self.ledger = Ledger(
            deps.store,
            deps.blobs,
            deps.clock,
            deps.metrics,
            deps.settings,
            snapshots=snapshots,
            peers=deps.peers,
            appended=self._appended,
        )
        self.room = Room(deps.settings.room_bytes, deps.settings.room_share_bytes)
        self.allowances = Allowances(deps.store, deps.peers, deps.clock, deps.log)
        self.judge = Judge(self.ledger, deps.clock, deps.constraints, deps.metrics)
        shared = deps.settings.mirrors_shared
        refs: RunRefs = (
            SharedRefs(
                deps.mirrors,
                deps.store,
                deps.blobs,
                deps.secrets,
                deps.log,
                settings=deps.settings,
                metrics=deps.metrics,
            )
            if shared
            else OwnRefs(deps.mirrors)
        )
        self.refs = EldersFirst(refs, self.ledger, deps.mirrors, deps.metrics.violations)
        self.contents = Contents(deps.blobs, deps.content_keys, deps.log)
        self.heads = Heads(deps.store, deps.head_key)
        self.heartbeats = Heartbeats(
            deps.peers, deps.leases, deps.clock, deps.metrics, deps.log, every_ms=deps.settings.lease_renewal_ms
        )

    def _appended(self, spec: ResolvedRun, records: Sequence[Record]) -> None:
        self._durations.appended(records)
        if self.deps.appended is not None:
            self.deps.appended(spec, records)

    async def identify(self, request: Request) -> Identity:
        """Who is calling. Raise Unauthenticated, Unavailable."""
        try:
            identity = await self.deps.authenticator.authenticate(token_of(request))
        except Refusal as error:
            self.deps.metrics.tokens_checked.labels(error.reason).inc()
            raise
        self.deps.metrics.tokens_checked.labels(identity.kind.value).inc()
        return identity

    async def operator(self, request: Request) -> Identity:
        """The operator, or Forbidden."""
        return require(await self.identify(request), Kind.OPERATOR)

    async def run_for_operator(self, request: Request) -> Run:
        """The run of the path, for the operator. Raise UnknownRun also where it has joined its session and no more: its
        journal begins with its admission, and with nothing else.
        """
        await self.operator(request)
        run = await self.ledger.open(request.path_params["uid"])
        if run.state.offset < 0:
            raise UnknownRun(f"the journal of run {run.uid} hasn't begun: admit it first")
        return run

    async def run_for_reader(self, request: Request) -> Run:
        """The run of the path, for the operator and for those who may read AgentRuns of its namespace (I9, I10).

        Who may not is told what one is told who asks for a run that isn't there.
        """
        return await self.ledger.open((await self.row_for_reader(request)).run_uid)

    async def row_for_reader(self, request: Request) -> Execution:
        """The same, without opening it: a journal that is broken, too, can be looked at."""
        identity = await self.identify(request)
        uid = request.path_params["uid"]
        try:
            row = await self.deps.store.get(uid)
        except store_errors.UnknownRun:
            raise UnknownRun(f"there is no run {uid} here, or none that you may read") from None
        allowed = identity.kind is Kind.OPERATOR or await self.deps.authenticator.may_read(identity, row.tenant)
        if not allowed:
            raise UnknownRun(f"there is no run {uid} here, or none that you may read")
        return row

    async def demand_settler(self, request: Request, tenant: str, doing: str) -> Identity:
        """Who may `update agentruns/effects` in the namespace, of those who may read there. Raise Forbidden."""
        who = await self.identify(request)
        if not await self.deps.authenticator.may_resolve(who, tenant):
            raise Forbidden(f"you may not {doing} in {tenant}: it takes update on agentruns/effects")
        return who

    async def pod(self, request: Request) -> Caller:
        """The registered sandbox that calls, of whatever epoch. Raise NotRegistered, Forbidden."""
        identity = require(await self.identify(request), Kind.SANDBOX)
        pod = await self.deps.store.find_pod(identity.pod_uid or "")
        if pod is None:
            raise NotRegistered(identity.pod_name or identity.pod_uid or "?")
        run = await self.ledger.open(pod.run_uid)
        if identity.namespace not in {None, run.tenant}:
            self.deps.metrics.violations.labels(Violation.CROSS_TENANT_READ).inc()
            raise Forbidden(f"this pod is not of the run's namespace {run.tenant}")
        return Caller(identity, pod, run)

    async def sandbox(self, request: Request, door: str, *roles: Role) -> Caller:
        """The sandbox that calls, under the current epoch and in one of `roles`. Raise Fenced and as `pod`."""
        caller = await self.pod(request)
        await self.demand_epoch(caller.run, caller.epoch, door, caller.pod.pod_uid)
        if caller.pod.role not in roles:
            raise Forbidden(f"a {caller.pod.role} has no business at this door; it is for: {', '.join(roles)}")
        return caller

    async def demand_epoch(self, run: Run, epoch: int, door: str, who: str = "operator") -> None:
        """F3: raise Fenced, counted and journaled, where `epoch` is older than the run's."""
        if epoch > run.state.epoch:
            raise Refusal(f"epoch {epoch} was not raised here: raise the fence first", status=409, reason="EpochAhead")
        if epoch < run.state.epoch:
            raise await self.ledger.refuse_fenced(run, epoch, door, who)


def branch_of(run: Run) -> str:
    """The branch that the run proposes on, also where nothing is delivered."""
    return run.spec.delivery.branch if run.spec.delivery else f"moorage/{run.spec.name}"
