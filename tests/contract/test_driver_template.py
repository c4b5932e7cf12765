"""The template for other people's drivers, as an author would use it: installed by itself, tested by its own tests."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

TEMPLATE = Path(__file__).parents[2] / "examples" / "driver-template"
pytestmark = pytest.mark.timeout(600)  # the whole contract, with real processes


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the package, with its entry point."""
    folder = tmp_path_factory.mktemp("template")
    source = shutil.copytree(TEMPLATE, folder / "source", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    uv = Path(sys.executable).parent / "uv"
    how = ("--quiet", "--no-deps", "--no-build-isolation", "--offline", "--target", folder / "packages")
    env = {**os.environ, "VIRTUAL_ENV": str(uv.parents[1])}
    subprocess.run([uv, "pip", "install", *how, source], check=True, env=env)
    return folder


def environment(installed: Path) -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": str(installed / "packages"), "PYTHONDONTWRITEBYTECODE": "1"}


def test_its_own_tests_pass(installed: Path) -> None:
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    env = environment(installed)
    done = subprocess.run(argv, cwd=installed / "source", env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_an_installation_lists_it_without_a_change_of_the_core(installed: Path) -> None:
    asked = "from moorage.drivers.registry import known; print(*known())"
    env = environment(installed)
    done = subprocess.run([sys.executable, "-c", asked], env=env, capture_output=True, text=True, check=True)
    assert "example" in done.stdout.split()
