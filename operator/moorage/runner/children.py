"""Implements drivers.port.ChildRuns by the gateway's doors."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable

from moorage.api.children import ChildAnswer, SpawnRequest
from moorage.drivers.builtin.relatives import SPARE_S
from moorage.drivers.port import ChildRefused
from moorage.runner.client import Fenced, GatewayClient, GatewayError, NotWanted
from moorage.workspace.merging import Merged

ENDED = "ended"
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
NAMED = 20
PAUSE_S = 0.1  # after a gateway that won't hold a question open


class RunnerChildren:
    """`progressed` is told of each answer: waiting for a child is no standing still. `leaving`: the attempt is to end,
    so nobody waits any more. `spare_s`: how much longer than asked for a wait may take, where the gateway is away.
    """

    def __init__(
        self,
        client: GatewayClient,
        epoch: int,
        leaving: Callable[[], bool],
        progressed: Callable[[], None],
        merge: Callable[[str, str], Awaitable[Merged]],
        *,
        spare_s: float = SPARE_S,
    ) -> None:
        self._client, self._epoch, self._leaving, self._progressed = client, epoch, leaving, progressed
        self._merge, self._spare_s = merge, spare_s
        self._merging = asyncio.Lock()

    async def spawn(self, asked: SpawnRequest) -> ChildAnswer:
        """See the port."""
        try:
            return await self._client.spawn(asked.model_copy(update={"epoch": self._epoch}))
        except GatewayError as error:
            raise _refused(error) from error

    async def wait(self, name: str, within_s: float) -> ChildAnswer:
        """See the port."""
        if not NAME.fullmatch(name):
            raise ChildRefused(f"{name[:64]!r} is no name of a run")
        deadline = time.monotonic() + within_s
        while True:
            found = await self._look(name, max(0.0, deadline - time.monotonic()))
            self._progressed()
            if found.status == ENDED or self._leaving() or time.monotonic() >= deadline:
                return found
            await asyncio.sleep(PAUSE_S)

    async def _look(self, name: str, within_s: float) -> ChildAnswer:
        try:
            async with asyncio.timeout(within_s + self._spare_s):
                return await self._client.child(name, within_s)
        except GatewayError as error:
            raise _refused(error) from error
        except TimeoutError:
            raise ChildRefused(f"how far {name} is can't be told at this moment: ask again") from None

    async def living(self) -> tuple[str, ...]:
        """See the port."""
        return tuple(each.name for each in (await self._client.children()).children if each.status != ENDED)

    async def merge(self, name: str) -> int:
        """See the port."""
        async with self._merging:  # W7: in the order of the calls, also of those that are made side by side
            return await self._merge_in_turn(name)

    async def _merge_in_turn(self, name: str) -> int:
        found = await self.wait(name, 0)
        commit, base = found.commit, found.base
        if found.status != ENDED or commit is None or base is None:
            raise ChildRefused(f"{name} is {found.outcome or found.status} and has no commit to merge")
        merged = await self._client.patiently(lambda: self._merge(commit, base))
        if not merged.ok:
            raise ChildRefused(_unmerged(name, merged))
        return merged.files


def _unmerged(name: str, merged: Merged) -> str:
    if merged.conflicts:
        files = ", ".join(merged.conflicts[:NAMED])
        return f"nothing was merged: {name} and this tree have both changed {files}"
    return f"nothing was merged: {merged.problem}"


def _refused(error: GatewayError) -> Exception:
    """What the agent may hear of; anything else is the attempt's end, or the runner's own trouble."""
    told = error.status in {400, 403, 404} and not isinstance(error, Fenced | NotWanted)
    return ChildRefused(str(error)) if told else error
