"""Follows the gateway's feed of journaled changes: a result is acted on in milliseconds, not at the next look."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from moorage.controller.gateway_client import GatewayAway, GatewayClient, GatewayRefused
from moorage.controller.operator import Operator
from moorage.sandbox.port import RunKey

RETRY_S = (0.1, 0.2, 0.5, 1.0, 2.0)


async def follow(
    gateway: GatewayClient, operator: Operator, log: Any, chance: Random, *, heard: Callable[[], None]
) -> None:
    """Wake runs until cancelled, and tell of each word of the gateway's, its signs of life among them. The cursor is
    only kept here: after a restart each run is told once.
    """
    cursor, failures = 0, 0
    while True:
        try:
            async for change in gateway.changes(cursor):
                failures = 0
                heard()
                if change is not None:
                    cursor = max(cursor, change.cursor)
                    operator.journal_changed(RunKey(change.run_uid, change.tenant, change.name))
        except (GatewayAway, GatewayRefused) as e:
            if failures == 0:
                log.info("changes_feed_away", reason=type(e).__name__, message=str(e))
        pause = RETRY_S[min(failures, len(RETRY_S) - 1)]
        failures += 1
        await asyncio.sleep(pause * chance.uniform(0.5, 1.0))
