"""Answers that hosts compress, asked or not: they reach the agent as they came, also out of the record."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway_script import PASSWORD, Operator, agent_at_work, ok, resolved, told

from moorage.api.wire import ResolvedEgress, ResolvedSandbox
from moorage.gateway.settings import GatewaySettings
from moorage.testing.authority import Authority
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def authority() -> AsyncIterator[Authority]:
    async with Authority(gzips=True).listening() as listening:
        yield listening


@pytest.fixture
async def operator(tmp_path: Path, upstream: GitServer, authority: Authority) -> AsyncIterator[Operator]:
    names = ("keyed", "opaque", "none")
    hosts = {f"{name}.example.com": "127.0.0.1" for name in names}
    gateway = LocalGateway(tmp_path, settings=GatewaySettings(egress_private=("127.0.0.0/8",)), hosts=hosts)
    gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    common: dict[str, Any] = {"scheme": "http", "port": authority.port}
    egress = tuple(ResolvedEgress(host=f"{name}.example.com", effects=name, **common) for name in names)
    async with gateway.serving():
        yield Operator(gateway, resolved(upstream, sandbox=ResolvedSandbox(egress=egress)))


async def asked(runner: httpx.AsyncClient, host: str) -> httpx.Response:
    answer = await runner.post(f"/egress/http/{host}.example.com/v1/pay", content=b"{}")
    assert (answer.status_code, answer.headers["content-encoding"]) == (201, "gzip")
    return answer


async def test_a_compressed_answer_to_a_read_is_told_as_one(operator: Operator) -> None:
    runner = await agent_at_work(operator.gateway, operator)
    assert (await asked(runner, "none")).json() == {"number": 1}


@pytest.mark.rule("E3", "R2")
@pytest.mark.parametrize("host", ["keyed", "opaque"])
async def test_a_compressed_answer_is_told_as_one_also_out_of_the_record(
    operator: Operator, authority: Authority, host: str
) -> None:
    runner = await agent_at_work(operator.gateway, operator)
    assert (await asked(runner, host)).json() == {"number": 1}
    operator.gateway.restart()
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "reason": "PodLost", "message": ""}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    second = operator.gateway.sandbox("p2", "team-a")
    await ok(await second.post("/v1/self/records", json=told("AGENT_STARTED", {}, epoch=2)))
    again = await asked(second, host)
    assert (again.json(), again.headers["x-moorage-replayed"]) == ({"number": 1}, "true")
    assert len(authority.log) == 1
