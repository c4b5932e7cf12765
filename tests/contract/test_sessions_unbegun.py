"""O7: a run that has joined its session and whose journal hasn't begun, as the operator finds it: whatever is said to
it then, it begins as it joined, or ends, and the session and the branch are free again.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry
from tests.contract.test_gateway_sessions import FAILED, Line, line
from tests.gateway_script import Operator, ok, refused, resolved

from moorage.api.meta import format_time
from moorage.api.names import digest
from moorage.api.wire import ResolvedDelivery, ResolvedTimeouts
from moorage.controller.apply import Applier
from moorage.controller.deliveries import Deliveries
from moorage.controller.engine import Engine
from moorage.controller.gateway_client import GatewayClient, session
from moorage.controller.gather import Gatherer
from moorage.controller.roll import Roll
from moorage.controller.signs import Signs
from moorage.core.run.observed import LeaseView, SandboxPhase, SandboxView
from moorage.core.run.resolve import Defaults
from moorage.gateway.housekeeping import Housekeeping
from moorage.sandbox.port import Children, RunKey, Which
from moorage.store.errors import StoreUnavailable, UnknownSession
from moorage.telemetry.metrics import OperatorMetrics
from moorage.testing.clock import StepClock
from moorage.testing.gateway import OPERATOR_TOKEN, LocalGateway
from moorage.testing.gitserver import GitServer

__all__ = ["line"]  # a fixture

KEY = RunKey("u2", "team-a", "fix-u2")
NOW = 1_800_000_000_000
HOUR = 3_600_000


class Place:
    """One AgentRun, and what stands for it: the operator's surroundings but for the gateway, which is a real one."""

    def __init__(self) -> None:
        self.body: dict[str, Any] | None = {
            "apiVersion": "moorage.dev/v1alpha1",
            "kind": "AgentRun",
            "metadata": {
                "name": KEY.name,
                "namespace": KEY.tenant,
                "uid": KEY.uid,
                "generation": 1,
                "resourceVersion": "1",
                "creationTimestamp": format_time(NOW),
            },
            "spec": {
                "continueFrom": {"name": "fix"},
                "workspaceRef": {"name": "web"},
                "agentRef": {"name": "fixer"},
                "goal": "and now the docs",
                "delivery": {"branch": "moorage/u2"},
            },
        }
        self.objects: dict[str, dict[str, Any]] = {}
        self.lease: LeaseView | None = None
        self.volume = False
        self.pods: list[SandboxView] = []

    def patch(self, **spec: Any) -> None:
        assert self.body is not None
        meta = self.body["metadata"]
        meta = meta | {"generation": meta["generation"] + 1, "resourceVersion": str(int(meta["resourceVersion"]) + 1)}
        self.body = self.body | {"metadata": meta, "spec": self.body["spec"] | spec}

    async def run(self, tenant: str, name: str) -> dict[str, Any] | None:
        return self.body if (tenant, name) == (KEY.tenant, KEY.name) else self.objects.get(name)

    async def get(self, kind: str, tenant: str, name: str) -> dict[str, Any] | None:
        del kind, tenant
        return self.objects.get(name)

    async def runtime_classes(self) -> frozenset[str] | None:
        return None

    async def write_status(self, run: RunKey, status: dict[str, Any], version: str) -> dict[str, Any] | None:
        del run, version
        if self.body is not None:
            self.body = self.body | {"status": (self.body.get("status") or {}) | status}
        return self.body

    def changed(self, *_: Any) -> None:
        """Nobody listens."""

    async def observe(self, run: RunKey, *, fresh: bool = True) -> Children:
        del run, fresh
        return Children(self.lease, tuple(self.pods), self.volume)

    async def raise_epoch(self, run: RunKey, epoch: int, holder: str) -> int:
        del run
        self.lease = LeaseView(epoch, holder, NOW, 30_000)
        return epoch

    async def ensure_volume(self, *_: Any) -> None:
        self.volume = True

    async def start(self, run: RunKey, spec: Any, which: Which) -> SandboxView:
        del run, spec
        pod = SandboxView("pod", "p2", which.epoch, which.role.value, SandboxPhase.WAITING)
        self.pods.append(pod)
        return pod

    async def stop(self, *_: Any, **__: Any) -> None:
        self.pods.clear()

    async def release(self, run: RunKey) -> None:
        del run
        self.lease, self.volume = None, False
        self.pods.clear()


@asynccontextmanager
async def operator_of(line: Line, place: Any, clock: StepClock) -> AsyncIterator[Engine]:
    """As the process has it."""
    async with session() as http:
        gateway = GatewayClient(http, line.gateway.url or "", lambda: OPERATOR_TOKEN)
        metrics, roll = OperatorMetrics(CollectorRegistry()), Roll(9)
        deliveries = Deliveries(gateway, ended=lambda _: None, log=structlog.get_logger())
        gatherer = Gatherer(
            objects=place,
            substrate=place,
            gateway=gateway,
            roll=roll,
            defaults=Defaults(),
            drivers=frozenset({"codex", "command"}),
            signs=Signs(clock),
        )
        applier = Applier(
            substrate=place, gateway=gateway, deliveries=deliveries, objects=place, clock=clock, metrics=metrics
        )
        yield Engine(
            gatherer=gatherer, applier=applier, objects=place, roll=roll, clock=clock, telling=place, metrics=metrics
        )


async def joined(line: Line, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Operator:
    """The store goes away between the two steps of its admission."""
    second = line.next(**changes)
    with monkeypatch.context() as broken:

        async def away(*_: object, **__: object) -> None:
            raise StoreUnavailable("away")

        broken.setattr(line.gateway.deps.store, "admit", away)
        assert (await line.gateway.operator.put(f"{second.door}/as-next", content=_body(second))).is_error
    assert (await second.state())["phase"] == "Pending"
    return second


def _body(operator: Operator) -> str:
    return operator.spec.model_dump_json()


@pytest.mark.rule("O7", "X1", "W2")
@pytest.mark.parametrize(
    ("how", "end", "reason"),
    [
        ("deleted", "Cancelled", "ObjectDeleted"),
        ("cancelled", "Cancelled", "Cancelled"),
        ("too late", "Failed", "DeadlineExceeded"),
    ],
)
async def test_one_that_is_not_to_begin_ends_and_its_session_and_branch_are_free(
    line: Line, monkeypatch: pytest.MonkeyPatch, how: str, end: str, reason: str
) -> None:
    second = await joined(line, monkeypatch, timeouts=ResolvedTimeouts(deadline_ms=HOUR))
    third = line.next("u3", delivery=ResolvedDelivery(branch="moorage/u2"))
    refused(await line.gateway.operator.put(f"{third.door}/as-next", content=_body(third)), 403, "SessionBusy")
    place, clock = Place(), StepClock(NOW)
    place.patch(scheduling={"deadline": "1h"})
    place.lease, place.volume = LeaseView(1, "attempt-1", NOW, 30_000), True  # its pass had got that far
    match how:
        case "deleted":
            place.body = None
        case "cancelled":
            place.patch(cancel=True)
        case _:
            clock.wall += HOUR
    async with operator_of(line, place, clock) as engine:
        for _ in range(8):
            outcome = await engine.run_pass(KEY)
            if outcome.requeue_ms is None or outcome.requeue_ms > 1:
                break
        view = await second.view()
    assert (view["state"]["phase"], view["state"]["end"]["reason"]) == (end, reason)
    types = await second.types()
    assert types[:2] == ["RUN_ADMITTED", "SESSION_JOINED"]
    assert "EPOCH_RAISED" not in types
    assert not place.pods, "nothing was started for it"
    if how == "deleted":
        assert (view["released"], place.lease, place.volume) == (True, None, False)
    await third.admit()
    assert (await third.state())["carried"]["tool_calls"] == 2
    await ok(await third.fence(1))
    await third.register("p3", 1)
    line.gateway.token_for_pod("p3", "team-a")
    assert (await ok(await line.gateway.sandbox("p3", "team-a").get("/v1/self")))["git"]["branch"] == "moorage/u2"


def _object(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": KEY.tenant, "uid": name, "creationTimestamp": format_time(NOW)}
    return {"apiVersion": "moorage.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}


@pytest.mark.rule("O7", "X1")
async def test_one_that_has_not_joined_yet_ends_and_the_session_has_never_heard_of_it(
    gateway: LocalGateway, upstream: GitServer
) -> None:
    """Though all that it names is there: it is not let in only to be ended."""
    url = upstream.url("shop.git")
    mine = resolved(upstream).workspace.model_copy(update={"key": digest("remote_git", url, "git")})
    first = Operator(gateway, resolved(upstream, uid="fix", workspace=mine))
    await first.admit()
    await ok(await first.report(0, "RUN_FAILED", FAILED))
    place = Place()
    workspace = {"url": url, "ref": "main", "credentialsSecretRef": {"name": "git"}}
    for each in (
        _object("AgentRun", "fix", goal="make the tests pass"),
        _object("Workspace", "web", remoteGit=workspace),
        _object("Agent", "fixer", driver="command", command=["true"]),
    ):
        place.objects[each["metadata"]["name"]] = each
    place.patch(cancel=True)
    line = Line(gateway, upstream, first, "", "", "")
    async with operator_of(line, place, StepClock(NOW)) as engine:
        await engine.run_pass(KEY)
    assert place.body is not None
    assert place.body["status"]["phase"] == "Cancelled"
    assert (await gateway.operator.get("/v1/runs/u2")).status_code == 404
    with pytest.raises(UnknownSession):
        await gateway.deps.store.get_session(KEY.tenant, "fix")
    place.patch(cancel=False)
    place.body.pop("status")
    async with operator_of(line, place, StepClock(NOW)) as engine:
        await engine.run_pass(KEY)
    assert (await gateway.deps.store.get_session(KEY.tenant, "fix")).lineage == ("fix", "u2"), "it could have joined"


@pytest.mark.rule("O6", "O7")
async def test_one_whose_author_changes_its_retention_meanwhile_begins_as_it_joined(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = await joined(line, monkeypatch)
    place = Place()
    place.patch(suspend=True, retention={"ttlAfterFinished": "5m"})
    place.lease, place.volume = LeaseView(1, "attempt-1", NOW, 30_000), True
    async with operator_of(line, place, StepClock(NOW)) as engine:
        await engine.run_pass(KEY)
        assert (await second.state())["phase"] == "Pending"
        assert (place.lease, place.volume) == (None, False), "nothing stands while it is suspended"
    place.patch(suspend=False)
    async with operator_of(line, place, StepClock(NOW)) as engine:
        await engine.run_pass(KEY)
    assert (await second.state())["phase"] == "Provisioning"
    assert [pod.epoch for pod in place.pods] == [1]
    assert (await second.view())["spec"]["retention"] == second.spec.retention.model_dump(mode="json")


@pytest.mark.rule("J3", "M2", "O7")
async def test_its_journal_begins_with_its_admission_whatever_else_comes_first(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = await joined(line, monkeypatch)
    said = {"command_id": "c1", "type": "FollowUp", "text": "more", "issuer": "ada"}
    refused(await second.http.post(f"{second.door}/commands", json=said), 404, "UnknownRun")
    refused(await second.fence(1), 404, "UnknownRun")
    refused(await second.report(0, "RUN_FAILED", FAILED), 404, "UnknownRun")
    refused(await second.http.post(f"{second.door}/release"), 404, "UnknownRun")
    with structlog.testing.capture_logs() as logs:
        await Housekeeping(line.gateway.gate).once()
    assert [each for each in logs if each["log_level"] in {"warning", "error"}] == []
    await second.admit()
    assert (await second.types())[0] == "RUN_ADMITTED"
    assert (await ok(await second.http.post(f"{second.door}/commands", json=said)))["state"] == "Accepted"
