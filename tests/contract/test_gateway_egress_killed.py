"""The gateway is killed at every point of an HTTP effect; the host that has the effect counts how often."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway_killed import Killed, Patient, running
from tests.gateway_script import BRANCH, resolved, told

from moorage.api.wire import ResolvedEgress, ResolvedSandbox
from moorage.core.journal.chain import Intact
from moorage.core.journal.export import verify_export
from moorage.points import Point
from moorage.runner.relay import Relay
from moorage.testing.authority import Authority
from moorage.testing.gateway import OPERATOR_TOKEN
from moorage.testing.gitserver import GitServer
from moorage.testing.killpoints import Shot, environment

pytestmark = pytest.mark.timeout(240)  # a process per point

RUN, DOOR = "/v1/runs/u1", "/egress/http/api.example.com/v1/orders"
NOTHING_MEANT = [Shot(Point.INTENT_BEFORE), Shot(Point.APPEND_BEFORE, 1), Shot(Point.APPEND_WITHIN, 1)]
MEANT = [Shot(Point.APPEND_AFTER, 1), Shot(Point.INTENT_AFTER), Shot(Point.EGRESS_BEFORE)]
HAPPENED = [Shot(Point.EGRESS_WITHIN), Shot(Point.APPEND_BEFORE, 2), Shot(Point.APPEND_WITHIN, 2)]
WRITTEN = [Shot(Point.APPEND_AFTER, 2), Shot(Point.EGRESS_AFTER)]
ONE_OF_EACH = [NOTHING_MEANT[0], MEANT[-1], HAPPENED[0], *WRITTEN]
SHOTS = [*NOTHING_MEANT, *MEANT, *HAPPENED, *WRITTEN]


@pytest.fixture
async def authority() -> AsyncIterator[Authority]:
    async with Authority().listening() as listening:
        yield listening


def body(shot: Shot) -> bytes:
    return str(shot).encode()


async def at_work(gateway: Killed, upstream: GitServer, authority: Authority, effects: str) -> Patient:
    """A run whose agent has started; gives its operator."""
    host = ResolvedEgress(host="api.example.com", effects=effects, scheme="http", port=authority.port)
    spec = resolved(upstream, sandbox=ResolvedSandbox(egress=(host,)))
    operator, runner = Patient(gateway.port, OPERATOR_TOKEN), Patient(gateway.port, "token-of-p1")
    await operator("PUT", RUN, spec.model_dump(mode="json"))
    await operator("POST", f"{RUN}/fence", {"epoch": 1, "attempt": 1, "holder": "a"})
    await operator("POST", f"{RUN}/pods", {"pod_uid": "p1", "pod_name": "p1", "epoch": 1, "role": "runner"})
    base = (await runner("GET", "/v1/self"))["git"]["base"]
    await runner("POST", "/v1/self/records", told("WORKSPACE_READY", {"base": base, "branch": BRANCH}))
    await runner("POST", "/v1/self/records", told("AGENT_STARTED", {}))
    await runner.http.aclose()
    return operator


async def shoot(gateway: Killed, trace: Path, shot: Shot, agent: httpx.AsyncClient) -> None:
    """The agent asks a gateway that is killed at that point, hears nothing, and doesn't ask again in this attempt."""
    await gateway.kill()
    await gateway.start(environment(trace, shot))
    with contextlib.suppress(httpx.TransportError):
        answer = await agent.post(DOOR, content=body(shot))
        pytest.fail(f"{shot} was not reached: {answer.text}")
    assert gateway.process is not None
    assert await gateway.process.wait() == -9


async def killed_at(shots: Sequence[Shot], gateway: Killed, tmp_path: Path) -> None:
    """One call per point, none of which gets an answer; the gateway is dead afterwards."""
    url, token = f"http://127.0.0.1:{gateway.port}", {"authorization": "Bearer token-of-p1"}
    async with httpx.AsyncClient(base_url=url, headers=token, timeout=30) as agent:
        for number, shot in enumerate(shots):
            await shoot(gateway, tmp_path / f"{number}.trace", shot, agent)


async def next_attempt(operator: Patient, port: int) -> Patient:
    lost = {"epoch": 1, "reason": "PodLost", "message": ""}
    await operator("POST", f"{RUN}/records", told("ATTEMPT_ENDED", lost))
    await operator("POST", f"{RUN}/fence", {"epoch": 2, "attempt": 2, "holder": "b"})
    await operator("POST", f"{RUN}/pods", {"pod_uid": "p2", "pod_name": "p2", "epoch": 2, "role": "runner"})
    runner = Patient(port, "token-of-p2")
    await runner("POST", "/v1/self/records", told("AGENT_STARTED", {}, epoch=2))
    return runner


async def killed_everywhere(
    gateway: Killed, tmp_path: Path, operator: Patient, authority: Authority
) -> dict[str, tuple[int, Any]]:
    """One call per point, then all of them once more by the next attempt: what each got, by its point."""
    await killed_at(SHOTS, gateway, tmp_path)
    assert authority.committed == [body(shot) for shot in (*HAPPENED, *WRITTEN)]
    await gateway.start()
    again = await next_attempt(operator, gateway.port)
    got = {}
    for shot in SHOTS:
        answer = await again.http.post(DOOR, content=body(shot))
        got[str(shot)] = (answer.status_code, answer.json())
    await again.http.aclose()
    exported = await operator.answer("GET", f"{RUN}/journal")
    assert isinstance(verify_export([exported.content]).chain, Intact)
    return got


@pytest.mark.rule("E1", "E2", "E4", "E6", "K1")
async def test_keyed_requests_happen_exactly_once_wherever_the_gateway_is_killed(
    upstream: GitServer, tmp_path: Path, authority: Authority
) -> None:
    async with running(tmp_path) as gateway:
        operator = await at_work(gateway, upstream, authority, "keyed")
        got = await killed_everywhere(gateway, tmp_path, operator, authority)
        state = (await operator("GET", RUN))["state"]
        await operator.http.aclose()
    assert {status for status, _ in got.values()} == {201}
    assert sorted(authority.committed) == sorted(body(shot) for shot in SHOTS)
    assert authority.duplicates == 0
    assert {(e["level"], e["status"]) for e in state["effects"]} == {("keyed", "confirmed")}
    sent = {seen.headers["idempotency-key"]: seen.body for seen in authority.log}
    assert sorted(sent.values()) == sorted(authority.committed)  # one key each, however often it was sent


@pytest.mark.rule("E1", "E3", "E4", "E6", "I8", "K1")
async def test_other_requests_are_sent_once_at_most_and_unknown_where_nobody_can_know(
    upstream: GitServer, tmp_path: Path, authority: Authority
) -> None:
    async with running(tmp_path) as gateway:
        operator = await at_work(gateway, upstream, authority, "opaque")
        got = await killed_everywhere(gateway, tmp_path, operator, authority)
        await operator.http.aclose()
    for shot in (*NOTHING_MEANT, *WRITTEN):
        assert got[str(shot)][0] == 201, shot
    for shot in (*MEANT, *HAPPENED):
        assert (got[str(shot)][0], got[str(shot)][1]["reason"]) == (409, "EffectUnknown"), shot
    assert authority.duplicates == 0
    assert sorted(authority.committed) == sorted(body(s) for s in (*NOTHING_MEANT, *HAPPENED, *WRITTEN))
    assert len(authority.log) == len(authority.committed)


SETTLED = [Shot(Point.EGRESS_BEFORE), Shot(Point.EGRESS_WITHIN), Shot(Point.EGRESS_AFTER)]


@pytest.mark.rule("E4", "I8", "R1")
@pytest.mark.parametrize(
    ("effects", "ends"),
    [
        ("keyed", ["confirmed", "confirmed", "confirmed"]),
        ("opaque", ["unknown", "unknown", "confirmed"]),
        ("none", ["not_dispatched", "not_dispatched", "confirmed"]),
    ],
)
async def test_what_was_left_open_is_settled_before_the_run_goes_on(
    upstream: GitServer, tmp_path: Path, authority: Authority, effects: str, ends: list[str]
) -> None:
    async with running(tmp_path) as gateway:
        operator = await at_work(gateway, upstream, authority, effects)
        await killed_at(SETTLED, gateway, tmp_path)
        await gateway.start()
        lost = {"epoch": 1, "reason": "PodLost", "message": ""}
        await operator("POST", f"{RUN}/records", told("ATTEMPT_ENDED", lost))
        for _ in range(2):  # a second time settles nothing more
            state = (await operator("POST", f"{RUN}/deliver", {"epoch": 1}))["state"]
            assert [e["status"] for e in state["effects"]] == ends
        await operator.http.aclose()
    sent = SETTLED if effects == "keyed" else SETTLED[1:]
    assert sorted(authority.committed) == sorted(body(shot) for shot in sent)


@pytest.mark.rule("E4", "E8", "K1")
async def test_a_tunnel_that_died_with_the_gateway_is_unknown(
    upstream: GitServer, tmp_path: Path, authority: Authority
) -> None:
    async with running(tmp_path) as gateway:
        operator = await at_work(gateway, upstream, authority, "opaque")
        (tmp_path / "token").write_text("token-of-p1")
        relay = Relay(f"http://127.0.0.1:{gateway.port}", tmp_path / "token")
        await relay.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(relay.url.rpartition(":")[2]))
        writer.write(f"CONNECT api.example.com:{authority.port} HTTP/1.1\r\n\r\n".encode())
        assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        await gateway.kill()
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()
        await relay.stop()
        await gateway.start()
        state = (await operator("POST", f"{RUN}/deliver", {"epoch": 1}))["state"]
        assert [(e["kind"], e["status"]) for e in state["effects"]] == [("tunnel", "unknown")]
        await operator.http.aclose()


@pytest.mark.rule("I5", "E4")
async def test_a_run_that_is_cancelled_repeats_nothing(
    upstream: GitServer, tmp_path: Path, authority: Authority
) -> None:
    async with running(tmp_path) as gateway:
        operator = await at_work(gateway, upstream, authority, "keyed")
        await killed_at(SETTLED[:2], gateway, tmp_path)
        await gateway.start()
        await operator("POST", f"{RUN}/records", told("CANCEL_REQUESTED", {"reason": "user"}))
        state = (await operator("POST", f"{RUN}/deliver", {"epoch": 1}))["state"]
        assert [e["status"] for e in state["effects"]] == ["unknown", "unknown"]
        await operator.http.aclose()
    assert len(authority.log) == 1


@pytest.mark.rule("E2", "E6", "L4", "K1")
@pytest.mark.parametrize("effects", ["keyed", "opaque"])
async def test_an_agent_behind_its_relay_hears_of_no_gateways_death_but_of_what_nobody_knows(
    upstream: GitServer, tmp_path: Path, authority: Authority, effects: str
) -> None:
    async with running(tmp_path) as gateway:
        operator = await at_work(gateway, upstream, authority, effects)
        (tmp_path / "token").write_text("token-of-p1")
        relay = Relay(f"http://127.0.0.1:{gateway.port}", tmp_path / "token")
        await relay.start()
        got = {}
        async with httpx.AsyncClient(proxy=relay.url, timeout=60) as agent:
            for number, shot in enumerate(ONE_OF_EACH):
                await gateway.kill()
                await gateway.start(environment(tmp_path / f"{number}.trace", shot))
                asked = asyncio.create_task(agent.post("http://api.example.com/v1/orders", content=body(shot)))
                assert gateway.process is not None
                assert await gateway.process.wait() == -9
                await gateway.start()
                answer = await asked
                got[shot] = answer.status_code
        await relay.stop()
        await operator.http.aclose()
    unknown = set() if effects == "keyed" else {*MEANT, *HAPPENED}
    assert got == {shot: 409 if shot in unknown else 201 for shot in ONE_OF_EACH}
    committed = [shot for shot in ONE_OF_EACH if effects == "keyed" or shot not in MEANT]
    assert sorted(authority.committed) == sorted(body(shot) for shot in committed)
