import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from moorage.api.agentrun import AgentRunSpec
from moorage.api.crd import DEFINITIONS, FOLDERS, Definition, drift, main, manifest, write
from moorage.api.runstatus import Phase
from moorage.core.run.phases import RunPhase

ROOT = Path(__file__).parents[2]
STRUCTURAL = {
    "type",
    "format",
    "description",
    "properties",
    "required",
    "items",
    "default",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "maxItems",
    "minItems",
    "minProperties",
    "maxProperties",
    "additionalProperties",
    "x-kubernetes-validations",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-int-or-string",
}


def nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for child in schema.get("properties", {}).values():
        yield from nodes(child)
    for inside in ("items", "additionalProperties"):
        if inside in schema:
            yield from nodes(schema[inside])


def schema_of(definition: Definition) -> dict[str, Any]:
    found: dict[str, Any] = manifest(definition)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.plural)
def test_schemas_are_structural(definition: Definition) -> None:
    for node in nodes(schema_of(definition)):
        assert set(node) <= STRUCTURAL, node
        assert ("type" in node) != ("x-kubernetes-int-or-string" in node), node


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.plural)
def test_everything_that_a_rule_may_read_is_bounded(definition: Definition) -> None:
    for node in nodes(schema_of(definition)["properties"]["spec"]):
        if node.get("type") == "array":
            assert "maxItems" in node, node
        if "additionalProperties" in node:
            assert "maxProperties" in node, node
        if node.get("type") == "string" and "enum" not in node:
            assert "maxLength" in node, node


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.plural)
def test_statuses_have_no_defaults_and_no_rules(definition: Definition) -> None:
    status = dict(schema_of(definition)["properties"]["status"])
    assert status.pop("default", None) == (definition.born.wire() if definition.born else None)  # whole, or not at all
    for node in nodes(status):
        assert not {"default", "x-kubernetes-validations"} & set(node)


def test_every_field_of_a_run_may_change_or_has_a_rule_that_forbids_it() -> None:
    fields = set(schema_of(DEFINITIONS[0])["properties"]["spec"]["properties"])
    fixed = {rule.field for rule in AgentRunSpec.rules if "can't be changed" in rule.message}
    assert fields - fixed == {"suspend", "cancel", "constraints", "retention"}


def test_phases_are_those_of_the_state_machine() -> None:
    assert set(Phase.__args__) == {phase.value for phase in RunPhase}  # type: ignore[attr-defined]


def test_columns_of_runs() -> None:
    columns = DEFINITIONS[0].columns
    assert [c.name.upper() for c in columns if not c.wide] == [
        "PHASE",
        "REASON",
        "ITER",
        "TOKENS",
        "COST",
        "EPOCH",
        "AGE",
    ]
    assert [c.name.upper() for c in columns if c.wide] == ["WORKSPACE", "BRANCH", "NODE", "WAITS"]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.plural)
def test_columns_show_fields_that_there_are(definition: Definition) -> None:
    for column in definition.columns:
        node: dict[str, Any] = schema_of(definition)
        for step in column.path.lstrip(".").partition("[")[0].split("."):
            if step == "metadata":
                break
            node = node["properties"][step]


def test_what_is_written_is_read_by_yaml_as_it_was_meant(tmp_path: Path) -> None:
    write(tmp_path)
    for definition in DEFINITIONS:
        assert yaml.safe_load((tmp_path / definition.file).read_text()) == json.loads(json.dumps(manifest(definition)))


def test_drift_is_told_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path)]
    assert main(out) == 0
    assert main([*out, "--check"]) == 0
    changed = tmp_path / DEFINITIONS[0].file
    changed.write_text(changed.read_text().replace("AgentRun", "AgentRan"))
    (tmp_path / "old.yaml").write_text("{}")
    (tmp_path / DEFINITIONS[1].file).unlink()
    assert len(drift(tmp_path)) == 3
    assert main([*out, "--check"]) == 1
    assert f"{changed} has drifted from the models: run `make crds`" in capsys.readouterr().err
    assert main(out) == 0
    assert drift(tmp_path) == []


def test_the_committed_files_are_those_of_the_models() -> None:
    assert [drift(ROOT / folder) for folder in FOLDERS] == [[], []]
