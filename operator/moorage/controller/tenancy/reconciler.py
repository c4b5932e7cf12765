"""C5: keeps one ResourceQuota and one LimitRange per contract, puts back what drifts, and tells use against limit.

A queue of its own with one key per namespace. What stands is known from the watch; the API server is asked only where
that isn't as it has to be. Numbers that move are written into statuses now and then, and are no news for runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, Protocol

from moorage.api import names
from moorage.api.names import API_VERSION, CONSTRAINTS
from moorage.api.resourceconstraint import ResourceConstraint
from moorage.api.wire import AllowanceRequest, AllowanceUse
from moorage.controller.gateway_client import NO_DOOR, GatewayAway, GatewayRefused
from moorage.controller.queue import WorkQueue
from moorage.controller.tenancy.contracts import Contracts
from moorage.core.run.observed import Problem
from moorage.core.tenancy import rendering
from moorage.core.tenancy.contract import Contract, contract_of
from moorage.core.tenancy.rendering import NAME, PLURALS, QUOTA, RANGE
from moorage.core.tenancy.telling import MODEL_LINES, SANDBOXES, Used, allowance_of, by_quota, of_models, status_of
from moorage.sandbox.kube import ApiUnavailable, Body, Exists, KubeApi, KubeError, Missing, Stale, path_of
from moorage.telemetry.logs import Key

WORKERS = 2
RETOLD_MS = 10_000
"""So often statuses are told anew at least where a contract stands; written only where something in them changed."""
USED_MS = 3_000
"""So soon after a change of what is used. Changes that come faster are told together."""
REFUSED_MS = 30_000
INVALID = 422
Live = Callable[[str], Iterable[Mapping[str, str]]]
"""The labels of each run of a namespace that has a sandbox, or is to get one now."""


class Allowances(Protocol):
    """The gateway, as far as it keeps what tenants may take of models."""

    async def allow(self, namespace: str, allowance: AllowanceRequest) -> AllowanceUse:
        """Tell it; what was taken today. Raise GatewayAway, GatewayRefused."""

    async def allowed(self) -> tuple[str, ...]:
        """Who has an allowance there. Raise as `allow`."""


class Reconciler:
    """`live`: see there. `looked(namespace)` is called at each look, and some time after what is used has changed;
    `answered` hears what stands after a write: of a ResourceQuota or LimitRange (its kind), or a status (None).
    """

    def __init__(
        self,
        api: KubeApi,
        contracts: Contracts,
        *,
        live: Live,
        looked: Callable[[str], None],
        answered: Callable[[str | None, Body], None],
        gateway: Allowances,
        now: Callable[[], int],
        log: Any,
        chance: Random,
    ) -> None:
        self._api, self._contracts, self._live, self._now, self._log = api, contracts, live, now, log
        self._looked, self._answered, self._gateway = looked, answered, gateway
        self._allowed: set[str] = set()  # who has an allowance at the gateway
        self._standing: dict[tuple[str, str], Body] = {}
        self._problems: dict[str, Problem] = {}
        self.queue: WorkQueue[str] = WorkQueue(self._work, workers=WORKERS, chance=chance, failed=self._failed)

    # --- who wakes it -------------------------------------------------------------------------------------------------

    def constraint_changed(self, namespace: str) -> None:
        """A contract there came, changed or went."""
        self.queue.add(namespace)

    def heard(self, kind: str, event: str | None, body: Body) -> None:
        """The watch's word of a ResourceQuota or LimitRange."""
        meta = body.get("metadata") or {}
        namespace = str(meta.get("namespace", ""))
        if meta.get("name") != NAME:
            if kind == QUOTA:
                self.queue.add_after(namespace, USED_MS)
            return
        before = self._standing.get((kind, namespace))
        if event == "DELETED" or not rendering.ours(body):
            self._standing.pop((kind, namespace), None)
        else:
            self._standing[kind, namespace] = dict(body)
        if self._off(kind, namespace):
            self.queue.add(namespace)
        elif kind == QUOTA and before is not None:
            self.queue.add_after(namespace, USED_MS)

    def quota(self, namespace: str) -> Body | None:
        """The quota as it was last seen there."""
        return self._standing.get((QUOTA, namespace))

    def _off(self, kind: str, namespace: str) -> bool:
        wanted, found = self._wanted(kind, namespace), self._standing.get((kind, namespace))
        if wanted is None or found is None:
            return wanted is not None or found is not None
        return rendering.drifted(found, wanted)

    def _wanted(self, kind: str, namespace: str) -> Mapping[str, Any] | None:
        constraints = self._contracts.constraints(namespace)
        return rendering.rendered(kind, namespace, self._contracts.of(namespace), constraints)

    def allowed(self, namespace: str) -> None:
        """The gateway keeps an allowance for it."""
        if namespace not in self._allowed:
            self._allowed.add(namespace)
            self.queue.add(namespace)

    # --- the work -----------------------------------------------------------------------------------------------------

    async def _work(self, namespace: str) -> int | None:
        self._looked(namespace)
        problem = None
        for kind in (QUOTA, RANGE):
            try:
                problem = await self._put(kind, namespace) or problem
            except (ApiUnavailable, Stale, Exists):
                raise  # another look mends it
            except Missing:
                return None  # the namespace is gone
            except KubeError as e:
                problem = _refused(kind, e)
        use, trouble = await self._allow(namespace)
        for constraint in self._contracts.constraints(namespace):
            await self._tell(constraint, problem or _of(trouble, constraint), use)
        if not self._contracts.constraints(namespace):
            self.queue.forget(namespace)
            return REFUSED_MS if problem or trouble else None
        return RETOLD_MS

    async def _allow(self, namespace: str) -> tuple[AllowanceUse | None, Problem | None]:
        """C5: tell the gateway what the namespace may take of models; what it took, or why that isn't kept."""
        wanted = allowance_of(self._contracts.of(namespace))
        if wanted == AllowanceRequest() and namespace not in self._allowed:
            return None, None
        self._allowed.add(namespace)
        try:
            use = await self._gateway.allow(namespace, wanted)
        except (GatewayAway, GatewayRefused) as e:
            return None, _not_told(e)
        if wanted == AllowanceRequest():
            self._allowed.discard(namespace)
        return use, None

    async def _put(self, kind: str, namespace: str) -> Problem | None:
        """One of both as it has to be; what stands in the way."""
        if not self._off(kind, namespace):
            return None
        wanted = self._wanted(kind, namespace)
        base = path_of("v1", PLURALS[kind], namespace)
        found = await self._api.get(f"{base}/{NAME}")
        if found is not None and not rendering.ours(found):
            self._standing.pop((kind, namespace), None)
            return _taken(kind, namespace) if wanted is not None else None
        if wanted is None:
            if found is not None:
                await self._api.delete(f"{base}/{NAME}", found["metadata"]["uid"])
            self._standing.pop((kind, namespace), None)
        elif found is None:
            self._made(kind, namespace, await self._api.create(base, wanted))
        elif rendering.drifted(found, wanted):
            self._made(kind, namespace, await self._correct(base, found, wanted))
            self._log.info("contract_put_back", tenant=namespace, reason="Drifted", kind=kind)
        else:
            self._standing[kind, namespace] = found
        return None

    def _made(self, kind: str, namespace: str, body: Body) -> None:
        """It counts from now on, before the watch tells of it."""
        self._standing[kind, namespace] = body
        self._answered(kind, body)

    async def _correct(self, base: str, found: Body, wanted: Mapping[str, Any]) -> Body:
        """In place, or made anew where what was changed can't be changed back (a quota's scopes)."""
        try:
            return await self._api.patch(f"{base}/{NAME}", rendering.correction(found, wanted))
        except KubeError as e:
            if e.status != INVALID:
                raise
        await self._api.delete(f"{base}/{NAME}", found["metadata"]["uid"])
        return await self._api.create(base, wanted)

    # --- telling ------------------------------------------------------------------------------------------------------

    async def _tell(self, constraint: ResourceConstraint, problem: Problem | None, use: AllowanceUse | None) -> None:
        meta = constraint.metadata
        contract = self._contracts.of(meta.namespace)
        new = status_of(constraint, contract, self._used(meta.namespace, contract, use), problem, self._now())
        if new == constraint.status:
            return
        path = f"{path_of(API_VERSION, CONSTRAINTS, meta.namespace, meta.name)}/status"
        try:
            told = {"uid": meta.uid, "resourceVersion": meta.resource_version}
            body = await self._api.patch(path, {"metadata": told, "status": _replacing(constraint, new.wire())})
        except (Missing, Stale):
            return  # gone, or another one by now: the watch tells
        self._answered(None, body)

    def _used(self, namespace: str, contract: Contract, use: AllowanceUse | None) -> Used:
        live = [dict(labels) for labels in self._live(namespace)]
        quota = self.quota(namespace) or {}
        whole = by_quota((quota.get("status") or {}).get("used") or {}) | {SANDBOXES: str(len(live))} | of_models(use)
        scoped = {
            scope.name: {SANDBOXES: str(sum(1 for labels in live if scope.selects(labels)))}
            for scope in contract.scoped
        }
        return Used(whole, scoped)

    def _failed(self, namespace: str, error: Exception) -> None:
        about = {Key.TENANT.value: namespace}
        if isinstance(error, KubeError):
            self._log.info("contract_waits", reason=type(error).__name__, message=str(error), **about)
        else:
            self._log.error("contract_failed", exc_info=error, **about)


def _of(trouble: Problem | None, constraint: ResourceConstraint) -> Problem | None:
    """Only who says something about it hears of it."""
    return trouble if allowance_of(contract_of(constraint)) != AllowanceRequest() else None


def _not_told(error: GatewayAway | GatewayRefused) -> Problem:
    lines = ", ".join(MODEL_LINES)
    if isinstance(error, GatewayRefused) and error.status in NO_DOOR:
        why = f"a gateway of an earlier release doesn't keep {lines}: replace it"
        return Problem("NotEnforced", why, stalled=True)
    why = f"the gateway hasn't heard of {lines} yet, and goes by what it knew before: {error}"
    return Problem("GatewayUnavailable", why, stalled=False)


def _replacing(constraint: ResourceConstraint, new: dict[str, Any]) -> dict[str, Any]:
    """As a merge patch: what isn't said any more goes."""
    old = constraint.status.wire() if constraint.status is not None else {}
    return dict.fromkeys(old) | new


def _taken(kind: str, namespace: str) -> Problem:
    return Problem(
        "NameTaken",
        f"{kind} {NAME} in {namespace} isn't Moorage's (it lacks the label {names.MANAGED_BY}={names.PRODUCT}), so that"
        " the contract's lines of it aren't enforced by Kubernetes: rename or remove it",
        stalled=True,
    )


def _refused(kind: str, error: KubeError) -> Problem:
    return Problem("NotRendered", f"the API server refuses the {kind} {NAME}: {error}", stalled=True)
