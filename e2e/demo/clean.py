"""Takes away what the demo made; nothing of it was ever in the checkout."""

import os
from collections.abc import Mapping
from pathlib import Path

from e2e.cluster import caches, debian
from e2e.cluster.backend import source
from e2e.cluster.console import Console
from e2e.cluster.current import CurrentCluster
from e2e.cluster.kind import KindCluster
from e2e.cluster.layout import Layout
from e2e.cluster.paths import cache_root, state_root
from e2e.cluster.processes import read_pid_file
from e2e.demo import local


def everything(console: Console, env: Mapping[str, str] = os.environ) -> None:
    """Remove the demo's clusters, its temporary folders, and what was built for it.

    The user's own cluster is cleaned only where MOORAGE_CLUSTER=current asks for it. KEEP=1 keeps what was built; so
    does a cluster of another name that runs from it.
    """
    _clusters(console, env)
    local.sweep()
    _built(console, env)


def _clusters(console: Console, env: Mapping[str, str]) -> None:
    built = source(console, env=env)
    kind = KindCluster(built.layout.name, state_root(f"{built.layout.name}-kind", env), built.programs, console)
    if env.get("MOORAGE_CLUSTER") == "current":
        with console.step("remove the demo from the current context"):
            CurrentCluster(env, console).down()
    if kind.state.exists():
        with console.step("remove the demo's kind cluster"):
            kind.down()
    if os.geteuid() == 0 or built.layout.state.exists():
        built.down()


def _built(console: Console, env: Mapping[str, str]) -> None:
    cache = cache_root(env)
    size = f"{caches.size(cache) / 2**30:.1f} GiB"
    users = [each.name for each in source(console, env=env).layout.siblings() if runs_from(cache, each)]
    installed = _installed(env)
    if env.get("KEEP"):
        with console.step(f"remove what was only needed to build, from {cache}"):
            caches.remove(cache, caches.FOR_BUILDING)
        console.say(f"kept: programs and images in {cache} (without KEEP=1 they go too)")
    elif users:
        console.say(f"kept: programs and images in {cache}, {size}, which cluster {', '.join(users)} runs from")
    else:
        with console.step(f"remove programs and images from {cache}, {size}"):
            caches.remove(cache)
    if installed:
        console.say(f"left, since others may need them by now, Debian's packages {' '.join(installed)}")


def runs_from(cache: Path, cluster: Layout) -> bool:
    """Whether a process of a cluster is a program of this cache."""
    processes = map(read_pid_file, cluster.pids.glob("*.pid"))
    programs = [Path(f"/proc/{process.pid}/exe").readlink() for process in processes if process and process.alive()]
    return any(program.is_relative_to(cache.resolve()) for program in programs)


def _installed(env: Mapping[str, str]) -> list[str]:
    record = cache_root(env) / debian.INSTALLED
    return sorted(set(record.read_text().split())) if record.is_file() else []
