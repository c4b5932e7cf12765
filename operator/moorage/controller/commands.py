"""RunCommands: each is passed on to the gateway until its receipt is final, and says in its status what became of it.

Level-triggered, with a queue of its own, so that commands and runs delay each other in nothing. A command is named by
its object alone: asked again, the gateway answers with the same receipt. It is owned by its run, and goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from pydantic import ValidationError

from moorage.api.commands import Receipt
from moorage.api.names import API_VERSION
from moorage.api.parse import InvalidSpec, parse
from moorage.api.runcommand import RunCommand, RunCommandStatus
from moorage.controller.cancels import Cancels
from moorage.controller.gateway_client import GatewayAway, GatewayClient, GatewayRefused
from moorage.controller.objects import PLACES
from moorage.controller.queue import WorkQueue
from moorage.core.commands.relay import FINAL, Refused, Target, Told, answered, early, request_of, status_of
from moorage.core.run.status import ENDS
from moorage.sandbox.kube import Body, KubeApi, Missing, Stale, path_of
from moorage.sandbox.port import RunKey

WORKERS = 4
AWAY_MS = 2_000


@dataclass(frozen=True)
class CommandKey:
    """One RunCommand."""

    tenant: str
    name: str


class Commands:
    """`now`: milliseconds since the epoch. `authority`: what vouches for the issuers. `wake`: look at that run."""

    def __init__(
        self,
        api: KubeApi,
        gateway: GatewayClient,
        now: Callable[[], int],
        log: Any,
        chance: Random,
        *,
        cancels: Cancels,
        wake: Callable[[RunKey], None],
        authority: str,
    ) -> None:
        self._api, self._gateway, self._now, self._log = api, gateway, now, log
        self._cancels, self._wake, self._authority = cancels, wake, authority
        self._open: dict[tuple[str, str], set[str]] = {}  # names of unanswered commands by (tenant, run)
        self.queue: WorkQueue[CommandKey] = WorkQueue(self._work, workers=WORKERS, chance=chance, failed=self._failed)

    # --- who wakes it -------------------------------------------------------------------------------------------------

    def seen(self, kind: str | None, body: Body) -> None:
        """The watch showed one. One that has its final receipt costs nothing more."""
        meta = body.get("metadata") or {}
        key = CommandKey(str(meta.get("namespace")), str(meta.get("name")))
        run = str(((body.get("spec") or {}).get("runRef") or {}).get("name"))
        names = self._open.setdefault((key.tenant, run), set())
        if kind == "DELETED":
            self._cancels.withdraw(f"{key.tenant}/{key.name}")
        if kind == "DELETED" or (body.get("status") or {}).get("state") in FINAL:
            names.discard(key.name)
        else:
            names.add(key.name)
            self.queue.add(key)
        if not names:
            del self._open[key.tenant, run]

    def journal_changed(self, run: RunKey) -> None:
        """The gateway journaled something about that run."""
        for name in self._open.get((run.tenant, run.name), ()):
            self.queue.add(CommandKey(run.tenant, name))

    # --- one pass -----------------------------------------------------------------------------------------------------

    async def _work(self, key: CommandKey) -> int | None:
        path = path_of(*PLACES["RunCommand"], key.tenant, key.name)
        body = await self._api.get(path)
        known = _status(body)
        if body is None or known.state in FINAL or body["metadata"].get("deletionTimestamp"):
            self.queue.forget(key)
            return None
        target, told = await self._told(body, known)
        try:
            if target is not None and not _owned(body, target):
                body = await self._own(path, body, target)
            await self._write(path, body, known, told, target)
        except Missing:
            return None
        except Stale:  # somebody wrote to it since: look again
            return 0
        return told.again_ms

    async def _told(self, body: Body, known: RunCommandStatus) -> tuple[Target | None, Told]:
        command = parse(RunCommand, {k: v for k, v in body.items() if k != "status"}, "cluster", "tell")
        if isinstance(command, InvalidSpec):
            return None, Told("Rejected", "InvalidSpec", command.message)
        tenant, run = command.metadata.namespace, command.spec.run_ref.name
        target = _target(await self._api.get(path_of(*PLACES["AgentRun"], tenant, run)))
        told = early(known, target, self._now() - command.metadata.created_at)
        if told is None and target is not None:
            told = await self._asked(command, target)
            self._hold(RunKey(target.uid, tenant, run), f"{tenant}/{command.metadata.name}", cancels=told.cancels)
        return target, told or Told("Pending")

    async def _asked(self, command: RunCommand, target: Target) -> Told:
        try:
            answer: Receipt | Refused = await self._gateway.command(target.uid, request_of(command, self._authority))
        except GatewayAway as e:
            return Told("Pending", e.reason or "GatewayUnavailable", e.message, again_ms=AWAY_MS)
        except GatewayRefused as e:
            answer = Refused(e.reason, e.message)
        return answered(command, target, answer)

    def _hold(self, run: RunKey, command: str, *, cancels: bool) -> None:
        """Let the passes over the run know whether it is to be cancelled before it begins."""
        if not cancels:
            self._cancels.withdraw(command)
        elif self._cancels.ask(run.uid, command):
            self._wake(run)

    # --- what it writes -----------------------------------------------------------------------------------------------

    async def _own(self, path: str, body: Body, target: Target) -> Body:
        """It goes with its run."""
        meta = body["metadata"]
        run = str(body["spec"]["runRef"]["name"])
        owner = {"apiVersion": API_VERSION, "kind": "AgentRun", "name": run, "uid": target.uid}
        owners = [*(meta.get("ownerReferences") or []), owner]
        kept = {name: meta[name] for name in ("uid", "resourceVersion")}
        return await self._api.patch(path, {"metadata": {**kept, "ownerReferences": owners}})

    async def _write(self, path: str, body: Body, known: RunCommandStatus, told: Told, target: Target | None) -> None:
        meta = body["metadata"]
        new = status_of(told, known, target.uid if target else None, int(meta.get("generation") or 0), self._now())
        if new == known:
            return
        kept = {name: meta[name] for name in ("uid", "resourceVersion")}
        await self._api.patch(f"{path}/status", {"metadata": kept, "status": new.wire()})
        about = {"tenant": meta["namespace"], "command": meta["name"], "run": body["spec"]["runRef"]["name"]}
        self._log.info("command_told", state=told.state, reason=told.reason, **about)

    def _failed(self, key: CommandKey, error: Exception) -> None:
        self._log.warning("command_waits", tenant=key.tenant, command=key.name, reason=type(error).__name__)


def _status(body: Body | None) -> RunCommandStatus:
    """What stands there, as far as it can be read."""
    try:
        return RunCommandStatus.model_validate(dict((body or {}).get("status") or {}))
    except (ValidationError, TypeError, ValueError):
        return RunCommandStatus()


def _target(body: Body | None) -> Target | None:
    if body is None:
        return None
    phase = str((body.get("status") or {}).get("phase") or "")
    return Target(str(body["metadata"]["uid"]), phase if phase in ENDS else "")


def _owned(body: Mapping[str, Any], target: Target) -> bool:
    return any(each.get("uid") == target.uid for each in body["metadata"].get("ownerReferences") or [])
