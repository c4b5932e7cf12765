"""One tenant's bad object is no other tenant's business: whatever stands in it, nothing raises."""

from random import Random
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from moorage.controller.measures import Measures
from moorage.controller.roll import Roll
from moorage.controller.tenancy.contracts import Contracts
from moorage.controller.tenancy.reconciler import Reconciler
from moorage.core.tenancy.rendering import QUOTA, RANGE
from moorage.telemetry.metrics import OperatorMetrics

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
LINES = ("selector", "weight", "concurrency", "perDay", "resources", "perSandbox", "allowed", "constraints")
SPECS = JSON | st.dictionaries(st.sampled_from(LINES), JSON, max_size=4)
NAMES = st.sampled_from(["bad", "Bad_Name", "a.b", "x" * 300, "", "ü"])


def body(namespace: str, name: str, spec: Any, status: Any = None) -> dict[str, Any]:
    meta = {"namespace": namespace, "name": name, "uid": f"u-{name}", "generation": 1, "resourceVersion": "1"}
    return {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "ResourceConstraint",
        "metadata": meta,
        "spec": spec,
        "status": status,
    }


GOOD = body("team-b", "good", {"concurrency": {"sandboxes": 3}})


@pytest.mark.rule("T1")
@given(spec=SPECS, status=JSON, name=NAMES, seen=JSON)
def test_a_bad_contract_counts_for_nobody_else(spec: Any, status: Any, name: str, seen: Any) -> None:
    contracts = Contracts()
    made = Reconciler(
        None,  # type: ignore[arg-type]  # nobody is asked
        contracts,
        live=lambda _: (),
        looked=lambda _: None,
        answered=lambda *_: None,
        gateway=None,  # type: ignore[arg-type]  # nor is the gateway
        now=lambda: 0,
        log=structlog.get_logger(),
        chance=Random(1),
    )
    contracts.saw("ADDED", GOOD)
    for kind in ("ADDED", "MODIFIED", "DELETED"):
        contracts.saw(kind, body("team-a", name, spec, status))
        contracts.of("team-a")
        assert contracts.of("team-b").sandboxes == 3
    for rendered in (QUOTA, RANGE):
        made.heard(rendered, "MODIFIED", {"metadata": {"name": "moorage-contract", "namespace": "a"}, "spec": seen})


@pytest.mark.rule("C5")
@given(status=JSON | st.dictionaries(st.sampled_from(["lines", "conditions", "sandboxes", "observedGeneration"]), JSON))
def test_a_broken_status_takes_no_limit_away(status: Any) -> None:
    contracts = Contracts()
    contracts.saw("ADDED", body("team-a", "a", {"concurrency": {"sandboxes": 2}}, status))
    assert contracts.of("team-a").sandboxes == 2


@pytest.mark.rule("H2")
@given(spec=JSON, status=JSON, namespace=NAMES, name=NAMES)
def test_a_bad_run_keeps_nobody_from_reading_metrics(spec: Any, status: Any, namespace: str, name: str) -> None:
    metrics, roll = OperatorMetrics(CollectorRegistry()), Roll(2)
    Measures(metrics, roll)
    meta = {"namespace": namespace, "name": name, "uid": "u", "resourceVersion": "1", "generation": 1}
    roll.saw({"metadata": meta | {"creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec, "status": status})
    assert b"moorage_tenant_runs" in generate_latest(metrics.registry)
