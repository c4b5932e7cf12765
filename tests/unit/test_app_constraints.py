"""C4: constraints of other packages are found by their entry points, and named at admission."""

from pathlib import Path
from typing import Any

import pytest

from moorage.app.constraints import installed, known
from moorage.core.constraints.judging import Action, Context
from moorage.core.run.usable import unusable

MODULE = """
from moorage.core.constraints.judging import Action, Validation

class Mine:
    name = "mine"

    def validate(self, context):
        return Validation(self.name, context.tokens < 5, "TooMany", "too many")

    def on_violation(self, validation):
        return Action.WARN_CONTINUE
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "mine-1.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (told / "entry_points.txt").write_text("[moorage.constraints]\nmine = constraints_of_mine:Mine\n")
    (tmp_path / "constraints_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.rule("C4")
@pytest.mark.usefixtures("package")
def test_what_a_package_offers_is_known_and_loaded() -> None:
    assert "mine" in known()
    made = installed()["mine"]()
    said = made.validate(Context(tokens=5))
    assert (said.holds, made.on_violation(said)) == (False, Action.WARN_CONTINUE)
    assert made.validate(Context()).holds


@pytest.mark.rule("C4")
@pytest.mark.parametrize(
    ("custom", "reason"),
    [
        ({"name": "a", "cel": "tokens <"}, "ConstraintInvalid"),
        ({"name": "a", "cel": "costMicros / tokens < 5"}, "ConstraintInvalid"),
        ({"name": "a", "entryPoint": "nobody"}, "ConstraintNotFound"),
        ({"name": "a", "entryPoint": "mine"}, None),
        ({"name": "a", "cel": "tokens < 5"}, None),
    ],
)
def test_an_agent_whose_constraint_cant_be_judged_says_so(custom: dict[str, Any], reason: str | None) -> None:
    spec = {"driver": "command", "command": ["true"], "constraints": {"custom": [custom]}}
    meta = {"name": "a", "namespace": "team-a"}
    body = {"apiVersion": "moorage.dev/v1alpha1", "kind": "Agent", "metadata": meta, "spec": spec}
    found = unusable("Agent", body, frozenset({"command"}), frozenset({"mine"}))
    assert (found.reason if found else None) == reason
    assert found is None or "constraints.custom a: " in found.message
