"""One tenant's or one mirror's trouble keeps no other waiting for the gateway's housekeeping (J8, I10)."""

from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.gateway_script import Operator, ok, resolved

from moorage.core.journal.errors import Malformed
from moorage.core.journal.export import verify_export
from moorage.core.run.state import REDUCER_VERSION
from moorage.gateway.gate import Gate
from moorage.gateway.housekeeping import Housekeeping
from moorage.gateway.settings import GatewaySettings
from moorage.store.blobs import BlobStore
from moorage.store.errors import StoreUnavailable
from moorage.store.memory import MemoryStore
from moorage.store.port import DurableExecutionStore
from moorage.testing.gateway import LocalGateway
from moorage.workspace.errors import WorkspaceError
from moorage.workspace.mirror import MirrorKey, Mirrors


class Broken:
    """All as it is, but what concerns team-a."""

    def __init__(self, whole: BlobStore | Mirrors) -> None:
        self._whole = whole
        self.packed: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    async def collect_orphans(self, tenant: str, *args: Any) -> Any:
        if tenant == "team-a":
            raise StoreUnavailable("its folder can't be read")
        return await self._whole.collect_orphans(tenant, *args)

    async def gc(self, key: MirrorKey, *_: Any, **__: Any) -> None:
        if key.tenant == "team-a":
            raise WorkspaceError("its objects are damaged")
        self.packed.append(key.tenant)


@pytest.mark.rule("J8", "I10")
async def test_a_tenant_that_cannot_be_tidied_keeps_no_other_waiting(gateway, upstream, clock) -> None:
    for uid, tenant in (("u1", "team-a"), ("u2", "team-b")):
        gateway.secrets.give(tenant, "git", username="ada", password="x")
        await Operator(gateway, resolved(upstream, uid=uid, tenant=tenant)).admit()
    orphan = await gateway.deps.blobs.put("team-b", b"nobody needs this")
    clock.advance(gateway.deps.settings.orphan_age_ms + 1)
    mirrors = Broken(gateway.deps.mirrors)
    deps = replace(gateway.deps, blobs=Broken(gateway.deps.blobs), mirrors=mirrors)
    await Housekeeping(Gate(deps)).once()
    assert orphan.sha256 not in await gateway.deps.blobs.digests("team-b")
    assert mirrors.packed == ["team-b"]


@pytest.mark.rule("J5")
async def test_a_round_tells_of_a_journal_that_is_broken_behind_its_snapshot(tmp_path, upstream, clock) -> None:
    store = MemoryStore()
    settings = GatewaySettings(snapshot_records=1)
    async with LocalGateway(tmp_path, store=store, clock=clock, settings=settings) as gateway:
        gateway.secrets.give("team-a", "git", username="ada", password="x")
        operator = Operator(gateway, resolved(upstream))
        await operator.admit()
        await ok(await operator.report(0, "CANCEL_REQUESTED", {"reason": "user"}))
        house = Housekeeping(Gate(gateway.deps))
        gauge = gateway.deps.metrics.journals_corrupted
        await house.once()
        assert gauge._value.get() == 0
        events = store._runs["u1"].events
        assert (await store.snapshot("u1", REDUCER_VERSION)).source_offset > 0
        events[0] = events[0]._replace(body=events[0].body.replace(b"RUN_ADMITTED", b"RUN_ADMITTEE"))
        gateway.restart()
        assert (await operator.state())["phase"] == "Cancelling"  # it goes on
        with capture_logs() as logs:
            await Housekeeping(Gate(gateway.deps)).once()
        assert [(each["event"], each["offset"]) for each in logs if each["log_level"] == "error"] == [
            ("journal_corrupted", 0)
        ]
        assert gateway.deps.metrics.journals_corrupted._value.get() == 1


@pytest.mark.rule("J7", "J8")
async def test_a_round_prunes_what_was_kept_long_enough_and_collects_what_only_that_needed(
    gateway, upstream, clock
) -> None:
    operator = Operator(gateway, resolved(upstream))
    await operator.admit()
    await ok(await operator.report(0, "CANCEL_REQUESTED", {"reason": "user"}))
    await ok(await operator.report(0, "RUN_CANCELLED", {"reason": "Cancelled", "message": ""}))
    view = await operator.state()
    await ok(await gateway.operator.post("/v1/runs/u1/release"))
    assert len(await gateway.deps.blobs.digests("team-a")) == 1
    kept_ms = 2 * gateway.deps.settings.orphan_age_ms
    settings = replace(gateway.deps.settings, journal_retention_ms=kept_ms)
    house = Housekeeping(Gate(replace(gateway.deps, settings=settings)))
    await house.once()
    assert await gateway.deps.store.pruned("u1") is None
    clock.advance(kept_ms + 1)
    await house.once()
    assert await gateway.deps.store.pruned("u1") is not None
    assert await gateway.deps.blobs.digests("team-a") == []
    gateway.restart()
    assert (await operator.state())["phase"] == view["phase"] == "Cancelled"
    exported = (await gateway.operator.get("/v1/runs/u1/journal")).content
    assert verify_export([exported]).header.pruned is not None
    assert (await gateway.operator.get("/v1/runs/u1/logs")).content == b""


class Unreadable:
    """A store that can't read one run's records."""

    def __init__(self, whole: DurableExecutionStore, run_uid: str) -> None:
        self._whole, self._run_uid = whole, run_uid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    async def read(self, run_uid: str, *where: int) -> Any:
        if run_uid == self._run_uid:
            raise Malformed("no record")
        return await self._whole.read(run_uid, *where)


@pytest.mark.rule("J7", "I10")
async def test_a_sealed_journal_that_cannot_be_read_keeps_no_other_waiting(gateway, upstream, clock) -> None:
    gateway.secrets.give("team-a", "git", username="ada", password="x")
    for uid in ("u1", "u2"):
        await Operator(gateway, resolved(upstream, uid=uid, tenant="team-a")).admit()
        await gateway.deps.store.delete(uid, at=clock.now_ms(), reason="released")
    clock.advance(10_000)
    settings = replace(gateway.deps.settings, journal_retention_ms=1_000)
    deps = replace(gateway.deps, store=Unreadable(gateway.deps.store, "u1"), settings=settings)
    await Housekeeping(Gate(deps)).once()
    assert [await gateway.deps.store.pruned(uid) is not None for uid in ("u1", "u2")] == [False, True]
