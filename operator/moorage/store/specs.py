"""Stored specs as their model: one that this version can't read is refused by name, and is no other's trouble (R8)."""

from __future__ import annotations

from pydantic import ValidationError

from moorage.api.faults import faults
from moorage.api.wire import ResolvedRun
from moorage.store.errors import SpecUnreadable
from moorage.store.port import DurableExecutionStore


async def stored_spec(store: DurableExecutionStore, run_uid: str) -> ResolvedRun:
    """The spec that the run was admitted with. Raise UnknownRun, SpecUnreadable."""
    stored = await store.spec(run_uid)
    try:
        return ResolvedRun.model_validate(stored)
    except ValidationError as error:
        raise SpecUnreadable(run_uid, faults(error, "spec")) from None
