"""T6: tool calls of somebody else's program that wait for a person, beside all else that it says and hears."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moorage.drivers.facts import Permission, Say
from moorage.drivers.port import Host, Parked
from moorage.drivers.telling import MAX_ARGUMENTS, REFUSED, Place, ToolResult, brief, question_of

Ask = asyncio.Task[str | None]

UNKNOWN = f"{REFUSED}: too many are under way at once. It did not run; make it again when some are over."
MAX_ASKS = 8  # about one call; an agent asks once, some once more with others
MANY = f"{REFUSED}: it was asked about too often, each time as another. Make it as a call of its own."
MAX_ANSWERS = 256  # that a program waits for at once
MAX_REFUSALS = 32  # that are kept for it
LONG = REFUSED + ": its arguments have {size} bytes, {most} is the most that is kept. Do it in parts."


class Unasked(Exception):
    """A call has run that a person had to allow first. `asked`: it did ask, and ran before a yes, or after a no."""

    def __init__(self, tool: str, *, asked: bool) -> None:
        how = "though nobody had allowed it" if asked else "without asking for it"
        why = f"the agent has run {tool} {how}, and spec.approvals wants a person's word first"
        what = "wait for the answer to what it asks" if asked else "ask before its calls"
        super().__init__(f"{why}: have it {what}, or take that approval out")


@dataclass
class _Call:
    """What is asked about one call, by tool and arguments: most agents ask once, some again with others. `last` is the
    question that was put last, None where that was refused unseen.
    """

    asks: dict[tuple[str, str], Ask] = field(default_factory=dict)
    last: Ask | None = None
    parked: bool = False

    def question(self, place: Place, tool: str) -> str:
        """Where it stands, for a question about that tool: one that is another tool by now stands in another place."""
        tools = [place.tool, *(known for known, _ in self.asks if known != place.tool), tool]
        number = list(dict.fromkeys(tools)).index(tool)
        return f"{place.call_id}.{number}" if number else place.call_id

    @property
    def allowed(self) -> bool:
        """Whether it may run as it was asked about last."""
        ask = self.last
        return ask is not None and ask.done() and not ask.cancelled() and not ask.exception() and ask.result() is None


class Asking:
    """The calls of one program, by its own names for them. `running` names those that are under way.

    A verdict is asked for by tasks of their own, so that whoever reads the program's output doesn't wait for a person.
    What breaks one of them is raised by `attend`, and so is Parked, as soon as no call is left that doesn't wait.
    """

    def __init__(self, host: Host, running: Callable[[], set[str]]) -> None:
        self._host, self._running = host, running
        self._calls: dict[str, _Call] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._closed = False
        self.refusals: list[str] = []  # that the program couldn't be told as its answer

    async def answer(self, place: Place | None, asked: Permission, say: Say) -> None:
        """Let the program hear what a person says of the call at that place, once that is known. None has no place
        where nobody has written down what is to run: it may not. Where nobody is asked, and where it asks for too much,
        it is answered here, so that one that doesn't read what it is told is itself not read on.
        """
        if not self._host.asks_before(asked.tool):
            await say(asked.yes)
        elif place is None or len(self._answers) >= MAX_ANSWERS:
            await self._say(asked, UNKNOWN, say)
        elif not self._closed:
            ask = self._ask(place, asked.call, asked.tool, asked.arguments)  # before anything else is heard of the call
            await self._say(asked, MANY, say) if ask is None else self._begin(self._answered(ask, asked, say))

    async def verdict(self, place: Place, call: str, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """None where the call may run, else why it may not. Of one call with the same tool and arguments a person is
        asked once.
        """
        if self._closed:
            raise asyncio.CancelledError
        ask = self._ask(place, call, tool, arguments)
        return MANY if ask is None else await asyncio.shield(ask)

    def over(self, call: str, tools: Iterable[str], result: ToolResult) -> None:
        """That call has ended, or the program has given up on it; `tools` is what it was told to be. Raise Unasked
        where it has run, and nobody has allowed it.
        """
        known = self._calls.pop(call, None) or _Call()
        allowed = known.allowed
        for each in known.asks.values():
            each.cancel()
        self._news.set()
        held = next((tool for tool in tools if self._host.asks_before(tool)), None)
        if held is not None and not allowed and (result.ok or result.exit_code is not None):
            raise Unasked(held, asked=bool(known.asks))

    def holds(self, calls: Iterable[str]) -> bool:
        """Whether one of these waits for a person."""
        return any(not ask.done() for name in calls if name in self._calls for ask in self._calls[name].asks.values())

    @property
    def waits(self) -> bool:
        """Whether a person is waited for."""
        return self.holds(self._calls)

    def take_refusals(self) -> list[str]:
        """What the program has still to hear."""
        told, self.refusals = self.refusals, []
        return told

    async def attend(self) -> None:
        """Raise what breaks a question, and Parked. Never returns."""
        while True:
            await self._news.wait()
            self._news.clear()
            for call in self._calls.values():
                for each in call.asks.values():
                    if each.done() and not each.cancelled():
                        each.result()
            waiting = {name for name, call in self._calls.items() if call.parked}
            if waiting and self._running() <= waiting:
                raise Parked

    async def close(self) -> None:
        """Ask nobody any more, whatever is still heard of the program."""
        self._closed = True
        asks = [each for call in self._calls.values() for each in call.asks.values()]
        for task in (*asks, *self._answers):
            task.cancel()
        await asyncio.gather(*asks, *self._answers, return_exceptions=True)

    def _ask(self, place: Place, call: str, tool: str, arguments: Mapping[str, Any]) -> Ask | None:
        """The question; None where there are too many."""
        known = self._calls.setdefault(call, _Call())
        key = tool, question_of(place.call_id, arguments)
        if key not in known.asks and len(known.asks) < MAX_ASKS:
            asking = self._asked(known, known.question(place, tool), tool, arguments)
            known.asks[key] = asyncio.create_task(asking)
            known.asks[key].add_done_callback(lambda _: self._news.set())
        known.last = known.asks.get(key)
        return known.last

    async def _asked(self, known: _Call, call_id: str, tool: str, arguments: Mapping[str, Any]) -> str | None:
        if self._host.asks_before(tool) and (size := len(json.dumps(arguments))) > MAX_ARGUMENTS:
            return LONG.format(size=size, most=MAX_ARGUMENTS)
        try:
            return await self._host.consent(call_id, tool, arguments)
        except Parked:
            known.parked = True
            self._news.set()
            await asyncio.Event().wait()  # the program is stopped where it waits
            raise

    async def _answered(self, ask: Ask, asked: Permission, say: Say) -> None:
        await self._say(asked, await asyncio.shield(ask), say)

    async def _say(self, asked: Permission, refused: str | None, say: Say) -> None:
        if self._host.stopping.is_set():
            return  # nothing new begins
        if refused is not None and asked.mute and len(self.refusals) < MAX_REFUSALS:
            self.refusals.append(f"{asked.tool} {brief(asked.arguments)}: {refused}")
        await say(asked.yes if refused is None else asked.no(refused))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._answers.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        """One that failed is kept until the end: what broke it is raised by `attend`."""
        if task.cancelled() or task.exception() is None:
            self._answers.discard(task)
