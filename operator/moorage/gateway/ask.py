"""A model request and its answer, as the doors hand them on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from moorage.api.wire import ResolvedModel, ResolvedPrices
from moorage.core.models.prices import Reserve
from moorage.core.models.protocol import Protocol
from moorage.gateway.ledger import Run
from moorage.gateway.providers import Outgoing
from moorage.gateway.settings import GatewaySettings

RETRIES_HEADER = "x-moorage-retries"
RETRIES_LEFT_HEADER = "x-moorage-retries-left"


@dataclass(frozen=True)
class Ask:
    """One model request as it came.

    `asked` is what `body` says, `sent` the body that leaves, `bytes_hash` is over the canonical bytes of what came,
    `headers` are those to send on. `tries`: how often it was sent to the provider, with this time; `first`: the id of
    the first time (O1).
    """

    protocol: Protocol
    request_id: str
    body: bytes
    asked: Mapping[str, Any]
    sent: bytes
    bytes_hash: str
    model: str
    prices: ResolvedPrices | None
    worst: Reserve
    query: str
    turn: int | None
    again: bool
    headers: dict[str, str]
    tries: int = 1
    first: str | None = None

    @property
    def stream(self) -> bool:
        """Whether events are asked for."""
        return self.asked.get("stream") is True

    def retry(self) -> Ask:
        """The same once more: the same decision, with a record of its own."""
        return replace(self, request_id=uuid4().hex, tries=self.tries + 1, first=self.first or self.request_id)

    def outgoing(
        self, path: str, model: ResolvedModel, credential: Mapping[str, str], settings: GatewaySettings
    ) -> Outgoing:
        """For a path of the provider's."""
        return Outgoing(
            url=model.base_url.rstrip("/").removesuffix("/v1") + path,
            query=self.query,
            headers=self.headers | dict(credential),
            body=self.sent,
            connect_s=settings.model_connect_ms / 1000,
            read_s=settings.model_read_ms / 1000,
        )


@dataclass(frozen=True)
class Answered:
    """How an exchange ended: HTTP status (0: no answer), and why it isn't whole, if it isn't.

    `billed`: it may have cost something.
    """

    status: int
    content_type: str
    problem: str | None = None
    billed: bool = False

    @property
    def good(self) -> bool:
        """The provider answered what was asked."""
        return 200 <= self.status < 300


def retried(run: Run, model: ResolvedModel, ask: Ask) -> dict[str, str]:
    """B3: the retries that an answer took, and those that are left."""
    told = {}
    if model.retries.budget:
        told[RETRIES_LEFT_HEADER] = str(max(0, model.retries.budget - run.state.usage.model_retries))
    if ask.tries > 1:
        told[RETRIES_HEADER] = str(ask.tries - 1)
    return told
