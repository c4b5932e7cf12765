"""What an image installs, as wheels for a build without network: locked dependencies with hashes, and our own wheel."""

import hashlib
import platform
import re
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from e2e.cluster.caches import workplace
from e2e.cluster.errors import HarnessError
from e2e.cluster.locks import exclusive
from e2e.cluster.paths import CHECKOUT
from e2e.cluster.shell import run_logged

PROJECT = "moorage"
_IMAGE_PYTHON = "3.11"
_LOCK_ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==(?:.*\\\n)*.*\n?", re.MULTILINE)
_GLIBC = range(36, 4, -1)  # Debian 12 has 2.36; wheels for any older one run on it


def closure(roots: Iterable[str], needs: Callable[[str], list[str]] | None = None) -> set[str]:
    """Return the canonical names of packages and of all that they require on the image's Python.

    Args:
        roots: names of packages.
        needs: requirements of a package, as in its metadata; those of the running environment by default.
    """
    lookup = needs or _installed_requirements
    found: set[str] = set()
    todo = [canonicalize_name(root) for root in roots]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [canonicalize_name(each.name) for each in map(Requirement, lookup(name)) if _applies(each)]
    return found


def select(lock: str, names: set[str]) -> str:
    """Return the entries of a lock file (``name==version \\ --hash=…``) for the named packages.

    Raises:
        HarnessError: a package isn't in the lock file.
    """
    entries: dict[str, str] = {canonicalize_name(match["name"]): match[0] for match in _LOCK_ENTRY.finditer(lock)}
    if lacking := sorted(names - set(entries)):
        raise HarnessError(f"requirements.lock lacks {', '.join(lacking)}: run `make lock`")
    return "".join(entries[name] for name in sorted(names))


def collect(requirements: str, cache: Path, log: Path) -> Path:
    """Download wheels for locked requirements, once.

    Returns:
        a folder with the wheels and ``requirements.txt``.
    """
    folder = cache / "wheels" / hashlib.sha256(requirements.encode()).hexdigest()[:16]
    with exclusive(cache / "wheels" / "lock"):
        if not folder.is_dir():
            with workplace(folder.parent, "wheels") as partial:
                staged = partial / "whole"
                staged.mkdir()
                listing = staged / "requirements.txt"
                listing.write_text(requirements)
                argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-cache-dir", "--require-hashes"]
                run_logged([*argv, f"--requirement={listing}", *_target(), f"--dest={staged}"], log)
                staged.rename(folder)
    return folder


def build_project(into: Path, log: Path) -> Path:
    """Build the checkout's wheel; the same files give the same bytes."""
    run_logged([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", into], log, cwd=CHECKOUT)
    return next(into.glob("*.whl"))


def _target() -> list[str]:
    """What pip must know to choose wheels for the image's Python, whatever Python runs the harness."""
    machine = platform.machine()
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in _GLIBC]
    legacy = [f"--platform=manylinux2014_{machine}", "--platform=any"]
    version = ["--only-binary=:all:", "--implementation=cp", f"--python-version={_IMAGE_PYTHON}"]
    return [*version, "--abi=cp311", "--abi=abi3", "--abi=none", *platforms, *legacy]


def _installed_requirements(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError as missing:
        raise HarnessError(f"{name} isn't installed in this environment: run `make setup`") from missing


def _applies(requirement: Requirement) -> bool:
    environment = {"python_version": _IMAGE_PYTHON, "python_full_version": f"{_IMAGE_PYTHON}.0", "extra": ""}
    return requirement.marker is None or requirement.marker.evaluate(environment)
