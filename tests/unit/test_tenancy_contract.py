"""C5: what several ResourceConstraints come to."""

from typing import Any

import pytest

from moorage.api.parse import parse_resource_constraint
from moorage.api.resourceconstraint import ResourceConstraint
from moorage.core.tenancy.contract import LINES, Contract, merge


def rcon(name: str, **spec: Any) -> ResourceConstraint:
    body = {"metadata": {"name": name, "namespace": "team-a"}, "spec": spec}
    found = parse_resource_constraint(body, unknown="refuse")
    assert isinstance(found, ResourceConstraint), found
    return found


WHOLE = {
    "weight": 3,
    "concurrency": {"sandboxes": 4, "models": 0},
    "perDay": {"tokens": "20M", "cost": "200.00"},
    "resources": {"cpu": 16, "memory": "64Gi", "storage": "200Gi"},
    "perSandbox": {"cpu": "500m", "memory": "8Gi", "disk": "20Gi"},
    "allowed": {"models": ["m", "n"], "providers": ["main"], "runtimeClasses": ["gvisor"], "hosts": []},
    "constraints": {"tokens": {"hard": "1M"}},
}


def test_without_a_constraint_all_is_unlimited() -> None:
    assert merge([]) == Contract()
    assert merge([rcon("a")]) == Contract()


def test_every_line_is_read() -> None:
    found = merge([rcon("a", **WHOLE)])
    assert set(found.set_by) == {line.name for line in LINES} | {"constraints.tokens.hard"}
    assert set(found.set_by.values()) == {"a"}
    assert (found.weight, found.sandboxes, found.models) == (3, 4, 0)
    assert (found.tokens_per_day, found.cost_per_day_micros) == (20_000_000, 200_000_000)
    assert (found.cpu, found.memory, found.sandbox_cpu) == ("16", "64Gi", "500m")
    assert (found.allowed_models, found.allowed_hosts) == ({"m", "n"}, frozenset())
    assert found.limits.tokens_hard == 1_000_000


@pytest.mark.rule("C5")
def test_the_stricter_of_each_line_wins_and_its_constraint_is_named() -> None:
    loose = rcon("a", **WHOLE)
    tight = rcon(
        "b",
        weight=1,
        concurrency={"sandboxes": 9},
        resources={"cpu": "15500m", "memory": "1Ti"},
        constraints={"tokens": {"hard": "2M"}, "effects": {"hard": 0}},
    )
    found = merge([loose, tight])
    assert found == merge([tight, loose])
    assert (found.weight, found.set_by["weight"]) == (1, "b")
    assert (found.sandboxes, found.set_by["concurrency.sandboxes"]) == (4, "a")
    assert (found.cpu, found.set_by["resources.cpu"]) == ("15500m", "b")
    assert (found.memory, found.set_by["resources.memory"]) == ("64Gi", "a")
    assert (found.limits.tokens_hard, found.set_by["constraints.tokens.hard"]) == (1_000_000, "a")
    assert (found.limits.effects_hard, found.set_by["constraints.effects.hard"]) == (0, "b")


def test_a_weight_that_nobody_says_isnt_the_stricter_one() -> None:
    found = merge([rcon("a"), rcon("b", weight=5)])
    assert (found.weight, found.set_by) == (5, {"weight": "b"})


def test_what_both_allow_is_allowed() -> None:
    a = rcon("a", allowed={"models": ["m", "n"], "hosts": ["x.example.com"]})
    b = rcon("b", allowed={"models": ["n", "o"], "hosts": ["x.example.com", "y.example.com"]})
    found = merge([a, b])
    assert (found.allowed_models, found.set_by["allowed.models"]) == ({"n"}, "a and b")
    assert (found.allowed_hosts, found.set_by["allowed.hosts"]) == ({"x.example.com"}, "a")
    assert found.allowed_runtime_classes is None


@pytest.mark.rule("C4")
def test_expressions_of_all_constraints_have_to_hold() -> None:
    a, b = (
        rcon(n, constraints={"custom": [{"name": "c", "cel": cel}]})
        for n, cel in (("a", "tokens < 5"), ("b", "tokens < 6"))
    )
    found = merge([a, b])
    assert [(each.name, each.cel) for each in found.limits.custom] == [("a.c", "tokens < 5"), ("b.c", "tokens < 6")]
    assert found.set_by["constraints.custom"] == "a and b"


@pytest.mark.rule("C5")
def test_a_constraint_with_a_selector_counts_for_the_runs_that_it_selects() -> None:
    some = rcon(
        "some",
        selector={"matchLabels": {"team": "x"}},
        concurrency={"sandboxes": 1},
        perSandbox={"cpu": 1},
        allowed={"models": ["m"]},
        constraints={"maxIterations": 3},
    )
    found = merge([some, rcon("all", concurrency={"sandboxes": 4}, perSandbox={"cpu": 2}, weight=2)])
    assert (found.sandboxes, found.sandbox_cpu, found.allowed_models, found.limits.max_iterations) == (
        4,
        "2",
        None,
        None,
    )
    other = found.of({"team": "y"})
    assert (other.sandbox_cpu, other.allowed_models, other.scoped) == ("2", None, ())
    mine = found.of({"team": "x", "more": "z"})
    assert (mine.sandbox_cpu, mine.set_by["perSandbox.cpu"]) == ("1", "some")
    assert (mine.allowed_models, mine.limits.max_iterations) == ({"m"}, 3)
    assert mine.set_by["constraints.maxIterations"] == "some"
    assert (mine.sandboxes, mine.weight) == (4, 2), "the runs of the namespace together"
    assert [(each.name, each.contract.sandboxes) for each in mine.scoped] == [("some", 1)]
