"""T6: tool calls of somebody else's program that wait for a person, beside all else that it says and hears."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from moorage.drivers.facts import Permission, Say
from moorage.drivers.port import Host, Parked
from moorage.drivers.telling import MAX_ARGUMENTS, Place, ToolResult, brief, question_of

UNKNOWN = "This call was refused: too many are under way at once. It did not run; make it again when some are over."
LONG = "This call was refused: its arguments have {size} bytes, {most} is the most that is kept. Do it in parts."


class Unasked(Exception):
    """A call has run that a person had to allow first."""

    def __init__(self, tool: str) -> None:
        why = f"the agent has run {tool} without asking for it, and spec.approvals wants a person's word first"
        super().__init__(f"{why}: have it ask before its calls, or take that approval out")


@dataclass
class _Call:
    """What is asked about one call, by its arguments: most agents ask once, some again with others."""

    asks: dict[str, asyncio.Task[str | None]] = field(default_factory=dict)
    parked: bool = False


class Asking:
    """The calls of one program, by its own names for them. `running` names those that are under way.

    A verdict is asked for by tasks of their own, so that whoever reads the program's output never waits. What breaks
    one of them is raised by `attend`, and so is Parked, as soon as no call is left that doesn't wait.
    """

    def __init__(self, host: Host, running: Callable[[], set[str]]) -> None:
        self._host, self._running = host, running
        self._calls: dict[str, _Call] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self.refusals: list[str] = []  # that the program couldn't be told as its answer

    def answer(self, place: Place | None, asked: Permission, say: Say) -> None:
        """Let the program hear what a person says of the call at that place, once that is known. None has no place
        where nobody has written down what is to run: it may not.
        """
        self._begin(self._say(asked, UNKNOWN, say) if place is None else self._answered(place, asked, say))

    async def verdict(self, place: Place, call: str, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """None where the call may run, else why it may not. Of one call with the same arguments a person is asked
        once.
        """
        known, key = self._calls.setdefault(call, _Call()), question_of(place.call_id, arguments)
        if key not in known.asks:
            known.asks[key] = asyncio.create_task(self._asked(known, place.call_id, tool, arguments))
            known.asks[key].add_done_callback(lambda _: self._news.set())
        return await asyncio.shield(known.asks[key])

    def over(self, call: str, tool: str, result: ToolResult) -> None:
        """That call has ended, or the program has given up on it. Raise Unasked where it has run unseen."""
        known = self._calls.pop(call, None)
        ran = result.ok or result.exit_code is not None
        if known is None and ran and self._host.asks_before(tool):
            raise Unasked(tool)
        for each in known.asks.values() if known is not None else ():
            each.cancel()
        self._news.set()

    @property
    def waits(self) -> bool:
        """Whether a person is waited for."""
        return any(not each.done() for call in self._calls.values() for each in call.asks.values())

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
        """Ask nobody any more."""
        asks = [each for call in self._calls.values() for each in call.asks.values()]
        for task in (*asks, *self._answers):
            task.cancel()
        await asyncio.gather(*asks, *self._answers, return_exceptions=True)

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

    async def _answered(self, place: Place, asked: Permission, say: Say) -> None:
        await self._say(asked, await self.verdict(place, asked.call, asked.tool, asked.arguments), say)

    async def _say(self, asked: Permission, refused: str | None, say: Say) -> None:
        if self._host.stopping.is_set():
            return  # nothing new begins
        if refused is not None and asked.mute:
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
