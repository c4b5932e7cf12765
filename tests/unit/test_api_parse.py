from types import MappingProxyType
from typing import Any

import pytest
from tests.api_cases import manifest

from moorage.api.agentrun import AgentRun
from moorage.api.parse import (
    MAX_PROBLEMS,
    InvalidSpec,
    parse_agent,
    parse_agent_run,
    parse_model_provider,
    parse_status,
    parse_workspace,
)


def read(obj: object) -> AgentRun:
    run = parse_agent_run(obj)
    assert isinstance(run, AgentRun), run
    return run


def test_fields_of_a_newer_version_are_passed_over_and_told() -> None:
    body = manifest("AgentRun", {"novelty": {"a": 1}, "acceptance": [{"name": "a", "run": "x", "retries": 3}]})
    run = read({**body, "extra": 1})
    assert set(run.unknown_fields) == {"extra", "spec.novelty", "spec.acceptance[0].retries"}
    assert run.spec.acceptance is not None
    assert run.spec.acceptance[0].run == "x"
    assert read(manifest("AgentRun")).unknown_fields == ()


def test_what_the_caller_gave_is_not_changed() -> None:
    body = manifest("AgentRun", {"novelty": 1})
    parse_agent_run(body)
    assert body["spec"]["novelty"] == 1


def test_read_only_views_are_read_too() -> None:
    body = manifest("AgentRun")
    assert read(MappingProxyType({**body, "spec": MappingProxyType(body["spec"])})).spec.goal


def test_an_unknown_field_in_a_file_is_refused_with_the_name_that_was_meant() -> None:
    result = parse_agent_run(manifest("AgentRun", {"acceptence": []}), "cluster", "refuse")
    assert isinstance(result, InvalidSpec)
    assert result.message == "spec.acceptence: unknown field; did you mean acceptance?"


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"workspace": {"local": {"path": "/r", "branch": "main"}}}, "workspace.local.branch: unknown field; `kubectl"),
        (
            {"workspace": {"local": {"path": "/r", "reff": "main"}}},
            "workspace.local.reff: unknown field; did you mean ref?",
        ),
        ({"acceptance": [{"name": "a", "runs": "true"}]}, "acceptance[0].runs: unknown field; did you mean run?"),
        ({"sandbox": {"image": "x"}}, "sandbox.image: unknown field; `kubectl explain` lists"),
    ],
)
def test_only_a_field_of_the_same_place_is_suggested(spec: dict[str, object], told: str) -> None:
    result = parse_agent_run(manifest("AgentRun", spec), "cluster", "refuse")
    assert isinstance(result, InvalidSpec)
    assert told in result.message


@pytest.mark.parametrize(
    "junk",
    [
        None,
        3,
        "text",
        b"bytes",
        [],
        {},
        {"spec": None},
        {"spec": []},
        {"spec": {"goal": {"deep": [1, [2, [3]]]}}},
        {"spec": {"goal": "\ud800"}},
        {"spec": {1: 2, None: 3}},
        {"spec": {"acceptance": {"not": "a list"}}},
        {"spec": {"acceptance": [None, 5, "x", []]}},
        {"spec": {"constraints": {"tokens": float("nan")}}},
        {"kind": "Pod", "apiVersion": "v1", "spec": {}},
        {"metadata": "x", "spec": {}},
        {"metadata": {"name": ["x"]}, "spec": {}},
        {"status": "odd"},
    ],
    ids=str,
)
def test_junk_is_an_invalid_spec_and_never_an_exception(junk: object) -> None:
    result = parse_agent_run(junk)
    assert isinstance(result, InvalidSpec)
    assert result.problems
    assert 0 < len(result.message.encode()) <= 1024


def test_endless_nesting_is_cut_off() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"deeper": deep}
    assert parse_agent_run(manifest("AgentRun", {"novelty": {"x": 1}}) | {"more": deep})


def test_problems_are_bounded() -> None:
    checks = [{"name": f"A{i}", "run": ""} for i in range(32)]
    result = parse_agent_run(manifest("AgentRun", {"acceptance": checks}))
    assert isinstance(result, InvalidSpec)
    assert len(result.problems) == MAX_PROBLEMS


def test_a_broken_status_never_hides_the_spec() -> None:
    status = {
        "phase": "Dancing",
        "attempt": 2,
        "conditions": [{"type": "Ready", "status": "True"}],
        "usage": {"tokens": "x"},
    }
    run = read({**manifest("AgentRun"), "status": status})
    assert run.status is not None
    assert (run.status.phase, run.status.attempt, run.status.usage) == (None, 2, None)
    assert [c.type for c in run.status.conditions] == ["Ready"]


@pytest.mark.parametrize("status", [None, "odd", [], {}, {"conditions": 5}, {"phase": None}])
def test_any_status_can_be_read(status: object) -> None:
    assert parse_status({"status": status}).phase is None


def test_a_longer_summary_of_an_older_version_is_cut() -> None:
    told = parse_status({"status": {"result": {"summary": "x" * 10_000}}})
    assert told.result is not None
    assert len(told.result.summary or "") < 2_100


def test_the_wire_form_reads_back_as_the_same() -> None:
    run = read(manifest("AgentRun", {"constraints": {"tokens": {"hard": 5000}}, "scheduling": {"class": "background"}}))
    again = read(run.wire())
    assert again.spec == run.spec
    assert again.wire()["spec"]["constraints"] == {"tokens": {"hard": "5000"}}


def test_limits_are_read_as_integers() -> None:
    limits = {"tokens": {"soft": "300k", "hard": 500_000}, "cost": {"hard": "8.00"}, "wallClock": "2h"}
    found = read(manifest("AgentRun", {"constraints": limits})).spec.constraints
    assert found.tokens is not None
    assert found.tokens.soft is not None
    assert found.tokens.hard is not None
    assert found.cost is not None
    assert found.cost.hard is not None
    assert found.wall_clock is not None
    assert (found.tokens.soft.number, found.tokens.hard.number) == (300_000, 500_000)
    assert (found.cost.hard.micros, found.wall_clock.ms) == (8_000_000, 7_200_000)


def test_the_branch_follows_from_the_name_where_none_is_given() -> None:
    run = read(manifest("AgentRun", {"delivery": {}}))
    assert (run.branch(), run.branch("bots/")) == ("moorage/it", "bots/it")
    assert read(manifest("AgentRun")).branch() is None


@pytest.mark.parametrize("name", ["a" * 253, "a." * 126 + "b", "fix.lock", "a" * 141])
@pytest.mark.parametrize("prefix", ["moorage/", "", "p" * 100])
def test_the_branch_of_any_name_is_one_that_we_would_accept(name: str, prefix: str) -> None:
    branch = read(manifest("AgentRun", {"delivery": {}}, name=name)).branch(prefix)
    assert read(manifest("AgentRun", {"delivery": {"branch": branch}})).branch() == branch


def test_a_run_without_a_cluster_needs_a_name() -> None:
    local = {"workspaceRef": None, "workspace": {"local": {"path": "."}}}
    result = parse_agent_run({**manifest("AgentRun", local), "metadata": {"nmae": "x"}}, "local")
    assert isinstance(result, InvalidSpec)
    assert [p.path for p in result.problems] == ["metadata.name"]


def test_the_other_kinds_are_read_the_same_way() -> None:
    for kind, reader in (
        ("Workspace", parse_workspace),
        ("Agent", parse_agent),
        ("ModelProvider", parse_model_provider),
    ):
        assert not isinstance(reader(manifest(kind)), InvalidSpec)
        assert isinstance(reader(manifest("AgentRun")), InvalidSpec)
        assert isinstance(reader(None), InvalidSpec)
