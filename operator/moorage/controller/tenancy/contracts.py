"""Which contract counts in which namespace: the ResourceConstraints as the watch shows them, merged once per change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.api.parse import InvalidSpec, parse_resource_constraint
from moorage.api.resourceconstraint import ResourceConstraint
from moorage.core.tenancy.contract import Contract, merge

NONE = Contract()


class Contracts:
    """By namespace. One that can't be read counts with none of its lines: the API server's own rules keep it out."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, ResourceConstraint]] = {}
        self._merged: dict[str, Contract] = {}

    def of(self, tenant: str) -> Contract:
        """What counts there now."""
        if tenant not in self._known:
            return NONE
        if tenant not in self._merged:
            self._merged[tenant] = merge(self._known[tenant].values())
        return self._merged[tenant]

    def constraints(self, tenant: str) -> tuple[ResourceConstraint, ...]:
        """Those that stand there."""
        return tuple(self._known.get(tenant, {}).values())

    def tenants(self) -> frozenset[str]:
        """Namespaces that have any."""
        return frozenset(self._known)

    def saw(self, kind: str | None, body: Mapping[str, Any]) -> bool:
        """The watch's word of one; True where the contract of its namespace may be another one now."""
        meta = body.get("metadata") or {}
        tenant, name = str(meta.get("namespace", "")), str(meta.get("name", ""))
        found = None if kind == "DELETED" else parse_resource_constraint(body)
        known = self._known.get(tenant, {})
        before = known.get(name)
        if found is None or isinstance(found, InvalidSpec):
            known.pop(name, None)
        else:
            known = self._known.setdefault(tenant, known)
            known[name] = found
        if not known:
            self._known.pop(tenant, None)
        after = self._known.get(tenant, {}).get(name)
        if before is not None and after is not None and _same(before, after):
            return False
        self._merged.pop(tenant, None)
        return before is not None or after is not None


def _same(a: ResourceConstraint, b: ResourceConstraint) -> bool:
    return a.metadata.uid == b.metadata.uid and a.metadata.generation == b.metadata.generation and a.spec == b.spec
