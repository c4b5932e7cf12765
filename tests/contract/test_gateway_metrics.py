"""T6: who may come to the gateway's doors need not read what it measures of all tenants."""

import asyncio
import socket
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from moorage.app.gateway import _metrics_served
from moorage.gateway.settings import GatewaySettings
from moorage.store.memory import MemoryStore
from moorage.telemetry.metrics import GatewayMetrics
from moorage.testing.gateway import LocalGateway


@pytest.mark.rule("T6")
async def test_metrics_that_have_a_port_of_their_own_are_among_no_doors(tmp_path: Path) -> None:
    for apart, status in ((True, 404), (False, 200)):
        folder = tmp_path / str(apart)
        folder.mkdir()
        gateway = LocalGateway(folder, store=MemoryStore(), settings=GatewaySettings(metrics_apart=apart))
        async with gateway.serving():
            assert (await gateway.client(None).get("/metrics")).status_code == status
            assert (await gateway.client(None).get("/healthz")).status_code == 200


@pytest.mark.rule("T6")
async def test_their_port_tells_them_and_nothing_else_and_closes_with_the_process() -> None:
    metrics = GatewayMetrics(CollectorRegistry())
    metrics.refusals.labels("allowance", "Forbidden").inc()
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        async with _metrics_served(metrics, port), asyncio.timeout(20):
            while True:
                try:
                    answer = await http.get("/metrics")
                except httpx.ConnectError:
                    await asyncio.sleep(0.01)
                else:
                    break
            assert 'moorage_gateway_refusals_total{door="allowance",reason="Forbidden"} 1.0' in answer.text
            assert (await http.get("/v1/runs?pending=true")).status_code == 404
        with pytest.raises(httpx.ConnectError):
            await http.get("/metrics")
