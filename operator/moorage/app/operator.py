"""The operator's process on a cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from random import Random

from kubernetes.aio import config
from kubernetes.aio.client import Configuration
from prometheus_client import CollectorRegistry

from moorage.app.apiclient import api_client
from moorage.clock import SystemClock
from moorage.controller.definitions import await_definitions
from moorage.controller.gateway_client import GatewayClient, session, token_file
from moorage.controller.process import Deps, run_operator, sandbox_settings
from moorage.controller.settings import OperatorSettings
from moorage.drivers.registry import known
from moorage.sandbox.kube import KubeApi
from moorage.telemetry.logs import start_logging
from moorage.telemetry.metrics import OperatorMetrics


def main() -> None:
    """Work until SIGTERM."""
    asyncio.run(_work(OperatorSettings.from_environment(os.environ)))


async def _work(settings: OperatorSettings) -> None:
    log = start_logging("operator", settings.log_level, sys.stdout)
    stop = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    configuration = Configuration()
    config.load_incluster_config(client_configuration=configuration)
    metrics = OperatorMetrics(CollectorRegistry())
    api = KubeApi(api_client(configuration), lambda verb, resource: metrics.api_writes.labels(verb, resource).inc())
    try:
        async with session() as http:
            deps = Deps(
                api=api,
                configuration=configuration,
                gateway=GatewayClient(http, settings.gateway_url, token_file(settings.gateway_token_file)),
                clock=SystemClock(),
                metrics=metrics,
                log=log,
                chance=Random(),  # noqa: S311  jitter, not a secret
                drivers=frozenset(known()),
            )
            await await_definitions(api, log)
            sandboxes = await sandbox_settings(api, settings)
            await run_operator(settings, sandboxes, deps, stop=stop, listener=_listen(settings.health_port))
    finally:
        await api.close()


def _listen(port: int) -> socket.socket:
    """Bind before anything works: a port that is taken is told at once."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", port))  # noqa: S104  its own network namespace
    return listener
