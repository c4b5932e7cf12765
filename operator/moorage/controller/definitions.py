"""Waits for our kinds to be served: kopf looks for them once, at its start, and never watches one that comes later."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from moorage.api.names import API_VERSION, KINDS
from moorage.sandbox.kube import Body, KubeError

PAUSE_S = 1.0


class Reads(Protocol):
    """The part of a KubeApi that this needs."""

    async def get(self, path: str) -> Body | None:
        """The object at a path; None where there is none."""


async def missing(api: Reads) -> frozenset[str]:
    """Which of our kinds the API server doesn't serve. Raises KubeError."""
    found = await api.get(f"/apis/{API_VERSION}") or {}
    return frozenset(KINDS) - {str(each.get("name")) for each in found.get("resources") or ()}


async def await_definitions(api: Reads, log: Any, pause_s: float = PAUSE_S) -> None:
    """Return once all are served; until then say what is waited for. The probes fail meanwhile, which shows it."""
    while True:
        try:
            absent = await missing(api)
        except KubeError as error:
            log.warning("api_server_away", reason=error.reason, message=str(error))
        else:
            if not absent:
                return
            log.warning("definitions_missing", reason="DefinitionsMissing", kinds=sorted(absent))
        await asyncio.sleep(pause_s)
