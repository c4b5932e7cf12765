"""How long to wait before something is tried again: growing, spread, and the same for everybody who asks."""

from __future__ import annotations

import hashlib

BACKOFF_BASE_MS = 1_000
BACKOFF_CAP_MS = 300_000


def backoff_ms(seed: str, tries: int) -> int:
    """Full jitter without chance: uniform in [0, min(cap, base * 2^(tries-1))) by a hash of both."""
    top = min(BACKOFF_CAP_MS, BACKOFF_BASE_MS << min(max(0, tries - 1), 20))
    digest = hashlib.sha256(f"{seed}:{tries}".encode()).digest()
    return int.from_bytes(digest[:8], "big") * top // 2**64
