"""A real runner with an unmodified program that reaches an allowed host by the proxy settings that it finds."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moorage.api.wire import ResolvedEgress, ResolvedSandbox
from moorage.gateway.settings import GatewaySettings
from moorage.testing.authority import Authority
from moorage.testing.world import Run, World

pytestmark = pytest.mark.timeout(180)  # two runners, one after the other

HOST = "api.example.com"
# Orders twice the same, reads, asks for what isn't listed, and tells; in the first attempt it stays until it is killed.
AGENT = """
import json, os, pathlib, sys, time, urllib.error, urllib.request

def ask(url, data=None):
    try:
        with urllib.request.urlopen(url, data, timeout=60) as answer:
            return [answer.status, json.loads(answer.read())]
    except urllib.error.HTTPError as error:
        return [error.code, json.loads(error.read())["reason"]]

told = {
    "orders": [ask("http://api.example.com/orders", b"one") for _ in range(2)],
    "read": ask("http://api.example.com/orders"),
    "elsewhere": ask("http://other.example.com/"),
    "proxies": sorted(name for name in os.environ if name.lower().endswith("_proxy")),
}
print(json.dumps(told), flush=True)
pathlib.Path("work.txt").write_text("done")
time.sleep(float(pathlib.Path("../pause").read_text()))
"""


@pytest.fixture
async def authority() -> AsyncIterator[Authority]:
    async with Authority().listening() as listening:
        yield listening


async def told(run: Run, number: int) -> Any:
    """What the agent of that attempt has told."""
    for _ in range(600):
        said = "".join(each["text"] for each in await run.content("AGENT_OUTPUT") if each["stream"] == "stdout")
        if len(lines := said.splitlines()) >= number:
            return json.loads(lines[number - 1])
        await asyncio.sleep(0.1)
    raise AssertionError("the agent told nothing")


@pytest.mark.rule("E8", "E2", "R2", "L4")
@pytest.mark.parametrize("effects", ["keyed", "opaque"])
async def test_what_a_killed_attempt_had_done_is_done_once(tmp_path: Path, authority: Authority, effects: Any) -> None:
    host = ResolvedEgress(host=HOST, effects=effects, scheme="http", port=authority.port)
    settings = GatewaySettings(egress_private=("127.0.0.0/8",))
    async with World(tmp_path / "world", settings=settings, hosts={HOST: "127.0.0.1"}) as world:
        run = await world.admit(command=("python3", "-c", AGENT), sandbox=ResolvedSandbox(egress=(host,)))
        run.volume.mkdir()
        (run.volume / "pause").write_text("600")
        first = await run.start()
        before = await told(run, 1)
        assert before["orders"] == [[201, {"number": 1}], [201, {"number": 2}]]
        assert (before["read"][0], before["elsewhere"]) == (200, [403, "EgressForbidden"])
        assert {name.lower() for name in before["proxies"]} == {"http_proxy", "https_proxy", "no_proxy"}
        await first.kill()
        await run.report("ATTEMPT_ENDED", {"epoch": 1, "reason": "PodLost", "message": ""})
        await world.restart_gateway(0)
        (run.volume / "pause").write_text("0")
        second = await run.start(2)
        after = await told(run, 2)
        assert await second.ended() == 0
        assert after["orders"] == before["orders"]
        assert (authority.committed, authority.duplicates) == ([b"one", b"one"], 1)  # ordered twice, as it was told to
        assert [seen.method for seen in authority.log] == ["POST", "POST", "GET", "GET"]
        effects_closed = {e["status"] for e in (await run.state())["effects"]}
        assert effects_closed == {"confirmed"}


async def test_an_agent_without_hosts_finds_no_proxy(tmp_path: Path) -> None:
    command = ("sh", "-c", "env | grep -ci _proxy || true; touch work.txt")
    async with World(tmp_path / "world") as world:
        run = await world.admit(command=command)
        await run.start()
        await run.until("AGENT_FINISHED")
        assert await told(run, 1) == 0
