"""Agents that tell what they do as JSON, a line each: somebody else's programs, whose words are checked, not believed.

A dialect turns one program's events into facts; everything else is the same for all of them. Lines end at newline bytes
alone and may hold any others. What is no event, or none that the dialect knows, is output, byte by byte. A line over
LINE_CAP is output too; of its event only the type is looked at. An end of output without the last word is `unknown`,
and a success is none where the model had just refused the key.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from moorage.drivers.port import Host, Outcome, Task
from moorage.drivers.program import (
    OUTPUT_LIMIT,
    SUMMARY_CAP,
    Iterations,
    Piece,
    Program,
    Spent,
    killed,
    pieces,
    started,
)
from moorage.drivers.telling import Place, Telling, ToolResult
from moorage.drivers.untrusted import read

MARK = b"{"
LINE_CAP = 4 * 1024 * 1024
MAX_OPEN = 256  # tool calls at once; a real agent has a few
MESSAGE_CAP = 2_000
MAX_NUMBER = 1 << 53
OVERLAP = 128  # bytes of stderr that are looked at twice, since what is sought may be cut
TYPE = re.compile(rb'\{\s*"type"\s*:\s*"([^"\\]{1,64})"')
REFUSED = re.compile(r"\b401\b|authentication_error", re.IGNORECASE)  # in a failure's own words
UNAUTHORIZED = re.compile(rb"\b401\b[^\n]{0,40}(unauthori[sz]ed|authenticat)|authentication_error", re.IGNORECASE)
SPENT = "BudgetExhausted"  # how the model door's refusal begins


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
class Settled:
    """No tool runs and the model has all results: a safe point. `more`: another decision follows."""

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


Fact = Began | Said | Noted | Asked | Answered | Settled | Trouble | Ended | Reply
Say = Callable[[bytes], Awaitable[None]]


class Dialect(Protocol):
    """What one program's events mean."""

    def facts(self, event: Mapping[str, Any]) -> Sequence[Fact] | None:
        """Nothing where it says nothing new; None where it isn't known. Raises nothing, whatever the shape: a field
        that is missing or of another type is as good as empty. Of an overlong line there is the `type` alone.
        """


@dataclass(frozen=True)
class Launch:
    """How the program is started and understood. `remember` takes the conversation's name; `talk`: its stdin stays open
    for replies until its last word.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    stdin: bytes
    dialect: Dialect
    remember: Callable[[str], None]
    talk: bool = False


async def drive(task: Task, host: Host, launch: Launch) -> Outcome:
    """Run the program to its end, or stop it when told to or when a limit is reached."""
    try:
        Iterations(task, host).demand_one()
    except Spent as error:
        return Outcome("exhausted", "BudgetExhausted", str(error))
    child = await started(host, launch.argv, launch.env, launch.stdin, talk=launch.talk)
    if isinstance(child, Outcome):
        return child
    listener = AgentListener(task, host, launch.dialect, launch.remember, child.say)
    return await Program(host, child, listener).run()


class AgentListener:
    """Implements program.Listener: facts to the journal and the log, safe points as they come."""

    def __init__(
        self, task: Task, host: Host, dialect: Dialect, remember: Callable[[str], None], say: Say | None = None
    ) -> None:
        self.summary, self.final = "", asyncio.Event()
        self._say = say
        self.iterations = Iterations(task, host, told=True)
        self._host, self._dialect, self._remember, self._telling = host, dialect, remember, Telling(host)
        self._open: dict[str, tuple[Place, Mapping[str, Any]]] = {}
        self._index = 0  # of the next call within its iteration
        self._end: Ended | None = None
        self._trouble: str | None = None
        self._refused = False  # the model refused the key, and nothing was decided since

    # --- what it hears ------------------------------------------------------------------------------------------------

    async def hear(self, stdout: AsyncIterator[bytes]) -> None:
        """Facts, and whatever is none as output."""
        async for piece in pieces(stdout, MARK, LINE_CAP):
            facts = self._facts(piece)
            if facts is None or piece.kind != "line":
                await self._host.output("stdout", piece.data)
            elif not facts:
                await self._host.output("stdout", b"")  # nothing new, and yet a sign of life
            if piece.kind == "text":
                self._look(piece.data)
            for fact in facts or ():
                await self._take(fact)

    async def hear_errors(self, stderr: AsyncIterator[bytes]) -> None:
        """All of it is output; looked through for a refused key."""
        before = b""
        async for data in stderr:
            self._look(before + data)
            before = data[-OVERLAP:]
            await self._host.output("stderr", data)

    def _facts(self, piece: Piece) -> Sequence[Fact] | None:
        if piece.kind == "text":
            return None
        event = _event(piece)
        return None if event is None else self._dialect.facts(event)

    async def _take(self, fact: Fact) -> None:
        match fact:
            case Began():
                self._remember(fact.session)
            case Said():
                self.summary = fact.text.strip()[:SUMMARY_CAP] or self.summary
                await self._telling.said(fact.text)
            case Noted():
                await self._telling.said(fact.text)
            case Asked():
                await self._asked(fact)
            case Answered():
                await self._answered(fact)
            case Settled():
                await self._settled(fact)
            case Trouble():
                self._trouble = self._failure(fact.message)
                await self._telling.said(f"[{self._trouble}]")
            case Ended():
                self._end = replace(fact, failure=None if fact.failure is None else self._failure(fact.failure))
                self.final.set()
            case Reply():
                await self._reply(fact.data)

    async def _reply(self, data: bytes) -> None:
        if self._say is not None:
            await self._say(data)

    def _look(self, said: bytes) -> None:
        """Look for a refused key in what is no event."""
        self._refused = self._refused or bool(UNAUTHORIZED.search(said))

    def _failure(self, message: str) -> str:
        """A failure's words, looked through for a refused key."""
        self._refused = self._refused or bool(REFUSED.search(message))
        return in_words(message)[:MESSAGE_CAP]

    async def _asked(self, fact: Asked) -> None:
        if fact.call in self._open or len(self._open) >= MAX_OPEN:
            return
        self._refused, self._trouble = False, None  # somebody decided this, so the model answers
        place = Place(fact.tool, self.iterations.next, self._index)
        self._index += 1
        self._open[fact.call] = place, fact.arguments
        await self._telling.asked(place, fact.arguments)

    async def _answered(self, fact: Answered) -> None:
        await self._asked(Asked(fact.call, fact.tool, fact.arguments))
        if (known := self._open.pop(fact.call, None)) is not None:
            await self._telling.answered(*known, fact.result.capped())

    async def _settled(self, fact: Settled) -> None:
        await self.iterations.complete(fact.usage, more=fact.more)
        self._index = 0
        if fact.more:
            self.iterations.demand_one()

    # --- how it ended -------------------------------------------------------------------------------------------------

    def judge(self, code: int) -> Outcome:
        """By its last word, and against what was seen; by the exit code only where there is no last word."""
        if self._end is not None and self._end.failure is None:
            return self._believed(code)
        if self._end is not None:
            return self._failed(self._end.failure or "", code)
        if (dead := killed(code, self.summary)) is not None:
            return dead
        if self._trouble is not None or code != 0:
            return self._failed(self._trouble or f"the agent exited with code {code} and said no last word", code)
        why = "the agent's output ended without its last word: it may be done, or not"
        return Outcome("unknown", "NoLastWord", why, self.summary, code)

    def _believed(self, code: int) -> Outcome:
        if self._refused:
            why = "the agent says that it is done, but the model had refused its key (401)"
            return Outcome("failed", "ModelUnauthorized", why, self.summary, code)
        return Outcome("completed", "Completed", "", self.summary, code)

    def _failed(self, why: str, code: int) -> Outcome:
        if SPENT in why:
            return Outcome("exhausted", "BudgetExhausted", why, self.summary, code)
        cut = self._end is not None and self._end.cut
        reason = "ModelUnauthorized" if self._refused else OUTPUT_LIMIT if cut else "AgentFailed"
        return Outcome("failed", reason, why, self.summary, code)


def _event(piece: Piece) -> dict[str, Any] | None:
    """What a line tells; of an overlong one its type alone. None where it is no event."""
    if piece.kind == "head":
        found = TYPE.match(piece.data)
        return {"type": found[1].decode(errors="replace")} if found else None
    try:
        event = read(piece.data)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("type"), str) else None


def in_words(message: str) -> str:
    """A provider's error, which programs like to repeat as JSON, by its message."""
    before, brace, rest = message.partition("{")
    try:
        said = mapping(mapping(read(f"{brace}{rest}".encode())).get("error")).get("message")
    except ValueError:
        return message
    return f"{before}{said}" if isinstance(said, str) else message


def mapping(value: object) -> Mapping[str, Any]:
    """The value where it is an object; an empty one else."""
    return value if isinstance(value, dict) else {}


def text(value: object) -> str:
    """The value where it is text; an empty one else."""
    return value if isinstance(value, str) else ""


def number(value: object) -> int | None:
    """The value where it is an integer that JSON carries from anybody to anybody."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_NUMBER else None


def counts(usage: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, int]:
    """Tokens by our names, from theirs (`names`: theirs to ours); what is no count, or 0, is left out."""
    found = {ours: number(usage.get(theirs)) for theirs, ours in names.items()}
    return {name: n for name, n in found.items() if n is not None and n > 0}
