"""The operator as a process: `python -m e2e.bench.operator_process KUBECONFIG GATEWAY-URL HEALTH-PORT MAX-LIVE`.

What moorage.app.operator composes, with a kubeconfig in the place of a pod's own files.
"""

import asyncio
import signal
import socket
import sys
from pathlib import Path
from random import Random

from prometheus_client import CollectorRegistry

from moorage.app.apiclient import api_client
from moorage.clock import SystemClock
from moorage.controller.definitions import await_definitions
from moorage.controller.gateway_client import GatewayClient, session
from moorage.controller.process import Deps, run_operator
from moorage.controller.settings import OperatorSettings
from moorage.core.run.resolve import Defaults
from moorage.drivers.registry import known
from moorage.sandbox.kube import KubeApi, load_configuration
from moorage.sandbox.spec import SandboxSettings
from moorage.telemetry.logs import start_logging
from moorage.telemetry.metrics import OperatorMetrics
from moorage.testing.gateway import OPERATOR_TOKEN

SANDBOXES = SandboxSettings(
    gateway_ip="10.96.0.10",
    gateway_port=8080,
    gateway_namespace="moorage-system",
    gateway_labels={"app.kubernetes.io/component": "gateway"},
)


async def work(kubeconfig: str, gateway_url: str, port: int, max_live: int) -> None:
    """Until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    settings = OperatorSettings(
        gateway_url=gateway_url,
        gateway_token_file=Path("/dev/null"),
        namespace="moorage-system",
        gateway_service="gateway",
        defaults=Defaults(image="localhost/moorage/base:1", cpu="1", memory="1Gi", disk="1Gi"),
        max_live_runs=max_live,
        health_port=port,
    )
    configuration = await load_configuration(kubeconfig)
    metrics = OperatorMetrics(CollectorRegistry())
    api = KubeApi(api_client(configuration), lambda verb, resource: metrics.api_writes.labels(verb, resource).inc())
    listener = socket.create_server(("127.0.0.1", port))
    log = start_logging("operator", "info", sys.stdout)
    try:
        async with session() as http:
            deps = Deps(
                api=api,
                configuration=configuration,
                gateway=GatewayClient(http, gateway_url, lambda: OPERATOR_TOKEN),
                clock=SystemClock(),
                metrics=metrics,
                log=log,
                chance=Random(),
                drivers=frozenset(known()),
            )
            await await_definitions(api, log)
            await run_operator(settings, SANDBOXES, deps, stop=stop, listener=listener)
    finally:
        await api.close()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
