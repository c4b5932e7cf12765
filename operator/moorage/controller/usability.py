"""Tells in the status of each Workspace, Agent and ModelProvider whether runs can use it: one write per answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from pydantic import ValidationError

from moorage.api.agent import AgentStatus
from moorage.api.meta import kstatus, set_conditions
from moorage.controller.objects import PLACES
from moorage.controller.queue import WorkQueue
from moorage.core.run.observed import Problem
from moorage.core.run.usable import unusable
from moorage.sandbox.kube import Body, KubeApi, Missing, Stale, path_of

WORKERS = 2
TOLD = "runs can use it; whether what it names is there is found out by each run"


@dataclass(frozen=True)
class RefKey:
    """One object that runs refer to."""

    kind: str
    tenant: str
    name: str


class Usability:
    """A queue of its own, so that a thousand definitions delay no run. `now`: milliseconds since the epoch, UTC."""

    def __init__(
        self,
        api: KubeApi,
        now: Callable[[], int],
        drivers: frozenset[str],
        log: Any,
        chance: Random,
        *,
        constraints: frozenset[str] = frozenset(),
    ) -> None:
        self._api, self._now, self._drivers, self._constraints, self._log = api, now, drivers, constraints, log
        self.queue: WorkQueue[RefKey] = WorkQueue(self._work, workers=WORKERS, chance=chance, failed=self._failed)

    def look(self, kind: str, tenant: str, name: str) -> None:
        """The watch showed one."""
        self.queue.add(RefKey(kind, tenant, name))

    async def _work(self, key: RefKey) -> None:
        path = path_of(*PLACES[key.kind], key.tenant, key.name)
        body = await self._api.get(path)
        if body is None:
            self.queue.forget(key)
            return
        patch = status_patch(body, unusable(key.kind, body, self._drivers, self._constraints), self._now())
        if patch is None:
            return
        try:
            meta = {name: body["metadata"][name] for name in ("uid", "resourceVersion")}
            await self._api.patch(f"{path}/status", {"metadata": meta, "status": patch})
        except (Missing, Stale):
            return  # gone, or another one by now: the watch tells

    def _failed(self, key: RefKey, error: Exception) -> None:
        self._log.warning(
            "status_not_written", kind=key.kind, tenant=key.tenant, name=key.name, reason=type(error).__name__
        )


def status_patch(body: Body, problem: Problem | None, now: int) -> Mapping[str, Any] | None:
    """The status that says it; None where it is said already."""
    generation = int(body["metadata"].get("generation") or 0)
    told = _status(body)
    if problem is None:
        truths = kstatus("Current", "Usable", TOLD, generation)
    else:
        truths = kstatus("Failed", problem.reason, problem.message, generation)
    new = told.model_copy(
        update={"observed_generation": generation, "conditions": set_conditions(told.conditions, truths, now)}
    )
    return None if new == told else new.wire()


def _status(body: Body) -> AgentStatus:
    """What stands there, as far as it can be read: all three kinds tell the same."""
    try:
        return AgentStatus.model_validate(dict(body.get("status") or {}))
    except (ValidationError, TypeError, ValueError):
        return AgentStatus()
