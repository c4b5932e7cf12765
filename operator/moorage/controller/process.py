"""The operator as one process: everything that watches, works, scans and tells, started together and ended together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from moorage.api.wire import ResolvedRun
from moorage.clock import Clock
from moorage.controller.apply import Applier
from moorage.controller.cancels import Cancels
from moorage.controller.changes import ask, follow
from moorage.controller.commands import Commands
from moorage.controller.deliveries import Deliveries
from moorage.controller.engine import Engine
from moorage.controller.events import Events
from moorage.controller.gateway_client import GatewayClient
from moorage.controller.gather import Gatherer
from moorage.controller.handlers import OURS, guard_policies, tune, watch, watch_commands
from moorage.controller.health import Duty
from moorage.controller.objects import KubeObjects
from moorage.controller.operator import Operator, run_of_child
from moorage.controller.roll import Roll
from moorage.controller.scan import Scan
from moorage.controller.settings import OperatorSettings
from moorage.controller.signs import Signs
from moorage.controller.tenancy.contracts import Contracts
from moorage.controller.tenancy.rooms import Rooms
from moorage.controller.tenancy.tenancy import Tenancy
from moorage.controller.together import together, unless
from moorage.controller.usability import Usability
from moorage.core.scheduling.rate import Rate
from moorage.core.tenancy.room import Needs
from moorage.sandbox.kube import METADATA_ONLY, Body, KubeApi, KubeError, path_of
from moorage.sandbox.pods import PodSubstrate
from moorage.sandbox.port import NameTaken, Refused, RunKey, Unavailable
from moorage.sandbox.spec import SandboxSettings, needs
from moorage.sandbox.tenant import TenantObjects
from moorage.telemetry.metrics import OperatorMetrics

LIST_PAUSE_S = 1.0


@dataclass(frozen=True)
class Deps:
    """What the process is given; who makes them also closes them. `configuration` is how kopf reaches the API."""

    api: KubeApi
    configuration: Configuration
    gateway: GatewayClient
    clock: Clock
    metrics: OperatorMetrics
    log: Any
    chance: Random
    drivers: frozenset[str]
    constraints: frozenset[str] = frozenset()


async def sandbox_settings(api: KubeApi, settings: OperatorSettings) -> SandboxSettings:
    """Look up the gateway's Service: its address, its port, and the pods behind it. Raises KubeError, LookupError."""
    service = await api.get(path_of("v1", "services", settings.namespace, settings.gateway_service))
    if service is None:
        raise LookupError(f"Service {settings.gateway_service} isn't in {settings.namespace}: install the chart")
    spec = service["spec"]
    port = spec["ports"][0]
    target = port.get("targetPort")
    return SandboxSettings(
        gateway_ip=spec["clusterIP"],
        gateway_port=port["port"],
        gateway_namespace=settings.namespace,
        gateway_labels=dict(spec["selector"]),
        gateway_pod_port=target if target is not None else port["port"],
        pull_policy=settings.pull_policy,
        pull_secrets=settings.pull_secrets,
        priority_classes=settings.priority_classes,
        probe=settings.probe,
        default_disk=settings.defaults.disk or "5Gi",
    )


async def run_operator(
    settings: OperatorSettings,
    sandboxes: SandboxSettings,
    deps: Deps,
    *,
    stop: asyncio.Event,
    ready: asyncio.Event | None = None,
    duty: Duty | None = None,
) -> None:
    """Work until `stop`. `ready` is set once it watches; `duty` hears what the probes ask."""
    ready = ready or asyncio.Event()
    contracts, signs = Contracts(), Signs(deps.clock)
    rooms = Rooms(partial(_needs, sandboxes), deps.clock.now_ms)
    roll = Roll(settings.max_live_runs, deps.clock.now_ms, contracts.of, rooms.closed, opened=False)
    rooms.line(roll.queue.place)
    objects = KubeObjects(deps.api, settings.watch_namespaces)
    tenants = TenantObjects(deps.api, sandboxes, deps.clock.now_ms, settings.watch_namespaces)
    substrate = PodSubstrate(deps.api, sandboxes, tenants, deps.clock)
    events = Events(deps.api, deps.clock, settings.pod_name)

    def delivered(run: RunKey) -> None:
        operator.look(run)

    deliveries = Deliveries(deps.gateway, ended=delivered, log=deps.log)
    cancels = Cancels()
    engine = _engine(
        settings,
        deps,
        cancels=cancels,
        contracts=contracts,
        rooms=rooms,
        roll=roll,
        signs=signs,
        objects=objects,
        substrate=substrate,
        events=events,
        deliveries=deliveries,
    )
    commands = Commands(
        deps.api,
        deps.gateway,
        deps.clock.now_ms,
        deps.log,
        deps.chance,
        cancels=cancels,
        wake=delivered,
        authority=settings.command_authority,
    )
    operator = Operator(
        engine=engine,
        roll=roll,
        metrics=deps.metrics,
        log=deps.log,
        workers=settings.workers,
        chance=deps.chance,
        journaled=commands.journal_changed,
    )
    tenancy = Tenancy(
        deps.api,
        settings.watch_namespaces,
        contracts,
        rooms,
        live=roll.live,
        changed=operator.contract_changed,
        roomier=operator.room_changed,
        gateway=deps.gateway,
        now=deps.clock.now_ms,
        log=deps.log,
        chance=deps.chance,
    )
    if not await unless(stop, _load(tenancy, objects, operator, deps.log)):
        return
    scan = _scan(settings, deps, roll=roll, objects=objects, tenants=tenants, operator=operator)
    if duty is not None:
        duty.works(operator.queue.oldest_ms, ready)
    guard = PolicyGuard(tenants, deps.log)
    registry = kopf.OperatorRegistry()
    usability = Usability(
        deps.api, deps.clock.now_ms, deps.drivers, deps.log, deps.chance, constraints=deps.constraints
    )
    classes_changed = None if settings.watch_namespaces else objects.classes_changed
    watch(registry, operator, look=usability.look, heard=partial(_heard, substrate), classes_changed=classes_changed)
    watch_commands(registry, commands.seen)
    tenancy.watch(registry)
    guard_policies(registry, guard.drifted)
    _login(registry, deps.configuration)
    jobs = [
        operator.queue.run(),
        usability.queue.run(),
        commands.queue.run(),
        tenancy.reconciler.queue.run(),
        follow(deps.gateway, operator, deps.log, deps.chance, heard=signs.heard),
        ask(deps.gateway, signs),
        scan.run(settings.scan_s),
        tenancy.run(settings.scan_s),
        events.post(),
        guard.run(),
        _kopf(registry, settings, stop, ready),
    ]
    try:
        await together(jobs, stop)
    finally:
        await deliveries.close()
    operator.queue.close()
    usability.queue.close()
    commands.queue.close()
    tenancy.reconciler.queue.close()


def _engine(
    settings: OperatorSettings,
    deps: Deps,
    *,
    cancels: Cancels,
    contracts: Contracts,
    rooms: Rooms,
    roll: Roll,
    signs: Signs,
    objects: KubeObjects,
    substrate: PodSubstrate,
    events: Events,
    deliveries: Deliveries,
) -> Engine:
    gatherer = Gatherer(
        objects=objects,
        substrate=substrate,
        gateway=deps.gateway,
        roll=roll,
        defaults=settings.defaults,
        drivers=deps.drivers,
        constraints=deps.constraints,
        signs=signs,
        cancelled=cancels.asked,
        contract=contracts.of,
        rooms=rooms,
    )
    applier = Applier(
        substrate=substrate,
        gateway=deps.gateway,
        deliveries=deliveries,
        objects=objects,
        clock=deps.clock,
        metrics=deps.metrics,
    )
    return Engine(
        gatherer=gatherer,
        applier=applier,
        objects=objects,
        roll=roll,
        clock=deps.clock,
        telling=events,
        metrics=deps.metrics,
        rooms=rooms,
        recoveries=Rate(settings.recoveries_per_second, max(1, round(2 * settings.recoveries_per_second))),
    )


async def _load(tenancy: Tenancy, objects: KubeObjects, operator: Operator, log: Any) -> None:
    """Contracts, and all runs that stand, before anybody begins: a queue that knows some of them only grants slots that
    are taken.
    """
    await tenancy.load()
    while True:
        try:
            async for body in objects.bodies():
                operator.run_changed(None, body)
        except (Unavailable, KubeError) as e:
            log.warning("runs_not_listed", reason=type(e).__name__, message=str(e))
            await asyncio.sleep(LIST_PAUSE_S)
        else:
            return


def _scan(
    settings: OperatorSettings,
    deps: Deps,
    *,
    roll: Roll,
    objects: KubeObjects,
    tenants: TenantObjects,
    operator: Operator,
) -> Scan:
    return Scan(
        gateway=deps.gateway,
        objects=objects,
        roll=roll,
        clock=deps.clock,
        tenants=tenants,
        volumes=lambda: _volumes(deps.api, settings.watch_namespaces),
        look=operator.look,
        gone=operator.run_gone,
        journaled=operator.live_found,
        log=deps.log,
        namespaces=settings.watch_namespaces,
    )


def _needs(sandboxes: SandboxSettings, run: ResolvedRun, pod: bool, volume: bool) -> Needs:
    return needs(run, sandboxes, pod, volume)


def _heard(substrate: PodSubstrate, kind: str | None, child: Body) -> bool:
    """Tell the substrate of its run's child; whether that is news."""
    key = run_of_child(child)
    return key is None or substrate.heard(kind, child, key.uid)


async def _kopf(
    registry: kopf.OperatorRegistry, settings: OperatorSettings, stop: asyncio.Event, ready: asyncio.Event
) -> None:
    """Not `kopf.operator()`: at its end that cancels every task of the loop that is younger than itself."""
    tuned = kopf.OperatorSettings()
    tune(tuned)
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=tuned,
        standalone=True,
        clusterwide=not settings.watch_namespaces,
        namespaces=settings.watch_namespaces,
        stop_flag=stop,
        ready_flag=ready,
    )
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure


def _login(registry: kopf.OperatorRegistry, configuration: Configuration) -> None:
    """kopf asks again whenever its credentials are refused; the configuration reads the token anew."""

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        auth = (await configuration.auth_settings()).get("BearerToken", {}).get("value", "")
        scheme, _space, token = str(auth).partition(" ")
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            scheme=scheme.capitalize() if token else None,
            token=token or None,
        )


async def _volumes(api: KubeApi, namespaces: tuple[str, ...]) -> frozenset[RunKey]:
    """Whose volume claims stand."""
    found = []
    for namespace in namespaces or (None,):
        path = path_of("v1", "persistentvolumeclaims", namespace)
        accept = METADATA_ONLY.replace("PartialObjectMetadata", "PartialObjectMetadataList")
        found += await api.items(path, labels=OURS, accept=accept)
    return frozenset(key for key in map(run_of_child, found) if key is not None)


class PolicyGuard:
    """Puts back policies of ours that somebody changed or deleted, one look per word of the watch."""

    def __init__(self, tenants: TenantObjects, log: Any) -> None:
        self._tenants, self._log = tenants, log
        self._namespaces: asyncio.Queue[str] = asyncio.Queue()

    def drifted(self, namespace: str) -> None:
        """A policy of ours was changed or deleted there: no sandbox starts before somebody has looked."""
        self._tenants.doubt(namespace)
        self._namespaces.put_nowait(namespace)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            namespace = await self._namespaces.get()
            try:
                if await self._tenants.needed(namespace):
                    await self._tenants.ensure(namespace, fresh_ms=0)
            except (KubeError, NameTaken, Refused) as e:
                self._log.warning("policy_not_put_back", tenant=namespace, reason=type(e).__name__, message=str(e))
