"""F7: one of several operators leads, by a Lease of their own. What candidates decide is in
moorage.controller.candidacy; here it is read and written.

The election is for speed: a standby takes over in seconds. That nothing happens twice is the epoch's doing (ADR 58).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from moorage.api import names
from moorage.api.meta import micro_time
from moorage.clock import Clock
from moorage.controller.candidacy import Claim, Sighting, Step, Terms, sighted, step
from moorage.sandbox.kube import ApiUnavailable, Body, Exists, KubeApi, KubeError, Missing, Stale, path_of

LEASES: Final = "coordination.k8s.io/v1"
USUAL: Final = Terms()
IN_TOUCH_MS: Final = 30_000
"""A candidate that had no answer about the Lease for longer isn't ready: it could not take over."""


class Deposed(RuntimeError):
    """This process leads no more, and must end: another one may act already, or soon."""


class Election:
    """One candidate. `me` is unique among those that live at once; `told` hears whether it leads, at each change."""

    def __init__(
        self,
        api: KubeApi,
        *,
        namespace: str,
        name: str,
        me: str,
        clock: Clock,
        log: Any,
        told: Callable[[bool], None],
        terms: Terms = USUAL,
    ) -> None:
        self._api, self._me, self._clock, self._log = api, me, clock, log
        self._leases, self._path = (path_of(LEASES, "leases", namespace, n) for n in (None, name))
        self._new = {"apiVersion": LEASES, "kind": "Lease", "metadata": {"name": name, "namespace": namespace}}
        self._told, self._terms = told, terms
        self._seen: Sighting | None = None
        self._lease: Body = self._new
        self._until: int | None = None
        self._answered: int | None = None
        self._trouble = ""

    # --- what others ask ----------------------------------------------------------------------------------------------

    def leads(self) -> bool:
        """Whether this process may act now."""
        return self._left_ms() > 0

    def demand(self) -> None:
        """Raises ApiUnavailable where it may not: who was stopped and is woken would act before its timers tell it."""
        if not self.leads():
            raise ApiUnavailable(0, "NotLeading", "this operator doesn't lead, and writes nothing")

    def in_touch(self) -> bool:
        """Whether the API server has answered lately about the Lease."""
        return self._answered is not None and self._clock.monotonic_ms() - self._answered < IN_TOUCH_MS

    # --- a candidate --------------------------------------------------------------------------------------------------

    async def win(self) -> None:
        """Return once this process leads."""
        self._told(False)
        while True:
            if await self._try():
                break
            await asyncio.sleep(self._terms.look_ms / 1000)
        self._log.info("leads", holder=self._me)
        self._told(True)

    async def _try(self) -> bool:
        began = self._clock.monotonic_ms()
        try:
            async with asyncio.timeout(self._terms.give_up_ms / 1000):
                won = await self._look(began)
        except (KubeError, TimeoutError) as e:
            self._say(e)
            return False
        self._heard()
        return won

    async def _look(self, began: int) -> bool:
        found = await self._api.get(self._path)
        self._note(found)
        choice = step(self._me, self._seen, stands=found is not None, now=self._clock.monotonic_ms())
        if choice is Step.WAIT:
            return False
        try:
            if choice is Step.TAKE:
                self._lease = await self._api.replace(self._path, self._claimed(found or self._new))
            else:
                self._lease = await self._api.create(self._leases, self._claimed(self._new))
        except (Exists, Stale, Missing):  # another candidate was faster
            return False
        self._until = began + self._terms.give_up_ms
        return True

    def _note(self, found: Body | None) -> None:
        claim = claim_of(found, self._terms.lease_ms) if found is not None else None
        before, self._seen = self._seen, sighted(self._seen, claim, self._clock.monotonic_ms())
        holder = self._seen.claim.holder if self._seen else ""
        if holder not in {"", self._me} and (before is None or before.claim.holder != holder):
            self._log.info("stands_by", holder=holder)

    # --- the leader ---------------------------------------------------------------------------------------------------

    async def hold(self) -> None:
        """Renew until this process may not act any more. Raises Deposed, and returns never."""
        pause_ms = self._terms.renew_ms
        while True:
            await asyncio.sleep(max(0, min(pause_ms, self._left_ms())) / 1000)
            left_ms = self._left_ms()
            if left_ms <= 0:
                self._step_down(f"the Lease could not be renewed for {self._terms.give_up_ms / 1000:g} s")
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._renew()
            except (KubeError, TimeoutError) as e:
                self._say(e)
                pause_ms = self._terms.look_ms
            else:
                self._heard()
                pause_ms = self._terms.renew_ms

    async def _renew(self) -> None:
        began = self._clock.monotonic_ms()
        await self._put(self._claimed)
        self._until = began + self._terms.give_up_ms

    async def resign(self) -> None:
        """Let another one lead at once. Only where nothing of the work runs any more."""
        left_ms, self._until = self._left_ms(), None
        if left_ms <= 0:
            return
        self._told(False)
        try:
            async with asyncio.timeout(left_ms / 1000):
                await self._put(self._released)
        except (KubeError, TimeoutError, Deposed) as e:
            self._say(e)

    async def _put(self, change: Callable[[Body], Body]) -> None:
        """Write the Lease; once more where it isn't as we left it: an answer may have been lost. Raises Deposed."""
        try:
            self._lease = await self._api.replace(self._path, change(self._lease))
        except (Stale, Missing):
            self._lease = await self._again(change, await self._api.get(self._path))

    async def _again(self, change: Callable[[Body], Body], found: Body | None) -> Body:
        if found is None:
            return await self._api.create(self._leases, change(self._new))
        holder = claim_of(found, self._terms.lease_ms).holder
        if holder != self._me:
            self._step_down(f"the Lease is held by {holder or 'nobody'}")
        return await self._api.replace(self._path, change(found))

    def _step_down(self, why: str) -> None:
        self._until = None
        self._told(False)
        raise Deposed(why)

    # --- the Lease ----------------------------------------------------------------------------------------------------

    def _claimed(self, found: Body) -> Body:
        now = micro_time(self._clock.now_ms())
        spec = found.get("spec") or {}
        mine = spec.get("holderIdentity") == self._me
        return _with_spec(
            found,
            {
                "holderIdentity": self._me,
                "leaseDurationSeconds": max(1, self._terms.lease_ms // 1000),
                "acquireTime": spec.get("acquireTime") if mine else now,
                "renewTime": now,
                "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (0 if mine else 1),
            },
        )

    def _released(self, found: Body) -> Body:
        kept = {k: v for k, v in (found.get("spec") or {}).items() if k != "holderIdentity"}
        return _with_spec(found, kept)

    def _left_ms(self) -> int:
        return self._until - self._clock.monotonic_ms() if self._until is not None else 0

    def _heard(self) -> None:
        self._answered, self._trouble = self._clock.monotonic_ms(), ""

    def _say(self, error: Exception) -> None:
        """Once for each trouble in a row."""
        message = f"{type(error).__name__}: {error}"
        if message != self._trouble:
            self._log.warning("election_waits", reason=type(error).__name__, message=str(error), lease=self._path)
        self._trouble = message


def claim_of(lease: Mapping[str, Any], lease_ms: int) -> Claim:
    """Read the Lease; `lease_ms` where it doesn't say for how long."""
    spec = lease.get("spec") or {}
    seconds = spec.get("leaseDurationSeconds")
    return Claim(
        holder=str(spec.get("holderIdentity") or ""),
        version=str((lease.get("metadata") or {}).get("resourceVersion") or ""),
        duration_ms=int(seconds) * 1000 if seconds else lease_ms,
    )


def _with_spec(found: Body, spec: Mapping[str, Any]) -> Body:
    labels = {**(found["metadata"].get("labels") or {}), "app.kubernetes.io/part-of": names.PRODUCT}
    return {**found, "metadata": {**found["metadata"], "labels": labels}, "spec": dict(spec)}
