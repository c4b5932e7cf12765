"""What an agent asks for when it starts a child run, what the operator makes of that, and what the agent hears."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from moorage.api.wirebase import Wire

MAX_PROBLEM = 1_024


def _said(goal: str) -> str:
    """As an AgentRun demands."""
    if not goal.strip():
        raise ValueError("the goal must not be empty: say what the child is to do")
    return goal


ChildGoal = Annotated[str, Field(min_length=1, max_length=65_536), AfterValidator(_said)]
Amount = Annotated[int, Field(ge=0, le=2**53 - 1)]


class SpawnRequest(Wire):
    """`key` names the tool call: asked for again, it is the same child. Amounts are hard limits, in the smallest units;
    None: half of what is left.
    """

    epoch: int
    key: str = Field(min_length=1, max_length=128)
    goal: ChildGoal
    start: Literal["Checkpoint", "Base"] = "Checkpoint"
    iterations: Amount | None = None
    tokens: Amount | None = None
    cost_micros: Amount | None = None
    tool_calls: Amount | None = None


class ChildOrder(Wire):
    """A child that was asked for, as its operator is to make it: `reserve` is its share, by the names of a Context."""

    name: str
    goal: str
    start: Literal["Checkpoint", "Base"]
    reserve: dict[str, int]


class ChildAnswer(Wire):
    """How far a child is. Once it has `ended`: its last phase, what it said, the commit that it proposes, the
    one that it started from, and what it used.
    """

    name: str
    status: str  # requested | made | started | ended
    outcome: str = ""
    summary: str = ""
    commit: str | None = None
    base: str | None = None
    used: dict[str, int] = {}


class ChildList(Wire):
    """All children that are remembered, oldest first; one that has ended without its last words."""

    children: tuple[ChildAnswer, ...] = ()


class SettleRequest(Wire):
    """B2: settle the shares of children that ended. `gone`: those, by UID or else by name, that nobody will
    admit any more: what the gateway hasn't heard of among them has used nothing. `over`: those whose objects say that
    they have ended: what can't be read of them any more has used its whole share. `why`: what is
    known of why one of them won't begin.
    """

    gone: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    why: dict[str, str] = {}
