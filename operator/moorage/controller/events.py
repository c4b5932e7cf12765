"""Kubernetes Events: one per transition, typed, bounded, deduplicated by name, and never waited for.

The API server keeps each for an hour, in etcd. What one object, and all of a namespace, may tell in a minute is
bounded, so that nobody's runs fill it, however fast they are made, fail and are deleted (ADR 192).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from moorage.api import names
from moorage.api.meta import bounded, get_condition, micro_time
from moorage.api.runstatus import AgentRunStatus
from moorage.clock import Clock
from moorage.core.models.rates import MINUTE_MS, Bucket
from moorage.core.run.conditions import WITHIN
from moorage.core.run.status import word
from moorage.sandbox.kube import Body, KubeApi, KubeError, path_of
from moorage.sandbox.port import RunKey

KEPT = 1_000  # Events waiting to be sent; beyond, the newest are dropped
OF_AN_OBJECT, OF_A_NAMESPACE = 20, 600  # in a minute
WARNINGS = frozenset({"Failed", "Recovering"})
UNWRITABLE = "StatusRefused"
BENIGN = frozenset({"Provisioning", "Verifying", "Delivering", "Running", "Pending", "Queued", "Cancelling"})


class Allowance:
    """What each key may have in a minute. Who asks for nothing for a minute is forgotten: the bucket is full again."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute, self._swept = per_minute, 0
        self._buckets: dict[str, Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: str, now: int) -> bool:
        """Whether there was one left; it is used then. `now` is of a steady clock, in milliseconds."""
        if now - self._swept >= MINUTE_MS:
            self._swept = now
            self._buckets = {k: each for k, each in self._buckets.items() if now - each.at < MINUTE_MS}
        bucket = self._buckets.get(key, Bucket.full(self._per_minute, now)).after(self._per_minute, now)
        if bucket.wait_ms(1):
            return False
        self._buckets[key] = bucket.less(1)
        return True


class Events:
    """A mailbox and its postman."""

    def __init__(self, api: KubeApi, clock: Clock, instance: str) -> None:
        self._api, self._clock, self._instance = api, clock, instance
        self._mail: asyncio.Queue[tuple[str, Body]] = asyncio.Queue(KEPT)
        self._objects, self._namespaces = Allowance(OF_AN_OBJECT), Allowance(OF_A_NAMESPACE)

    def changed(self, run: RunKey, old: AgentRunStatus, new: AgentRunStatus) -> None:
        """Put what happened into the mailbox; drop it where that is full, or too much was told of late."""
        for kind, reason, message in told(old, new):
            self._send(run, kind, reason, message, new)

    def unwritable(self, run: RunKey, why: str) -> None:
        """The one thing that can be told of an object which takes no status."""
        todo = "delete it and apply one that this version takes"
        self._send(
            run, "Warning", UNWRITABLE, f"this AgentRun can't be told its status: {todo}; {why}", AgentRunStatus()
        )

    def _send(self, run: RunKey, kind: str, reason: str, message: str, status: AgentRunStatus) -> None:
        now = self._clock.monotonic_ms()
        if self._mail.full() or not self._objects.take(run.uid, now) or not self._namespaces.take(run.tenant, now):
            return
        self._mail.put_nowait((run.tenant, self._event(run, kind, reason, message, status)))

    async def post(self) -> None:
        """Send until cancelled. A lost Event is no fault: the journal has it."""
        while True:
            tenant, body = await self._mail.get()
            try:
                await self._api.create(path_of("events.k8s.io/v1", "events", tenant), body)
            except KubeError:
                continue

    def _event(self, run: RunKey, kind: str, reason: str, message: str, status: AgentRunStatus) -> Body:
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": names.event_name(run.name, run.uid, reason, status.epoch, message),
                "namespace": run.tenant,
            },
            "type": kind,
            "reason": reason,
            "note": bounded(message, 1000),
            "action": status.phase or "Observed",
            "eventTime": micro_time(self._clock.now_ms()),
            "reportingController": f"{names.GROUP}/operator",
            "reportingInstance": self._instance,
            "regarding": {
                "apiVersion": names.API_VERSION,
                "kind": "AgentRun",
                "namespace": run.tenant,
                "name": run.name,
                "uid": run.uid,
            },
        }


def told(old: AgentRunStatus, new: AgentRunStatus) -> Iterator[tuple[str, str, str]]:
    """Type, reason and message of each thing worth an Event: a new phase, another attempt, a new trouble or warning."""
    phase, reason = new.phase or "Pending", word(new.reason or "")
    message = new.message or ""
    if new.epoch is not None and new.epoch != old.epoch and (new.attempt != 1 or phase == old.phase):
        yield "Normal", "AttemptStarted", f"attempt {new.attempt} under epoch {new.epoch}"
    if phase != old.phase:
        kind = "Warning" if phase in WARNINGS else "Normal"
        detail = f"{reason}: {message}" if message else reason
        yield kind, phase, detail if reason != phase else message or phase
    elif new.reason != old.reason and reason and reason not in BENIGN:
        yield "Warning", reason, message or reason
    yield from _warned(old, new)


def _warned(old: AgentRunStatus, new: AgentRunStatus) -> Iterator[tuple[str, str, str]]:
    """B3: a soft limit that is passed, or a constraint that warns, is told once."""
    before, now = (get_condition(each.conditions, "WithinBudget") for each in (old, new))
    if now is None or now.status != "True" or now.reason == WITHIN:
        return
    if before is None or (before.reason, before.message) != (now.reason, now.message):
        yield "Warning", now.reason, now.message
