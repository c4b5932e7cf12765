"""What an agent driver is: it starts somebody else's program, says what it does, and ends with an honest verdict.

A driver never touches git, the journal or Kubernetes. It is handed a `Task` and a `Host` and returns an `Outcome`. The
host is the runner's side: facts go up (`emit`), safe points are taken (`safe_point`), orders come down (`pausing`,
`stopping`). Found by the entry-point group `moorage.drivers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from moorage.api.budget import Budget, ResolvedLimits
from moorage.api.children import ChildAnswer, SpawnRequest
from moorage.api.wire import ResolvedAgent
from moorage.api.work import CallResult
from moorage.core.continuation.loops import Finding

Ending = Literal["completed", "failed", "cancelled", "exhausted", "paused", "unknown"]


@dataclass(frozen=True)
class State:
    """P2: where a program keeps its conversation, relative to HOME: `paths`, files or folders, are put into checkpoints
    and back with the tree. `derived`: what the program makes of them by itself, and would contradict them after that.
    """

    paths: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()


@dataclass(frozen=True)
class Guarantees:
    """What this driver can promise (a page in docs/ says it to users)."""

    safe_points: str  # "iterations" | "end"
    resume: str  # "checkpoint" | "session"
    native_usage: bool
    steer: bool
    """M3: a message enters while the agent works, between its tool calls and its next decision."""
    follow_up: bool = False
    """M3: a message enters once the agent has stopped, and it goes on from there."""
    native_continuation: bool = False  # it asks its host about ends and circles by itself (N1)
    pauses: bool = False
    """Q5: it ends as `paused` by itself at its next safe point, once `Host.pausing` is set. Any other is stopped by the
    runner, after its next safe point or when its grace is over.
    """
    state: State = State()
    recalls: bool = False
    """O2, R4: its conversation is in no file: it takes `Task.past`."""
    call_s: int = 3_600
    """O2: so long a call of a tool of ours may take; the program's client gives up later."""

    @property
    def can_go_on(self) -> bool:
        """N1: after its program has stopped, `run` with `Task.go_on_with` goes on with the same conversation."""
        return self.resume == "session" and not self.native_continuation


class Held(Protocol):
    """P6: a request of the agent's to its model, which waits at the runner. `path` begins with /model/; `body` is None
    where it passes as a stream; `since` is monotonic, in seconds.
    """

    path: str
    body: bytes | None
    since: float

    def pass_on(self) -> None:
        """It may leave."""

    def refuse(self, answer: bytes) -> None:
        """It never leaves; `answer` is what the agent hears."""


@dataclass(frozen=True)
class Recorded:
    """R2: what an earlier attempt asked its model in an iteration that it didn't live to complete. Asked again word by
    word, the answer comes from the record; the iteration keeps its number.
    """

    iteration: int
    request: Mapping[str, Any]


@dataclass(frozen=True)
class Past:
    """O2, R4: what an earlier attempt, or the run before, asked its model last, the bytes of the answer, and what came
    of the calls in it, by their places there.
    """

    request: Mapping[str, Any]
    answer: bytes = b""
    results: Mapping[int, CallResult] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """One attempt's work. Paths are inside the sandbox; `relay_url` is loopback; `dummy_key` opens nothing.

    `iterations_used` is how many are complete, which the limit counts: numbers that lost attempts began have gaps.
    `judged`: acceptance commands decide on the result. `go_on_with`: the program has stopped in this attempt, and this
    is what its conversation goes on with (see `Guarantees.can_go_on`). `continues`: a conversation that goes on is
    another run's, and this goal is new to it; `past` is the end of what goes on, where the driver asks for that.
    """

    run_uid: str
    goal: str
    goal_file: Path
    agent: ResolvedAgent
    limits: ResolvedLimits
    tree: Path
    home: Path
    tmp: Path
    relay_url: str
    dummy_key: str
    next_iteration: int
    handoff: str | None
    tokens_used: int
    iterations_used: int
    recorded: Recorded | None = None
    judged: bool = False
    go_on_with: str | None = None
    continues: bool = False
    past: Past | None = None


@dataclass(frozen=True)
class Outcome:
    """How it ended. `unknown`: the program's output ended without its final event; never success."""

    outcome: Ending
    reason: str
    message: str = ""
    summary: str = ""
    exit_code: int | None = None


@dataclass(frozen=True)
class EndCheck:
    """`objection`: instructions for the agent; None where nothing stands against its end, or where it was checked
    often enough. `proved`: every acceptance command has passed.
    """

    objection: str | None = None
    proved: bool = False


class Parked(Exception):
    """Q5: the run is to stand still while a person makes up their mind."""


Kind = Literal["Steer", "FollowUp"]


@dataclass(frozen=True)
class Message:
    """M3: what a person says to the agent; `id` is the command's. `Steer` is for between its tool calls and its next
    decision, `FollowUp` for when it has stopped.
    """

    id: str
    kind: Kind
    text: str


class Messages(Protocol):
    """M3: what people say to the agent, in the order in which it was accepted.

    Whoever takes a message says it to the agent next. It is journaled as delivered before it is handed out, so that
    nobody else ever takes it; should this attempt die before the agent has heard it, the next one reads it in its
    handoff. What nobody takes before the run's end is told to its sender as not delivered.
    """

    def waiting(self, *kinds: Kind) -> bool:
        """Whether there is one of these kinds to take, as far as this side has heard. Costs nothing."""

    async def arrival(self, *kinds: Kind) -> None:
        """Return as soon as there is one of these kinds to take."""

    async def take(self, *kinds: Kind, turn: int, fresh: bool = False) -> tuple[Message, ...]:
        """All of these kinds that wait, oldest first; `turn` is the iteration that they enter. `fresh` asks the
        gateway first: for an agent that has stopped, and would end.
        """


class ChildRefused(Exception):
    """The child isn't started, or isn't known; the message says why, in words for the agent."""


class ChildRuns(Protocol):
    """O2: the children that the agent may start. Raises ChildRefused."""

    async def spawn(self, asked: SpawnRequest) -> ChildAnswer:
        """Have one started; durable when it returns, and the same child for the same key. The epoch is the host's."""

    async def wait(self, name: str, within_s: float) -> ChildAnswer:
        """As soon as it has ended, or as it is after that time, or once the run is to pause."""

    async def living(self) -> tuple[str, ...]:
        """Names of those that haven't ended, oldest first."""

    async def merge(self, name: str) -> int:
        """W7: bring what an ended child proposes into the tree, and say how many files that changed. ChildRefused names
        the conflicts; nothing was changed then.
        """


class Host(Protocol):
    """The runner, as a driver sees it."""

    stopping: asyncio.Event
    pausing: asyncio.Event
    """Q5: no new decision is to be begun; what is begun is brought to its safe point."""

    @property
    def messages(self) -> Messages:
        """What people say to the agent meanwhile."""

    @property
    def child_runs(self) -> ChildRuns:
        """Where the agent may start any (`Task.agent.children`)."""

    @property
    def budget(self) -> Budget:
        """C7: what is left, and whether the run is to stop, as the gateway told last. Each fact and each safe point
        brings it anew.
        """

    async def emit(
        self,
        type: str,  # noqa: A002  the record's own word
        payload: Mapping[str, Any],
        *,
        record_id: str | None = None,
        turn: int | None = None,
        step: int | None = None,
        tool_call_id: str | None = None,
    ) -> None:
        """Journal a fact as reported. Returns once it is durable."""

    async def output(self, stream: str, data: bytes) -> None:
        """Pass on what the agent wrote; kept as chunked artifacts, bounded, never a record each."""

    async def safe_point(
        self,
        iteration: int,
        usage: Mapping[str, int] | None = None,
        *,
        held: Held | None = None,
        conversation: bool = True,
    ) -> str:
        """Checkpoint the tree and the driver's state paths if they changed, then count the iteration as complete (P2,
        P5). Returns the tree's hash.

        Every process of the agent's stands still (SIGSTOP) while the picture is taken. `held`: the request that waits
        for it. `conversation`: False where the state paths are known not to agree with the tree, and are left out.
        """

    def held(self) -> AbstractContextManager[AsyncIterator[Held]]:
        """P6: while it is entered, each request to the model waits until it is passed on or refused."""

    def asks_before(self, tool: str) -> bool:
        """T6: whether calls of that tool wait for a person, so that `consent` has to be asked before each."""

    async def consent(self, call_id: str, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """T6: wait until that call may run; None where it may, else why it may not. A person is shown the beginning of
        its arguments. Raise Parked where the run is to stand still meanwhile: whoever goes on asks for the same call
        again, wherever that comes then, and hears the same answer. Calls may be asked for side by side.
        """

    async def check_end(self) -> EndCheck:
        """N4: what stands against the end that the agent has just said, at its last safe point. No process of its may
        be alive.
        """

    def went_on(self) -> None:
        """N6: what the agent told as its end was none: it asks for another decision, and nobody has said a word."""

    def circle(self) -> Finding | None:
        """N6: that the agent goes in circles, where that is news."""

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: bytes | None = None,
        talk: bool = False,
    ) -> Child:
        """Start a program of the agent's, as a group of its own, with the sandbox's minimal environment.

        Its stdin is `stdin` and then its end; with `talk` it stays open for `say`.
        """


class Child(Protocol):
    """A started program and its whole tree."""

    pid: int
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    async def say(self, data: bytes) -> None:
        """Write to a stdin that was left open; waits while the program doesn't read. One that is gone hears nothing."""

    def end_input(self) -> None:
        """Close its stdin once what was said is written. Twice is no error."""

    async def wait(self) -> int:
        """Exit code; negative for a signal. What it left behind may still hold its outputs."""

    async def stop(self, grace: float) -> None:
        """X2: stdin EOF, SIGTERM, after `grace` seconds SIGKILL of the tree; returns when nothing of it is left."""

    def close(self) -> None:
        """Let go of its outputs; what was not read is lost."""


class Driver(Protocol):
    """One agent protocol."""

    name: str
    guarantees: Guarantees

    async def run(self, task: Task, host: Host) -> Outcome:
        """Drive the agent to its end. Raises only for faults of our own."""
