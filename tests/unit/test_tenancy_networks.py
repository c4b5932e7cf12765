"""T3: which NetworkPolicies of others open what a sandbox's own closes."""

from typing import Any

import pytest

from moorage.core.tenancy.networks import opening

EVERYTHING: dict[str, Any] = {"egress": [{}]}


def policy(name: str = "theirs", selector: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"podSelector": selector or {}, **spec}}


def asks(key: str, operator: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator}]}


@pytest.mark.rule("T3")
@pytest.mark.parametrize(
    "selector",
    [
        {},
        {"matchLabels": {"moorage.dev/role": "runner"}},
        {"matchLabels": {"app.kubernetes.io/managed-by": "moorage"}},
        {"matchLabels": {"topology.kubernetes.io/zone": "a"}},
        {"matchLabels": {"eu.topology.k8s.io/rack": "7"}},
        asks("app", "DoesNotExist"),
        asks("app", "NotIn"),
        asks("moorage.dev/run", "Exists"),
        asks("topology.kubernetes.io/region", "Exists"),
    ],
)
def test_what_may_select_a_sandbox_and_allows_anything_opens_it(selector: dict[str, Any]) -> None:
    assert opening([policy(selector=selector, **EVERYTHING)]) == ["theirs"]
    assert opening([policy(selector=selector, ingress=[{"from": [{"podSelector": {}}]}])]) == ["theirs"]


@pytest.mark.rule("T3")
@pytest.mark.parametrize(
    "selector",
    [
        {"matchLabels": {"app": "web"}},
        {"matchLabels": {"app": "web", "moorage.dev/role": "runner"}},
        asks("app", "Exists"),
        asks("tier", "In"),
        asks("moorage.dev/role", "DoesNotExist"),
    ],
)
def test_what_asks_for_a_label_that_no_sandbox_has_or_leaves_them_out_doesnt(selector: dict[str, Any]) -> None:
    assert opening([policy(selector=selector, **EVERYTHING)]) == []


@pytest.mark.rule("T3")
@pytest.mark.parametrize(
    "spec", [{}, {"egress": []}, {"ingress": [], "policyTypes": ["Ingress", "Egress"]}, {"egress": None}]
)
def test_what_allows_nothing_opens_nothing(spec: dict[str, Any]) -> None:
    assert opening([policy(**spec)]) == []


def test_ours_is_none_of_theirs_and_each_is_named() -> None:
    listed = [policy("z", **EVERYTHING), policy("moorage-sandbox", **EVERYTHING), policy("a", **EVERYTHING), {}]
    assert opening(listed) == ["a", "z"]
