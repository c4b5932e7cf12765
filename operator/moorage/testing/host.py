"""A driver's host without a runner, for tests of drivers: facts in lists, programs as real processes.

host = LocalHost(tree)
outcome = await MyDriver().run(task_for(host, agent, relay_url=…), host)
assert host.iterations == [1, 2]
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moorage.api.budget import Budget, ResolvedLimits
from moorage.api.children import ChildAnswer, SpawnRequest
from moorage.api.wire import ResolvedAgent
from moorage.core.continuation.loops import Finding, Thresholds
from moorage.drivers.port import Child, ChildRefused, EndCheck, Held, Kind, Message, Recorded, Task
from moorage.drivers.watching import Circles
from moorage.runner.hold import Hold
from moorage.runner.processes import spawn


@dataclass(frozen=True)
class Told:
    """One fact as a driver reported it."""

    type: str
    payload: Mapping[str, Any]
    record_id: str | None
    turn: int | None
    tool_call_id: str | None


class GivenMessages:
    """Implements drivers.port.Messages: what a test says to the agent. `taken` is what became of it, with the turn."""

    def __init__(self) -> None:
        self.taken: list[tuple[Message, int]] = []
        self._held: list[Message] = []
        self._came = asyncio.Condition()

    async def say(self, kind: Kind, text: str) -> Message:
        """Let a person say something."""
        async with self._came:
            message = Message(f"m{len(self._held) + len(self.taken) + 1}", kind, text)
            self._held.append(message)
            self._came.notify_all()
        return message

    def waiting(self, *kinds: Kind) -> bool:
        """See the port."""
        return any(each.kind in kinds for each in self._held)

    async def arrival(self, *kinds: Kind) -> None:
        """See the port."""
        async with self._came:
            await self._came.wait_for(lambda: self.waiting(*kinds))

    async def take(self, *kinds: Kind, turn: int, fresh: bool = False) -> tuple[Message, ...]:  # noqa: ARG002  see the port
        """See the port."""
        found = tuple(each for each in self._held if each.kind in kinds)
        self._held = [each for each in self._held if each not in found]
        self.taken += [(each, turn) for each in found]
        return found


class GivenChildren:
    """Implements drivers.port.ChildRuns: `asked` for, by key; a test ends them by `over`."""

    def __init__(self) -> None:
        self.asked: dict[str, SpawnRequest] = {}
        self.over: dict[str, ChildAnswer] = {}

    async def spawn(self, asked: SpawnRequest) -> ChildAnswer:
        """See the port."""
        self.asked.setdefault(asked.key, asked)
        return ChildAnswer(name=f"child-{[*self.asked].index(asked.key) + 1}", status="requested")

    async def wait(self, name: str, within_s: float) -> ChildAnswer:  # noqa: ARG002  nothing happens meanwhile
        """See the port."""
        if name not in {f"child-{number + 1}" for number in range(len(self.asked))}:
            raise ChildRefused(f"this run has no child {name}")
        return self.over.get(name, ChildAnswer(name=name, status="started"))

    async def living(self) -> tuple[str, ...]:
        """See the port."""
        names = [f"child-{number + 1}" for number in range(len(self.asked))]
        return tuple(name for name in names if name not in self.over)

    async def merge(self, name: str) -> int:
        """See the port: of one that has a commit, one file."""
        found = await self.wait(name, 0)
        if found.commit is None:
            raise ChildRefused(f"{name} is {found.status} and has no commit to merge")
        return 1


@dataclass
class LocalHost:
    """Implements drivers.port.Host over a folder `tree`; `iterations`, `usage` and `conversations` are its safe points.
    Where a relay has its `hold`, that holds the agent's requests.

    `ends` is what stands against the agent's ends, one after the other; `checked` counts how often that was asked.
    `budget` is what a test says that the gateway told. Calls of a tool in `refused` may not run, those of one in
    `asked` wait for what that comes to; `waiting` is who waited, by the ids of their calls.
    """

    tree: Path
    told: list[Told] = field(default_factory=list)
    said: bytearray = field(default_factory=bytearray)
    iterations: list[int] = field(default_factory=list)
    usage: list[Mapping[str, int]] = field(default_factory=list)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    pausing: asyncio.Event = field(default_factory=asyncio.Event)
    messages: GivenMessages = field(default_factory=GivenMessages)
    refused: dict[str, str] = field(default_factory=dict)
    asked: dict[str, asyncio.Future[str | None]] = field(default_factory=dict)
    waiting: list[tuple[str, str]] = field(default_factory=list)
    ends: list[EndCheck] = field(default_factory=list)
    checked: int = 0
    circles: Circles = field(default_factory=lambda: Circles(Thresholds(share=0)))
    hold: Hold = field(default_factory=Hold)
    conversations: list[bool] = field(default_factory=list)
    budget: Budget = field(default_factory=Budget)
    child_runs: GivenChildren = field(default_factory=GivenChildren)

    def __post_init__(self) -> None:
        """What stands in the tree is nothing new."""
        self.circles.stood(_hash_of(self.tree), 0)

    async def emit(
        self,
        type: str,  # noqa: A002  the record's own word
        payload: Mapping[str, Any],
        *,
        record_id: str | None = None,
        turn: int | None = None,
        step: int | None = None,  # noqa: ARG002  the port's signature
        tool_call_id: str | None = None,
    ) -> None:
        """Keep a fact."""
        self.circles.told(type, payload)
        self.told.append(Told(type, payload, record_id, turn, tool_call_id))

    def asks_before(self, tool: str) -> bool:
        """Whether the test has a word on that tool."""
        return tool in self.refused or tool in self.asked

    async def consent(self, call_id: str, tool: str, arguments: Mapping[str, Any]) -> str | None:  # noqa: ARG002  the port's signature
        """What the test says of that tool; anything may run. Where it has yet to say it, it is waited for."""
        if tool not in self.asked:
            return self.refused.get(tool)
        self.waiting.append((call_id, tool))
        return await self.asked[tool]

    async def output(self, stream: str, data: bytes) -> None:  # noqa: ARG002  the port's signature
        """Keep what the agent wrote."""
        self.said += data

    def held(self) -> AbstractContextManager[AsyncIterator[Held]]:
        """What waits in `hold`, to which a relay may lead."""
        return self.hold.requests()

    async def safe_point(
        self,
        iteration: int,
        usage: Mapping[str, int] | None = None,
        *,
        held: Held | None = None,
        conversation: bool = True,
    ) -> str:
        """Count an iteration."""
        self.conversations.append(conversation)
        self.iterations.append(iteration)
        self.usage.append(dict(usage or {}))
        tree = await asyncio.to_thread(_hash_of, self.tree)
        self.circles.stood(tree, 0, asks=held is not None)
        return tree

    async def check_end(self) -> EndCheck:
        """The next one of `ends`; nothing to say when they are used up."""
        self.checked += 1
        return self.ends.pop(0) if self.ends else EndCheck()

    def went_on(self) -> None:
        """See the port."""
        self.circles.went_on()

    def circle(self) -> Finding | None:
        """What the loop detector has found."""
        return self.circles.news()

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: bytes | None = None,
        talk: bool = False,
    ) -> Child:
        """Start a program in the tree, with nothing of this process's environment but PATH."""
        full = {"PATH": os.environ["PATH"], **(env or {})}
        return await spawn(argv, env=full, cwd=cwd or self.tree, stdin=stdin, talk=talk)


def task_for(
    host: LocalHost,
    agent: ResolvedAgent,
    *,
    relay_url: str = "http://127.0.0.1:9",
    limits: ResolvedLimits | None = None,
    goal: str = "make the tests pass",
    next_iteration: int = 1,
    handoff: str | None = None,
    tokens_used: int = 0,
    recorded: Recorded | None = None,
    judged: bool = False,
    go_on_with: str | None = None,
) -> Task:
    """A task on the host's tree; its other folders are made beside it."""
    beside = host.tree.parent
    for name in ("home", "tmp"):
        (beside / name).mkdir(exist_ok=True)
    (beside / "goal.txt").write_text(goal)
    return Task(
        run_uid="u1",
        goal=goal,
        goal_file=beside / "goal.txt",
        agent=agent,
        limits=limits or ResolvedLimits(),
        tree=host.tree,
        home=beside / "home",
        tmp=beside / "tmp",
        relay_url=relay_url,
        dummy_key="dummy",
        next_iteration=next_iteration,
        handoff=handoff,
        tokens_used=tokens_used,
        iterations_used=next_iteration - 1,
        recorded=recorded,
        judged=judged,
        go_on_with=go_on_with,
    )


def _hash_of(tree: Path) -> str:
    """Of all files and what they hold."""
    digest = hashlib.sha256()
    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(tree)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
