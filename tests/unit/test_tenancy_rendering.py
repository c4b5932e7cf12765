"""C5: what a contract is in Kubernetes' words, and what its status says."""

from typing import Any

import pytest
from tests.unit.test_tenancy_contract import WHOLE, rcon

from moorage.api.resourceconstraint import ContractLine, ResourceConstraint
from moorage.api.wire import AllowanceRequest, AllowanceUse
from moorage.core.run.observed import Problem
from moorage.core.tenancy.contract import Contract, merge
from moorage.core.tenancy.rendering import QUOTA, RANGE, correction, drifted, ours, rendered
from moorage.core.tenancy.telling import Used, allowance_of, by_quota, lines_of, of_models, status_of

UNUSED = Used({}, {})


def made(kind: str, *constraints: ResourceConstraint) -> dict[str, Any]:
    found = rendered(kind, "team-a", merge(constraints), constraints)
    assert found is not None
    return {**found, "metadata": {**found["metadata"], "uid": "u", "resourceVersion": "7"}}


def owned(name: str, uid: str, **spec: Any) -> ResourceConstraint:
    alone = rcon(name, **spec)
    return alone.model_copy(update={"metadata": alone.metadata.model_copy(update={"uid": uid})})


@pytest.mark.rule("C5")
def test_a_quota_counts_limits_and_claims_and_a_range_bounds_containers_and_claims() -> None:
    whole = rcon("a", **WHOLE)
    assert made(QUOTA, whole)["spec"]["hard"] == {
        "limits.cpu": "16",
        "limits.memory": "64Gi",
        "requests.storage": "200Gi",
    }
    most = {"cpu": "500m", "memory": "8Gi"}
    assert made(RANGE, whole)["spec"]["limits"] == [
        {"type": "Container", "max": most, "default": most},
        {"type": "PersistentVolumeClaim", "max": {"storage": "20Gi"}},
    ]


@pytest.mark.rule("C5")
def test_nothing_is_rendered_of_what_kubernetes_cant_tell_apart() -> None:
    some = rcon("a", selector={"matchLabels": {"team": "x"}}, perSandbox={"cpu": 1}, concurrency={"sandboxes": 1})
    for kind in (QUOTA, RANGE):
        assert rendered(kind, "team-a", merge([some]), [some]) is None
        assert rendered(kind, "team-a", Contract(), []) is None


def test_it_is_owned_by_those_whose_lines_it_has() -> None:
    a = owned("a", "1", resources={"cpu": 1, "memory": "8Gi"})
    b = owned("b", "2", resources={"memory": "1Gi"}, perSandbox={"cpu": 1})
    c = owned("c", "3", resources={"cpu": 2})
    assert [o["uid"] for o in made(QUOTA, a, b, c)["metadata"]["ownerReferences"]] == ["1", "2"]
    assert [o["uid"] for o in made(RANGE, a, b, c)["metadata"]["ownerReferences"]] == ["2"]


def test_drift_is_what_is_more_or_less_or_somebody_elses() -> None:
    wanted = made(QUOTA, owned("a", "1", resources={"cpu": "1000m"}))
    found = {**wanted, "spec": {"hard": {"limits.cpu": "1"}}, "status": {"used": {"limits.cpu": "1"}}}
    assert not drifted(found, wanted)
    for spec in (
        {"hard": {"limits.cpu": "2"}},
        {"hard": {"limits.cpu": "1", "pods": "1"}},
        {"hard": {}},
        {"hard": {"limits.cpu": "1"}, "scopes": ["NotTerminating"]},
    ):
        assert drifted({**wanted, "spec": spec}, wanted), spec
    assert drifted({**found, "metadata": {**found["metadata"], "ownerReferences": []}}, wanted)


def test_what_the_api_server_fills_in_is_no_drift() -> None:
    wanted = made(RANGE, owned("a", "1", perSandbox={"cpu": 1}))
    (limit,) = wanted["spec"]["limits"]
    assert not drifted({**wanted, "spec": {"limits": [{**limit, "defaultRequest": {"cpu": "1"}}]}}, wanted)
    assert drifted({**wanted, "spec": {"limits": [{**limit, "max": {"cpu": "2"}}]}}, wanted)


def test_a_correction_takes_out_what_isnt_wanted_and_holds_for_one_version_only() -> None:
    wanted = made(QUOTA, owned("a", "1", resources={"cpu": 1}))
    found = {**wanted, "spec": {"hard": {"pods": "1", "limits.cpu": "9"}, "scopes": ["x"]}}
    patch = correction(found, wanted)
    assert patch["spec"] == {"hard": {"pods": None, "limits.cpu": "1"}, "scopes": None}
    assert (patch["metadata"]["uid"], patch["metadata"]["resourceVersion"]) == ("u", "7")


def test_what_lacks_our_label_isnt_ours() -> None:
    assert ours(made(QUOTA, rcon("a", resources={"cpu": 1})))
    assert not ours({"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}})
    assert not ours({"metadata": {}})


# --- the status -------------------------------------------------------------------------------------------------------


def line(name: str, limit: str, used: str | None = None, stricter_in: str | None = None) -> ContractLine:
    return ContractLine(name=name, limit=limit, used=used, stricter_in=stricter_in)


@pytest.mark.rule("C5")
def test_each_line_shows_use_against_limit_and_who_is_stricter() -> None:
    a = rcon("a", resources={"cpu": 4, "memory": "8Gi"}, perDay={"cost": "2"}, constraints={"tokens": {"hard": "1M"}})
    b = rcon("b", resources={"cpu": 2, "memory": "8Gi"}, allowed={"models": ["n", "m"], "hosts": []})
    contract = merge([a, b])
    assert lines_of(a, contract, by_quota({"limits.cpu": "1500m", "pods": "9"})) == (
        line("perDay.cost", "$2.00"),
        line("resources.cpu", "4", "1500m", "b"),
        line("resources.memory", "8Gi"),
        line("constraints.tokens.hard", "1000000"),
    )
    assert lines_of(b, contract, {}) == (
        line("resources.cpu", "2"),
        line("resources.memory", "8Gi"),
        line("allowed.models", "m, n"),
        line("allowed.hosts", "none"),
    )


def test_one_with_a_selector_is_compared_for_the_runs_that_it_selects() -> None:
    some = rcon(
        "some",
        selector={"matchLabels": {"team": "x"}},
        concurrency={"sandboxes": 5},
        perSandbox={"cpu": 3, "memory": "1Gi"},
    )
    whole = rcon("whole", concurrency={"sandboxes": 2}, perSandbox={"cpu": 2, "memory": "2Gi"})
    contract = merge([some, whole])
    used = Used({"concurrency.sandboxes": "2"}, {"some": {"concurrency.sandboxes": "1"}})
    assert lines_of(some, contract, used.of(some)) == (
        line("concurrency.sandboxes", "5", "1"),
        line("perSandbox.cpu", "3", None, "whole"),
        line("perSandbox.memory", "1Gi"),
    )
    assert lines_of(whole, contract, used.of(whole))[0] == line("concurrency.sandboxes", "2", "2")


def test_the_conditions_are_kstatus_and_the_column_counts_sandboxes() -> None:
    a, b = rcon("a", concurrency={"sandboxes": 3}), rcon("b", concurrency={"sandboxes": 2})
    contract, used = merge([a, b]), Used({"concurrency.sandboxes": "1"}, {})
    told = status_of(a, contract, used, None, 5_000)
    assert {c.type: c.status for c in told.conditions} == {"Ready": "True", "Reconciling": "False", "Stalled": "False"}
    assert told.conditions[0].message.endswith("stricter is concurrency.sandboxes in b")
    assert told.sandboxes == "1/3"
    again = a.model_copy(update={"status": told})
    assert status_of(again, contract, used, None, 9_000) == told, "nothing new is nothing to write"
    taken = status_of(again, contract, used, Problem("NameTaken", "rename it", stalled=True), 9_000)
    assert {c.type: c.status for c in taken.conditions}["Stalled"] == "True"
    assert taken.conditions[0].message == "rename it"


def test_an_expression_that_cant_be_judged_is_told() -> None:
    bad = rcon("a", constraints={"custom": [{"name": "c", "cel": "tokens <"}]})
    told = status_of(bad, merge([bad]), UNUSED, None, 0)
    assert (told.conditions[0].reason, told.conditions[0].status) == ("ConstraintInvalid", "False")


@pytest.mark.rule("C5")
def test_what_models_take_is_shown_against_its_limit() -> None:
    some = rcon("a", concurrency={"models": 2}, perDay={"cost": "2", "tokens": "1k"})
    use = of_models(
        AllowanceUse(tokens=70, reserved_tokens=5, cost_micros=1_500_000, reserved_cost_micros=1, requests=1)
    )
    told = status_of(some, merge([some]), Used(use, {}), None, 5_000)
    assert {c.type: c.status for c in told.conditions}["Ready"] == "True"
    assert {line.name: (line.used, line.limit) for line in told.lines} == {
        "concurrency.models": ("1", "2"),
        "perDay.tokens": ("75", "1000"),
        "perDay.cost": ("$1.500001", "$2.00"),
    }
    assert of_models(None) == {}
    assert allowance_of(merge([some])) == AllowanceRequest(tokens=1_000, cost_micros=2_000_000, models=2)
