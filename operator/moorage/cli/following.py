"""Following a stream of the gateway's over whatever breaks on the way: each event once, in order, to its end.

The cursor of the last event that was dealt with is all that a follower knows. When its connection breaks, or is silent
for longer than a living gateway ever is, it comes back with that cursor, perhaps to another gateway.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

import httpx

from moorage.api.sse import LAST_EVENT_ID, BadStream, Event, Parser
from moorage.api.streaming import StreamKind
from moorage.cli.exits import CliError, NotFound, Unreachable

SILENCE_S = 45.0  # a gateway says every ten seconds that it lives: the connection is dead, though nobody said so
TIMEOUTS = httpx.Timeout(30.0, read=SILENCE_S)
PATIENCE_S = 600.0  # with one outage: a gateway that is rolled out anew is back within two minutes
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
TOLD_AFTER_S = 2.0  # what is over sooner is nobody's business
LOOK_S = 1.0  # between two looks at a run that isn't admitted yet


@dataclass
class Outage:
    """Since when nothing came (None: there is none), and how long the next pause is."""

    since: float | None = None
    pause: float = FIRST_PAUSE_S
    told: bool = False

    def begin(self) -> None:
        """It may have begun before."""
        self.since = self.since or time.monotonic()

    def lasts(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self.since if self.since is not None else 0.0

    async def wait(self) -> None:
        """With jitter, and longer each time: a gateway that comes back is not to be met by all its readers at once."""
        await asyncio.sleep(self.pause * (0.5 + random.random() / 2))  # noqa: S311  jitter, not a secret
        self.pause = min(self.pause * 2, LONGEST_PAUSE_S)


@dataclass
class Following:
    """One stream. `cursor` is that of the last event that was dealt with, None before the first.

    `refused` makes an error of a refusal, `lost` says why a connection broke, `note` is told of outages. `expected`
    says what a run waits for that no gateway knows yet; nothing where none ever will.
    """

    client: httpx.AsyncClient
    path: str
    query: Mapping[str, str]
    refused: Callable[[httpx.Response], CliError]
    lost: Callable[[httpx.TransportError], Unreachable]
    note: Callable[[str], None]
    expected: Callable[[], Awaitable[str]] | None = None
    cursor: int | None = None
    connected: bool = False  # ever: before that, whoever asked is told at once
    waits: str = ""

    async def events(self) -> AsyncGenerator[Event, None]:
        """Until the last event. Raises CliError."""
        outage = Outage()
        while True:
            try:
                async with aclosing(self._connection()) as events:
                    async for event in events:
                        outage = self._over(outage)
                        yield event
                        self.cursor = self.cursor if event.id is None else event.id
                        if self._last(event):
                            return
                why = Unreachable("the gateway ended the stream")
            except NotFound as error:
                await self._expect(error)
                continue
            except Unreachable as error:
                why = error
            outage.begin()
            if not self.connected or outage.lasts() > PATIENCE_S:
                raise why
            self._tell(outage, why)
            await outage.wait()

    async def _expect(self, error: NotFound) -> None:
        """Wait a while for a run that isn't admitted yet. Raises the error where it need not be waited for."""
        waits = await self.expected() if self.expected is not None and self.goes_on else ""
        if not waits:
            raise error
        if waits != self.waits:
            self.note(waits)
        self.waits = waits
        await asyncio.sleep(LOOK_S)

    @property
    def goes_on(self) -> bool:
        """Whether it is about what comes, too, and not only about what there is."""
        return self.query.get("follow") != "false"

    def _last(self, event: Event) -> bool:
        return event.kind == StreamKind.END or (event.kind == StreamKind.READY and not self.goes_on)

    def _over(self, outage: Outage) -> Outage:
        if outage.told:
            self.note("the gateway is back")
        return Outage() if outage.since is not None else outage

    def _tell(self, outage: Outage, why: Unreachable) -> None:
        if not outage.told and outage.lasts() > TOLD_AFTER_S:
            outage.told = True
            self.note(f"{why.message}; trying again")

    async def _connection(self) -> AsyncGenerator[Event, None]:
        """What one connection brings. Raises Unreachable where it breaks, CliError where it is refused."""
        headers = {} if self.cursor is None else {LAST_EVENT_ID: str(self.cursor)}
        parser = Parser()
        try:
            async with self.client.stream(
                "GET", self.path, params=self.query, headers=headers, timeout=TIMEOUTS
            ) as answer:
                if answer.is_error:
                    await answer.aread()
                    raise self.refused(answer)
                self.connected = True
                async for chunk in answer.aiter_bytes():
                    for event in parser.feed(chunk):
                        yield event
        except httpx.TransportError as error:
            raise self.lost(error) from None
        except BadStream as error:
            raise Unreachable(f"what answers is no gateway of ours: {error}") from None
