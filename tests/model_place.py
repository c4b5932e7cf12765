"""A run at a stand-in that speaks all protocols of models, as an agent and its tests see it; with fixtures."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway_script import PASSWORD, Operator, agent_at_work, resolved

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedModel, ResolvedPrices, SecretRef
from moorage.gateway.settings import GatewaySettings
from moorage.store.sqlite import SqliteStore
from moorage.testing.clock import StepClock
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer
from moorage.testing.models import Reply, Script, StandIn, ToolCall
from moorage.testing.models.script import Usage

KEY = "sk-real-0123456789abcdef"
MODEL = "m-1"
CALL = ToolCall(name="bash", input={"command": "ls " + "x" * 200})
USAGE = Usage(input_tokens=17, output_tokens=300, cache_read_input_tokens=100, reasoning_tokens=256)
REPLY = Reply(text="word " * 50, tools=(CALL,), usage=USAGE)


@dataclass(frozen=True)
class Spoken:
    """A protocol as an agent knows it: where it asks, with what, and what the journal has of the answer."""

    name: str
    path: str
    question: dict[str, Any]
    stop: str
    final: bytes
    reasoning: bool = True

    def ask(self, **changes: Any) -> dict[str, Any]:
        """A request's body."""
        return {"model": MODEL} | self.question | changes

    @property
    def vector(self) -> dict[str, int]:
        """What USAGE is counted as."""
        counted = {"input_tokens": 17, "cache_read_tokens": 100, "output_tokens": 300}
        return counted | ({"reasoning_tokens": 256} if self.reasoning else {})


PRICES = {
    MODEL: ResolvedPrices(
        input=3_000_000, output=15_000_000, cache_read=300_000, cache_write=3_750_000, cache_write_1h=6_000_000
    )
}
USER = [{"role": "user", "content": "mend it"}]
ANTHROPIC = Spoken(
    "anthropic-messages",
    "/model/v1/messages",
    {"max_tokens": 1_000, "messages": USER},
    "tool_use",
    b"message_stop",
    reasoning=False,
)
RESPONSES = Spoken(
    "openai-responses", "/model/v1/responses", {"input": "mend it"}, "completed", b"event: response.completed"
)
CHAT = Spoken("openai-chat", "/model/v1/chat/completions", {"messages": USER}, "tool_calls", b'"tool_calls"}')


@dataclass
class Place:
    """A run at a stand-in that speaks all protocols."""

    gateway: LocalGateway
    upstream: GitServer
    model: StandIn
    waiting: list[asyncio.Task[httpx.Response]] = field(default_factory=list)

    async def run(self, spoken: Spoken, **changes: Any) -> Operator:
        """Begin the run, its agent at work."""
        self.gateway.secrets.give("team-a", "model", **{"api-key": KEY})
        limits, approvals = changes.pop("limits", ResolvedLimits()), changes.pop("approvals", ())
        children, driver = changes.pop("children", None), changes.pop("driver", "command")
        model = ResolvedModel(
            provider="main",
            protocol=spoken.name,
            base_url=self.model.url,
            name=MODEL,
            credentials=SecretRef(name="model", key="api-key"),
        ).model_copy(update=changes)
        spec, held = resolved(self.upstream), {"approvals": approvals}
        agent = spec.agent.model_copy(update={"model": model, "children": children, "driver": driver})
        operator = Operator(self.gateway, spec.model_copy(update={"agent": agent, "limits": limits} | held))
        await agent_at_work(self.gateway, operator)
        return operator

    async def ask(self, spoken: Spoken, pod: str = "p1", **changes: Any) -> httpx.Response:
        """What a sandbox asks."""
        headers = {"authorization": f"Bearer token-of-{pod}", "openai-beta": "x"}
        return await self.client(pod).post(spoken.path, json=spoken.ask(**changes), headers=headers)

    def client(self, pod: str = "p1") -> httpx.AsyncClient:
        """A sandbox's."""
        return self.gateway.sandbox(pod, "team-a")


@pytest.fixture
async def gateway(tmp_path: Path, clock: StepClock) -> AsyncIterator[LocalGateway]:
    """Over SQLite alone: the journal's side of this is in test_gateway_model, over both. Retries come at once, and as
    many requests as a test asks are let in.
    """
    store = SqliteStore(tmp_path / "journal.db")
    made = LocalGateway(tmp_path, store=store, clock=clock, lot=lambda: 0, settings=GatewaySettings(model_open=64))
    made.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    async with made.serving():
        yield made
    await store.close()


@pytest.fixture
def script() -> Sequence[Reply]:
    return (REPLY,)


@pytest.fixture
async def place(gateway: LocalGateway, upstream: GitServer, script: Sequence[Reply]) -> AsyncIterator[Place]:
    async with StandIn(Script(replies=tuple(script))).serving() as model:
        made = Place(gateway, upstream, model)
        yield made
        for task in made.waiting:
            task.cancel()
        await asyncio.gather(*made.waiting, return_exceptions=True)


async def last(operator: Operator, kind: str) -> Any:
    return [record for record in await operator.records() if record.type == kind][-1]
