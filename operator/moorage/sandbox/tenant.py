"""What a tenant's namespace needs before its first sandbox: a ServiceAccount without rights, and the NetworkPolicy."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from moorage.api import names
from moorage.core.tenancy.networks import opening
from moorage.sandbox.kube import Body, Exists, KubeApi, path_of
from moorage.sandbox.port import NameTaken, Refused
from moorage.sandbox.spec import SandboxSettings, network_policy, service_account

FRESH_MS = 60_000
"""A namespace seen in order this recently is not looked at again, unless `doubt` came between: the watch tells of a
policy that changed, and without the account the API server refuses the pod.
"""


OPEN = (
    "sandboxes of this namespace would have more network than theirs: NetworkPolicy {named} selects them and allows"
    " something. Leave them out, by podSelector.matchExpressions: [{{key: "
    + names.ROLE
    + ", operator: DoesNotExist}}], or remove it; runs begin then"
)


class TenantObjects:
    """Creates them on demand, puts them back on drift, and removes them with the last run."""

    def __init__(
        self,
        api: KubeApi,
        settings: SandboxSettings,
        now_ms: Callable[[], int],
        namespaces: tuple[str, ...] = (),
    ) -> None:
        """`namespaces`: those of namespaced mode (T7); empty is all."""
        self._api, self._settings, self._now_ms, self._namespaces = api, settings, now_ms, namespaces
        self._in_order: dict[str, int] = {}
        self._wanted: dict[str, int] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def ensure(self, namespace: str, *, fresh_ms: int = FRESH_MS) -> None:
        """Return once both are as they must be. Raises NameTaken, Refused where somebody's NetworkPolicy opens what
        ours closes, and what the API server refuses.
        """
        self._wanted[namespace] = self._now_ms()
        async with self._locks[namespace]:
            seen = self._in_order.get(namespace)
            if seen is None or self._now_ms() - seen >= fresh_ms:
                await self._put(namespace)

    def doubt(self, namespace: str) -> bool:
        """The next sandbox there looks again. False where it would have looked anyway."""
        return self._in_order.pop(namespace, None) is not None

    async def _put(self, namespace: str) -> None:
        account, policy = service_account(namespace), network_policy(namespace, self._settings)
        await asyncio.gather(
            self._ensure(path_of("v1", "serviceaccounts", namespace), account, ("automountServiceAccountToken",)),
            self._ensure(path_of("networking.k8s.io/v1", "networkpolicies", namespace), policy, ("spec",)),
        )
        await self._demand_closed(namespace)
        self._in_order[namespace] = self._now_ms()

    async def _demand_closed(self, namespace: str) -> None:
        """T3: looked at once the account stands, from when on the chart's admission policy lets none in."""
        found = opening(await self._api.items(path_of("networking.k8s.io/v1", "networkpolicies", namespace)))
        if found:
            raise Refused("NetworkOpen", OPEN.format(named=", ".join(found[:8])))

    async def release(self, namespace: str, decided_at: int) -> bool:
        """The last run was gone at that time (ms). A run that came since keeps them: it has asked for them.

        So does a sandbox that still stands, since an agent may work on while its pod is being removed (T3): False then,
        to be asked again.
        """
        async with self._locks[namespace]:
            if self._wanted.get(namespace, -1) >= decided_at:
                return True
            if await self._sandboxes(namespace):
                return False
            await self._remove(namespace)
            return True

    async def needed(self, namespace: str) -> bool:
        """Whether runs rely on them there: the account is ours, or, where somebody took even that, sandboxes stand."""
        account = await self._api.get(path_of("v1", "serviceaccounts", namespace, names.SANDBOX))
        return (account is not None and _ours(account)) or bool(await self._sandboxes(namespace))

    async def _sandboxes(self, namespace: str) -> list[Body]:
        selector = f"{names.MANAGED_BY}={names.PRODUCT},{names.ROLE}"
        return await self._api.items(path_of("v1", "pods", namespace), labels=selector)

    async def _remove(self, namespace: str) -> None:
        self._in_order.pop(namespace, None)
        for base in (
            path_of("v1", "serviceaccounts", namespace),
            path_of("networking.k8s.io/v1", "networkpolicies", namespace),
        ):
            path = f"{base}/{names.SANDBOX}"
            found = await self._api.get(path)
            if found is not None and _ours(found):
                await self._api.delete(path, found["metadata"]["uid"])

    async def tenants(self) -> frozenset[str]:
        """Namespaces where something of ours stands."""
        found: list[Body] = []
        for namespace in self._namespaces or (None,):
            path = path_of("v1", "serviceaccounts", namespace)
            found += await self._api.items(path, labels=f"{names.MANAGED_BY}={names.PRODUCT}")
        return frozenset(str(item["metadata"]["namespace"]) for item in found)

    async def _ensure(self, base: str, wanted: Body, fields: tuple[str, ...]) -> None:
        path = f"{base}/{names.SANDBOX}"
        found = await self._api.get(path)
        if found is None:
            found = await self._create(base, path, wanted)
        if not _ours(found):
            raise NameTaken(f"{path} belongs to somebody else: rename or remove it")
        if any(not _covers(found.get(field), wanted.get(field)) for field in fields):
            await self._api.replace(path, {**wanted, "metadata": {**found["metadata"], "labels": _labels(found)}})

    async def _create(self, base: str, path: str, wanted: Body) -> Body:
        try:
            return await self._api.create(base, wanted)
        except Exists:
            return await self._api.get(path) or wanted


def _labels(found: Body) -> dict[str, str]:
    return {**(found["metadata"].get("labels") or {}), names.MANAGED_BY: names.PRODUCT}


def _ours(found: Body) -> bool:
    return bool((found["metadata"].get("labels") or {}).get(names.MANAGED_BY) == names.PRODUCT)


def _covers(found: Any, wanted: Any) -> bool:
    """`found` says what `wanted` says and nothing else; fields that the API server left out are empty ones."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return all(_covers(found.get(key), wanted.get(key)) for key in {*found, *wanted})
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(_covers(a, b) for a, b in zip(found, wanted, strict=True))
    return bool(found == wanted) or (not found and not wanted)
