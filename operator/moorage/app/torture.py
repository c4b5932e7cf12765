"""K2: the harness of `moorage.testing`, for users' own runs."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from pathlib import Path

from moorage.app.manifest import read_manifest
from moorage.cli.ports import ManifestRefused
from moorage.testing.benches import NotTorturable, copied
from moorage.testing.killpoints import Shot, parse_shots
from moorage.testing.torture import NothingToCompare, Rig, Wanted
from moorage.testing.torture import torture as trials

PATIENCE_S = 3600.0


async def torture(
    manifest: Path, *, kills: int, seed: int, shots: str, same_tree: bool, tell: Callable[[str], None]
) -> bool:
    """See the port."""
    read_manifest(manifest)
    rig = Rig(functools.partial(copied, manifest), PATIENCE_S, same_tree)
    again = f"moorage torture -f {shlex.quote(str(manifest))}{'' if same_tree else ' --any-tree'}"
    wanted = Wanted(kills, seed, shots=_parsed(shots), again=again)
    try:
        tally = await trials(rig, wanted, tell)
    except (NotTorturable, NothingToCompare) as error:
        raise ManifestRefused(str(error)) from None
    return tally.clean


def _parsed(shots: str) -> tuple[Shot, ...]:
    try:
        return parse_shots(shots)
    except ValueError:
        raise ManifestRefused(
            f"--shots {shots!r}: a shot is a point, a number and a fault, as append/within:3:kill"
        ) from None
