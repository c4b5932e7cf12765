"""Deliveries go on beside the queue's workers: a remote may take minutes to answer, and no other run waits for it.

Where no answer comes within a moment the pass ends, and its run is looked at again once the answer is there. There is
room for so many per remote, so that a slow one can't take the room of the others, and for so many in all, since each
holds a connection to the gateway. Who finds no room asks again when its plan says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from moorage.api.wire import DeliverRequest, ResolvedWorkspace
from moorage.controller.gateway_client import GatewayAway, GatewayClient, GatewayRefused
from moorage.core.run.view import RunView
from moorage.sandbox.port import RunKey
from moorage.telemetry.logs import Key

PATIENCE_S = 1.0  # most remotes answer within it, and a pass that hears the answer itself spares another one
MOST_PER_REMOTE = 8
MOST = 48  # of the 100 connections that a session has


class Deliveries:
    """`ended` is called when an answer came that no pass waited for any more."""

    def __init__(
        self, gateway: GatewayClient, *, ended: Callable[[RunKey], None], log: Any, patience_s: float = PATIENCE_S
    ) -> None:
        self._gateway, self._ended, self._log, self._patience_s = gateway, ended, log, patience_s
        self._under_way: dict[RunKey, tuple[str, asyncio.Task[RunView]]] = {}

    async def deliver(self, run: RunKey, space: ResolvedWorkspace, request: DeliverRequest) -> RunView | None:
        """The run after the try; None while one is under way or where there is no room. Raises as the client does."""
        remote = remote_of(space)
        if run in self._under_way or self._full(remote):
            return None
        task = asyncio.create_task(self._gateway.deliver(run.uid, request))
        self._under_way[run] = remote, task
        task.add_done_callback(lambda _: self._under_way.pop(run))
        try:
            await asyncio.wait({task}, timeout=self._patience_s)
        finally:
            if not task.done():
                task.add_done_callback(partial(self._late, run))
        return task.result() if task.done() else None

    async def close(self) -> None:
        """Hear no answer any more. The gateway brings what it was asked for to its end all the same."""
        tasks = [task for _, task in self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _full(self, remote: str) -> bool:
        there = [name for name, _ in self._under_way.values()]
        return len(there) >= MOST or there.count(remote) >= MOST_PER_REMOTE

    def _late(self, run: RunKey, task: asyncio.Task[RunView]) -> None:
        """A failure is not told to `ended`: the plan's own time for the next try keeps it from being a loop."""
        if task.cancelled():
            return
        error = task.exception()
        about = {Key.TENANT.value: run.tenant, Key.RUN.value: run.name, Key.RUN_UID.value: run.uid}
        if error is None:
            self._ended(run)
        elif isinstance(error, GatewayAway | GatewayRefused):
            self._log.info("delivery_waits", reason=type(error).__name__, message=str(error), **about)
        else:
            self._log.error("delivery_failed", exc_info=error, **about)


def remote_of(space: ResolvedWorkspace) -> str:
    """What answers slowly or fast: the host of a URL, else the repository itself."""
    return urlsplit(space.url or "").netloc or space.path or space.key
