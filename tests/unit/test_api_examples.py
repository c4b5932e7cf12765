from pathlib import Path
from typing import Any

import pytest
import yaml

from moorage.api.agent import Agent
from moorage.api.agentrun import AgentRun
from moorage.api.modelprovider import ModelProvider
from moorage.api.parse import InvalidSpec, parse, parse_agent_run
from moorage.api.runcommand import RunCommand
from moorage.api.workspace import Workspace

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS: dict[str, Any] = {m.__name__: m for m in (Agent, AgentRun, ModelProvider, RunCommand, Workspace)}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


@pytest.mark.parametrize(
    "name",
    ["agentrun.yaml", "continued.yaml", "workspace.yaml", "agent.yaml", "real-agents.yaml", "runcommand.yaml"],
)
def test_examples_for_a_cluster_are_good(name: str) -> None:
    ours = [d for d in documents(name) if d["kind"] in MODELS]
    results = [parse(MODELS[d["kind"]], d, "cluster", "refuse") for d in ours]
    assert results
    assert [r.message for r in results if isinstance(r, InvalidSpec)] == []


def test_the_example_without_a_cluster_is_good_there_and_only_there() -> None:
    (body,) = documents("local.yaml")
    run = parse_agent_run(body, "local", "refuse")
    assert isinstance(run, AgentRun), run
    refused = parse_agent_run(body, "cluster", "refuse")
    assert isinstance(refused, InvalidSpec)
    assert "moorage run -f" in refused.message


def test_what_the_example_run_names_is_in_the_examples() -> None:
    named = {(d["kind"], d["metadata"]["name"]) for f in ("workspace.yaml", "agent.yaml") for d in documents(f)}
    (run,) = documents("agentrun.yaml")
    assert ("Workspace", run["spec"]["workspaceRef"]["name"]) in named
    assert ("Agent", run["spec"]["agentRef"]["name"]) in named
