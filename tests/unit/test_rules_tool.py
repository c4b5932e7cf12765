import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rules_tool", ROOT / "tools" / "rules.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["rules_tool"] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


SOURCE = """
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.rule("J1")]

@pytest.mark.rule("E4", "F3")
def test_one(): ...

class TestAll:
    @pytest.mark.rule("S2")
    async def test_two(self): ...

@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.rule("T1"))])
def test_three(x): ...
"""


def test_markers_are_found_on_tests_modules_and_parameters(tool: ModuleType) -> None:
    found = {(mark.rule, mark.test) for mark in tool.marks(SOURCE, Path("t.py"))}
    assert found == {
        ("J1", "(module)"),
        ("E4", "test_one"),
        ("F3", "test_one"),
        ("S2", "test_two"),
        ("T1", "(parameter)"),
    }


def test_the_page_has_each_rule_once_with_words(tool: ModuleType) -> None:
    page = (ROOT / "docs" / "rules.md").read_text()
    numbers = [line.split("**")[1] for line in page.splitlines() if line.startswith("- **")]
    assert len(numbers) == len(set(numbers)) == len(tool.rules(page)) > 100


def test_no_marker_of_this_checkout_names_an_unknown_rule(tool: ModuleType) -> None:
    known = tool.rules((ROOT / "docs" / "rules.md").read_text())
    assert [mark.place for mark in tool.collect(ROOT) if mark.rule not in known] == []


def test_the_report_names_what_is_proved_and_what_is_not(tool: ModuleType) -> None:
    report = "\n".join(tool.listing({"J1": "one", "J2": "two"}, [tool.Mark("J1", Path("t.py"), 3, "test_x")]))
    assert "t.py:3 test_x" in report
    assert report.endswith("Without one:\nJ2   two")
    assert "1 of 2 rules" in report
