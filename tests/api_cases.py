"""The table of good and bad manifests, for the models (unit) and for a real API server (integration)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_TABLE: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "api_cases.yaml").read_text())
GOOD_BRANCHES: list[str] = _TABLE["good_branches"]
BAD_BRANCHES: list[str] = _TABLE["bad_branches"]


@dataclass(frozen=True)
class Case:
    """One manifest, and where and how it is refused (by the models, by the API server)."""

    name: str
    kind: str
    spec: dict[str, Any]
    at: str = ""
    says: str = ""
    api_at: str = ""
    api_says: str = ""

    def manifest(self, **metadata: Any) -> dict[str, Any]:
        return manifest(self.kind, self.spec, **metadata)


def manifest(kind: str, change: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """The base of `kind` with `change` merged into its spec, as a JSON merge patch."""
    return {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": "it", **metadata},
        "spec": merged(_TABLE["bases"][kind], change or {}),
    }


def merged(base: Any, change: Any) -> Any:
    if not isinstance(change, dict):
        return change
    result = dict(base) if isinstance(base, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def _case(row: dict[str, Any]) -> Case:
    at, says, api = row.get("at", ""), row.get("says", ""), row.get("api", {})
    return Case(row["case"], row["kind"], row.get("spec", {}), at, says, api.get("at", at), api.get("says", says))


GOOD = [_case(row) for row in _TABLE["good"]]
BAD = [_case(row) for row in _TABLE["bad"]]
