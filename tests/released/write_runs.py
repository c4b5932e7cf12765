"""Write real runs into a database, by the code that PYTHONPATH leads to; what is there goes to standard output as JSON.

    python write_runs.py JOURNAL WHERE    WHERE: the path of a SQLite file to be, or PostgreSQL's connection string

JOURNAL is an exported journal of a real run, which is told again record by record.
"""

import asyncio
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from moorage.core.journal.chain import Head
from moorage.core.journal.export import parse_header, parse_record, read_lines
from moorage.core.journal.record import Assurance, Draft, Record, RunIdentity, Source, decode
from moorage.core.run.reducer import replay
from moorage.core.run.state import REDUCER_VERSION, RunState
from moorage.store import port
from moorage.store.port import ExecutionStatus, NewExecution, Pod, Session

LIVE, CUT = 13, 8
"""Records of the run that still works, and the last good one of those that are repaired."""
SPEC = {
    "tenant": "local",
    "name": "fix-slugify",
    "placement": "cluster",
    "goal": "make the tests pass",
    "workspace": {"key": "w", "kind": "ephemeral"},
    "agent": {"driver": "command"},
}
NOW = 1_800_000_000_000


def told(path: Path) -> list[Record]:
    lines = read_lines([path.read_bytes()])
    parse_header(next(lines))
    return [decode(parse_record(line)) for line in lines]


def draft(record: Record) -> Draft:
    return Draft(**{each.name: getattr(record, each.name) for each in fields(Draft) if hasattr(record, each.name)})


def state_hash(state: RunState) -> str:
    """Fields at their default are left out: a later version may have more of them."""
    usual = asdict(RunState())
    said = {name: value for name, value in asdict(state).items() if value != usual[name]}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


async def write(store: Any, uid: str, records: list[Record]) -> None:
    identity = RunIdentity(tenant="local", run_uid=uid, session_id=f"session-{uid}")
    spec = {**SPEC, "uid": uid, "session_id": uid}
    await store.persist(NewExecution(identity=identity, name=uid, spec_hash="h", spec=spec, created_at=NOW))
    for record in records:
        raised = (await store.get(uid)).fence_epoch < record.epoch
        call = store.raise_fence if raised else store.append
        await call(uid, record.epoch, [draft(record)])
    await store.register_pod(Pod(pod_uid=f"pod-{uid}", run_uid=uid, epoch=1, role="runner", pod_name=f"{uid}-1"))


async def snapshot(store: Any, uid: str) -> None:
    row, state = await store.get(uid), {"phase": "Running"}
    known: dict[str, Any] = {
        "run_uid": uid, "source_offset": row.head.offset, "source_hash": row.head.hash, "schema_version": 1,
        "reducer_version": REDUCER_VERSION, "epoch": row.fence_epoch, "state": state, "state_hash": "h",
    }  # fmt: skip
    await store.put_snapshot(port.Snapshot(**known))  # type: ignore[attr-defined]  # it has moved since


async def repair(store: Any, records: list[Record]) -> None:
    """A new generation behind CUT, in which ids of dropped records come again."""
    await write(store, "repaired", records)
    row, good = await store.get("repaired"), (await store.read("repaired", CUT, 1))[0]
    head = row.head.offset
    said = {"dropped": {"first": CUT + 1, "last": head}, "generation": 2, "why": "told so", "reason": "the disk",
            "readable": head - CUT, "unreadable": 0, "effects": [], "usage": {}, "epoch": row.fence_epoch,
            "status": row.status.value}  # fmt: skip
    repaired = Draft(record_id="repaired-2", type="JOURNAL_REPAIRED", recorded_at=NOW, source=Source.GATEWAY,
                     assurance=Assurance.OBSERVED, payload=said, actor="ann")  # fmt: skip
    await store.repair("repaired", Head(CUT, good.hash, good.logical_time), repaired, head)
    for record in (each for each in records[CUT + 1 :] if each.criticality == "optional"):
        await store.append("repaired", row.fence_epoch, [draft(record)])


async def prune(store: Any, records: list[Record]) -> None:
    from moorage.core.journal.heads import SigningKey  # noqa: PLC0415  neither is in every version
    from moorage.core.journal.pruning import Pruned  # noqa: PLC0415

    await write(store, "pruned", records)
    row = await store.delete("pruned", at=NOW, reason="deleted")
    gone = Pruned(run_uid="pruned", last=row.head.offset, hash=row.head.hash, segments=1, generation=1, sealed_at=NOW,
                  pruned_at=NOW, reason="its retention is over", state={"phase": "Succeeded"})  # fmt: skip
    await store.prune(replace(gone, signature=SigningKey.new().say("pruned", gone.said(), NOW)))


async def keep(store: Any) -> None:
    """What the mirrors of other gateways would follow."""
    from moorage.store.port import KeptPush  # noqa: PLC0415  not in every version

    moves = (("refs/moorage/runs/live/1/checkpoint", "c" * 40),)
    await store.keep_push(KeptPush(run_uid="live", number=0, epoch=1, moves=moves, base="b" * 40))


async def facts(store: Any, uid: str) -> dict[str, Any]:
    row = await store.get(uid)
    records = [] if uid == "pruned" else await store.read(uid)
    return {
        "status": row.status.value, "sealed": row.sealed, "fence": row.fence_epoch, "offset": row.head.offset,
        "hash": row.head.hash, "records": len(records), "state": state_hash(replay(records)) if records else None,
        "pushes": len(await store.kept_pushes(uid)) if hasattr(store, "kept_pushes") else 0,
    }  # fmt: skip


async def everything(store: Any, records: list[Record]) -> dict[str, Any]:
    await write(store, "live", records[:LIVE])
    await snapshot(store, "live")
    for uid in ("finished", "sealed"):
        await write(store, uid, records)
        await store.update_status(uid, ExecutionStatus.COMPLETED, (await store.get(uid)).version)
    await store.delete("sealed", at=NOW, reason="deleted")
    await store.open_session(Session(tenant="local", session_id="session-live", created_at=NOW, active_at=NOW,
                                     state="active", lineage=("live",)))  # fmt: skip
    if hasattr(store, "keep_push"):
        await keep(store)
    uids = ["live", "finished", "sealed"]
    later: dict[str, Callable[[Any, list[Record]], Any]] = {"repair": repair, "prune": prune}
    for able, tell in later.items():
        if hasattr(store, able):
            await tell(store, records)
            uids.append({"repair": "repaired", "prune": "pruned"}[able])
    return {uid: await facts(store, uid) for uid in uids}


async def main(journal: Path, where: str) -> None:
    from moorage.store.postgres import PostgresStore  # noqa: PLC0415  slow to import, and not always needed
    from moorage.store.sqlite import SqliteStore  # noqa: PLC0415

    store: Any = await PostgresStore.open(where) if "=" in where else SqliteStore(Path(where))
    async with store:
        json.dump(await everything(store, told(journal)), sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
