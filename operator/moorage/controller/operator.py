"""What the watches, the gateway's feed and the scan talk to: it turns each of their words into a key, and no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from moorage.api import names
from moorage.controller.engine import Engine
from moorage.controller.queue import WorkQueue
from moorage.controller.roll import Roll
from moorage.controller.told import Standing, key_of, parent_of
from moorage.core.run.view import RunBrief
from moorage.sandbox.port import Conflict, RunKey, Unavailable
from moorage.telemetry.logs import Key
from moorage.telemetry.metrics import OperatorMetrics

Body = Mapping[str, Any]
FOR_PARENT_MS = 1_000
"""At most so often a child that may wait for its parent looks again, however much that writes."""


class Operator:
    """The queue of runs around one engine. `journaled` hears of each run that the gateway journaled something about."""

    def __init__(
        self,
        *,
        engine: Engine,
        roll: Roll,
        metrics: OperatorMetrics,
        log: Any,
        workers: int,
        chance: Random,
        journaled: Callable[[RunKey], None] = lambda _: None,
    ) -> None:
        self._journaled = journaled
        self._engine, self._roll, self._metrics, self._log = engine, roll, metrics, log
        self.queue: WorkQueue[RunKey] = WorkQueue(self._work, workers=workers, chance=chance, failed=self._failed)

    # --- who wakes it -------------------------------------------------------------------------------------------------

    def run_changed(self, kind: str | None, body: Body) -> None:
        """An AgentRun was seen, or seen to go. Ended ones that nothing is due for cost nothing more."""
        key = key_of(body)
        if kind == "DELETED":
            self.run_gone(key, body)
            return
        self._wake_relatives(key, body)
        entry = self._roll.saw(body, created=kind == "ADDED")
        if entry is not None and entry.body is not None:
            self.queue.add(key)

    def run_gone(self, key: RunKey, body: Body | None = None) -> None:
        """Nobody has that run any more, as the watch says, or a list in which it isn't."""
        entry = self._roll.get(key)
        self._wake_relatives(key, body or (entry.body if entry is not None else None) or {})
        self._roll.forget(key)
        self._wake_waiting(key.tenant)
        self.queue.add(key)

    def _wake_relatives(self, key: RunKey, body: Body) -> None:
        """X2, B2, O2: children hear of their parent's end, and a parent of theirs; and so does who goes on with it."""
        above = parent_of(body)
        parent = self._roll.find(*above) if above is not None else None
        near = (*self._roll.children(key), *([parent] if parent is not None else []), *self._roll.continuing(key))
        for other in near:
            if self._roll.heeds(other):
                self.queue.add(other)

    def child_changed(self, kind: str | None, body: Body) -> None:
        """A pod of a run's changed, or its Lease went."""
        key = run_of_child(body)
        if key is not None and self._roll.knows(key) and not self._settled(key, kind, body):
            self.queue.add(key)

    def _settled(self, key: RunKey, kind: str | None, body: Body) -> bool:
        """An ended pod of an ended run tells nothing: after a restart there may be thousands of them."""
        entry = self._roll.get(key)
        status = body.get("status") or {}
        over = kind == "DELETED" or str(status.get("phase")) in {"Succeeded", "Failed"}
        return entry is not None and entry.standing is Standing.ENDED and over

    def journal_changed(self, key: RunKey) -> None:
        """The gateway journaled something about a run. What its children wait for may be there now: something to start
        from, a part of the budget, its going on.
        """
        self._journaled(key)
        if self._roll.heeds(key):
            self.queue.add(key)
        for child in self._roll.unadmitted(key):
            self.queue.add_after(child, FOR_PARENT_MS)

    def reference_changed(self, tenant: str | None) -> None:
        """Something that a waiting run may wait for changed."""
        for key in self._roll.blocked(tenant):
            self.queue.add(key)

    def contract_changed(self, tenant: str) -> None:
        """What that tenant may have is another now."""
        self._roll.contracts_changed()
        self._wake_waiting()
        self.reference_changed(tenant)

    def room_changed(self) -> None:
        """The quotas of some namespace have room for whoever found none there before."""
        self._roll.contracts_changed()
        self._wake_waiting()

    def live_found(self, briefs: Sequence[RunBrief]) -> None:
        """Runs whose journals haven't ended, as a scan found them."""
        live = [RunKey(b.uid, b.tenant, b.name) for b in briefs if b.live]
        if self._roll.open(live):
            self._wake_waiting()

    def look(self, key: RunKey) -> None:
        """The scan found something to do about that run."""
        self.queue.add(key)

    # --- the work -----------------------------------------------------------------------------------------------------

    async def _work(self, key: RunKey) -> int | None:
        with self._metrics.pass_seconds.time():
            outcome = await self._engine.run_pass(key)
        self._metrics.passes.labels("done").inc()
        if outcome.freed:
            self._wake_waiting(key.tenant)
            if (first := self._roll.queue.first(key.tenant)) is not None:
                self.queue.add(first)  # the first of those that wait now hears so, and may have room made
        if (stops := self._roll.make_room(key)) is not None:
            self.queue.add(stops)
        if outcome.gone:
            self.queue.forget(key)
        return outcome.requeue_ms

    def _wake_waiting(self, tenant: str | None = None) -> None:
        """The queue moved: those whose turn it is may go on. `tenant`: where that may be news for others, too."""
        for key in self._roll.next_waiting():
            self.queue.add(key)
        for key in self._roll.first_kept(tenant) if tenant is not None else ():
            self.queue.add(key)

    def _failed(self, key: RunKey, error: Exception) -> None:
        """Expected is what only waiting mends; anything else is a fault of ours, and stays with its run."""
        expected = isinstance(error, Conflict | Unavailable)
        self._metrics.passes.labels("waits" if expected else "failed").inc()
        about = {Key.TENANT.value: key.tenant, Key.RUN.value: key.name, Key.RUN_UID.value: key.uid}
        if expected:
            self._log.info("pass_waits", reason=type(error).__name__, message=str(error), **about)
        else:
            self._log.error("pass_failed", exc_info=error, **about)
            if self._roll.stumbled(key):
                self._wake_waiting(key.tenant)


def run_of_child(body: Body) -> RunKey | None:
    """Whose child it is, by its controller; labels alone prove nothing."""
    meta = body.get("metadata") or {}
    for owner in meta.get("ownerReferences") or []:
        if owner.get("controller") and owner.get("kind") == "AgentRun" and owner.get("apiVersion") == names.API_VERSION:
            return RunKey(str(owner.get("uid")), str(meta.get("namespace")), str(owner.get("name")))
    return None
