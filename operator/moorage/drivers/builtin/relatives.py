"""The tools by which a model starts children of its run and waits for them (O2)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from moorage.api.budget import Budget
from moorage.api.children import ChildAnswer, ChildGoal, SpawnRequest
from moorage.drivers.port import ChildRefused, ChildRuns
from moorage.drivers.telling import ToolResult

PENDING = "PendingBackgroundTask"
WAIT_S, LONGEST_S = 600, 3_600
SPARE_S = 5
"""How much longer than asked for a wait may take, where the gateway is away."""
PATIENCE_S = 300  # N3


class SpawnArguments(BaseModel):
    """Start a child run: another agent, with a worktree of its own, that works on a goal of yours. It starts from your
    last checkpoint and uses part of your budget. Answers with its name at once; wait_run waits for it.
    """

    model_config = ConfigDict(extra="forbid")
    goal: ChildGoal = Field(description="all that it needs to know: it has no other context")
    start: Literal["Checkpoint", "Base"] = Field("Checkpoint", description="your last checkpoint, or where you began")
    iterations: int | None = Field(None, ge=1, description="at most so many; left out: half of what you have left")
    tokens: int | None = Field(None, ge=1, description="at most so many; left out: half of what you have left")
    tool_calls: int | None = Field(None, ge=1, description="at most so many; left out: half of what you have left")


class WaitArguments(BaseModel):
    """Wait until a child run has ended: how, what it said, its commit, and what it used."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1, max_length=253, description="as spawn_run answered")
    timeout_s: int = Field(WAIT_S, ge=0, le=LONGEST_S, description="seconds; then it answers how far the child is")


class MergeArguments(BaseModel):
    """Bring what an ended child has done into your worktree, as changes of yours. In a conflict nothing is changed, and
    you are told the files.
    """

    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1, max_length=253, description="as spawn_run answered")


class BudgetArguments(BaseModel):
    """What is left of your run's budget, beside what your children may use."""

    model_config = ConfigDict(extra="forbid")


class ProgressArguments(BaseModel):
    """Say how far you are, for people who watch."""

    model_config = ConfigDict(extra="forbid")
    text: str = Field(min_length=1, max_length=4_096)


async def spawned(children: ChildRuns, key: str, asked: SpawnArguments) -> ToolResult:
    """`key` names the call: asked for again, it is the same child."""
    try:
        return _told(await children.spawn(SpawnRequest(epoch=0, key=key, **asked.model_dump())))
    except ChildRefused as error:
        return _result(str(error), ok=False)


async def waited(children: ChildRuns, asked: WaitArguments) -> ToolResult:
    """How the child ended, or how far it is."""
    try:
        return _told(await children.wait(asked.name, asked.timeout_s))
    except ChildRefused as error:
        return _result(str(error), ok=False)


async def merged(children: ChildRuns, asked: MergeArguments) -> ToolResult:
    """W7: a conflict is a result."""
    try:
        return _result(f"merged {asked.name}: {await children.merge(asked.name)} files changed")
    except ChildRefused as error:
        return _result(str(error), ok=False)


class Pending:
    """N3: what an agent hears of its children where it would end, each time that there are others to hear of."""

    def __init__(self, children: ChildRuns) -> None:
        self._children, self._told = children, set[str]()

    async def news(self) -> str | None:
        """None: it may end."""
        living = set(await self._children.living())
        if not living - self._told:
            return None
        self._told |= living
        return await pending(self._children)


async def pending(children: ChildRuns, within_s: float = PATIENCE_S) -> str | None:
    """N3: wait for the children of an agent that says it is done, and what it hears then; None where none lived."""
    names, deadline, ended = await children.living(), time.monotonic() + within_s, list[str]()
    if not names:
        return None
    for name in names:
        with contextlib.suppress(ChildRefused):  # who can't be told of now is told of below
            child = await children.wait(name, max(0.0, deadline - time.monotonic()))
            ended += [f"{name} ({child.outcome})"] if child.status == "ended" else []
    left = await children.living()
    told = [f"Children of yours have ended meanwhile: {', '.join(ended)}."] if ended else []
    told += [f"These still work: {', '.join(left)}; what lives when you end is told to end."] if left else []
    return " ".join([*told, "wait_run tells what came of each, merge_run brings its work into your tree."])


def remaining(budget: Budget) -> ToolResult:
    """What isn't limited isn't named."""
    return _result(_amounts(budget.left) or "nothing is limited")


def _told(child: ChildAnswer) -> ToolResult:
    lines = [f"child: {child.name}", f"status: {child.outcome or child.status}"]
    lines += [f"commit: {child.commit}"] if child.commit else []
    lines += [f"used: {_amounts(child.used)}"] if child.used else []
    lines += [f"it said: {child.summary}"] if child.summary else []
    return _result("\n".join(lines), ok=child.outcome in {"", "Succeeded"})


def _amounts(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {amount}" for name, amount in amounts.items())


def _result(text: str, *, ok: bool = True) -> ToolResult:
    return ToolResult(ok, text, size=len(text.encode()))
