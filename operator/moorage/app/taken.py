"""W2 on this machine, before anything is admitted: a run that can't deliver is refused, and leaves no journal.

The gateway refuses it later, too. That would leave a failed run of the same name, which hides the good one.
"""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

from moorage.api.wire import ResolvedDelivery, ResolvedRun
from moorage.app.stores import Stores
from moorage.cli.ports import RunRefused
from moorage.store.errors import SpecUnreadable, UnknownRun
from moorage.store.specs import stored_spec
from moorage.workspace.errors import WorkspaceError
from moorage.workspace.upstream import LocalUpstream, Seen, taken

ELSEWHERE = "name another branch in spec.delivery.branch"


async def refuse_taken(kept: Stores, asked: ResolvedRun, tenant: str) -> None:
    """Raises RunRefused where a live run delivers to the branch, or the repository on this machine has it already."""
    delivery = asked.delivery
    if delivery is None or not delivery.push:
        return
    await _refuse_contended(kept, asked, delivery, tenant)
    if asked.workspace.kind == "local" and asked.workspace.path:
        await _refuse_existing(kept, Path(asked.workspace.path), delivery.branch)


async def _refuse_contended(kept: Stores, asked: ResolvedRun, delivery: ResolvedDelivery, tenant: str) -> None:
    for row in await kept.store.list_pending(tenant):
        with contextlib.suppress(SpecUnreadable, UnknownRun):
            other = await stored_spec(kept.store, row.run_uid)
            if other.contends_with(asked):
                why = f"run {row.name} ({row.run_uid}) has not ended, and delivers to {delivery.branch}, too"
                raise RunRefused(why, f"wait for its end: `moorage logs -f {row.run_uid}`; or {ELSEWHERE}")


async def _refuse_existing(kept: Stores, repository: Path, branch: str) -> None:
    seen = Seen(None)
    with contextlib.suppress(WorkspaceError):  # what else is wrong there, the run says
        seen = await kept.mirrors.look_upstream(LocalUpstream(repository), branch)
    if not seen.at and not seen.obstacle:
        return
    drop = f"`git -C {shlex.quote(str(repository))} branch -D {branch}` drops it; or " if seen.at else ""
    raise RunRefused(f"a run makes its branch, and {taken(branch, seen)} in {repository}", f"{drop}{ELSEWHERE}")
