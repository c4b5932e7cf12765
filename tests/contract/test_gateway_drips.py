"""A stream that drips for an hour, on a clock that a test moves: it comes whole, and fills no memory."""

import asyncio
import gc
import json
import random
import tracemalloc
from array import array
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
EVERY, WINDOW = 10, 60  # seconds between two looks at the memory; looks
REFERENCE_BYTES = 8
WORDS = ["look", "at", "the", "file", "then", "change", "what", "fails", "and", "run", "tests", "again", "slowly"]


class Dripping:
    """A provider that says one thing a second for an hour, each once the one before has come to the agent, as `seen`
    counts. `held`: bytes that were held more than at the start, every `EVERY` seconds.
    """

    def __init__(self, clock: StepClock) -> None:
        self._clock, self._chance = clock, random.Random(1)
        self.held = array("q", [0] * (SECONDS // EVERY))  # of one size, so that it doesn't count itself
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
            if second % EVERY == 0:
                self.held[second // EVERY] = held() - start
        yield event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 9_000})
        yield event("message_stop")


def event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def held() -> int:
    gc.collect()  # also what the interpreter keeps of freed objects for new ones
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
            gc.freeze()  # of what is there already nothing is looked at again
            tracemalloc.start()
            try:
                body = ANTHROPIC.ask(stream=True)
                async with client, client.stream("POST", ANTHROPIC.path, json=body) as answer:
                    async for chunk in answer.aiter_bytes():
                        got += len(chunk)
                        provider.seen += chunk.count(b"text_delta")
            finally:
                tracemalloc.stop()
                gc.unfreeze()
            assert provider.seen == SECONDS
            assert got > SECONDS * EVENT_BYTES * 0.8
            assert max(provider.held) < 4 * PIECE, f"{max(provider.held)} of {got} bytes that passed"
            _, begun, *_, ended = (min(provider.held[at : at + WINDOW]) for at in range(0, len(provider.held), WINDOW))
            # what fills up and is emptied again is at its least in each window; the first one has the beginning in it
            assert ended - begun < (SECONDS - 2 * WINDOW * EVERY) * REFERENCE_BYTES, (
                "no reference is kept of each event"
            )
            payload = (await last(operator, "MODEL_RESPONSE")).payload
            assert (payload["complete"], payload["duration_ms"]) == (True, SECONDS * 1_000)
            ref = (await last(operator, "MODEL_RESPONSE")).attachments["content"]
            assert ref.size == got, "and all of it was kept"
