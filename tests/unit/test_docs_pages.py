"""What users' pages say is so: manifests are valid, links lead somewhere, commands, values and metrics exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
import yaml
from pydantic import BaseModel
from tests.metric_families import families

from moorage.api.agent import Agent
from moorage.api.agentrun import AgentRun
from moorage.api.modelprovider import ModelProvider
from moorage.api.workspace import Workspace
from moorage.cli.exits import Exit
from moorage.cli.main import program
from moorage.testing.models.script import Conversation, Fault, Reply, Script, ToolCall

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
KINDS = get_args(Fault.model_fields["kind"].annotation)
MODELS: dict[str, type[BaseModel]] = {
    "AgentRun": AgentRun,
    "Workspace": Workspace,
    "Agent": Agent,
    "ModelProvider": ModelProvider,
}


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    for page in PAGES:
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
            yield from ((page.name, each) for each in yaml.safe_load_all(block) if each.get("kind") in MODELS)


def test_the_page_of_the_stand_in_has_scripts_that_work_and_every_field() -> None:
    page = (ROOT / "docs" / "testing-models.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    scripts = [Script.model_validate(block) for block in blocks if "replies" in block]
    assert {fault.kind for script in scripts for reply in script.replies for fault in reply.faults} == set(KINDS)
    fields = {name for model in (Reply, ToolCall, Fault, Conversation) for name in model.model_fields}
    assert {name for name in fields if not re.search(rf"\b{name}\b", page)} == set()


def test_there_are_manifests_of_every_kind_but_agents() -> None:
    assert {each["kind"] for _, each in manifests()} == {"AgentRun", "Workspace", "ModelProvider"}


@pytest.mark.parametrize(
    ("page", "manifest"), [pytest.param(*each, id=f"{each[0]}-{i}") for i, each in enumerate(manifests())]
)
def test_a_manifest_on_a_page_is_valid(page: str, manifest: dict[str, Any]) -> None:
    manifest["metadata"].setdefault("namespace", "default")
    manifest["metadata"].setdefault("uid", "u")
    MODELS[manifest["kind"]].model_validate(manifest)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", page.read_text())]
    inside = [link for link in links if link and "://" not in link]
    assert [link for link in inside if not (page.parent / link).exists()] == []


def test_pages_that_pages_name_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"\bdocs/[a-z-]+\.md\b", page.read_text())}
    made_by_bench = {"docs/benchmarks.md"}
    assert sorted(name for name in named - made_by_bench if not (ROOT / name).exists()) == []


def test_the_page_of_the_program_names_each_command_and_exit_code() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    commands = set(typer.main.get_command(program()).commands)  # type: ignore[attr-defined]
    missing = {name for name in commands if not re.search(rf"`{name}[ `]", page)}
    assert missing == set()
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == {code.value for code in Exit}


def test_metrics_and_values_of_the_operations_page_exist() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    known = {family.name for family in families()} | {"moorage_tenant_"}  # the page names them all by that
    named = {name.removesuffix("_total") for name in re.findall(r"\bmoorage_[a-z_]+", page)}
    assert named
    assert named <= known
    schema = json.loads((ROOT / "charts" / "moorage" / "values.schema.json").read_text())
    for value in re.findall(r"^\| `([a-z][A-Za-z]+\.[A-Za-z.]+)`", page, re.MULTILINE):
        found = schema
        for part in value.split("."):
            found = found["properties"][part]
