"""T3: the network policy may be enforced later than the pod starts, so nothing of the agent's runs before it holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

CONNECT_S = 1.0
PAUSE_S = 0.1


async def isolated(targets: Sequence[tuple[str, int]], patience_s: float) -> str | None:
    """None once every target refuses a connection; else the one that still took it when patience ended."""
    deadline = time.monotonic() + patience_s
    open_ones = list(targets)
    while open_ones:
        answers = await asyncio.gather(*(_connects(*target) for target in open_ones))
        open_ones = [target for target, connected in zip(open_ones, answers, strict=True) if connected]
        if open_ones and time.monotonic() > deadline:
            return f"{open_ones[0][0]}:{open_ones[0][1]}"
        if open_ones:
            await asyncio.sleep(PAUSE_S)
    return None


async def _connects(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), CONNECT_S)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
