"""Composition roots: the only place where adapters meet ports.

One module per process (`gateway`, `operator`) and one for runs on this machine (`local`). Each is imported only when it
is asked for: the operator has no use for git, nor the gateway for kopf.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from moorage.cli.ports import Listener, LocalResult, LocalRuns


async def run_local(
    manifest: Path,
    *,
    state: Path,
    listener: Listener,
    tell: Callable[[LocalResult], None],
    fresh: bool = False,
) -> LocalResult:
    """Run the manifest's AgentRun on this machine to its end. Raises ManifestRefused, RunRefused."""
    from moorage.app.local import run_local as run  # noqa: PLC0415

    return await run(manifest, state=state, listener=listener, tell=tell, fresh=fresh)


def open_local(state: Path) -> AbstractAsyncContextManager[LocalRuns]:
    """Open the store of past runs for reading."""
    from moorage.app.past import open_local as opened  # noqa: PLC0415

    return opened(state)


async def torture(
    manifest: Path, *, kills: int, seed: int, shots: str, same_tree: bool, tell: Callable[[str], None]
) -> bool:
    """Run the manifest on clones, killed so often or by those shots; whether nothing was found. See the port."""
    from moorage.app.torture import torture as run  # noqa: PLC0415  the harness is no part of what is in use

    return await run(manifest, kills=kills, seed=seed, shots=shots, same_tree=same_tree, tell=tell)


def run_operator() -> None:
    """Be the operator until told to stop; settings come from MOORAGE_* variables."""
    from moorage.app.operator import main  # noqa: PLC0415

    main()


def run_gateway() -> None:
    """Be the gateway until told to stop; settings come from MOORAGE_* variables."""
    from moorage.app.gateway import main  # noqa: PLC0415

    main()
