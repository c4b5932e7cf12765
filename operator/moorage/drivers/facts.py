"""What drivers of somebody else's programs understand: facts, and the dialects that make them of a program's events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from moorage.core.models.protocol import Carried
from moorage.drivers.telling import ToolResult


@dataclass(frozen=True)
class Began:
    """The conversation has a name, under which the program can go on with it."""

    session: str


@dataclass(frozen=True)
class Said:
    """Words of the agent's; its last ones are the summary."""

    text: str


@dataclass(frozen=True)
class Noted:
    """A line for the log."""

    text: str


@dataclass(frozen=True)
class Asked:
    """A tool call begins; `call` is the program's own name for it."""

    call: str
    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Answered:
    """A tool call has ended. One that was never asked for is told here whole."""

    call: str
    tool: str
    arguments: Mapping[str, Any]
    result: ToolResult


@dataclass(frozen=True)
class Used:
    """What a decision came to, where that is told before its calls are over."""

    usage: Mapping[str, int]


@dataclass(frozen=True)
class Settled:
    """No tool runs, as far as the program tells, and `usage` is what was used and not told yet. `more`: another
    decision follows, whose request is the safe point (P6); where none comes our way, and at the end, this is it.
    """

    usage: Mapping[str, int]
    more: bool


@dataclass(frozen=True)
class Trouble:
    """Something went wrong; the program may get over it."""

    message: str


@dataclass(frozen=True)
class Ended:
    """The last word: None for success. `cut`: the last answer was cut by its length."""

    failure: str | None = None
    cut: bool = False


@dataclass(frozen=True)
class Reply:
    """An answer on the program's stdin, which is written once all facts before it are durable."""

    data: bytes


@dataclass(frozen=True)
class Permission:
    """The program waits to hear whether a call may run whose intent is told. `yes` is what it hears where it may, `no`
    makes that of a refusal's words. `mute`: there is no room for them in that, so they are said to it next.
    """

    call: str
    tool: str
    arguments: Mapping[str, Any]
    yes: bytes
    no: Callable[[str], bytes]
    mute: bool = False


@dataclass(frozen=True)
class Wanted:
    """Something that the program has us do, and waits for. `own`: it belongs to no tool call that the program has told
    of; `call` names the one that is made of it.
    """

    request: str | int
    method: str
    params: Mapping[str, Any]
    own: bool
    call: str = ""


Fact = Began | Said | Noted | Asked | Answered | Used | Settled | Trouble | Ended | Reply | Permission | Wanted
Say = Callable[[bytes], Awaitable[None]]
Allowed = Callable[[str, str, Mapping[str, Any]], Awaitable[str | None]]
"""Whether that call of that tool with those arguments, whose intent is told, may run: None, or why it may not (T6)."""


class Dialect(Protocol):
    """What one program's events mean."""

    def facts(self, event: Mapping[str, Any]) -> Sequence[Fact] | None:
        """Nothing where it says nothing new; None where it isn't known. Raises nothing, whatever the shape: a field
        that is missing or of another type is as good as empty. Of an overlong line there is the `type` alone.
        """

    def telling(self, results: Sequence[Carried]) -> int:
        """Of how many of the calls whose results it brings to its model the program tells that they are over."""


class Server(Protocol):
    """Does what a program wants done."""

    async def serve(self, wanted: Wanted, tell: Callable[[Fact], Awaitable[None]], allowed: Allowed) -> None:
        """Do it, tell what became of it, and answer the program. Returns while a person is waited for."""

    async def close(self) -> None:
        """End whatever is still done."""
