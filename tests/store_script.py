"""What a writer says to a store, whichever it is: shared by the suite over every adapter."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from moorage.core.journal.record import (
    Assurance,
    Draft,
    RecordType,
    RunIdentity,
    Source,
)
from moorage.store.port import (
    DurableExecutionStore,
    Execution,
    NewExecution,
)


def new(run_uid: str = "run-1", tenant: str = "team-a", spec_hash: str = "s1", created_at: int = 1000) -> NewExecution:
    identity = RunIdentity(tenant=tenant, run_uid=run_uid, session_id=f"session-{run_uid}", workspace="web")
    return NewExecution(
        identity=identity, name=f"name-{run_uid}", spec_hash=spec_hash, spec={"goal": "ü"}, created_at=created_at
    )


def draft(record_id: str, payload: dict[str, Any] | None = None, **more: Any) -> Draft:
    facts = {"type": RecordType.AGENT_OUTPUT, "recorded_at": 2000, "source": Source.RUNNER} | more
    return Draft(record_id=record_id, assurance=Assurance.REPORTED, payload=payload or {"n": record_id}, **facts)


async def admitted(store: DurableExecutionStore, run_uid: str = "run-1", epoch: int = 1, **more: Any) -> Execution:
    await store.persist(new(run_uid, **more))
    return (await store.raise_fence(run_uid, epoch)).execution


async def refused(error: type[Exception], call: Awaitable[object], store: DurableExecutionStore) -> Exception:
    """The call raises, and the store is as it was."""
    before = await everything(store)
    with pytest.raises(error) as caught:
        await call
    assert await everything(store) == before
    return caught.value


async def everything(store: DurableExecutionStore) -> list[object]:
    rows = []
    for change in await store.changes():
        rows += [change, await store.get(change.run_uid), await store.read(change.run_uid)]
    return rows
