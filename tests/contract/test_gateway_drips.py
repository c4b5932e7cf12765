"""A stream that drips for an hour, on a clock that a test moves: it comes whole, and fills no memory."""

import asyncio
import gc
import json
import random
import tracemalloc
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest
from tests.gateway_script import PASSWORD
from tests.model_place import ANTHROPIC, Place, last

from moorage.app.inprocess import InProcess
from moorage.gateway.kept import PIECE
from moorage.gateway.providers import Coming, Outgoing
from moorage.store.sqlite import SqliteStore
from moorage.testing.clock import StepClock
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer
from moorage.testing.models import Reply, Script, StandIn

SECONDS, EVENT_BYTES = 3_600, 1_500
WORDS = ["look", "at", "the", "file", "then", "change", "what", "fails", "and", "run", "tests", "again", "slowly"]


class Dripping:
    """A provider that says one thing a second for an hour, each once the one before has come to the agent, as `seen`
    counts. `grown`: bytes that are held more than at the start.
    """

    def __init__(self, clock: StepClock) -> None:
        self._clock, self._chance = clock, random.Random(1)
        self.grown: list[int] = []
        self.seen = 0

    status, headers = 200, ((b"content-type", b"text/event-stream"),)

    async def post(self, _: Outgoing) -> Coming:
        return self

    async def close(self) -> None:
        """There is nothing to let go of."""

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        yield event("message_start", message={"usage": {"input_tokens": 7, "output_tokens": 1}})
        start = held()
        for second in range(SECONDS):
            while self.seen < second:  # noqa: ASYNC110
                await asyncio.sleep(0)
            self._clock.advance(1_000)
            said = " ".join(self._chance.choices(WORDS, k=EVENT_BYTES // 5))
            yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": f"{second} {said}"})
            if second % 600 == 0:
                self.grown.append(held() - start)
        self.grown.append(held() - start)
        yield event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 9_000})
        yield event("message_stop")


def event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def held() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.rule("M4")
async def test_a_stream_that_drips_for_an_hour_comes_whole_and_fills_no_memory(
    tmp_path: Path, upstream: GitServer, clock: StepClock
) -> None:
    provider = Dripping(clock)
    async with SqliteStore(tmp_path / "journal.db") as store, StandIn(Script(replies=(Reply(),))).serving() as model:
        gateway = LocalGateway(tmp_path, store=store, clock=clock, providers=provider, lot=lambda: 0)
        gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
        async with gateway:
            operator = await Place(gateway, upstream, model).run(ANTHROPIC)
            got = 0
            headers = {"authorization": f"Bearer {gateway.token_for_pod('p1', 'team-a')}"}
            client = httpx.AsyncClient(transport=InProcess(gateway.app), base_url="http://gateway", headers=headers)
            tracemalloc.start()
            try:
                body = ANTHROPIC.ask(stream=True)
                async with client, client.stream("POST", ANTHROPIC.path, json=body) as answer:
                    async for chunk in answer.aiter_bytes():
                        got += len(chunk)
                        provider.seen += chunk.count(b"text_delta")
            finally:
                tracemalloc.stop()
            assert provider.seen == SECONDS
            assert got > SECONDS * EVENT_BYTES * 0.8
            assert max(provider.grown) < 4 * PIECE, f"{provider.grown} of {got} bytes that passed"
            payload = (await last(operator, "MODEL_RESPONSE")).payload
            assert (payload["complete"], payload["duration_ms"]) == (True, SECONDS * 1_000)
            ref = (await last(operator, "MODEL_RESPONSE")).attachments["content"]
            assert ref.size == got, "and all of it was kept"
