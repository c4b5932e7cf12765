"""Agents that come from npm, installed once per lock file into the cache: exact versions, each with its integrity hash.

The lock files name no registry: npm asks the one that it is set up for, and takes only what has the hash. Scripts of
packages don't run.
"""

import hashlib
import re
import shutil
from pathlib import Path

from e2e.cluster import debian
from e2e.cluster.caches import workplace
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.cluster.locks import exclusive
from e2e.cluster.paths import CHECKOUT
from e2e.cluster.shell import run, run_logged

FOLDER = CHECKOUT / "sandbox-images"
TESTED = ("codex", "opencode", "pi")  # that `make test` drives: their licences are open ones
LOCK = "package-lock.json"
OLDEST = 9  # npm installs from lock files that name no registry since late in 8
_INSTALL = ("npm", "ci", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", "--no-update-notifier")


def installed(agent: str, cache: Path, console: Console) -> Path:
    """Install what the lock file in sandbox-images/AGENT names, unless it is there.

    Returns:
        the folder node_modules.

    Raises:
        HarnessError: npm can't be had here, is too old for these lock files, or refused.
    """
    sources, final = _sources(agent), _place(agent, cache)
    with exclusive(cache / "npm" / "lock"):
        if not final.is_dir():
            debian.ensure(debian.NPM_PACKAGES, console, cache)
            version = _version()
            with console.step(f"install {agent} with npm {version}"), workplace(final.parent, agent) as partial:
                _install(sources, partial, cache / "logs" / f"npm-{agent}.log")
                (partial / "whole").rename(final)
    return final / "node_modules"


def present(agent: str, cache: Path) -> bool:
    """Whether what the lock file names is installed."""
    return _place(agent, cache).is_dir()


def _sources(agent: str) -> list[Path]:
    return [FOLDER / agent / name for name in ("package.json", LOCK)]


def _place(agent: str, cache: Path) -> Path:
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in _sources(agent))).hexdigest()[:16]
    return cache / "npm" / f"{agent}-{digest}"


def _version() -> str:
    version = run(["npm", "--version"]).strip()
    if (found := re.match(r"(\d+)\.", version)) is None or int(found[1]) < OLDEST:
        raise HarnessError(
            f"npm {version} on PATH is older than npm {OLDEST} and can't read sandbox-images/*/{LOCK}, which name no "
            f"registry: put npm {OLDEST} or later first on PATH, then try again"
        )
    return version


def _install(sources: list[Path], partial: Path, log: Path) -> None:
    whole = partial / "whole"
    whole.mkdir()
    for path in sources:
        shutil.copy(path, whole)
    run_logged([*_INSTALL, f"--cache={partial / 'downloads'}"], log, cwd=whole)
