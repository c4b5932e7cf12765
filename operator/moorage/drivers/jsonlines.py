"""Agents that tell what they do as JSON, a line each: somebody else's programs, whose words are checked, not believed.

A dialect turns one program's events into facts; everything else is the same for all of them. Lines end at newline bytes
alone and may hold any others. What is no event, or none that the dialect knows, is output, byte by byte. A line over
LINE_CAP is output too; of its event only the type is looked at. An end of output without the last word is `unknown`,
and a success is none where the model had just refused the key.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moorage.core.models.protocol import Carried
from moorage.drivers.asking import UNKNOWN, Asking
from moorage.drivers.facts import (
    Answered,
    Asked,
    Began,
    Dialect,
    Ended,
    Fact,
    Noted,
    Permission,
    Reply,
    Said,
    Say,
    Server,
    Settled,
    Trouble,
    Used,
    Wanted,
)
from moorage.drivers.holding import STOPPING, Conversation, carrying, decides, refuse
from moorage.drivers.port import Child, Held, Host, Kind, Outcome, Task
from moorage.drivers.program import (
    FINAL_GRACE_S,
    OUTPUT_LIMIT,
    Iterations,
    Piece,
    Program,
    Spent,
    Steered,
    in_short,
    killed,
    pieces,
    started,
)
from moorage.drivers.telling import Place, Telling
from moorage.drivers.untrusted import added, mapping, read

MARK = b"{"
LINE_CAP = 4 * 1024 * 1024
MAX_OPEN = 256  # tool calls at once; a real agent has a few
MESSAGE_CAP = 2_000
LAG_S = 5.0  # how far an agent's words and its own files may be behind what it asks
LOOK_S, LOOK_MOST_S = 0.02, 0.5  # between two looks at its files: ever longer
OVERLAP = 128  # bytes of stderr that are looked at twice, since what is sought may be cut
TYPE = re.compile(rb'\{\s*"type"\s*:\s*"([^"\\]{1,64})"')
REFUSED = re.compile(r"\b401\b|authentication_error", re.IGNORECASE)  # in a failure's own words
UNAUTHORIZED = re.compile(rb"\b401\b[^\n]{0,40}(unauthori[sz]ed|authenticat)|authentication_error", re.IGNORECASE)
STEERED_WHY = "the turn is interrupted: a person has something to say first"
SPENT = "BudgetExhausted"  # how the model door's refusal begins


@dataclass(frozen=True)
class Speech:
    """How a program is spoken to, whose stdin stays open until its last word. `message` makes what it reads of words of
    a person's (M3), `steer` the same while it works, which with `interrupts` ends its turn: no decision follows before
    the words. `goodbye` is what it hears before it is stopped; `server` makes what serves it.
    """

    message: Callable[[str], bytes] | None = None
    steer: Callable[[str], bytes] | None = None
    interrupts: bool = False
    goodbye: Callable[[], bytes] = bytes
    server: Callable[[Child], Server] | None = None


@dataclass(frozen=True)
class Launch:
    """How the program is started and understood. `remember` takes the conversation's name; `results` tells the calls
    whose results its conversation holds by now, where that is known; `nested`: a tool may be an agent of its own, whose
    requests end no iteration while its call is under way; `settles`: it tells the end of each decision without calls.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    stdin: bytes
    dialect: Dialect
    remember: Callable[[str], None]
    results: Callable[[], frozenset[str]] | None = None
    nested: bool = False
    settles: bool = False
    speech: Speech | None = None
    final_grace_s: float = FINAL_GRACE_S


async def drive(task: Task, host: Host, launch: Launch) -> Outcome:
    """Run the program to its end, or stop it when told to or when a limit is reached."""
    try:
        Iterations(task, host).demand_one()
    except Spent as error:
        return Outcome("exhausted", "BudgetExhausted", str(error))
    with host.held() as requests:  # until nothing of it is left: one that is refused would go on without us
        return await _driven(task, host, launch, requests)


async def _driven(task: Task, host: Host, launch: Launch, requests: AsyncIterator[Held]) -> Outcome:
    speech = launch.speech
    child = await started(host, launch.argv, launch.env, launch.stdin, talk=speech is not None)
    if isinstance(child, Outcome):
        return child
    server = speech.server(child) if speech and speech.server else None
    line = Line(child.say, speech, server) if speech else None
    listener = AgentListener(task, host, launch, requests, line)
    goodbye = speech.goodbye if speech else bytes
    try:
        return await Program(host, child, listener, goodbye=goodbye, final_grace_s=launch.final_grace_s).run()
    finally:
        if server is not None:
            await server.close()


@dataclass(frozen=True)
class Line:
    """To a program that is spoken to."""

    say: Say
    speech: Speech
    server: Server | None


class AgentListener:
    """Implements program.Listener: facts to the journal and the log, safe points as they come."""

    def __init__(
        self, task: Task, host: Host, launch: Launch, requests: AsyncIterator[Held], line: Line | None = None
    ) -> None:
        self.summary, self.final = "", asyncio.Event()
        self._requests, self._line = requests, line
        self.iterations = Iterations(task, host, told=True)
        self._host, self._launch, self._telling = host, launch, Telling(host)
        self._seen = set(self._results())  # the calls whose results the model knows of
        self._talk = Conversation()
        self._decides = False  # asked for what may be a call since the last safe point
        self._usage: dict[str, int] = {}  # of the iteration that is under way
        self._heard = 0  # calls of this iteration that are told to be over
        self._news = asyncio.Event()  # it told the end of a call, or of a decision
        self._asks = False  # its model by way of us
        self._completing = asyncio.Lock()
        self._talking = asyncio.Lock()  # so that nobody is told something who has just ended
        self._words = self._words_then = 0  # how often it was told something, and how often when it said what is heard
        self._open: dict[str, tuple[Place, Mapping[str, Any]]] = {}
        self._asking = Asking(host, lambda: set(self._open))
        self._index = 0  # of the next call within its iteration
        self._end: Ended | None = None
        self._trouble: str | None = None
        self._refused = False  # the model refused the key, and nothing was decided since

    @property
    def waits(self) -> bool:
        """See program.Listener."""
        return self._asking.waits

    # --- what it hears ------------------------------------------------------------------------------------------------

    async def hear(self, stdout: AsyncIterator[bytes]) -> None:
        """Facts, and whatever is none as output."""
        async for piece in pieces(stdout, MARK, LINE_CAP):
            facts, self._words_then = self._facts(piece), self._words
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
        return None if event is None else self._launch.dialect.facts(event)

    async def _take(self, fact: Fact) -> None:
        match fact:
            case Began():
                self._launch.remember(fact.session)
            case Said() | Noted():
                await self._said(fact)
            case Asked():
                await self._asked(fact)
            case Answered():
                await self._answered(fact)
            case Used():
                self._usage = added(self._usage, fact.usage)
            case Settled():
                await self._settled(fact)
            case Trouble():
                self._trouble = self._failure(fact.message)
                await self._telling.said(f"[{self._trouble}]")
            case Ended():
                await self._ended(fact)
            case Reply() | Permission() | Wanted() if self._line is not None:
                await self._returned(self._line, fact)

    async def _said(self, fact: Said | Noted) -> None:
        if isinstance(fact, Said):
            self.summary = in_short(fact.text) or self.summary
        await self._telling.said(fact.text)

    async def _returned(self, line: Line, fact: Reply | Permission | Wanted) -> None:
        """What the program waits for."""
        match fact:
            case Reply():
                await line.say(fact.data)
            case Permission():
                known = self._open.get(fact.call)
                await self._asking.answer(known and known[0], fact, line.say)
            case Wanted() if line.server is not None:
                own = fact.own or self._asking.holds(self._open)  # nothing is done for a call that may not run yet
                await line.server.serve(replace(fact, own=own), self._take, self._allowed)

    async def _allowed(self, call: str, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """See facts.Allowed."""
        known = self._open.get(call)
        return UNKNOWN if known is None else await self._asking.verdict(known[0], call, tool, arguments)

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
        self.iterations.demand_going()

    async def _answered(self, fact: Answered) -> None:
        await self._asked(Asked(fact.call, fact.tool, fact.arguments))
        if (known := self._open.pop(fact.call, None)) is not None:
            await self._telling.answered(*known, fact.result.capped())
            self._asking.over(fact.call, (known[0].tool, fact.tool or known[0].tool), fact.result)
        self._heard += 1
        self._news.set()

    async def _settled(self, fact: Settled) -> None:
        self._usage = added(self._usage, fact.usage)
        if not fact.more:
            await self._complete(more=False)
        elif not self._asks:
            await self._go_on()
            if self._interrupts:
                await self._steered()

    async def _go_on(self, held: Held | None = None, *, conversation: bool = True) -> None:
        """A safe point, after which another decision follows if it may."""
        await self._complete(more=True, held=held, conversation=conversation)
        self.iterations.demand_one()
        if self._line is None and self._host.messages.waiting("Steer"):
            raise Steered  # M3: without an ear it is stopped before its next decision, and goes on with the message

    async def _ended(self, fact: Ended) -> None:
        """The last word, unless a person has more to say to an agent that is content, or has just said it. One that
        stops because of a refusal has yet to hear the reason.
        """
        content = (fact.failure is None or self._asking.refusals) and not self._refused and self.iterations.left
        async with self._talking:
            if self._words != self._words_then or (content and await self._talked_on()):
                return
            self._end = replace(fact, failure=None if fact.failure is None else self._failure(fact.failure))
            self.final.set()

    @property
    def _interrupts(self) -> bool:
        return self._line is not None and self._line.speech.interrupts

    async def _steered(self) -> bool:
        """M3: say what people have to say to an agent that works. Whether there was anything."""
        if self._line is None:
            return False
        async with self._talking:
            return not self.final.is_set() and await self._pass_on(self._line, self._line.speech.steer, "Steer")

    async def _talked_on(self) -> bool:
        """The same to one that has stopped."""
        if self._line is None:
            return False
        return await self._pass_on(self._line, self._line.speech.message, "Steer", "FollowUp", fresh=True)

    async def _pass_on(
        self, line: Line, words: Callable[[str], bytes] | None, *kinds: Kind, fresh: bool = False
    ) -> bool:
        if words is None:
            return False
        messages = await self._host.messages.take(*kinds, turn=self.iterations.next, fresh=fresh)
        said = [*self._asking.take_refusals(), *(message.text for message in messages)]
        if said:
            self._words += 1
            await line.say(words("\n\n".join(said)))
        return bool(said)

    # --- safe points --------------------------------------------------------------------------------------------------

    async def attend(self) -> None:
        """Its requests to its model, what people say to one that hears while it works, and what they say of its calls.
        A failure ends all.
        """
        parts = [asyncio.create_task(each) for each in (self._hold(), self._converse(), self._asking.attend())]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in parts:
                each.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            await self._asking.close()

    async def _converse(self) -> None:
        """M3: said as it comes; nothing more once the last word is heard."""
        heard = self._line is not None and self._line.speech.steer is not None and not self._interrupts
        while heard and not self.final.is_set():
            await self._host.messages.arrival("Steer")
            await self._steered()
        await asyncio.Event().wait()

    async def _hold(self) -> None:
        """P6: whatever it asks its model waits here, and what ends an iteration waits for its safe point."""
        async for request in self._requests:
            safe = not self._host.stopping.is_set() and await self._before(request)
            if self._host.stopping.is_set():
                refuse(request, "Stopping", STOPPING)
            elif safe and self._interrupts and await self._steered():
                refuse(request, "Steered", STEERED_WHY)
            elif not (safe and self._host.pausing.is_set()):  # Q5: who stands at the safe point is stopped there
                request.pass_on()

    async def _before(self, request: Held) -> bool:
        """Take a safe point where the request carries a result, or an answer to the model's words, for the first time,
        or where nobody can tell and a call is over. Whether one was taken.
        """
        brought, first = carrying(request), not self._asks
        self._asks = self._asks or decides(request)
        fresh = [each for each in brought.results or () if each.call not in self._seen]
        calls = {each.call for each in fresh}
        within = (self._launch.nested or self.waits) and bool(self._open.keys() - calls)
        known = self._launch.results is not None
        begun = known or self._decides or self._index > 0  # else they may be of an earlier attempt
        ends = bool(fresh) and begun and not within
        answered = self._talk.grown(brought.replied) and not within
        idle = self._decides and not self._launch.settles and answered
        unread = brought.results is None and self._heard > 0
        if ends or idle or unread:
            agrees = await self._caught_up(fresh)
            await self._go_on(request, conversation=agrees and not unread)
        elif brought.acts and not within and not self.final.is_set():
            if answered and self._launch.settles:
                await self._until(lambda: not self._decides)  # its end is told elsewhere, which may come after this
            async with self._completing:  # the last one's end may have been told, and somebody have answered that
                self.iterations.demand_one()
            if answered and self._launch.settles and not first:
                self._host.went_on()
                self.iterations.demand_straight()
        self._seen |= calls
        if not within:
            self._talk.heard(brought.replied)
        self._decides = self._decides or brought.acts
        return ends or idle or unread

    async def _complete(self, *, more: bool, held: Held | None = None, conversation: bool = True) -> None:
        """One at a time: an agent may give up on what it asks, and tell its end meanwhile."""
        async with self._completing:
            usage, self._usage, self._decides = self._usage, {}, False
            self._news.set()
            await self.iterations.complete(usage, more=more, held=held, conversation=conversation)
            self._index = self._heard = 0

    async def _caught_up(self, results: Sequence[Carried]) -> bool:
        """Wait, for as long as it may lag, until it has told what it did, and kept what it asks: whether it has kept
        it. It waits for us meanwhile, and tells and keeps by threads of its own.
        """
        due, calls = self._launch.dialect.telling(results), {each.call for each in results}
        await self._until(lambda: self._heard >= due)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAG_S):
                look = LOOK_S
                while self._launch.results and not calls <= await asyncio.to_thread(self._results):
                    await asyncio.sleep(look)
                    look = min(2 * look, LOOK_MOST_S)
                return True
        return False

    async def _until(self, told: Callable[[], bool]) -> None:
        """Wait, for as long as it may lag, until it has told what its request shows that it knows."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAG_S):
                while not told():
                    self._news.clear()
                    await self._news.wait()

    def _results(self) -> frozenset[str]:
        return self._launch.results() if self._launch.results else frozenset()

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
    return event if isinstance(event, dict) else None


def in_words(message: str) -> str:
    """A provider's error, which programs like to repeat as JSON, by its message."""
    before, brace, rest = message.partition("{")
    try:
        said = mapping(mapping(read(f"{brace}{rest}".encode())).get("error")).get("message")
    except ValueError:
        return message
    return f"{before}{said}" if isinstance(said, str) else message
