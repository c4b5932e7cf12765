"""I1, B3: what a repair knows of a run: its journal, good or bad, and what stands elsewhere of what that has lost."""

from __future__ import annotations

from contextlib import suppress

from moorage.api.wire import ResolvedRun
from moorage.core.recovery.repair import Survey
from moorage.core.run.account import account_of
from moorage.store.errors import UnknownSession
from moorage.store.port import ACTIVE, DurableExecutionStore, Execution
from moorage.store.reading import survey


async def surveyed(store: DurableExecutionStore, row: Execution, spec: ResolvedRun) -> Survey:
    """Look at the run's journal. What its session had used as it joined stands in the session's row, too, until another
    run joins or it is let go of itself; then it has ended, and the row has what it used. Raise UnknownRun.
    """
    looked = await survey(store, row)
    if spec.origin is not None and looked.account_unknown:
        with suppress(UnknownSession):
            session = await store.get_session(row.tenant, spec.session_id)
            if session.state == ACTIVE and session.lineage[-1] == row.run_uid:
                looked.account = account_of(session.budget or {}).told()
    return looked
