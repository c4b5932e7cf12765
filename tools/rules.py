"""Which rules of docs/rules.md have a test that names them: reads the markers from the sources, runs no test.

python tools/rules.py             every rule with its tests, and the rules without one
python tools/rules.py --unknown   fails when a marker names no rule (part of `make lint`)
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RULE = re.compile(r"^- \*\*([A-Z]\d+)\*\* (.+)$")
TEST_FOLDERS = ("tests", "e2e")


@dataclass(frozen=True)
class Mark:
    """One rule named by one test."""

    rule: str
    file: Path
    line: int
    test: str

    @property
    def place(self) -> str:
        """`file:line test`."""
        return f"{self.file}:{self.line} {self.test}"


def rules(page: str) -> dict[str, str]:
    """The page's rules by number, in its order."""
    found = (RULE.match(line) for line in page.splitlines())
    return {match[1]: match[2] for match in found if match}


def marks(source: str, file: Path) -> Iterator[Mark]:
    """Every `rule` marker of a test file: on a test, on its class, or on the module by `pytestmark`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                yield from _named(decorator, file, node.name)
        elif isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets
        ):
            for part in ast.walk(node.value):
                yield from _named(part, file, "(module)")
        elif isinstance(node, ast.Call) and _is(node.func, "param"):
            for keyword in node.keywords:
                for part in ast.walk(keyword.value):
                    yield from _named(part, file, "(parameter)")


def _named(node: ast.AST, file: Path, test: str) -> Iterator[Mark]:
    if isinstance(node, ast.Call) and _is(node.func, "rule"):
        for argument in node.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield Mark(argument.value, file, node.lineno, test)


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name


def collect(root: Path) -> list[Mark]:
    """All marks below the test folders of a checkout."""
    files = sorted(path for folder in TEST_FOLDERS for path in (root / folder).rglob("*.py"))
    return [mark for path in files for mark in marks(path.read_text(), path.relative_to(root))]


def listing(known: dict[str, str], found: Sequence[Mark]) -> Iterator[str]:
    """The report, line by line: proved rules with their tests, then the others."""
    by_rule = {number: [mark for mark in found if mark.rule == number] for number in known}
    for number, tests in by_rule.items():
        if tests:
            yield f"{number:<4} {known[number]}"
            yield from (f"       {mark.place}" for mark in tests)
    without = [number for number, tests in by_rule.items() if not tests]
    yield f"\n{len(known) - len(without)} of {len(known)} rules have a test that names them. Without one:"
    yield from (f"{number:<4} {known[number]}" for number in without)


def main(argv: Sequence[str]) -> int:
    """Run as a program; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unknown", action="store_true", help="fail when a marker names no rule")
    options = parser.parse_args(argv)
    known, found = rules((ROOT / "docs" / "rules.md").read_text()), collect(ROOT)
    unknown = [mark for mark in found if mark.rule not in known]
    if not options.unknown:
        sys.stdout.writelines(f"{line}\n" for line in listing(known, found))
    for mark in unknown:
        sys.stderr.write(f"{mark.place}: {mark.rule} is no rule of docs/rules.md\n")
    return 1 if options.unknown and unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
