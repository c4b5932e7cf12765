"""The first contact with a workspace's remote: what it refuses ends the run by name, what may pass is waited for."""

import asyncio
from typing import Self

import pytest
from httpx import Response
from tests.gateway_script import (
    PASSWORD,
    Operator,
    ok,
    refused,
    resolved,
    told,
)

from moorage.api.wire import ResolvedDelivery, SecretRef
from moorage.gateway.settings import GatewaySettings
from moorage.testing.gateway import LocalGateway

# --- the remote -------------------------------------------------------------------------------------------------------


async def first_contact(gateway, spec) -> tuple[Operator, Response]:
    operator = Operator(gateway, spec)
    runner = await operator.start(pod=f"pod-of-{spec.uid}")
    return operator, await runner.get("/v1/self")


def with_workspace(spec, **changes):
    return spec.model_copy(update={"workspace": spec.workspace.model_copy(update=changes)})


async def test_a_wrong_password_ends_the_run_with_its_reason(gateway, upstream) -> None:
    gateway.secrets.give("team-a", "git", username="ada", password="wrong-password-1")
    operator, answer = await first_contact(gateway, resolved(upstream))
    message = refused(answer, 424, "GitAuthFailed")
    assert "wrong-password-1" not in message
    end = (await operator.state())["agent_end"]
    assert (end["outcome"], end["reason"]) == ("failed", "GitAuthFailed")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ref": "no-such-branch"}, "GitRefNotFound"),
        ({"url": "ftp://example.invalid/x.git"}, "GitBadUrl"),
        ({"url": "http://169.254.169.254/latest/meta-data"}, "GitBadUrl"),
        ({"kind": "local", "url": None, "path": "/nonexistent/repository"}, "GitNotFound"),
    ],
)
async def test_a_remote_that_will_not_do_ends_the_run_with_its_reason(gateway, upstream, changes, reason) -> None:
    operator, answer = await first_contact(gateway, with_workspace(resolved(upstream), **changes))
    refused(answer, 424, reason)
    assert (await operator.state())["agent_end"]["reason"] == reason


async def test_an_unreachable_remote_is_asked_again_for_a_minute(gateway, upstream, clock) -> None:
    spec = with_workspace(resolved(upstream), url="http://127.0.0.1:9/shop.git")
    operator, answer = await first_contact(gateway, spec)
    refused(answer, 503, "GitUnreachable")
    state = await operator.state()
    assert (state["agent_end"], state["deferral"]["reason"], state["deferral"]["tries"]) == (None, "GitUnreachable", 0)
    assert "given up at" in state["deferral"]["message"]
    refused(await gateway.sandbox("pod-of-u1", "team-a").get("/v1/self"), 503, "GitUnreachable")
    assert (await operator.types()).count("EFFECT_DEFERRED") == 1, "who asks often makes no journal longer"
    clock.advance(60_000)
    refused(await gateway.sandbox("pod-of-u1", "team-a").get("/v1/self"), 424, "GitUnreachable")
    assert (await operator.state())["agent_end"]["reason"] == "GitUnreachable"


async def test_each_attempt_has_its_own_minute_for_an_unreachable_remote(gateway, upstream, clock) -> None:
    spec = with_workspace(resolved(upstream), url="http://127.0.0.1:9/shop.git")
    operator, answer = await first_contact(gateway, spec)
    refused(answer, 503, "GitUnreachable")
    clock.advance(59_000)
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    second = gateway.sandbox("p2", "team-a")
    refused(await second.get("/v1/self"), 503, "GitUnreachable")
    clock.advance(59_000)
    refused(await second.get("/v1/self"), 503, "GitUnreachable")
    clock.advance(1_000)
    refused(await second.get("/v1/self"), 424, "GitUnreachable")


async def test_a_branch_that_exists_is_told_before_any_work(gateway, upstream) -> None:
    spec = resolved(upstream, delivery=ResolvedDelivery(branch="main"))
    operator, answer = await first_contact(gateway, spec)
    refused(answer, 424, "BranchExists")
    assert (await operator.state())["agent_end"]["reason"] == "BranchExists"


@pytest.mark.rule("W2")
async def test_of_two_runs_for_one_branch_the_later_is_refused_by_name(gateway, upstream, clock) -> None:
    first = resolved(upstream, "u1", name="first")
    second = resolved(upstream, "u2", name="second")
    await Operator(gateway, first).admit()
    clock.advance(10)
    operator, later = await first_contact(gateway, second)
    assert "first" in refused(later, 503, "BranchTaken")
    assert (await operator.state())["deferral"]["reason"] == "BranchTaken"
    _, earlier = await first_contact(gateway, first)
    assert earlier.status_code == 200
    clock.advance(30_000)
    again = await gateway.sandbox("pod-of-u2", "team-a").get("/v1/self")
    assert "first" in refused(again, 424, "BranchTaken")
    assert (await operator.state())["agent_end"]["reason"] == "BranchTaken"


@pytest.mark.rule("W2")
async def test_a_run_waits_while_the_other_of_its_branch_is_being_closed(gateway, upstream, clock) -> None:
    first = Operator(gateway, resolved(upstream, "u1", name="first"))
    await first.start(pod="pod-of-u1")
    clock.advance(10)
    operator, later = await first_contact(gateway, resolved(upstream, "u2", name="second"))
    refused(later, 503, "BranchTaken")
    await ok(await first.report(1, "CANCEL_REQUESTED", {"reason": "ObjectDeleted"}))
    clock.advance(3_600_000)
    second = gateway.sandbox("pod-of-u2", "team-a")
    refused(await second.get("/v1/self"), 503, "BranchTaken")
    assert (await operator.state())["agent_end"] is None
    await ok(await first.report(1, "CANCEL_QUIESCED", {}))
    await ok(await first.report(1, "CANCEL_RECONCILED", {"unknown": []}))
    await ok(await first.report(1, "RUN_CANCELLED", {"reason": "ObjectDeleted"}))
    assert (await ok(await second.get("/v1/self")))["git"]["base"]


async def ended(operator: Operator) -> None:
    for kind, payload in (
        ("CANCEL_QUIESCED", {}),
        ("CANCEL_RECONCILED", {"unknown": []}),
        ("RUN_CANCELLED", {"reason": "ObjectDeleted"}),
    ):
        await ok(await operator.report(1, kind, payload))


async def deferral(operator: Operator) -> tuple[str, str]:
    found = (await operator.state())["deferral"]
    return found["reason"], found["message"]


@pytest.mark.rule("W2")
async def test_what_is_told_of_a_taken_branch_is_whose_it_is_now(gateway, upstream, clock) -> None:
    earlier = []
    for uid, name in (("u1", "first"), ("u2", "second")):
        earlier.append(Operator(gateway, resolved(upstream, uid, name=name)))
        await earlier[-1].start(pod=f"pod-of-{uid}")
        clock.advance(10)
    first = earlier[0]
    third, answer = await first_contact(gateway, resolved(upstream, "u3", name="third"))
    runner = gateway.sandbox("pod-of-u3", "team-a")
    refused(answer, 503, "BranchTaken")
    reason, message = await deferral(third)
    assert (reason, "run first delivers" in message, "given up at" in message) == ("BranchTaken", True, True)
    clock.advance(10_000)
    refused(await runner.get("/v1/self"), 503, "BranchTaken")
    assert (await third.types()).count("EFFECT_DEFERRED") == 1, "who asks often makes no journal longer"
    await ok(await first.report(1, "CANCEL_REQUESTED", {"reason": "ObjectDeleted"}))
    refused(await runner.get("/v1/self"), 503, "BranchTaken")
    reason, message = await deferral(third)
    assert ("it is being closed" in message, "given up at" in message) == (True, False)
    await ended(first)
    refused(await runner.get("/v1/self"), 503, "BranchTaken")
    reason, message = await deferral(third)
    assert ("run second delivers" in message, "first" in message) == (True, False)


@pytest.mark.rule("W2")
async def test_a_branch_that_is_free_again_is_not_told_as_taken_while_the_repository_is_fetched(
    upstream, clock, tmp_path
) -> None:
    settings = GatewaySettings(assignment_wait_ms=200)
    async with Silent() as remote, LocalGateway(tmp_path, clock=clock, settings=settings).serving() as gateway:
        specs = [
            with_workspace(resolved(upstream, uid, name=name), url=remote.url, credentials=None)
            for uid, name in (("u1", "first"), ("u2", "second"))
        ]
        first = Operator(gateway, specs[0])
        await first.start(pod="pod-of-u1")
        clock.advance(10)
        second, _ = await first_contact(gateway, specs[1])
        runner = gateway.sandbox("pod-of-u2", "team-a")
        while (await runner.get("/v1/self")).json()["reason"] != "BranchTaken":
            pass
        assert (await deferral(second))[0] == "BranchTaken"
        await ok(await first.report(1, "CANCEL_REQUESTED", {"reason": "ObjectDeleted"}))
        await ended(first)
        while (await runner.get("/v1/self")).json()["reason"] != "WorkspaceFetching":
            pass
        assert await deferral(second) == ("WorkspaceFetching", "the repository is being fetched")


class Silent:
    """A remote that takes connections and says nothing, until it is let go."""

    def __init__(self) -> None:
        self.connections: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._taken, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.let_go()
        self._server.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/shop.git"

    def let_go(self) -> None:
        self._server.close()
        for writer in self.connections:
            writer.close()

    async def _taken(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)


async def test_a_remote_that_never_answers_holds_up_no_door_and_ends_the_run(upstream, clock, tmp_path) -> None:
    """What the sandbox hears meanwhile says that the gateway is there: its heartbeats are its own."""
    settings = GatewaySettings(assignment_wait_ms=50)
    async with Silent() as remote, LocalGateway(tmp_path, clock=clock, settings=settings).serving() as gateway:
        spec = with_workspace(resolved(upstream), url=remote.url, credentials=None)
        operator, answer = await first_contact(gateway, spec)
        refused(answer, 503, "WorkspaceFetching")
        state = await operator.state()
        assert (state["phase"], state["deferral"]["reason"]) == ("Provisioning", "WorkspaceFetching")
        remote.let_go()
        runner = gateway.sandbox("pod-of-u1", "team-a")
        while (last := (await runner.get("/v1/self"))).json()["reason"] == "WorkspaceFetching":
            pass
        refused(last, 503, "GitUnreachable")
        assert (await operator.state())["deferral"]["reason"] == "GitUnreachable"
        clock.advance(60_000)
        while (last := (await runner.get("/v1/self"))).json()["reason"] == "WorkspaceFetching":
            pass
        refused(last, 424, "GitUnreachable")
        state = await operator.state()
        assert (state["agent_end"]["reason"], state["deferral"]) == ("GitUnreachable", None)


async def test_a_fetch_that_takes_long_goes_on_beside_and_is_asked_for_once(upstream, clock, tmp_path) -> None:
    settings = GatewaySettings(assignment_wait_ms=0)
    async with LocalGateway(tmp_path, clock=clock, settings=settings).serving() as gateway:
        gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
        operator, answer = await first_contact(gateway, resolved(upstream))
        runner = gateway.sandbox("pod-of-u1", "team-a")
        while answer.status_code != 200:
            refused(answer, 503, "WorkspaceFetching")
            answer = await runner.get("/v1/self")
        base = answer.json()["git"]["base"]
        assert (await operator.types()).count("EFFECT_DEFERRED") <= 1, "what is fetched already is waited for by nobody"
        ready = told("WORKSPACE_READY", {"base": base, "branch": answer.json()["git"]["branch"]})
        await ok(await runner.post("/v1/self/records", json=ready))
        assert (await operator.state())["deferral"] is None


async def test_an_ephemeral_workspace_has_no_remote(gateway, upstream) -> None:
    spec = with_workspace(resolved(upstream), kind="ephemeral", url=None, credentials=None, ref=None)
    _, answer = await first_contact(gateway, spec)
    assert (await ok(answer))["git"]["base"]


@pytest.mark.rule("T2")
async def test_the_credential_is_read_at_use_and_told_to_nobody(gateway, upstream) -> None:
    _, answer = await first_contact(gateway, resolved(upstream))
    assert PASSWORD not in answer.text
    assert gateway.secrets.reads == [("team-a", "git")] * 2, "once whether it is there, once to use it"


LACKS = [
    ({"name": "absent"}, "SecretNotFound", "kubectl create secret generic absent -n team-a --from-literal=username="),
    ({"name": "absent", "key": "pat"}, "SecretNotFound", "generic absent -n team-a --from-literal=pat=PAT"),
    (
        {"name": "git", "key": "pat"},
        "SecretKeyNotFound",
        """patch secret git -n team-a -p '{"stringData":{"pat":"PAT"}}'""",
    ),
    ({"name": "empty"}, "SecretKeyNotFound", "holds nothing under password or token"),
    ({"name": "binary"}, "SecretKeyNotFound", "no text"),
]


@pytest.mark.parametrize(("ref", "reason", "told"), LACKS)
async def test_a_run_whose_secret_is_missing_is_not_admitted_until_it_comes(
    gateway, upstream, ref, reason, told
) -> None:
    gateway.secrets.give("team-a", "empty", password=" ")
    gateway.secrets.held["team-a", "binary"] = {"password": b"\xff\xfe"}
    operator = Operator(gateway, with_workspace(resolved(upstream), credentials=SecretRef(**ref)))
    asked = (operator.door, operator.spec.model_dump_json())
    assert told in refused(await operator.http.put(asked[0], content=asked[1]), 424, reason)
    refused(await operator.http.get(operator.door), 404, "UnknownRun")
    gateway.secrets.give("team-a", ref["name"], **{ref.get("key", "password"): "there now"})
    await ok(await operator.http.put(asked[0], content=asked[1]))


async def test_an_admitted_run_stays_admitted_when_its_secret_goes(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    await operator.admit()
    gateway.secrets.held.clear()
    await operator.admit()
    _, answer = await first_contact(gateway, resolved(upstream))
    assert "create" in refused(answer, 424, "GitAuthFailed")
