"""H3: what must never happen is counted at the place where it would be found. Here it is made to happen."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_gateway_snapshots import Gateway, latest, signed, worked
from tests.gateway_script import Operator, refused, resolved

from moorage.api.wire import ResolvedOrigin, ResolvedRun, ResolvedWorkspace
from moorage.core.journal.record import RecordType
from moorage.core.journal.snapshots import Snapshot
from moorage.core.run.state import Effect
from moorage.gateway.assignment import elder_of
from moorage.gateway.effects import EffectLog, repeated
from moorage.gateway.elders import EldersFirst
from moorage.store.memory import MemoryStore
from moorage.store.port import DurableExecutionStore
from moorage.telemetry.metrics import GatewayMetrics, Violation
from moorage.testing.gateway import LocalGateway
from moorage.workspace.doors import ReceivePolicy, ReceiveReport, Update
from moorage.workspace.refs import candidate_ref, drift_ref


def ephemeral(uid: str = "u1", **changes: Any) -> ResolvedRun:
    workspace = ResolvedWorkspace(key="w1", kind="ephemeral")
    return resolved("https://git.example.com/shop.git", uid, workspace=workspace, delivery=None, **changes)


def counted(metrics: GatewayMetrics) -> dict[str, float]:
    told = {kind.value: metrics.violations.labels(kind)._value.get() for kind in Violation}
    return {kind: count for kind, count in told.items() if count}


@pytest.fixture
def local(tmp_path: Path) -> LocalGateway:
    return LocalGateway(tmp_path)


def test_all_kinds_are_told_from_the_start(local: LocalGateway) -> None:
    for kind in Violation:
        assert local.deps.metrics.registry.get_sample_value("moorage_violations_total", {"kind": kind.value}) == 0


@pytest.mark.rule("H3", "I10")
async def test_a_pod_of_another_namespace_than_its_run(local: LocalGateway) -> None:
    operator = Operator(local, ephemeral())
    await operator.start()
    refused(await local.sandbox("p1", "team-b").get("/v1/self"), 403, "Forbidden")
    assert counted(local.deps.metrics) == {"cross_tenant_read": 1}


@pytest.mark.rule("H3", "I10")
async def test_a_journal_of_another_tenant_that_a_run_would_go_on_with(local: LocalGateway) -> None:
    await Operator(local, ephemeral()).start()
    await Operator(local, ephemeral("u2", tenant="team-b")).start(pod="p2")
    run = await local.gate.ledger.open("u2")
    assert run.tenant == "team-b"
    run.spec = run.spec.model_copy(update={"origin": ResolvedOrigin(name="fix", uid="u1")})
    assert await elder_of(local.gate.ledger, run) is None
    assert counted(local.deps.metrics) == {"cross_tenant_read": 1}


EFFECT = {"kind": "http", "key": "k", "target": "POST https://x", "level": "opaque"}


@pytest.mark.rule("H3", "E2")
async def test_an_answer_to_what_was_taken_for_never_sent_and_made_again(local: LocalGateway) -> None:
    await Operator(local, ephemeral()).start()
    run, log = await local.gate.ledger.open("u1"), EffectLog(local.gate)

    async def sent(effect_id: str) -> None:
        await log.mean(run, 1, log.note(RecordType.EFFECT_INTENT, {"effect_id": effect_id, **EFFECT}, effect_id))
        await log.append(run, 1, log.dispatched(effect_id))

    await sent("e1")
    await log.found(run, "e1", "not_dispatched", "nobody has heard of it")
    await sent("e2")
    await log.receipt(run, "e2", "confirmed", "200")
    assert counted(local.deps.metrics) == {}
    await log.receipt(run, "e1", "confirmed", "200")
    assert counted(local.deps.metrics) == {"duplicate_effect": 1}


@pytest.mark.rule("H3", "E2")
def test_two_confirmed_effects_of_one_key() -> None:
    first = Effect("e1", "http", "k", "POST https://x", "confirmed")
    assert repeated((first, replace(first, effect_id="e2")), "e2")
    assert not repeated((first, replace(first, effect_id="e2", key="l")), "e2")
    assert not repeated((replace(first, status="rejected"), replace(first, effect_id="e2")), "e2")


class Lax:
    """A door that takes whatever is pushed."""

    def __init__(self, *refs: str) -> None:
        self.updates = tuple(Update(ref, "0" * 40, "1" * 40, None) for ref in refs)

    async def receive(self, *_: object) -> ReceiveReport:
        return ReceiveReport(b"", self.updates)


async def nothing() -> Any:
    yield b""


@pytest.mark.rule("H3", "E5")
async def test_a_ref_that_the_door_should_not_have_taken(local: LocalGateway) -> None:
    await Operator(local, ephemeral()).start()
    run = await local.gate.ledger.open("u1")
    lax: Any = Lax(candidate_ref("u1", 1), drift_ref("u1", 1), candidate_ref("u2", 1), candidate_ref("u1", 2))
    refs = EldersFirst(lax, local.gate.ledger, local.deps.mirrors, local.deps.metrics.violations)
    await refs.receive(run, ReceivePolicy("u1", 1, "b"), nothing())
    assert counted(local.deps.metrics) == {"unauthorised_push": 2}


@pytest.mark.rule("H3", "S1")
async def test_a_head_that_lies_before_what_was_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    made = await worked(store)
    run, row = await made.ledger.open("u1"), await store.get("u1")

    async def behind(_: str) -> Any:
        return replace(row, version=row.version - 3, head=replace(row.head, offset=row.head.offset - 3))

    await made.ledger.refresh(run)
    assert counted(made.metrics) == {}
    with monkeypatch.context() as failover:
        failover.setattr(store, "get", behind)
        await made.ledger.refresh(run)
    assert counted(made.metrics) == {"lost_record": 3}
    assert run.at is None
    assert (await made.ledger.open("u1")).state.offset == row.head.offset


@pytest.mark.rule("H3", "P1")
@pytest.mark.parametrize(("sign", "lost"), [(signed, {"lost_record": 2}), (lambda forged: forged, {})])
async def test_a_snapshot_of_records_that_are_not_there(
    sign: Callable[[Snapshot], Snapshot], lost: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    store: DurableExecutionStore = MemoryStore()
    await worked(store)
    taken, row = await latest(store), await store.get("u1")
    beyond = sign(replace(taken, source_offset=row.head.offset + 2))

    async def kept(*_: object) -> Snapshot:
        return beyond

    monkeypatch.setattr(store, "snapshot", kept)
    made = Gateway(store)
    await made.ledger.open("u1")
    assert counted(made.metrics) == lost
