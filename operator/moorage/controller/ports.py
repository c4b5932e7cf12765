"""What the controller asks of its surroundings, apart from the substrate (moorage.sandbox.port)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from moorage.api.runstatus import AgentRunStatus
from moorage.sandbox.port import RunKey

Body = Mapping[str, Any]


class Unwritable(RuntimeError):
    """The API server takes no status: what an older schema let in doesn't fit today's. The message says what it is."""


class Objects(Protocol):
    """Where the objects are that users write: the API server, or the memory of a local run.

    Every method may raise moorage.sandbox.port.Unavailable.
    """

    async def run(self, tenant: str, name: str) -> Body | None:
        """The AgentRun as it stands; None where there is none."""

    async def get(self, kind: str, tenant: str, name: str) -> Body | None:
        """A Workspace, Agent, ModelProvider or ConfigMap."""

    async def runtime_classes(self) -> frozenset[str] | None:
        """The installed ones; None where they may not be listed."""

    async def write_status(self, run: RunKey, status: Mapping[str, Any], version: str) -> Body | None:
        """Put `status` in the place of the old one: the object as it stands then, None where that very run is gone.

        `status` is a merge patch of the object as it was at that resourceVersion. Raises Unwritable, and Conflict where
        somebody has changed the object since (F7: a deposed operator's word of yesterday replaces nothing).
        """

    async def delete(self, run: RunKey) -> None:
        """The AgentRun itself away; harmless when it is gone."""

    async def create_run(self, body: Body) -> None:
        """Make an AgentRun; harmless where its name is taken already. Raises Refused."""

    async def runs(self) -> frozenset[RunKey]:
        """Every AgentRun that exists."""


class Telling(Protocol):
    """Who hears of a run's transitions: Kubernetes Events, or the command line of a local run. Never waits."""

    def changed(self, run: RunKey, old: AgentRunStatus, new: AgentRunStatus) -> None:
        """A status was written."""

    def unwritable(self, run: RunKey, why: str) -> None:
        """None can be written: the object is invalid as it is stored, and only its author can mend it."""
