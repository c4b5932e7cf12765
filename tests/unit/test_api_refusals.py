import shutil
import subprocess
from typing import Any

import pytest
from tests.api_cases import BAD, BAD_BRANCHES, GOOD, GOOD_BRANCHES, Case, manifest

from moorage.api.agent import Agent
from moorage.api.agentrun import AgentRun
from moorage.api.modelprovider import ModelProvider
from moorage.api.parse import InvalidSpec, parse, parse_agent_run
from moorage.api.resourceconstraint import ResourceConstraint
from moorage.api.runcommand import RunCommand
from moorage.api.workspace import Workspace

MODELS: dict[str, Any] = {
    m.__name__: m for m in (Agent, AgentRun, ModelProvider, ResourceConstraint, RunCommand, Workspace)
}


def problems(result: object) -> list[tuple[str, str]]:
    return [(p.path, p.message) for p in result.problems] if isinstance(result, InvalidSpec) else []


@pytest.mark.parametrize("case", GOOD, ids=lambda c: c.name)
def test_good_manifests_are_read(case: Case) -> None:
    result = parse(MODELS[case.kind], case.manifest(), "cluster", "refuse")
    assert problems(result) == []


@pytest.mark.parametrize("case", BAD, ids=lambda c: c.name)
def test_bad_manifests_are_refused_where_they_are_bad_and_with_advice(case: Case) -> None:
    result = parse(MODELS[case.kind], case.manifest(), "cluster", "refuse")
    assert [path for path, message in problems(result) if case.says in message] == [case.at]


@pytest.mark.parametrize("branch", BAD_BRANCHES, ids=ascii)
def test_branches_that_git_refuses_are_refused(branch: str) -> None:
    result = parse_agent_run(manifest("AgentRun", {"delivery": {"branch": branch}}))
    assert [path for path, _ in problems(result)] == ["spec.delivery.branch"]


@pytest.mark.parametrize("branch", GOOD_BRANCHES, ids=ascii)
def test_branches_that_git_accepts_are_accepted(branch: str) -> None:
    run = parse_agent_run(manifest("AgentRun", {"delivery": {"branch": branch}}))
    assert isinstance(run, AgentRun)
    assert run.branch() == branch


@pytest.mark.skipif(shutil.which("git") is None, reason="git judges these names")
@pytest.mark.parametrize("branch", [*GOOD_BRANCHES, *BAD_BRANCHES], ids=ascii)
def test_git_itself_accepts_all_that_we_accept(branch: str) -> None:
    ours = isinstance(parse_agent_run(manifest("AgentRun", {"delivery": {"branch": branch}})), AgentRun)
    git = subprocess.run(["git", "check-ref-format", f"refs/heads/{branch}"], check=False, capture_output=True)
    assert git.returncode == 0 or not ours


def test_a_goal_is_at_most_256_kib_of_utf8_and_the_refusal_says_where_to_put_it() -> None:
    assert isinstance(parse_agent_run(manifest("AgentRun", {"goal": "é" * (128 * 1024)})), AgentRun)
    result = parse_agent_run(manifest("AgentRun", {"goal": "é" * (128 * 1024) + "x"}))
    assert [(path, "file of the repository" in message) for path, message in problems(result)] == [("spec.goal", True)]


def test_all_problems_of_a_manifest_are_told_at_once() -> None:
    change = {"constraints": {"maxIterations": 0, "wallClock": "soon"}, "delivery": {"branch": "HEAD"}}
    result = parse_agent_run(manifest("AgentRun", change))
    assert [path for path, _ in problems(result)] == [
        "spec.constraints.maxIterations",
        "spec.constraints.wallClock",
        "spec.delivery.branch",
    ]
    nothing = parse_agent_run({"apiVersion": "moorage.dev/v1alpha1", "kind": "AgentRun", "spec": {}})
    assert [path for path, _ in problems(nothing)] == ["spec", "spec", "spec"]


def test_without_a_cluster_only_a_path_will_do() -> None:
    local = {"workspaceRef": None, "workspace": {"local": {"path": "./repo"}}}
    assert isinstance(parse_agent_run(manifest("AgentRun", local), "local"), AgentRun)
    claim = {"workspaceRef": None, "workspace": {"local": {"claimName": "c"}}}
    assert problems(parse_agent_run(manifest("AgentRun", claim), "local")) == [
        ("spec.workspace.local", "local needs path here: without a cluster there are no volume claims")
    ]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({}, "workspaceRef"),
        ({"agent": None, "agentRef": {"name": "a"}}, "agentRef"),
        ({"goal": None, "goalFrom": {"configMapKeyRef": {"name": "g", "key": "k"}}}, "goalFrom"),
    ],
)
def test_without_a_cluster_there_are_no_references(change: dict[str, Any], field: str) -> None:
    found = dict(problems(parse_agent_run(manifest("AgentRun", change), "local")))
    assert "needs a cluster" in found[f"spec.{field}"]
