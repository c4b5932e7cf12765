"""A command on its way to a cluster: a RunCommand whose name is its id, created once and then read.

Imported only by commands that need a cluster: the Kubernetes client takes most of a second to load.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from moorage.api.commands import CommandRequest, Receipt
from moorage.api.meta import parse_time
from moorage.api.names import API_VERSION
from moorage.api.runcommand import RunCommandStatus
from moorage.cli.cluster import Cluster, asked, user_name
from moorage.cli.exits import CliError, Denied, NotFound, Usage
from moorage.sandbox.kube import Body, Exists, KubeError, Missing, path_of

DENIED = "denied request: "  # how the API server begins an admission policy's own words
STATES = frozenset({"Accepted", "Rejected", "Delivered", "Done", "Expired"})


class ClusterSender:
    """Implements commanding.Sender."""

    def __init__(self, cluster: Cluster, run: str, request: CommandRequest) -> None:
        self._cluster, self._run, self._request = cluster, run, request
        self._folder = path_of(API_VERSION, "runcommands", cluster.namespace)
        self._created = False
        self.waits_for = ""

    async def told(self) -> Receipt | None:
        """See the port."""
        if not self._created:
            await self._create()
            self._created = True
        name = self._request.command_id
        body = await asked(self._cluster.api.get(f"{self._folder}/{name}"), f"RunCommand {name}")
        if body is None:
            raise NotFound(f"RunCommand {name} is gone, and so may be its run", "see kubectl get agentruns")
        return self._receipt(body)

    async def _create(self) -> None:
        """Once: where the name is taken, it has to be this command's."""
        spec = self._spec(await user_name(self._cluster))
        meta = {"name": self._request.command_id, "namespace": self._cluster.namespace}
        body = {"apiVersion": API_VERSION, "kind": "RunCommand", "metadata": meta, "spec": spec}
        try:
            await self._cluster.api.create(self._folder, body)
        except Exists:
            await self._demand_same(spec)
        except Missing:
            raise NotFound("this cluster knows no RunCommands", "install or upgrade Moorage's CRDs") from None
        except KubeError as error:
            raise self._refused(error) from None

    def _spec(self, user: str) -> dict[str, Any]:
        asks = self._request
        spec = {"runRef": {"name": self._run}, "type": asks.type, "issuer": user}
        return spec | {name: said for name in ("text", "approval", "question", "note") if (said := getattr(asks, name))}

    async def _demand_same(self, spec: dict[str, Any]) -> None:
        name = self._request.command_id
        found = await asked(self._cluster.api.get(f"{self._folder}/{name}"), f"RunCommand {name}")
        if found is not None and found["spec"] != spec:
            raise CliError(f"{name} is the id of another command", "an id is used for one command alone")

    def _refused(self, error: KubeError) -> CliError:
        said = str(error)
        if error.status == 403:
            _, policy, why = said.partition(DENIED)
            return Denied(why if policy else said, "an administrator binds you a role such as moorage-steerer")
        if error.status == 422:
            return Usage(f"the API server refuses the command: {said}")
        return CliError(f"the API server refuses the command: {said}")

    def _receipt(self, body: Body) -> Receipt | None:
        """None while it has none: `waits_for` says why."""
        try:
            status = RunCommandStatus.model_validate(dict(body.get("status") or {}))
        except (ValidationError, TypeError, ValueError):
            status = RunCommandStatus()
        self.waits_for = status.message or ""
        if status.state not in STATES:
            return None
        return Receipt.model_validate(
            {
                "command_id": self._request.command_id,
                "type": self._request.type,
                "state": status.state,
                "reason": status.reason or "",
                "message": status.message or "",
                "offset": status.offset,
                "issuer": status.issuer or "",
                "at": parse_time(status.at) if status.at else 0,
            }
        )
