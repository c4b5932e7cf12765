"""J7 over every store: retention removes whole sealed journals, and what stands in their place says so, signed."""

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import structlog
from tests.contract.test_gateway_snapshots import KEY, Gateway, worked
from tests.contract.test_journal_repair import Damaged, changed_byte, damaged

from moorage.cli.bundling import Cited, examine
from moorage.cli.exits import CliError
from moorage.core.journal.chain import Broken, Head, Intact
from moorage.core.journal.errors import JournalCorrupted, JournalPruned
from moorage.core.journal.export import Header, header_line, record_line, verify_export
from moorage.core.journal.heads import HeadRefused, SigningKey
from moorage.core.journal.pruning import KIND_OF_STATEMENT, Pruned
from moorage.core.journal.record import RecordType, Stored
from moorage.gateway.heads import Heads
from moorage.gateway.retention import Retention
from moorage.gateway.settings import GatewaySettings
from moorage.store.errors import NotPrunable, StoreUnavailable
from moorage.store.port import DurableExecutionStore
from moorage.store.postgres import PostgresStore
from moorage.store.reading import verify_stored
from moorage.store.sqlite import SqliteStore
from moorage.testing.clock import StepClock

__all__ = ["damaged"]  # a fixture
KEPT_MS = 1_000


def retention(made: Gateway, clock: StepClock, kept: int | None = KEPT_MS) -> Retention:
    settings = GatewaySettings(journal_retention_ms=kept)
    return Retention(made.ledger, KEY, clock, structlog.get_logger(), settings)


async def released(store: DurableExecutionStore, clock: StepClock) -> Gateway:
    """A run that has ended and was let go of, with a blob that its journal alone needs."""
    made = await worked(store, turns=3)
    run = await made.ledger.open("u1")
    ref = await made.ledger.attach(run, b"what the agent wrote")
    await made.ledger.append(run, 1, [made.ledger.observed(RecordType.AGENT_OUTPUT, {}, 1, attachments={"text": ref})])
    await made.ledger.append(run, 1, [made.ledger.observed(RecordType.RUN_FAILED, {"reason": "x"}, 1)])
    await made.ledger.seal(run, "released")
    return made


async def pruned(store: DurableExecutionStore, clock: StepClock) -> tuple[Gateway, Pruned]:
    made = await released(store, clock)
    row = await store.get("u1")
    return made, await retention(made, clock).prune(row)


@pytest.mark.rule("J7")
async def test_only_what_was_sealed_and_kept_long_enough_goes(store: DurableExecutionStore, clock: StepClock) -> None:
    made = await released(store, clock)
    row = await store.get("u1")
    (last,) = await store.read("u1", row.head.offset, 1)
    kept = retention(made, clock)
    clock.wall = last.recorded_at + KEPT_MS - 1
    assert await kept.sealed() == [row]
    assert not await kept.due(row)
    clock.advance(1)
    assert await kept.due(row)
    assert await retention(made, clock, None).sealed() == []
    assert not await retention(made, clock, None).due(row)
    await kept.prune(row)
    assert await kept.sealed() == await store.list_sealed() == []


@pytest.mark.rule("J7", "J5")
async def test_what_stands_in_its_place_says_that_it_was_pruned_when_it_was_sealed_and_who_says_so(
    store: DurableExecutionStore, clock: StepClock
) -> None:
    made = await released(store, clock)
    run = await made.ledger.open("u1")
    before, row = run.state, await store.get("u1")
    records = await store.read("u1")
    assert await store.referenced_blobs("team-a") != set()
    gone = await retention(made, clock).prune(row)
    assert await store.read("u1") == []
    assert await store.referenced_blobs("team-a") == set()
    assert await store.pruned("u1") == gone
    assert (gone.last, gone.hash, gone.sealed_at) == (records[-1].seq, records[-1].hash, records[-1].recorded_at)
    KEY.verifying.check_said(KIND_OF_STATEMENT, gone.said(), gone.signature, of="it")
    assert await verify_stored(store, "u1") == Intact(gone.last, gone.hash)
    assert (await store.recover("u1")).head == row.head
    assert (await Gateway(store).ledger.open("u1")).state == before  # what its status shows stays
    signed = await Heads(store, KEY).signed("u1", gone.last, gone.hash)
    assert signed == KEY.sign("u1", gone.last, gone.hash, gone.sealed_at)
    await store.prune(replace(gone, reason="again"))
    assert await store.pruned("u1") == gone


def exported(gone: Pruned | None, **changes: Any) -> bytes:
    assert gone is not None
    said = {"offset": gone.last, "hash": gone.hash} | changes
    return header_line(Header(tenant="team-a", run_uid="u1", name="u1", spec_hash="h", pruned=gone, **said))


@pytest.mark.rule("J7", "J5")
async def test_an_export_of_it_verifies_offline_and_no_other_gap_does(
    store: DurableExecutionStore, clock: StepClock
) -> None:
    made = await released(store, clock)
    entries = [entry async for entry in store.stored("u1")]
    gone = await retention(made, clock).prune(await store.get("u1"))
    verdict = verify_export([exported(gone)])
    assert verdict.chain == Intact(gone.last, gone.hash)
    assert verdict.header is not None
    assert verdict.header.pruned == gone
    assert isinstance(verify_export([exported(gone)], published=Head(gone.last, gone.hash)).chain, Intact)
    assert isinstance(verify_export([exported(gone)], published=Head(gone.last, "0" * 64)).chain, Broken)
    assert isinstance(verify_export([exported(gone)], published=Head(gone.last + 1, gone.hash)).chain, Broken)
    with pytest.raises(CliError, match="pruned"):
        examine([exported(gone)], Cited())
    missing = Header(tenant="team-a", run_uid="u1", name="u1", spec_hash="h", offset=gone.last, hash=gone.hash)
    assert isinstance(verify_export([header_line(missing)]).chain, Broken)
    assert isinstance(verify_export([exported(gone), record_line(entries[-1])]).chain, Broken)
    assert isinstance(verify_export([exported(gone, offset=gone.last + 1)]).chain, Broken)
    assert isinstance(verify_export([exported(replace(gone, signature="none"))]).chain, Broken)
    forged = verify_export([exported(replace(gone, sealed_at=gone.sealed_at - 1))]).header
    assert forged is not None
    assert forged.pruned is not None
    with pytest.raises(HeadRefused):
        KEY.verifying.check_said(KIND_OF_STATEMENT, forged.pruned.said(), forged.pruned.signature, of="it")


@pytest.mark.rule("J7")
async def test_a_journal_that_is_not_sealed_or_ended_elsewhere_is_not_pruned(
    store: DurableExecutionStore, clock: StepClock
) -> None:
    made = await worked(store, turns=2)
    row = await store.get("u1")
    kept = retention(made, clock)
    with pytest.raises(NotPrunable):
        await kept.prune(row)
    sealed = await released(store, clock)
    gone = await _tombstone(retention(sealed, clock), store)
    for other in (replace(gone, last=gone.last - 1), replace(gone, hash="0" * 64), replace(gone, signature="")):
        with pytest.raises(NotPrunable):
            await store.prune(other)
    assert len(await store.read("u1")) == gone.last + 1


async def _tombstone(kept: Retention, store: DurableExecutionStore) -> Pruned:
    run = await kept._ledger.open("u1")
    return kept._tombstone(run, await kept._last(await store.get("u1")))


@pytest.mark.rule("J7", "J5")
async def test_a_broken_journal_is_kept(damaged: Damaged, clock: StepClock) -> None:
    made = await released(damaged.store, clock)
    await damaged.change(changed_byte)
    with pytest.raises(JournalCorrupted):
        await retention(made, clock).prune(await damaged.store.get("u1"))
    assert await damaged.store.pruned("u1") is None
    assert len(await damaged.events()) > 0


@pytest.mark.rule("J7")
@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("known", [True, False], ids=["in-memory", "read-anew"])
async def test_what_was_pruned_in_part_is_finished_behind_a_tombstone_of_ours(
    tmp_path: Path, clock: StepClock, monkeypatch: pytest.MonkeyPatch, *, known: bool, ours: bool
) -> None:
    def away(*_: object) -> bool:
        raise StoreUnavailable("the disk is full")

    async with SqliteStore(tmp_path / "journal.db") as store:
        made = await released(store, clock)
        gone = await _tombstone(retention(made, clock), store)
        with monkeypatch.context() as broken:
            broken.setattr("moorage.store.sqlite_rows.prune_some", away)
            with pytest.raises(StoreUnavailable):
                await store.prune(gone if ours else replace(gone, pruned_at=gone.pruned_at + 1))
        kept = retention(made if known else Gateway(store), clock)
        (row,) = await kept.sealed()
        assert await kept.due(row), "whenever it was sealed"
        if ours:
            assert await kept.prune(row) == gone
        else:
            with pytest.raises(JournalPruned):
                await kept.prune(row)
        assert await kept.sealed() == ([] if ours else [row])


@pytest.mark.rule("J7")
async def test_a_tombstone_that_the_gateway_did_not_sign_makes_no_run(
    store: DurableExecutionStore, clock: StepClock
) -> None:
    """Whoever may write the database can put one there."""
    made = await released(store, clock)
    gone = await _tombstone(retention(made, clock), store)
    await store.prune(replace(gone, state={**gone.state, "workspace_base": "f" * 40}))
    with pytest.raises(JournalPruned):
        await Gateway(store).ledger.open("u1")


@pytest.mark.rule("J7", "J5")
async def test_a_sealed_journal_whose_end_is_missing_is_told_of_and_kept(damaged: Damaged, clock: StepClock) -> None:
    made = await released(damaged.store, clock)
    await damaged.change(without_the_last)
    row = await damaged.store.get("u1")
    with pytest.raises(JournalCorrupted, match="missing"):
        await retention(made, clock).due(row)


def without_the_last(events: dict[int, Stored]) -> None:
    del events[max(events)]


FORBIDDEN = [
    "DELETE FROM execution_events",
    "DELETE FROM execution_events WHERE seq = 3",
    "INSERT INTO journal_tombstones (run, first_seq, last_seq, hash, said, signature) "
    "SELECT run, 0, next_seq - 2, head_hash, '{}', 's' FROM executions",
    "INSERT INTO journal_tombstones (run, first_seq, last_seq, hash, said, signature) "
    "SELECT run, 0, next_seq - 1, 'h', '{}', 's' FROM executions",
    "INSERT INTO journal_tombstones (run, first_seq, last_seq, hash, said, signature) "
    "SELECT run, 0, next_seq - 1, head_hash, '{}', '' FROM executions",
]
AFTERWARDS = [
    "DELETE FROM journal_tombstones",
    "UPDATE journal_tombstones SET signature = 's'",
    "INSERT INTO journal_tombstones (run, first_seq, last_seq, hash, said, signature) "
    "SELECT run, 0, next_seq - 1, head_hash, '{}', 's' FROM executions",
]


@pytest.mark.rule("J7")
async def test_sqlite_lets_nothing_else_go(tmp_path: Path, clock: StepClock) -> None:
    async with SqliteStore(tmp_path / "j.db") as store:
        made = await released(store, clock)
        with sqlite3.connect(tmp_path / "j.db", isolation_level=None) as db:
            for statement in FORBIDDEN:
                with pytest.raises(sqlite3.IntegrityError):
                    db.execute(statement)
            await retention(made, clock).prune(await store.get("u1"))
            for statement in [*AFTERWARDS, AFTERWARDS[-1].replace("INSERT", "INSERT OR REPLACE")]:
                with pytest.raises(sqlite3.IntegrityError):
                    db.execute(statement)
        db.close()
        assert await store.pruned("u1") is not None


@pytest.mark.rule("J7")
async def test_postgresql_lets_nothing_else_go(postgres: str, clock: StepClock) -> None:
    async with (
        await PostgresStore.open(postgres) as store,
        await psycopg.AsyncConnection.connect(postgres, autocommit=True) as db,
    ):
        made = await released(store, clock)
        for statement in FORBIDDEN:
            with pytest.raises(psycopg.errors.IntegrityError):
                await db.execute(statement)
        await retention(made, clock).prune(await store.get("u1"))
        for statement in [*AFTERWARDS, "TRUNCATE journal_tombstones", "DELETE FROM execution_events WHERE false"]:
            with pytest.raises(psycopg.errors.IntegrityError):
                await db.execute(statement)
        assert await store.pruned("u1") is not None


async def test_another_gateways_key_signs_no_tombstone_of_ours(store: DurableExecutionStore, clock: StepClock) -> None:
    _, gone = await pruned(store, clock)
    with pytest.raises(HeadRefused):
        SigningKey.new().verifying.check_said(KIND_OF_STATEMENT, gone.said(), gone.signature, of="it")
