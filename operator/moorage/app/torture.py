"""K2: the harness of `moorage.testing`, for users' own runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from moorage.app.manifest import read_manifest
from moorage.cli.ports import ManifestRefused
from moorage.testing.benches import NotTorturable, copied
from moorage.testing.torture import NothingToCompare, Rig, report
from moorage.testing.torture import torture as trials

PATIENCE_S = 3600.0


async def torture(manifest: Path, *, kills: int, seed: int, same_tree: bool, tell: Callable[[str], None]) -> bool:
    """See the port."""
    read_manifest(manifest)
    rig = Rig(functools.partial(copied, manifest), PATIENCE_S, same_tree)
    try:
        tally = await report(trials(rig, kills, seed), tell)
    except (NotTorturable, NothingToCompare) as error:
        raise ManifestRefused(str(error)) from None
    return tally.clean
