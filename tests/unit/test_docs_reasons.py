"""docs/reasons.md names every typed reason that a run's status can show, as read from the sources."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "operator" / "moorage"
ROOMS = ("core/run", "core/continuation", "sandbox", "drivers", "runner", "workspace")
TYPED = re.compile(r"[A-Z][a-z]+[A-Za-z0-9]*")
FIRST = {"fail", "Unresolved", "Problem", "Refused", "ModelError", "_Failure", "Verdict", "Terminate", "Escalate"}
SECOND = {"Outcome", "give_up", "Leave"}


def constants(node: ast.expr) -> Iterator[str]:
    """The strings that an argument can be; pieces of a composed one are none."""
    composed = {id(part) for each in ast.walk(node) if isinstance(each, ast.JoinedStr) for part in each.values}
    for part in (each for each in ast.walk(node) if id(each) not in composed):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and TYPED.fullmatch(part.value):
            yield part.value


def told(tree: ast.Module) -> Iterator[str]:
    """Reasons that this module can put into a status."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            place = 0 if name in FIRST else 1 if name in SECOND else None
            if place is not None and len(node.args) > place:
                yield from constants(node.args[place])
            yield from (r for k in node.keywords if name == "Plan" and k.arg == "reason" for r in constants(k.value))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "reason":
            yield from constants(node.value) if node.value else ()
        elif isinstance(node, ast.Assign):
            yield from assigned(node)


def assigned(node: ast.Assign) -> Iterator[str]:
    """`reason = "X"` of an error's class, and the values of tables whose name says what they hold."""
    names = [getattr(target, "id", "") for target in node.targets]
    if "reason" in names:
        yield from constants(node.value)
    elif any(name.endswith(("_REASONS", "DISRUPTIONS")) for name in names) and isinstance(node.value, ast.Dict):
        yield from (reason for value in node.value.values for reason in constants(value))


def in_sources() -> set[str]:
    files = (path for room in ROOMS for path in sorted((SOURCES / room).rglob("*.py")))
    return {reason for path in files for reason in told(ast.parse(path.read_text()))}


def on_page() -> set[str]:
    rows = (line for line in (ROOT / "docs" / "reasons.md").read_text().splitlines() if line.startswith("| `"))
    return {name for row in rows for name in re.findall(r"`([A-Za-z0-9]+)`", row.split("|")[1])}


def test_every_reason_in_the_sources_is_explained() -> None:
    found = in_sources()
    assert {"AcceptanceFailed", "OOMKilled", "AuthFailed", "WorkspaceNotFound", "RuntimeClassNotFound"} & found
    assert sorted(found - on_page()) == []


def test_every_explained_reason_is_in_the_sources() -> None:
    words = {word for path in SOURCES.rglob("*.py") for word in re.findall(r"[A-Za-z0-9]+", path.read_text())}
    composed = {f"{kind}{end}" for kind in ("Agent", "ModelProvider", "Workspace") for end in ("NotFound", "Invalid")}
    assert sorted(on_page() - words - composed) == []
