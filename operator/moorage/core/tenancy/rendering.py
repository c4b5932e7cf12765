"""C5: what a contract looks like in Kubernetes' own words: one ResourceQuota and one LimitRange for a namespace.

The quota counts limits, and the size of claims: sandboxes and verifiers have both of them set, and reserve less than
their limits. It counts everything else in the namespace, too. A LimitRange of containers gives those without a limit
the most, since a quota refuses a pod that has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moorage.api import names
from moorage.api.quantity import amount
from moorage.api.resourceconstraint import ResourceConstraint
from moorage.core.tenancy.contract import BOTH, Contract

Body = Mapping[str, Any]
NAME = "moorage-contract"  # of both, in each namespace
QUOTA, RANGE = "ResourceQuota", "LimitRange"
PLURALS = {QUOTA: "resourcequotas", RANGE: "limitranges"}
COUNTED = {"resources.cpu": "limits.cpu", "resources.memory": "limits.memory", "resources.storage": "requests.storage"}
"""What the quota calls the contract's lines."""
BOUNDED = ("perSandbox.cpu", "perSandbox.memory", "perSandbox.disk")
_LINES = {QUOTA: tuple(COUNTED), RANGE: BOUNDED}


def quota_spec(contract: Contract) -> dict[str, Any] | None:
    """None where nothing is to be counted."""
    found = {"limits.cpu": contract.cpu, "limits.memory": contract.memory, "requests.storage": contract.storage}
    hard = {name: str(most) for name, most in found.items() if most is not None}
    return {"hard": hard} if hard else None


def range_spec(contract: Contract) -> dict[str, Any] | None:
    """None where nothing is bounded."""
    one = {"cpu": contract.sandbox_cpu, "memory": contract.sandbox_memory}
    most = {name: str(limit) for name, limit in one.items() if limit is not None}
    limits: list[dict[str, Any]] = [{"type": "Container", "max": most, "default": most}] if most else []
    if contract.sandbox_disk is not None:
        limits.append({"type": "PersistentVolumeClaim", "max": {"storage": str(contract.sandbox_disk)}})
    return {"limits": limits} if limits else None


def rendered(kind: str, namespace: str, contract: Contract, constraints: Iterable[ResourceConstraint]) -> Body | None:
    """The object as it has to be; None where none is wanted. It is owned by the constraints whose lines it has, so that
    it goes with the last of them, also where nobody is there to remove it.
    """
    spec = quota_spec(contract) if kind == QUOTA else range_spec(contract)
    if spec is None:
        return None
    authors = {who for line in _LINES[kind] for who in contract.set_by.get(line, "").split(BOTH)}
    owners = sorted((c for c in constraints if c.metadata.name in authors), key=lambda c: c.metadata.name)
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {
            "name": NAME,
            "namespace": namespace,
            "labels": {names.MANAGED_BY: names.PRODUCT},
            "ownerReferences": [_owner(each) for each in owners],
        },
        "spec": spec,
    }


def _owner(constraint: ResourceConstraint) -> dict[str, Any]:
    meta = constraint.metadata
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ResourceConstraint",
        "name": meta.name,
        "uid": meta.uid,
        "blockOwnerDeletion": False,
    }


def ours(found: Body) -> bool:
    """Whether it is Moorage's, by its label or its owners: one that isn't is neither changed nor removed."""
    owners = (found.get("metadata") or {}).get("ownerReferences") or ()
    theirs = (
        each.get("kind") == "ResourceConstraint" and each.get("apiVersion") == names.API_VERSION for each in owners
    )
    return _labelled(found) or any(theirs)


def _labelled(found: Body) -> bool:
    labels = (found.get("metadata") or {}).get("labels") or {}
    return bool(labels.get(names.MANAGED_BY) == names.PRODUCT)


def drifted(found: Body, wanted: Body) -> bool:
    """Whether it says something else than it has to: more, less, or of somebody else's owners."""
    if not _same(found.get("spec") or {}, wanted["spec"]):
        return True
    return not _labelled(found) or _uids(found) != _uids(wanted)


def _uids(body: Body) -> set[str]:
    return {str(owner.get("uid")) for owner in (body.get("metadata") or {}).get("ownerReferences") or ()}


def correction(found: Body, wanted: Body) -> dict[str, Any]:
    """The merge patch that makes `found` what it has to be, in that very version of it."""
    meta = found["metadata"]
    spec = dict.fromkeys(found.get("spec") or {}) | dict(wanted["spec"])
    if "hard" in wanted["spec"]:
        spec["hard"] = dict.fromkeys((found.get("spec") or {}).get("hard") or {}) | dict(wanted["spec"]["hard"])
    return {
        "metadata": {
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
            "labels": wanted["metadata"]["labels"],
            "ownerReferences": wanted["metadata"]["ownerReferences"],
        },
        "spec": spec,
    }


def _same(found: Any, wanted: Any) -> bool:
    """Equal, quantities by their amount: the API server writes 1000m as 1. A LimitRange's defaultRequest is no drift:
    it is filled in from `default`.
    """
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        keys = {*found, *wanted} - {"defaultRequest"}
        return all(_same(found.get(key), wanted.get(key)) for key in keys)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(_same(a, b) for a, b in zip(found, wanted, strict=True))
    return bool(found == wanted) or (_amount(found) is not None and _amount(found) == _amount(wanted))


def _amount(text: Any) -> Any:
    try:
        return amount(str(text))
    except ValueError:
        return None
