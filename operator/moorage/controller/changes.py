"""Follows the gateway's feed of journaled changes: a result is acted on in milliseconds, not at the next look. Where
the feed says nothing, a gateway is asked whether it is there (F4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from moorage.controller.gateway_client import GatewayAway, GatewayClient, GatewayRefused
from moorage.controller.operator import Operator
from moorage.controller.signs import Signs
from moorage.sandbox.port import RunKey

RETRY_S = (0.1, 0.2, 0.5, 1.0, 2.0)
QUIET_MS = 12_000
"""More than a period of the feed: while that talks, nobody asks. What is left of UNHEARD_MS is enough to ask twice."""
ASK_AGAIN_S = 1.0


async def follow(
    gateway: GatewayClient, operator: Operator, log: Any, chance: Random, *, heard: Callable[[], None]
) -> None:
    """Wake runs until cancelled, and tell of each word of the gateway's, its signs of life among them. The cursor is
    only kept here: after a restart each run is told once.
    """
    cursor, failures = 0, 0
    while True:
        try:
            async for change in gateway.changes(cursor, heard):
                failures = 0
                heard()
                if change is not None:
                    cursor = max(cursor, change.cursor)
                    operator.journal_changed(RunKey(change.run_uid, change.tenant, change.name))
        except (GatewayAway, GatewayRefused) as e:
            if isinstance(e, GatewayRefused):
                heard()
            if failures == 0:
                log.info("changes_feed_away", reason=type(e).__name__, message=str(e))
        pause = RETRY_S[min(failures, len(RETRY_S) - 1)]
        failures += 1
        await asyncio.sleep(pause * chance.uniform(0.5, 1.0))


async def ask(gateway: GatewayClient, signs: Signs, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Until cancelled. A silence shall be the gateways' own, and not that of a feed which a proxy holds back, or whose
    other end is gone while another gateway could be heard: else a dead owner would be noticed late, or never (F4).
    """
    while True:
        left = QUIET_MS - signs.unheard_ms()
        if left > 0:
            await sleep(left / 1000)
        elif not await _answers(gateway):
            await sleep(ASK_AGAIN_S)
        else:
            signs.heard()


async def _answers(gateway: GatewayClient) -> bool:
    try:
        await gateway.ready()
    except (GatewayAway, GatewayRefused):
        return False
    return True
