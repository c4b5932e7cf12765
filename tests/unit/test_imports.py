"""What a process of ours imports: a start in a sandbox takes hardly longer than that (ADR 164)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "operator"
COMMAND_LINES = {"click", "prompt_toolkit", "pygments", "rich", "typer"}
LOADED = "import json, sys, {}; print(json.dumps([name for name in sys.modules if '.' not in name]))"


def loaded(module: str) -> set[str]:
    """Packages that a process has after importing the module."""
    asked = [sys.executable, "-c", LOADED.format(module)]
    return set(json.loads(subprocess.run(asked, cwd=SOURCES, capture_output=True, check=True).stdout))


@pytest.mark.parametrize(
    ("module", "unused"),
    [
        ("moorage.runner.__main__", {*COMMAND_LINES, "aiohttp", "cel", "httpx", "kopf", "starlette", "structlog"}),
        ("moorage.drivers.builtin.driver", {*COMMAND_LINES, "aiohttp", "cel", "kopf", "starlette", "structlog"}),
        ("moorage.core.constraints.cel", COMMAND_LINES),
    ],
)
def test_a_process_imports_nothing_that_it_has_no_use_for(module: str, unused: set[str]) -> None:
    found = loaded(module)
    assert "moorage" in found
    assert not unused & found
