"""The operator's process on a cluster: one of several, of which one leads."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from random import Random

from kubernetes.aio.client import Configuration
from prometheus_client import CollectorRegistry

from moorage.app import constraints
from moorage.app.apiclient import api_client
from moorage.app.settings import in_cluster, settings_read
from moorage.clock import SystemClock
from moorage.controller.definitions import await_definitions
from moorage.controller.election import Deposed, Election
from moorage.controller.gateway_client import GatewayClient, Token, session, token_file
from moorage.controller.health import Duty, serve_probes
from moorage.controller.process import Deps, run_operator, sandbox_settings
from moorage.controller.replica import take_turns
from moorage.controller.settings import OperatorSettings
from moorage.controller.together import together
from moorage.drivers.registry import known
from moorage.sandbox.kube import KubeApi
from moorage.sandbox.spec import SandboxSettings
from moorage.telemetry.logs import start_logging
from moorage.telemetry.metrics import OperatorMetrics


def main() -> None:
    """Work until SIGTERM. Exits with 1 where another one leads now: whoever starts it again has a standby."""
    with settings_read():
        settings = OperatorSettings.from_environment(os.environ)
    asyncio.run(operate(settings, in_cluster(), token_file(settings.gateway_token_file)))


async def operate(
    settings: OperatorSettings, configuration: Configuration, token: Token, sandboxes: SandboxSettings | None = None
) -> None:
    """The process. `token`: what the gateway knows it by. `sandboxes` None: as the gateway's Service says."""
    log = start_logging("operator", settings.log_level, sys.stdout)
    stop = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    metrics = OperatorMetrics(CollectorRegistry())
    own = KubeApi(api_client(configuration), lambda verb, _: metrics.leader_writes.labels(verb).inc())
    election = _election(settings, own, metrics, log)

    def writes(verb: str, resource: str) -> None:
        election.demand()
        metrics.api_writes.labels(verb, resource).inc()

    api = KubeApi(api_client(configuration), writes)
    try:
        async with session() as http:
            deps = Deps(
                api=api,
                configuration=configuration,
                gateway=GatewayClient(http, settings.gateway_url, token, election.leads),
                clock=SystemClock(),
                metrics=metrics,
                log=log,
                chance=Random(),  # noqa: S311  jitter, not a secret
                drivers=frozenset({*known(), *settings.drivers}),
                constraints=constraints.known(),
            )
            await await_definitions(api, log)
            sandboxes = sandboxes or await sandbox_settings(api, settings)
            await _replica(settings, sandboxes, deps, election, stop)
    except Deposed as e:
        log.warning("deposed", reason="Deposed", message=str(e))
        sys.exit(1)
    finally:
        await api.close()
        await own.close()


def _election(settings: OperatorSettings, own: KubeApi, metrics: OperatorMetrics, log: object) -> Election:
    """On a client of its own: a renewal waits for no pass's connection."""
    return Election(
        own,
        namespace=settings.namespace,
        name=settings.leader_lease,
        me=settings.pod_name,
        clock=SystemClock(),
        log=log,
        told=lambda leads: metrics.leader.set(int(leads)),
    )


async def _replica(
    settings: OperatorSettings, sandboxes: SandboxSettings, deps: Deps, election: Election, stop: asyncio.Event
) -> None:
    duty = Duty(ready=election.in_touch)

    async def work(stopping: asyncio.Event) -> None:
        await run_operator(settings, sandboxes, deps, stop=stopping, duty=duty)

    with _listen(settings.health_port) as listener:
        jobs = [take_turns(election, work, stop), serve_probes(listener, duty, deps.metrics.registry)]
        await together(jobs, asyncio.Event())


def _listen(port: int) -> socket.socket:
    """Bind before anything works: a port that is taken is told at once."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", port))  # noqa: S104  its own network namespace
    return listener
