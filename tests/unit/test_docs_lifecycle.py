"""docs/lifecycle.md has a row for everything that is made, and an answer in each of its cells."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage.api.crd import DEFINITIONS

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "operator" / "moorage"
PAGE = (ROOT / "docs" / "lifecycle.md").read_text()
QUESTIONS = ("created", "cancelled", "persisted", "restored", "destroyed", "billed", "observed")
MADE_OF = {
    "pods": "Pod",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "serviceaccounts": "ServiceAccount",
    "networkpolicies": "NetworkPolicy",
    "leases": "Lease",
    "events": "Event",
    "agentruns": "AgentRun",
    "resourcequotas": "ResourceQuota",
    "limitranges": "LimitRange",
}
"""What the chart lets the operator create, by its kind."""
TEN_THINGS = ("surface", "session", "agent", "run", "attempt", "turn", "step", "model request", "tool call", "effect")
SINGLETONS = {
    "Lock",
    "Event",
    "Queue",
    "Semaphore",
    "AsyncClient",
    "Client",
    "ApiClient",
    "CollectorRegistry",
    "connect",
}


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def created_by_the_operator() -> set[str]:
    rules = (ROOT / "charts" / "moorage" / "templates" / "_rbac.tpl").read_text()
    ours = rules[rules.index('"moorage.operator.rules"') : rules.index('"moorage.gateway.rules"')]
    found = re.findall(r"resources: \[([a-z/, ]+)\]\n  verbs: \[([a-z, ]+)\]", ours)
    return {each for resources, verbs in found if "create" in verbs.split(", ") for each in resources.split(", ")}


@pytest.mark.rule("O5")
def test_every_object_has_a_row_and_every_question_an_answer() -> None:
    head, *table = rows()
    assert all(question in column for question, column in zip(QUESTIONS, head[1:], strict=True))
    for row in table:
        assert len(row) == len(head), row[0]
        assert all(row), f"{row[0]}: an empty cell says nothing"


@pytest.mark.rule("O5")
def test_what_users_write_and_what_the_operator_makes_is_there() -> None:
    objects = " ".join(row[0] for row in rows()[1:])
    resources = created_by_the_operator()
    assert resources == set(MADE_OF), "a new child needs a row"
    for kind in [*(definition.model.__name__ for definition in DEFINITIONS), *MADE_OF.values()]:
        assert re.search(rf"\b{kind}\b", objects), kind
    for thing in TEN_THINGS:
        assert re.search(rf"\b{thing}\b", objects), thing


def built_at_import(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Call):
            yield value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")


@pytest.mark.rule("O5")
def test_no_module_holds_a_lock_a_client_or_a_registry() -> None:
    found = {path: set(built_at_import(ast.parse(path.read_text()))) for path in sorted(SOURCES.rglob("*.py"))}
    assert any(calls for calls in found.values()), "some modules build constants"
    assert {str(path): calls & SINGLETONS for path, calls in found.items() if calls & SINGLETONS} == {}
