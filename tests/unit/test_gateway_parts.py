"""The gateway's pure parts and its small machines, without a gateway around them."""

import asyncio
import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from starlette.requests import Request

from moorage.api import wire, work
from moorage.controller import gateway_client
from moorage.gateway.auth import Identity, Kind, StaticAuthenticator, require, token_of
from moorage.gateway.cluster import Remembered, identify
from moorage.gateway.errors import Forbidden, Invalid, Unauthenticated, Unavailable
from moorage.gateway.heartbeat import Heartbeats, LeaseTarget
from moorage.gateway.http import KEEP_ALIVE_S
from moorage.gateway.ports import Secret
from moorage.gateway.records import scoped_id
from moorage.gateway.signals import Bell, rung_within
from moorage.gateway.verification import SUMMARY_BYTES, verdict
from moorage.store.peers import Alone
from moorage.telemetry.metrics import GatewayMetrics
from moorage.testing.clock import StepClock

SHA = "a" * 40


def request(**headers: str) -> Request:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw})


# --- who calls --------------------------------------------------------------------------------------------------------


def test_a_token_comes_as_bearer_or_as_the_password_of_basic() -> None:
    assert token_of(request(authorization="Bearer abc")) == "abc"
    basic = base64.b64encode(b"anybody:abc").decode()
    assert token_of(request(authorization=f"Basic {basic}")) == "abc"


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer  ", "Basic ###", "Basic YWJj", "Digest abc", "abc"])
def test_anything_else_is_no_token(header: str) -> None:
    with pytest.raises(Unauthenticated):
        token_of(request(authorization=header))


async def test_static_tokens_open_only_for_those_who_have_them() -> None:
    known = StaticAuthenticator({"abc": Identity(Kind.READER, "ann", namespace="team-a")})
    ann = await known.authenticate("abc")
    assert await known.may_read(ann, "team-a")
    assert not await known.may_read(ann, "team-b")
    with pytest.raises(Unauthenticated):
        await known.authenticate("abd")
    with pytest.raises(Forbidden, match="operator"):
        require(ann, Kind.OPERATOR)


class User:
    def __init__(self, username: str, **extra: str) -> None:
        self.username, self.groups = username, ["system:authenticated"]
        self.extra = {f"authentication.kubernetes.io/{k.replace('_', '-')}": [v] for k, v in extra.items()}


@pytest.mark.rule("F2")
def test_a_reviewed_token_names_the_pod_and_nothing_else_of_the_run() -> None:
    pod = User("system:serviceaccount:team-a:moorage-sandbox", pod_uid="u", pod_name="p", node_name="n")
    found = identify(pod, "system:serviceaccount:moorage-system:moorage-operator")
    assert (found.kind, found.namespace, found.pod_uid, found.pod_name, found.node) == (
        Kind.SANDBOX,
        "team-a",
        "u",
        "p",
        "n",
    )


def test_the_operator_is_known_by_its_name_also_in_a_pod() -> None:
    name = "system:serviceaccount:moorage-system:moorage-operator"
    assert identify(User(name, pod_uid="u"), name).kind is Kind.OPERATOR
    assert identify(User(name + "x", pod_uid="u"), name).kind is Kind.SANDBOX
    assert identify(User("ann"), name).kind is Kind.READER


async def test_answers_are_remembered_for_their_time_and_failures_never() -> None:
    clock, asked = StepClock(), []
    kept: Remembered[int] = Remembered(clock, 10_000, size=2)

    async def fetch() -> int:
        asked.append(1)
        if len(asked) == 1:
            raise Unavailable("away")
        return len(asked)

    with pytest.raises(Unavailable):
        await kept.get("k", fetch)
    assert await kept.get("k", fetch) == 2
    clock.advance(9_999)
    assert await kept.get("k", fetch) == 2
    clock.advance(1)
    assert await kept.get("k", fetch) == 3
    for key in ("a", "b"):
        await kept.get(key, fetch)
    assert await kept.get("k", fetch) == 6, "the oldest went first"


def test_a_secret_never_shows_itself() -> None:
    secret = Secret({"password": b" hunter2 \n"})
    assert "hunter2" not in repr(secret)
    assert secret.text("token", "password") == "hunter2"
    assert secret.text("token") is None


# --- heartbeats -------------------------------------------------------------------------------------------------------


class Leases:
    def __init__(self) -> None:
        self.renewed: list[tuple[str, str, int, int]] = []
        self.answer: bool | Unavailable = True

    async def renew(self, namespace: str, name: str, epoch: int, now_ms: int) -> bool:
        self.renewed.append((namespace, name, epoch, now_ms))
        if isinstance(self.answer, Unavailable):
            raise self.answer
        return self.answer


class Log:
    def __init__(self) -> None:
        self.said: list[str] = []

    def warning(self, event: str, **_: object) -> None:
        self.said.append(event)


@pytest.mark.rule("F4")
async def test_a_lease_is_renewed_at_most_every_fifteen_seconds() -> None:
    clock, leases, log = StepClock(), Leases(), Log()
    metrics = GatewayMetrics(CollectorRegistry())
    hearts = Heartbeats(Alone(), leases, clock, metrics, log, every_ms=15_000)
    target = LeaseTarget("team-a", "lease", 3)

    async def beat(seq: int) -> None:
        hearts.hear("u1", work.Heartbeat(work_id="u1", epoch=3, progress_seq=seq, observed_at=1), target)
        await asyncio.sleep(0)

    for _ in range(7):
        await beat(1)
        clock.advance(5_000)
    assert len(leases.renewed) == 3
    last = await hearts.last("u1")
    assert last is not None
    assert last.heard_at - last.progress_at == 30_000
    await beat(2)
    last = await hearts.last("u1")
    assert last is not None
    assert last.progress_at == clock.now_ms()
    leases.answer = False
    clock.advance(15_000)
    await beat(3)
    assert log.said == ["lease_lost"]
    leases.answer = Unavailable("the API server is away")
    clock.advance(15_000)
    await beat(4)
    await beat(5)
    assert log.said == ["lease_lost", "lease_renewal_failed", "lease_renewal_failed"], "tried again at once"
    hearts.forget("u1")
    assert await hearts.last("u1") is None
    await hearts.close()


async def test_a_bell_rings_for_those_who_armed_it_before() -> None:
    bell = Bell()
    armed = bell.arm()
    bell.ring()
    assert await rung_within(armed, 1_000)
    assert not await rung_within(bell.arm(), 1)


# --- records ----------------------------------------------------------------------------------------------------------


def test_reported_ids_are_behind_their_epoch_and_bounded() -> None:
    assert scoped_id(3, "tool:1") == "r3:tool:1"
    long = [scoped_id(3, "x" * 127 + c) for c in "ab"]
    assert len(set(long)) == 2
    assert all(len(x) <= 128 and x.startswith("r3:") for x in long)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def check(name: str, exit_code: int | None = 0, **more: object) -> work.CheckResult:
    return work.CheckResult.model_validate(
        {"name": name, "run": f"make {name}", "exit_code": exit_code, "duration_ms": 1} | more
    )


def report(*checks: work.CheckResult, problem: str | None = None) -> work.VerificationReport:
    return work.VerificationReport(epoch=1, commit=SHA, checks=checks, problem=problem, recorded_at=1)


ASKED = tuple(wire.ResolvedCheck(name=n, run=f"make {n}") for n in ("lint", "test"))


@pytest.mark.rule("V3", "N4")
def test_only_all_commands_passing_is_a_pass() -> None:
    passed, outputs = verdict(report(check("lint"), check("test", output="5 passed")), ASKED)
    assert (passed["passed"], passed["isolated"], passed["summary"]) == (True, True, "2 checks passed")
    assert outputs == {"check-1": "5 passed"}
    red, _ = verdict(report(check("lint"), check("test", 1, output="boom")), ASKED)
    assert (red["passed"], red["summary"]) == (False, "test: `make test` ended with exit code 1\nboom")
    slow, _ = verdict(report(check("lint", 0, timed_out=True), check("test")), ASKED)
    assert (slow["passed"], slow["summary"]) == (False, "lint: `make lint` timed out")
    stopped, _ = verdict(report(check("lint", 1)), ASKED)
    assert stopped["passed"] is False, "a verifier may stop at the first failure"
    killed, _ = verdict(report(check("lint", None), check("test")), ASKED)
    assert killed["passed"] is False


@pytest.mark.parametrize("checks", [(), ("lint",), ("test", "lint"), ("lint", "test", "test")])
def test_a_verdict_over_other_commands_is_none(checks: tuple[str, ...]) -> None:
    with pytest.raises(Invalid):
        verdict(report(*map(check, checks)), ASKED)


def test_a_verifiers_own_trouble_judges_nothing() -> None:
    payload, _ = verdict(report(problem="no space"), ASKED)
    assert (payload["passed"], payload["problem"]) == (False, "no space")


@given(st.text(max_size=3_000))
def test_a_summary_fits_a_condition(output: str) -> None:
    text = output.encode("utf-8", "replace").decode()
    payload, _ = verdict(report(check("lint", 2, output=text), check("test")), ASKED)
    assert len(payload["summary"].encode()) <= SUMMARY_BYTES


def test_the_operator_drops_an_idle_connection_before_the_gateway_does() -> None:
    assert gateway_client.KEPT_S < KEEP_ALIVE_S
