"""F2: a sandbox is let in once it is journaled: the record comes first, then the row by which its token is known."""

from __future__ import annotations

from moorage.core.run.state import SandboxRef
from moorage.gateway.reduced import Run
from moorage.points import Point, reached
from moorage.store.port import DurableExecutionStore, Pod


async def let_in(store: DurableExecutionStore, run: Run, pod: Pod) -> None:
    """The journal has it. Raise PodConflict, Fenced, UnknownRun, RunSealed."""
    reached(Point.POD_WITHIN)
    await store.register_pod(pod)
    run.let_in.add(pod.pod_uid)
    reached(Point.POD_AFTER)


async def let_in_journaled(store: DurableExecutionStore, run: Run) -> None:
    """Whom the journal knows and the store doesn't: a gateway died between the two, and the operator, which goes by the
    journal, has nothing left to do about it. Looked for once for each sandbox.
    """
    state = run.state
    if state.end is not None:
        return
    for ref in state.sandboxes:
        if ref.epoch == state.epoch and ref.pod_uid not in run.let_in:
            if await store.find_pod(ref.pod_uid) is None:
                await store.register_pod(_pod(run.uid, ref))
            run.let_in.add(ref.pod_uid)


def _pod(run_uid: str, ref: SandboxRef) -> Pod:
    return Pod(
        pod_uid=ref.pod_uid,
        run_uid=run_uid,
        epoch=ref.epoch,
        role=ref.role,
        pod_name=ref.pod_name,
        commit=ref.commit,
    )
