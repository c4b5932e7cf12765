"""Where the harness keeps things: what can be built again in the cache, what a running cluster needs in its state."""

import os
from collections.abc import Mapping
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def cache_root(env: Mapping[str, str] = os.environ) -> Path:
    """Folder of everything that survives clusters: programs, root file systems, wheels."""
    if chosen := env.get("MOORAGE_CACHE"):
        return Path(chosen)
    home = Path(env.get("HOME") or Path.home())
    return Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "moorage"


def state_root(cluster: str, env: Mapping[str, str] = os.environ) -> Path:
    """Folder of one cluster's state; never inside the checkout."""
    return Path(env.get("MOORAGE_STATE") or "/var/lib/moorage-e2e") / cluster
