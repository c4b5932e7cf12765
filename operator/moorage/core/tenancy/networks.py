"""T3: which NetworkPolicies of a namespace open what ours closes. Policies add up: one that selects sandboxes and
allows anything allows it to them, whatever ours says. The chart's admission policy refuses such ones where sandboxes
are; this is for those that stood there before, and for installations that may have no admission policies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from moorage.api import names

OURS = (names.GROUP + "/", names.MANAGED_BY)
TOPOLOGY = re.compile(r"^([^/]*\.)?topology\.(kubernetes|k8s)\.io/")
"""Labels that the API server copies to pods from their nodes."""


def opening(policies: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of those that may select sandboxes and allow anything, in order."""
    foreign = (policy for policy in policies if _name(policy) != names.SANDBOX)
    return sorted(_name(policy) for policy in foreign if _allows(policy) and not _apart(policy))


def _name(policy: Mapping[str, Any]) -> str:
    return str((policy.get("metadata") or {}).get("name", ""))


def _allows(policy: Mapping[str, Any]) -> bool:
    spec = policy.get("spec") or {}
    return bool(spec.get("ingress") or spec.get("egress"))


def _apart(policy: Mapping[str, Any]) -> bool:
    """It asks for a label that no sandbox has, or leaves sandboxes out."""
    selector = (policy.get("spec") or {}).get("podSelector") or {}
    asked = list(selector.get("matchLabels") or {})
    for each in selector.get("matchExpressions") or ():
        if each.get("key") == names.ROLE and each.get("operator") == "DoesNotExist":
            return True
        if each.get("operator") in {"In", "Exists"}:
            asked.append(str(each.get("key")))
    return any(not key.startswith(OURS) and not TOPOLOGY.search(key) for key in asked)
