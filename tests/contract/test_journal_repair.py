"""I1, J5: a broken journal is refused by name in every store, and goes on only in a generation that a person asked for.

The damage is what befell neighbours: a torn last line that the next record was glued to, NUL bytes in mid-file after a
power cut, a record that is gone, a bit that flipped, a head without its records.
"""

import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs
from tests.contract.test_gateway_snapshots import Gateway, worked

from moorage.api.wire import FenceRequest
from moorage.core.journal.chain import Broken, Head, Intact
from moorage.core.journal.errors import JournalCorrupted
from moorage.core.journal.export import Header, header_line, record_line, verify_export
from moorage.core.journal.heads import SigningKey
from moorage.core.journal.lineage import Dropped
from moorage.core.journal.record import Assurance, Draft, RecordType, Source, Stored
from moorage.core.run.phases import RunPhase
from moorage.core.run.reducer import replay
from moorage.core.run.reducing.repairs import REPAIRED
from moorage.core.run.state import REDUCER_VERSION
from moorage.store.errors import NothingToRepair, OffsetConflict, RunSealed
from moorage.store.memory import MemoryStore
from moorage.store.port import DurableExecutionStore, ExecutionStatus
from moorage.store.postgres import PostgresStore
from moorage.store.reading import backwards, verify_stored
from moorage.store.sqlite import SqliteStore

Events = dict[int, Stored]


@dataclass
class Damaged:
    """A store, and the rows of run u1 as somebody with the database in his hands sees and changes them."""

    store: DurableExecutionStore
    where: str

    async def events(self) -> Events:
        """Every row, whatever generation it is of."""
        match self.store:
            case MemoryStore():
                return dict(enumerate(self.store._runs["u1"].events))
            case SqliteStore():
                with sqlite3.connect(self.where) as db:
                    rows = db.execute("SELECT seq, hash, body FROM execution_events").fetchall()
            case _:
                async with await psycopg.AsyncConnection.connect(self.where) as db:
                    rows = await (await db.execute("SELECT seq, hash, body FROM execution_events")).fetchall()
        return {seq: Stored(digest, bytes(body)) for seq, digest, body in rows}

    async def change(self, damage: Callable[[Events], None]) -> None:
        before = await self.events()
        after = dict(before)
        damage(after)
        if isinstance(self.store, MemoryStore):
            self.store._runs["u1"].events = [after[at] for at in sorted(after)]
            return
        statements: list[tuple[str, Any]] = [
            ("DELETE FROM execution_events WHERE seq = ?", (at,)) for at in before.keys() - after.keys()
        ]
        update = "UPDATE execution_events SET hash = ?, body = ? WHERE seq = ?"
        statements += [(update, (*new, at)) for at, new in after.items() if before[at] != new]
        await self._unlocked(statements)

    async def _unlocked(self, statements: list[tuple[str, Any]]) -> None:
        if isinstance(self.store, SqliteStore):
            with sqlite3.connect(self.where) as db:
                triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
                for name, _ in triggers:
                    db.execute(f"DROP TRIGGER {name}")
                for statement, values in statements:
                    db.execute(statement, values)
                for _, sql in triggers:
                    db.execute(sql)
            return
        async with await psycopg.AsyncConnection.connect(self.where) as db:
            await db.execute("ALTER TABLE execution_events DISABLE TRIGGER ALL")
            for statement, values in statements:
                await db.execute(statement.replace("?", "%s"), values)  # type: ignore[arg-type]
            await db.execute("ALTER TABLE execution_events ENABLE ALWAYS TRIGGER execution_events_append_only")


@pytest.fixture(params=["memory", "postgres", "sqlite"])
async def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Damaged]:
    match request.param:
        case "memory":
            made = Damaged(MemoryStore(), "")
        case "sqlite":
            made = Damaged(SqliteStore(tmp_path / "journal.db"), str(tmp_path / "journal.db"))
        case _:
            dsn = request.getfixturevalue("postgres")
            made = Damaged(await PostgresStore.open(dsn), dsn)
    yield made
    await made.store.close()


BAD = 9


def glued(events: Events) -> None:
    """A torn line and the one after it, as one."""
    torn, after = events[BAD].body[:40], events.pop(BAD + 1)
    events[BAD] = Stored(after.hash, torn + after.body)


def nul_bytes(events: Events) -> None:
    digest, body = events[BAD]
    events[BAD] = Stored(digest, body[:20] + b"\0" * 64 + body[84:])


def changed_byte(events: Events) -> None:
    digest, body = events[BAD]
    events[BAD] = Stored(digest, body.replace(b'"observed"', b'"reported"'))


def missing(events: Events) -> None:
    del events[BAD]


def torn_end(events: Events) -> None:
    for at in [at for at in events if at >= BAD]:
        del events[at]


DAMAGES = {each.__name__: each for each in (glued, nul_bytes, changed_byte, missing, torn_end)}


@pytest.mark.rule("I1", "J5")
@pytest.mark.parametrize("how", DAMAGES)
async def test_what_is_broken_is_refused_by_name_and_goes_on_in_a_generation_that_says_so(
    damaged: Damaged, how: str
) -> None:
    store = damaged.store
    await worked(store)
    head = (await store.get("u1")).head
    await damaged.change(DAMAGES[how])
    broken = await damaged.events()
    verdict = await verify_stored(store, "u1")
    assert isinstance(verdict, Broken)
    assert verdict.offset == BAD
    for _ in range(2):  # it isn't mended by looking at it
        made = Gateway(store, SigningKey.new())  # for which no snapshot is one
        with pytest.raises(JournalCorrupted, match="moorage repair"):
            await made.ledger.open("u1")
    done = await made.ledger.repair("u1", "the disk was full", "ann")
    assert (done.generation, done.first, done.last, done.offset) == (2, BAD, head.offset, head.offset + 1)
    row = await store.get("u1")
    assert row.dropped == (Dropped(BAD, head.offset),)
    assert row.head.offset > head.offset, "a confirmed offset went back"
    whole = await verify_stored(store, "u1")
    assert isinstance(whole, Intact)
    assert [each.generation for each in whole.repairs] == [2]
    kept = await damaged.events()
    assert {at: kept[at] for at in broken} == broken, "the old generation was touched"
    said = (await store.read("u1"))[-1]
    assert (said.type, said.seq, said.actor, said.payload["reason"]) == (
        "JOURNAL_REPAIRED",
        head.offset + 1,
        "ann",
        "the disk was full",
    )
    assert said.payload["unreadable"] + said.payload["readable"] == head.offset + 1 - BAD
    assert str(BAD) in said.payload["why"]
    with pytest.raises(NothingToRepair):
        await made.ledger.repair("u1", "again", "ann")


@pytest.mark.rule("I1", "E2", "I4")
async def test_the_run_goes_on_with_ids_iterations_usage_and_effects_of_what_was_dropped_kept_apart(
    damaged: Damaged,
) -> None:
    store = damaged.store
    made = await worked(store, turns=2)
    run = await made.ledger.open("u1")
    ask = made.ledger.observed(RecordType.EFFECT_INTENT, PUSHED, "e-1", effect_id="e-1")
    billed = made.ledger.observed(RecordType.MODEL_RESPONSE, {"usage": {"input_tokens": 70}}, "m-1", turn=7)
    for draft in (draft_of("late", 3), ask, billed):
        await made.ledger.append(run, 1, [draft])
    head = run.state.offset
    before = run.state
    await damaged.change(lambda events: events.update({head - 2: Stored(events[head - 2].hash, b"\0" * 40)}))
    after = Gateway(store)
    done = await after.ledger.repair("u1", "power cut", "ann")
    assert (done.first, done.last, done.unreadable) == (head - 2, head, 1)
    run = await after.ledger.open("u1")
    assert run.state.phase is RunPhase.RECOVERING
    assert run.state.last_loss is not None
    assert run.state.last_loss.reason == REPAIRED
    assert run.state.usage.input_tokens == before.usage.input_tokens == 70
    assert {(e.effect_id, e.status) for e in run.state.effects} == {
        ("e-1", "unknown"),
        (f"dropped-{head - 2}", "unknown"),
    }
    assert run.facts.turn == 8  # 7 was read, and one that can't be read may have begun another
    await after.ledger.raise_fence(run, FenceRequest(epoch=2, attempt=2, holder="h"))
    result = await after.ledger.append(run, 2, [draft_of("late", 3), draft_of("late", 3)])
    assert result.duplicates == frozenset()  # what was dropped isn't there
    started = after.ledger.observed(RecordType.AGENT_STARTED, {}, 1)
    again = await after.ledger.append(run, 2, [draft_of("late", 3), started])
    assert again.duplicates == {draft_of("late", 3).record_id, "gw:AGENT_STARTED:1"}
    assert (await Gateway(store).ledger.open("u1")).state == run.state == replay(await store.read("u1"))


@pytest.mark.rule("I1", "B3", "X2", "I4")
async def test_children_that_dropped_records_tell_of_keep_their_shares_until_they_are_settled_again(
    damaged: Damaged,
) -> None:
    """Whatever those records say of their ends; and no number of a child is used twice."""
    made = await worked(damaged.store, turns=2)
    run = await made.ledger.open("u1")
    ask = {"key": "call-1", "name": "u1-1", "start": "Base", "reserve": {"tokens": 100}}
    over = {"uid": "c1", "name": "u1-1", "outcome": "Succeeded", "used": {"tokens": 7}, "commit": None}
    told: list[tuple[RecordType, dict[str, Any]]] = [
        (RecordType.CHILD_STARTED, {"uid": "c1", "name": "u1-1", "reserve": {"tokens": 100}}),
        (RecordType.CHILD_ENDED, over),
        (RecordType.CHILD_STARTED, {"uid": "c2", "name": "by-hand", "reserve": {"tokens": 30}}),
        (RecordType.CHILD_REQUESTED, ask | {"key": "call-2", "name": "u1-2", "reserve": {"tokens": 5}}),
    ]
    await made.ledger.append(run, None, [made.ledger.observed(RecordType.CHILD_REQUESTED, ask, "first")])
    await made.ledger.append(run, 1, [draft_of("late", 3)])
    bad = run.state.offset
    for number, (kind, said) in enumerate(told):
        await made.ledger.append(run, None, [made.ledger.observed(kind, said, f"child-{number}")])
    await damaged.change(lambda events: events.update({bad: Stored(events[bad].hash, b"\0" * 40)}))
    after = Gateway(damaged.store)
    await after.ledger.repair("u1", "power cut", "ann")
    s = (await after.ledger.open("u1")).state
    assert [(c.uid, c.name, c.key, c.status, c.reserve.tokens) for c in s.children] == [
        ("c1", "u1-1", "call-1", "started", 100),
        ("c2", "by-hand", "", "started", 30),
        ("", "u1-2", "call-2", "requested", 5),
    ]
    assert (s.given_away.tokens, s.children_asked) == (135, 3)
    assert s == replay(await damaged.store.read("u1"))


@pytest.mark.rule("I1", "O2")
@pytest.mark.parametrize("asked_is_kept", [True, False])
async def test_a_child_whose_object_was_seen_is_not_made_again_after_a_repair(
    damaged: Damaged, asked_is_kept: bool
) -> None:
    """Somebody may have deleted it. One that ended before it began is made no more; one only asked for still is."""
    made = await worked(damaged.store, turns=2)
    run = await made.ledger.open("u1")

    async def tell(kind: RecordType, **said: Any) -> None:
        key = f"{kind}:{said['name']}"
        await made.ledger.append(run, None, [made.ledger.observed(kind, said, key)])

    async def ask() -> None:
        for name in ("seen", "over", "asked"):
            await tell(RecordType.CHILD_REQUESTED, name=name, key=name, start="Base", reserve={"tokens": 5})

    if asked_is_kept:
        await ask()
    await made.ledger.append(run, 1, [draft_of("late", 3)])
    bad = run.state.offset
    if not asked_is_kept:
        await ask()
    await tell(RecordType.CHILD_MADE, name="seen", uid="k1")
    await tell(RecordType.CHILD_ENDED, uid="", name="over", outcome="NeverStarted", used={}, commit=None)
    await damaged.change(lambda events: events.update({bad: Stored(events[bad].hash, b"\0" * 40)}))
    after = Gateway(damaged.store)
    await after.ledger.repair("u1", "power cut", "ann")
    s = (await after.ledger.open("u1")).state
    assert {c.name: c.status for c in s.children} == {"seen": "made", "over": "made", "asked": "requested"}
    assert s.given_away.tokens == 15
    assert s == replay(await damaged.store.read("u1"))


PUSHED = {"effect_id": "e-1", "kind": "http", "key": "k", "target": "https://x.example", "level": "opaque"}


def draft_of(name: str, turn: int) -> Draft:
    return Draft(
        record_id=name,
        type=RecordType.TOOL_RESPONSE,
        recorded_at=5,
        source=Source.GATEWAY,
        assurance=Assurance.OBSERVED,
        payload={"tool": name},
        turn=turn,
    )


@pytest.mark.rule("I1", "P1")
async def test_a_snapshot_of_what_was_dropped_is_ignored(damaged: Damaged) -> None:
    store = damaged.store
    await worked(store)
    taken = await store.snapshot("u1", REDUCER_VERSION)
    assert taken is not None
    assert taken.source_offset > BAD
    await damaged.change(changed_byte)
    with capture_logs() as logs:
        await Gateway(store).ledger.repair("u1", "x", "ann")
        run = await Gateway(store).ledger.open("u1")
    assert [(each["event"], each["why"]) for each in logs] == [("snapshot_ignored", "chain")]
    assert run.state == replay(await store.read("u1"))
    assert run.state.generation == 2


@pytest.mark.rule("I1")
async def test_a_second_repair_begins_a_third_generation(damaged: Damaged) -> None:
    store = damaged.store
    await worked(store, turns=3)
    made = Gateway(store)
    await damaged.change(lambda events: events.update({5: Stored("0" * 64, b"{}")}))
    first = await made.ledger.repair("u1", "first", "ann")
    run = await made.ledger.open("u1")
    await made.ledger.raise_fence(run, FenceRequest(epoch=2, attempt=2, holder="h"))
    await made.ledger.append(run, 2, [draft_of("more", 9)])
    await damaged.change(lambda events: events.update({first.offset: Stored("0" * 64, b"")}))
    second = await Gateway(store).ledger.repair("u1", "second", "bob")
    assert (second.generation, second.first) == (3, first.first)
    row = await store.get("u1")
    assert isinstance(await verify_stored(store, "u1"), Intact)
    assert [record.seq for record in await store.read("u1")][-1] == row.head.offset == second.offset
    assert (await Gateway(store).ledger.open("u1")).state.generation == 3


@pytest.mark.rule("I1")
@pytest.mark.parametrize("size", [1, 3, 4, 100])
async def test_pages_from_the_head_back_have_each_record_once_and_nothing_that_was_dropped(
    damaged: Damaged, size: int
) -> None:
    """Also for who looked at the row before the repair."""
    store = damaged.store
    made = await worked(store, turns=3)
    rows = [await store.get("u1")]
    await damaged.change(lambda events: events.update({5: Stored("0" * 64, b"{}")}))
    await made.ledger.repair("u1", "power cut", "ann")
    run = await made.ledger.open("u1")
    await made.ledger.raise_fence(run, FenceRequest(epoch=2, attempt=2, holder="h"))
    rows.append(await store.get("u1"))
    records = await store.read("u1")
    for row, expected in zip(rows, (records[:5], records), strict=True):
        pages = [page async for page in backwards(store, row, size)]
        assert [record for page in reversed(pages) for record in page] == expected
        assert max(map(len, pages)) <= size
    assert len(pages) == -(-5 // size) + -(-(len(records) - 5) // size)


@pytest.mark.rule("I1", "J5")
async def test_an_export_says_that_it_was_repaired_and_verifies_offline(damaged: Damaged) -> None:
    store = damaged.store
    await worked(store)
    old = (await store.get("u1")).head
    await damaged.change(nul_bytes)
    await Gateway(store).ledger.repair("u1", "power cut", "ann")
    row = await store.get("u1")
    header = Header(
        tenant=row.tenant,
        run_uid="u1",
        name=row.name,
        spec_hash=row.spec_hash,
        offset=row.head.offset,
        hash=row.head.hash,
    )
    lines = [header_line(header), *[record_line(entry) async for entry in store.stored("u1")]]
    told = verify_export(lines, published=Head(old.offset, old.hash))  # a head of the generation that is over
    assert isinstance(told.chain, Intact)
    assert (told.chain.repairs[0].dropped, told.sound) == (Dropped(BAD, old.offset), BAD + 1)
    without = verify_export([*lines[:-1]])
    assert isinstance(without.chain, Broken)
    skipped = verify_export([*lines[: BAD - 1], lines[-1]])  # it repairs no other gap than the one it names
    assert isinstance(skipped.chain, Broken)


@pytest.mark.rule("I1")
async def test_nothing_but_a_broken_journal_gets_a_new_generation(damaged: Damaged) -> None:
    store = damaged.store
    made = await worked(store)
    row, records = await store.get("u1"), await store.read("u1")
    draft = made.ledger.observed(RecordType.JOURNAL_REPAIRED, {}, 2)
    good = Head(3, records[3].hash, records[3].logical_time)
    with pytest.raises(NothingToRepair):
        await made.ledger.repair("u1", "for fun", "ann")
    with pytest.raises(OffsetConflict):
        await store.repair("u1", good, draft, row.head.offset - 1)
    with pytest.raises(NothingToRepair):
        await store.repair("u1", Head(3, "0" * 64), draft, row.head.offset)
    await store.delete("u1", at=9, reason="released")
    with pytest.raises(RunSealed):
        await store.repair("u1", good, draft, row.head.offset + 1)


@pytest.mark.rule("I1", "I6")
async def test_a_run_that_had_ended_does_not_come_back_to_life(damaged: Damaged) -> None:
    store = damaged.store
    made = await worked(store)
    run = await made.ledger.open("u1")
    await made.ledger.append(run, 1, [made.ledger.observed(RecordType.RUN_FAILED, {"reason": "x"}, 1)])
    await damaged.change(changed_byte)
    after = Gateway(store)
    await after.ledger.repair("u1", "x", "ann")
    run = await after.ledger.open("u1")
    assert run.state.phase is RunPhase.FAILED
    assert run.state.end is not None
    assert run.state.end.reason == REPAIRED
    assert (await store.get("u1")).status is ExecutionStatus.FAILED
