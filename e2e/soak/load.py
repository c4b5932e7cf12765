"""Everyday load on one gateway: a model that drips, readers that follow a log, agents that ask and ask.

Each part knows what has to come and says what came otherwise. All of it lasts as long as the drip does.
"""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from e2e.cluster.errors import HarnessError
from e2e.soak.judge import Consecutive, Load
from e2e.soak.world import OPERATOR, World
from moorage.api.sse import LAST_EVENT_ID, Parser

DRIPPING, TALKING = "dripping", "talking"
PATIENCE_S = 120.0
"""How long readers may take to the end of a log that has ended."""

CHUNKS = 20
WORDS = "I look at the file, I change what fails, and I run its tests again. " * 14


@dataclass(frozen=True)
class Amount:
    """How much there is of each. Rates are per second, `stays_s` is how long a reader stays before it comes anew."""

    seconds: int
    readers: int = 100
    lines: float = 5.0
    agents: int = 8
    requests: float = 10.0
    requests_a_run: int = 25
    stays_s: tuple[float, float] = (5.0, 60.0)


class Soak:
    """One soak. `load` says at any time what has come so far."""

    def __init__(self, world: World, amount: Amount, load: Load, chance: random.Random) -> None:
        self._world, self._amount, self.load, self._chance = world, amount, load, chance
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Until the drip has ended and every reader has heard the end. Raises HarnessError where nothing goes on."""
        self.load.readers = self._amount.readers
        talker = await self._world.begin(TALKING)
        agents = [self._agent(number) for number in range(self._amount.agents)]
        readers = [asyncio.create_task(self._follow(number)) for number in range(self._amount.readers)]
        idle = asyncio.create_task(self._take_nothing())
        try:
            async with asyncio.TaskGroup() as group:
                for part in (self._talk(talker), *agents):
                    group.create_task(part)
                await self._drip()
                self._over.set()
            await self._world.end(TALKING, release=False)
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*readers)
        finally:
            for task in (idle, *readers):
                task.cancel()
            await asyncio.gather(idle, *readers, return_exceptions=True)
        self.load.counted = await self._world.requests()

    async def _pause(self, seconds: float) -> None:
        """As long, or until all is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return

    # --- models -------------------------------------------------------------------------------------------------------

    async def _drip(self) -> None:
        runner = await self._world.begin(DRIPPING)
        chunks = Consecutive("the drip: chunk", self.load)
        async for number in self._said(runner, "drip", chunks=self._amount.seconds, per_second=1):
            chunks.take(number)
            self.load.chunks += 1
        chunks.end(self._amount.seconds)
        self.load.requests += 1
        self.load.runs += 1

    async def _said(self, runner: dict[str, str], mark: str, **pace: Any) -> AsyncIterator[int]:
        """Numbers of the chunks of an answer, as they come."""
        async with self._world.ask(runner, body(mark, stream=True, metadata={"phase": 0.0, **pace})) as answer:
            if answer.status != 200:
                raise HarnessError(f"a model request: {answer.status}: {await answer.text()}")
            async for line in answer.content:
                if line.startswith(b"data:") and b"text_delta" in line:
                    yield int(json.loads(line[5:])["delta"]["text"].split()[0])

    async def _agent(self, number: int) -> None:
        """One run after the other, each asking so often."""
        every_s = self._amount.agents / self._amount.requests
        for count in itertools.count():
            uid = f"agent-{number}-{count}"
            runner = await self._world.begin(uid)
            for step in range(self._amount.requests_a_run):
                await self._asked(runner, f"{uid} {step}", stream=step % 2 == 0)
                await self._pause(every_s * self._chance.uniform(0.5, 1.5))
                if self._over.is_set():
                    break
            await self._world.end(uid)
            self.load.runs += 1
            if self._over.is_set():
                return

    async def _asked(self, runner: dict[str, str], mark: str, *, stream: bool) -> None:
        if stream:
            chunks = Consecutive(f"{mark}: chunk", self.load)
            async for number in self._said(runner, mark, chunks=CHUNKS, per_second=100):
                chunks.take(number)
            chunks.end(CHUNKS)
        else:
            answer = await self._world.told(self._world.ask(runner, body(mark)))
            if answer["stop_reason"] != "end_turn":
                self.load.fail(f"{mark}: the answer is another one")
        self.load.requests += 1

    # --- logs ---------------------------------------------------------------------------------------------------------

    async def _talk(self, runner: dict[str, str]) -> None:
        """Numbered lines."""
        while not self._over.is_set():
            number = self.load.lines
            said = {"stream": "stdout", "text": f"{number} {WORDS}\n"}
            record = {"record_id": f"o:{number}", "type": "AGENT_OUTPUT", "payload": said, "recorded_at": 1}
            await self._world.report(runner, record)
            self.load.lines += 1
            await self._pause(1 / self._amount.lines)

    async def _follow(self, reader: int) -> None:
        """A reader that goes now and then and comes back with its cursor: each line comes once, up to the end."""
        lines, headers, ended = Consecutive(f"reader {reader}: line", self.load), dict(OPERATOR), False
        while not ended:
            stays = asyncio.get_running_loop().time() + self._chance.uniform(*self._amount.stays_s)
            async for kind, cursor, data in self._events(headers):
                headers[LAST_EVENT_ID] = cursor or headers.get(LAST_EVENT_ID, "-1")
                if kind == "output":
                    for line in json.loads(data)["text"].splitlines():
                        lines.take(int(line.split(maxsplit=1)[0]))
                elif kind == "gap":
                    self.load.fail(f"reader {reader}: a gap: {data.decode()}")
                ended = ended or kind == "end"
                if ended or asyncio.get_running_loop().time() > stays:
                    break
            self.load.returns += not ended
        lines.end(self.load.lines)

    async def _events(self, headers: dict[str, str]) -> AsyncIterator[tuple[str, str | None, bytes]]:
        """Kind, cursor and data of the talking run's events."""
        url, parser = f"{self._world.url}/v1/runs/{TALKING}/logs/stream", Parser()
        async with self._world.http.get(url, headers=headers) as answer:
            if answer.status != 200:
                raise HarnessError(f"a reader: {answer.status}: {await answer.text()}")
            async for chunk in answer.content.iter_any():
                for event in parser.feed(chunk):
                    yield event.kind, None if event.id is None else str(event.id), event.data

    async def _take_nothing(self) -> None:
        """A reader that asks and takes nothing, again each time that it is cut off."""
        host, port = self._world.url.removeprefix("http://").split(":")
        head = f"GET /v1/runs/{TALKING}/logs/stream HTTP/1.1\r\nhost: soak\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in OPERATOR.items())
        while not self._over.is_set():
            reader, writer = await asyncio.open_connection(host, int(port), limit=1)
            try:
                writer.write(f"{head}\r\n".encode())
                while not (self._over.is_set() or reader.at_eof()):  # its transport is paused by what it holds
                    await self._pause(1.0)
            finally:
                writer.transport.abort()


def body(mark: str, **more: Any) -> dict[str, Any]:
    """A request that no other one is like."""
    return {"model": "m", "max_tokens": 1_000, "messages": [{"role": "user", "content": f"{mark} {WORDS}"}], **more}


def session() -> aiohttp.ClientSession:
    """As many connections as are asked for, for as long as they last."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, sock_connect=30)
    )
