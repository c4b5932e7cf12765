"""Two gateways as processes over one PostgreSQL, either of which is killed or frozen: nobody can tell afterwards."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.contract.killpoint_places import elsewhere
from tests.contract.test_gateway_egress_killed import HAPPENED, MEANT, NOTHING_MEANT, RUN, WRITTEN, at_work, body
from tests.gateway_killed import Killed, Patient, Service, delivered_once, meeting, running, verified_run, whole_run
from tests.gateway_script import resolved, told

from moorage.points import Point
from moorage.runner.relay import Relay
from moorage.testing.authority import Authority
from moorage.testing.gateway import OPERATOR_TOKEN
from moorage.testing.gitserver import GitServer
from moorage.testing.killpoints import Fault, Shot, environment, fired

pytestmark = pytest.mark.timeout(300)  # processes, and the time until one that is frozen is taken for gone

DOOR = "/egress/http/api.example.com/v1/orders"


@pytest.fixture
async def pair(tmp_path: Path, postgres: str) -> AsyncIterator[tuple[Killed, Killed]]:
    async with running(tmp_path, postgres) as one, running(tmp_path, postgres) as other:
        yield one, other


@pytest.fixture
async def authority() -> AsyncIterator[Authority]:
    async with Authority().listening() as listening:
        yield listening


async def restarted(gateway: Killed, trace: Path, shot: Shot) -> None:
    await gateway.kill()
    await gateway.start(environment(trace, shot))


async def until_fired(trace: Path, shot: Shot) -> None:
    while fired(trace, shot) is None:  # noqa: ASYNC110  another process's doing
        await asyncio.sleep(0.02)


@pytest.mark.rule("E6", "J3", "R1", "E2", "M5")
@pytest.mark.parametrize("seed", range(3))
async def test_either_gateway_killed_at_any_moment_and_the_run_is_delivered_once(
    pair: tuple[Killed, Killed], upstream: GitServer, tmp_path: Path, seed: int
) -> None:
    """Every connection goes to either of them."""
    chance = random.Random(seed)
    async with Service(*(gateway.port for gateway in pair), chance=chance).listening() as service:
        working = asyncio.create_task(whole_run(service.port, resolved(upstream), tmp_path))
        for _ in range(4):
            await chance.choice(pair).torture(chance, times=1)
        head, view = await working
    delivered_once(upstream, head, view["state"])


@pytest.mark.rule("K1", "P5")
@pytest.mark.parametrize(
    ("fault", "points"), elsewhere("test_whatever_befalls_gateways_at_a_push_it_is_kept_and_followed")
)
async def test_whatever_befalls_gateways_at_a_push_it_is_kept_and_followed(
    postgres: str, upstream: GitServer, tmp_path: Path, fault: Fault, points: Sequence[Point]
) -> None:
    """What one of them was pushed, the other one delivers; each meets the fault at its part of that."""
    one, other = Killed(tmp_path, postgres), Killed(tmp_path, postgres)
    keeping, following = tmp_path / "keeping.trace", tmp_path / "following.trace"
    kept = [Shot(point, fault=fault) for point in points if point.startswith("keep/")]
    followed = [Shot(point, fault=fault) for point in points if point.startswith("follow/")]
    try:
        async with meeting(one, keeping, kept), meeting(other, following, followed):
            head, view = await whole_run(one.port, resolved(upstream), tmp_path, then=other.port)
    finally:
        await one.kill()
        await other.kill()
    assert all(fired(keeping, shot) for shot in kept)
    assert all(fired(following, shot) for shot in followed)
    delivered_once(upstream, head, view["state"])


async def settled(operator: Patient, commit: str | None) -> Any:
    """What the operator hears of the last effect once it isn't open any more."""
    ask = {"epoch": 1, "commit": commit} if commit else {"epoch": 1}
    while True:
        effects = (await operator("POST", f"{RUN}/deliver", ask))["state"]["effects"]
        if effects and effects[-1]["status"] not in {"intended", "dispatched", "not_dispatched"}:
            return effects
        await asyncio.sleep(0.1)


@pytest.mark.rule("E5", "E6", "K1")
@pytest.mark.parametrize(
    "shot",
    [
        *(Shot(point) for point in (Point.INTENT_AFTER, Point.PUSH_BEFORE, Point.PUSH_WITHIN, Point.PUSH_AFTER)),
        Shot(Point.PUSH_BEFORE, fault=Fault.STOP),
        Shot(Point.PUSH_WITHIN, fault=Fault.STOP),
    ],
    ids=str,
)
async def test_a_push_that_one_gateway_died_or_froze_at_is_finished_by_the_other(
    pair: tuple[Killed, Killed], upstream: GitServer, tmp_path: Path, shot: Shot
) -> None:
    one, other = pair
    head = await verified_run(other.port, resolved(upstream), tmp_path)
    await restarted(one, tmp_path / "trace", shot)
    async with httpx.AsyncClient(timeout=300) as http:
        url, token = f"http://127.0.0.1:{one.port}{RUN}/deliver", {"authorization": f"Bearer {OPERATOR_TOKEN}"}
        asked = asyncio.create_task(http.post(url, json={"epoch": 1, "commit": head}, headers=token))
        await until_fired(tmp_path / "trace", shot)
        operator = Patient(other.port, OPERATOR_TOKEN)
        assert (await settled(operator, head))[-1]["status"] == "confirmed"
        if shot.fault is Fault.STOP:
            one.wake()
            assert (await asked).is_success
        else:
            with pytest.raises(httpx.TransportError):
                await asked
    end = {"reason": "Completed", "message": "", "commit": head}
    await operator("POST", f"{RUN}/records", told("RUN_SUCCEEDED", end))
    delivered_once(upstream, head, (await operator("GET", RUN))["state"])
    await operator.http.aclose()


POINTS = [NOTHING_MEANT[0], MEANT[-1], HAPPENED[0], WRITTEN[-1]]


@pytest.mark.rule("E2", "E4", "E6", "K1")
@pytest.mark.parametrize("effects", ["keyed", "opaque"])
async def test_an_agent_goes_on_by_the_other_gateway_and_orders_nothing_twice(
    pair: tuple[Killed, Killed], upstream: GitServer, tmp_path: Path, authority: Authority, effects: str
) -> None:
    """What one was killed at, the other one finishes, or says that nobody knows: as if there had been a restart."""
    one, other = pair
    operator = await at_work(other, upstream, authority, effects)
    (tmp_path / "token").write_text("token-of-p1")
    got = {}
    async with Service(one.port, other.port).listening() as service:
        relay = Relay(f"http://127.0.0.1:{service.port}", tmp_path / "token")
        await relay.start()
        async with httpx.AsyncClient(proxy=relay.url, timeout=120) as agent:
            for number, shot in enumerate(POINTS):
                await restarted(one, tmp_path / f"{number}.trace", shot)
                answer = await agent.post("http://api.example.com/v1/orders", content=body(shot))
                assert fired(tmp_path / f"{number}.trace", shot)
                got[shot] = answer.status_code
        await relay.stop()
    await operator.http.aclose()
    unknown = set() if effects == "keyed" else {*MEANT, *HAPPENED}
    assert got == {shot: 409 if shot in unknown else 201 for shot in POINTS}
    committed = [shot for shot in POINTS if effects == "keyed" or shot not in MEANT]
    assert sorted(authority.committed) == sorted(body(shot) for shot in committed)
    assert authority.duplicates == 0


async def settled_while_frozen(
    pair: tuple[Killed, Killed], operator: Patient, shot: Shot, trace: Path
) -> tuple[list[str], httpx.Response]:
    """What became of an order whose gateway froze, and what the frozen one said when it woke after that."""
    one, _ = pair
    await restarted(one, trace, shot)
    url, token = f"http://127.0.0.1:{one.port}", {"authorization": "Bearer token-of-p1"}
    async with httpx.AsyncClient(base_url=url, headers=token, timeout=300) as agent:
        asked = asyncio.create_task(agent.post(DOOR, content=b"an order"))
        await until_fired(trace, shot)
        lost = {"epoch": 1, "reason": "PodLost", "message": ""}
        await operator("POST", f"{RUN}/records", told("ATTEMPT_ENDED", lost))
        ends = [e["status"] for e in await settled(operator, None)]
        one.wake()
        return ends, await asked


async def statuses(operator: Patient) -> list[str]:
    found = [e["status"] for e in (await operator("GET", RUN))["state"]["effects"]]
    await operator.http.aclose()
    return found


@pytest.mark.rule("E4", "E6", "F3", "K1")
@pytest.mark.parametrize("effects", ["keyed", "opaque"])
async def test_a_gateway_that_wakes_after_another_settled_for_it_sends_nothing(
    pair: tuple[Killed, Killed], upstream: GitServer, tmp_path: Path, authority: Authority, effects: str
) -> None:
    operator = await at_work(pair[1], upstream, authority, effects)
    shot = Shot(Point.EGRESS_BEFORE, fault=Fault.STOP)
    ends, answer = await settled_while_frozen(pair, operator, shot, tmp_path / "trace")
    assert ends == ["confirmed" if effects == "keyed" else "unknown"]
    assert not answer.is_success
    assert len(authority.log) == len(authority.committed) == (effects == "keyed")
    assert await statuses(operator) == ["confirmed" if effects == "keyed" else "not_dispatched"]


@pytest.mark.rule("E4", "E6", "K1")
@pytest.mark.parametrize("effects", ["keyed", "opaque"])
async def test_what_a_gateway_knows_that_froze_before_it_said_so_is_known_when_it_wakes(
    pair: tuple[Killed, Killed], upstream: GitServer, tmp_path: Path, authority: Authority, effects: str
) -> None:
    """It has happened, and only the frozen one knows."""
    operator = await at_work(pair[1], upstream, authority, effects)
    shot = Shot(Point.EGRESS_WITHIN, fault=Fault.STOP)
    ends, answer = await settled_while_frozen(pair, operator, shot, tmp_path / "trace")
    assert ends == ["confirmed" if effects == "keyed" else "unknown"]
    assert answer.status_code == 201
    assert authority.committed == [b"an order"]
    assert await statuses(operator) == ["confirmed"]


@pytest.mark.rule("E4", "E8")
@pytest.mark.parametrize("effects", ["keyed", "opaque"])
async def test_what_a_living_gateway_has_under_way_is_left_to_it(
    pair: tuple[Killed, Killed], upstream: GitServer, authority: Authority, effects: str
) -> None:
    one, other = pair
    operator = await at_work(other, upstream, authority, effects)
    authority.waits.clear()
    token = {"authorization": "Bearer token-of-p1"}
    async with httpx.AsyncClient(headers=token, timeout=120) as agent:
        first = asyncio.create_task(agent.post(f"http://127.0.0.1:{one.port}{DOOR}", content=b"an order"))
        await authority.came.wait()
        again = await agent.post(f"http://127.0.0.1:{other.port}{DOOR}", content=b"an order")
        assert (again.status_code, again.json()["reason"]) == (409, "EffectBusy")
        view = await operator("POST", f"{RUN}/deliver", {"epoch": 1})
        assert [e["status"] for e in view["state"]["effects"]] == ["dispatched"]
        authority.waits.set()
        assert (await first).status_code == 201
    assert authority.committed == [b"an order"]
    assert [e["status"] for e in (await operator("GET", RUN))["state"]["effects"]] == ["confirmed"]
    await operator.http.aclose()


@pytest.mark.rule("E2", "E4")
@pytest.mark.parametrize("effects", ["keyed", "opaque"])
async def test_one_request_that_both_are_asked_for_at_once_leaves_once(
    pair: tuple[Killed, Killed], upstream: GitServer, authority: Authority, effects: str
) -> None:
    operator = await at_work(pair[0], upstream, authority, effects)
    token = {"authorization": "Bearer token-of-p1"}

    async def ask(agent: httpx.AsyncClient, order: int) -> Sequence[int]:
        named = {"x-moorage-call": f"{order:032x}"}
        urls = [f"http://127.0.0.1:{gateway.port}{DOOR}" for gateway in pair]
        asked = [agent.post(url, content=str(order).encode(), headers=named) for url in urls]
        return [answer.status_code for answer in await asyncio.gather(*asked)]

    async with httpx.AsyncClient(headers=token, timeout=120) as agent:
        for first in range(0, 24, 4):
            asked = await asyncio.gather(*(ask(agent, order) for order in range(first, first + 4)))
            assert all(201 in codes for codes in asked)
    assert authority.duplicates == 0
    assert len(authority.log) == len(authority.committed) == 24
    await operator.http.aclose()


@pytest.mark.rule("E4", "E8", "K1")
async def test_a_tunnel_is_its_gateways_while_that_lives_and_unknown_when_it_has_died(
    pair: tuple[Killed, Killed], upstream: GitServer, tmp_path: Path, authority: Authority
) -> None:
    one, other = pair
    operator = await at_work(other, upstream, authority, "opaque")
    (tmp_path / "token").write_text("token-of-p1")
    relay = Relay(f"http://127.0.0.1:{one.port}", tmp_path / "token")
    await relay.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(relay.url.rpartition(":")[2]))
    writer.write(f"CONNECT api.example.com:{authority.port} HTTP/1.1\r\n\r\n".encode())
    assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
    view = await operator("POST", f"{RUN}/deliver", {"epoch": 1})
    assert [(e["kind"], e["status"]) for e in view["state"]["effects"]] == [("tunnel", "dispatched")]
    await one.kill()
    assert [e["status"] for e in await settled(operator, None)] == ["unknown"]
    writer.close()
    await relay.stop()
    await operator.http.aclose()


MOST_ORDERS = 800  # a run may have 1,024 since its last safe point


async def all_closed(operator: Patient) -> None:
    while True:
        state = (await operator("POST", f"{RUN}/deliver", {"epoch": 1}))["state"]
        if not any(e["status"] in {"intended", "dispatched"} for e in state["effects"]):
            return
        await asyncio.sleep(0.1)


@pytest.mark.rule("E2", "E4", "E6", "K1")
@pytest.mark.parametrize("effects", ["keyed", "opaque"])
async def test_orders_through_either_gateway_while_both_are_killed_happen_once_at_most(
    pair: tuple[Killed, Killed], upstream: GitServer, tmp_path: Path, authority: Authority, effects: str
) -> None:
    """Four at a time, each connection to either gateway, both of which die at moments that nobody chose."""
    operator = await at_work(pair[0], upstream, authority, effects)
    (tmp_path / "token").write_text("token-of-p1")
    chance, orders, got = random.Random(effects), iter(range(MOST_ORDERS)), dict[int, int]()
    async with Service(*(gateway.port for gateway in pair), chance=chance).listening() as service:
        relay = Relay(f"http://127.0.0.1:{service.port}", tmp_path / "token")
        await relay.start()
        async with httpx.AsyncClient(proxy=relay.url, timeout=120) as agent:

            async def kill() -> None:
                for gateway in chance.sample([*pair, *pair], 4):
                    await gateway.torture(chance, times=1)

            async def order() -> None:
                while not killing.done() and (number := next(orders, None)) is not None:
                    content = str(number).encode()
                    got[number] = (await agent.post("http://api.example.com/v1/orders", content=content)).status_code
                    await asyncio.sleep(0.03)

            killing = asyncio.create_task(kill())
            await asyncio.gather(killing, *(order() for _ in range(4)))
        await relay.stop()
    end = {"epoch": 1, "reason": "PodLost", "message": ""}
    await operator("POST", f"{RUN}/records", told("ATTEMPT_ENDED", end))
    await all_closed(operator)
    await operator.http.aclose()
    assert authority.duplicates == 0
    assert set(got.values()) <= ({201} if effects == "keyed" else {201, 409})
    told_so = {str(number).encode() for number, status in got.items() if status == 201}
    assert told_so <= set(authority.committed)
    if effects == "opaque":
        assert len(authority.log) == len(authority.committed)
