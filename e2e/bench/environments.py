"""The neighbours' own environments: made from lock files with hashes, in the harness's cache, by the bench alone."""

import hashlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from e2e.cluster.caches import workplace
from e2e.cluster.console import Console
from e2e.cluster.errors import CommandFailedError, HarnessError
from e2e.cluster.locks import exclusive
from e2e.cluster.shell import run

RECIPES = Path(__file__).parent / "neighbours"
_UV = Path(sys.executable).parent / "uv"


class AbsentError(HarnessError):
    """That neighbour can't be had on this machine; the message says which command failed, and how."""


def python(name: str, cache: Path, console: Console) -> Path:
    """The interpreter of an environment that has what `name`.lock says, made where there is none yet.

    Raises:
        AbsentError: a command that makes it failed.
    """

    def make(folder: Path) -> None:
        _step([sys.executable, "-m", "venv", "--without-pip", folder], "python -m venv")
        lock = RECIPES / f"{name}.lock"
        argv: list[str | Path] = [
            _UV,
            "pip",
            "install",
            "--quiet",
            "--require-hashes",
            "--python",
            folder / "bin" / "python",
        ]
        _step([*argv, "--requirement", lock], f"uv pip install --require-hashes --requirement {lock.name}")

    return _made(name, [RECIPES / f"{name}.lock"], make, cache, console) / "bin" / "python"


def restate_server(cache: Path, console: Console) -> Path:
    """The server's program, from its npm package; no script of any package runs.

    Raises:
        AbsentError: as `python`.
    """
    recipe = [RECIPES / "restate-server" / name for name in ("package.json", "package-lock.json")]

    def make(folder: Path) -> None:
        folder.mkdir()
        for path in recipe:
            shutil.copy(path, folder)
        quiet = ["--ignore-scripts", "--no-audit", "--no-fund"]
        _step(["npm", "ci", "--prefix", folder, *quiet], "npm ci @restatedev/restate-server")

    folder = _made("restate-server", recipe, make, cache, console)
    found = sorted(folder.glob("node_modules/@restatedev/restate-server-*/bin/restate-server"))
    if not found:
        raise AbsentError("`npm ci @restatedev/restate-server` brought no program for this machine")
    return found[0]


def _made(name: str, recipe: list[Path], make: Callable[[Path], None], cache: Path, console: Console) -> Path:
    """The folder, whole or not there: its name carries a digest of its recipe."""
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in recipe)).hexdigest()[:16]
    folder = cache / "programs" / f"neighbour-{name}-{digest}"
    with exclusive(folder.parent / f"neighbour-{name}.lock"):
        if not folder.is_dir():
            with console.step(f"install {name}"), workplace(folder.parent, f"neighbour-{name}") as partial:
                make(partial / "whole")
                (partial / "whole").rename(folder)
    return folder


def _step(argv: list[str | Path], shown: str) -> None:
    try:
        run(argv, timeout_s=600)
    except FileNotFoundError:
        raise AbsentError(f"`{shown}` failed: {Path(argv[0]).name} isn't installed") from None
    except CommandFailedError as error:
        raise AbsentError(f"`{shown}` failed: {str(error).splitlines()[-1]}") from None
