"""B1, B3: what providers say in their own words, at the door, and the bill that was computed from it by hand.

The answers are written out as providers send them, whole and as events: no code of ours has a part in them.
"""

from dataclasses import dataclass
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.model_place import ANTHROPIC, CHAT, PRICES, RESPONSES, Place, Spoken, gateway, place, script

from moorage.api.wire import NamespaceUsage
from moorage.testing.serving import listening

__all__ = ["gateway", "place", "script"]  # fixtures

# Prices in dollars a million: $3 in, $15 out, $0.30 read from a cache, $3.75 written to one, $6 for an hour.
# 2095*3 + 503*15 + 1920*0.3 + 100*3.75 + 200*6 = 6285 + 7545 + 576 + 375 + 1200
WHOLE_MESSAGE = """{"type": "message", "role": "assistant", "content": [], "stop_reason": "end_turn", "usage": {
 "input_tokens": 2095, "cache_creation_input_tokens": 300, "cache_read_input_tokens": 1920,
 "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200},
 "output_tokens": 503, "service_tier": "standard"}}"""
# 11*3 + 25*15 + 500*0.3 + 40*3.75 = 33 + 375 + 150 + 150; what is told twice is not there twice
STREAMED_MESSAGE = """event: message_start
data: {"type": "message_start", "message": {"type": "message", "role": "assistant", "content": [], "usage": {\
"input_tokens": 11, "cache_creation_input_tokens": 40, "cache_read_input_tokens": 500, "output_tokens": 1}}}

event: content_block_delta
data: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}}

event: message_delta
data: {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {\
"input_tokens": 11, "cache_creation_input_tokens": 40, "cache_read_input_tokens": 500, "output_tokens": 25}}

event: message_stop
data: {"type": "message_stop"}

"""
# 2006 are 1920 read from a cache and 86 more: 86*3 + 1920*0.3 + 300*15 = 258 + 576 + 4500; 256 of the 300 are thought
WHOLE_RESPONSE = """{"object": "response", "id": "resp_1", "status": "completed", "output": [], "usage": {
 "input_tokens": 2006, "input_tokens_details": {"cached_tokens": 1920},
 "output_tokens": 300, "output_tokens_details": {"reasoning_tokens": 256}, "total_tokens": 2306}}"""
# 17*3 + 100*0.3 + 7*15 = 51 + 30 + 105
STREAMED_RESPONSE = """event: response.created
data: {"type": "response.created", "response": {"id": "resp_2", "status": "in_progress", "usage": null}}

event: response.output_text.delta
data: {"type": "response.output_text.delta", "delta": "Hello"}

event: response.completed
data: {"type": "response.completed", "response": {"id": "resp_2", "status": "completed", "output": [], "usage": {\
"input_tokens": 117, "input_tokens_details": {"cached_tokens": 100}, "output_tokens": 7, \
"output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 124}}}

"""
# 6*3 + 1920*0.3 + 80*3.75 + 300*15 = 18 + 576 + 300 + 4500
WHOLE_CHAT = """{"object": "chat.completion", "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": \
"assistant", "content": "Hello"}}], "usage": {"prompt_tokens": 2006, "completion_tokens": 300, "total_tokens": 2306,
 "prompt_tokens_details": {"cached_tokens": 1920, "cache_write_tokens": 80, "audio_tokens": 0},
 "completion_tokens_details": {"reasoning_tokens": 256, "accepted_prediction_tokens": 0}}}"""
# 8*3 + 2*15 = 24 + 30
STREAMED_CHAT = """data: {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "Hello"}}]}

data: {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}

data: {"object": "chat.completion.chunk", "choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 2}}

data: [DONE]

"""


@dataclass(frozen=True)
class Bill:
    """One protocol's answers, whole and streamed, and what each comes to: uncached, read, written, of those for an
    hour, out, reasoning; micro-dollars.
    """

    spoken: Spoken
    door: str
    answers: tuple[str, str]
    counted: tuple[tuple[int, ...], tuple[int, ...]]
    micros: tuple[int, int]


NAMES = (
    "input_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "output_tokens",
    "reasoning_tokens",
)
BILLS = [
    Bill(
        ANTHROPIC,
        "/v1/messages",
        (WHOLE_MESSAGE, STREAMED_MESSAGE),
        ((2_095, 1_920, 300, 200, 503, 0), (11, 500, 40, 0, 25, 0)),
        (15_981, 708),
    ),
    Bill(
        RESPONSES,
        "/v1/responses",
        (WHOLE_RESPONSE, STREAMED_RESPONSE),
        ((86, 1_920, 0, 0, 300, 256), (17, 100, 0, 0, 7, 0)),
        (5_334, 186),
    ),
    Bill(
        CHAT,
        "/v1/chat/completions",
        (WHOLE_CHAT, STREAMED_CHAT),
        ((6, 1_920, 80, 0, 300, 256), (8, 0, 0, 0, 2, 0)),
        (5_394, 54),
    ),
]


def provider(bill: Bill) -> Starlette:
    """It answers as asked: whole, or as events."""

    async def answering(request: Request) -> Response:
        streamed = bool((await request.json()).get("stream"))
        kind = "text/event-stream" if streamed else "application/json"
        return Response(bill.answers[streamed], media_type=kind)

    return Starlette(routes=[Route(bill.door, answering, methods=["POST"])])


def vector(usage: dict[str, Any]) -> tuple[int, ...]:
    return tuple(usage.get(name, 0) for name in NAMES)


@pytest.mark.rule("B1", "B3")
@pytest.mark.parametrize("bill", BILLS, ids=lambda bill: bill.spoken.name)
async def test_a_providers_own_words_come_to_the_bill_that_was_computed_by_hand(place: Place, bill: Bill) -> None:
    async with listening(provider(bill)) as url:
        operator = await place.run(bill.spoken, base_url=url, prices=PRICES)
        for streamed in (False, True):
            assert (await place.ask(bill.spoken, stream=streamed)).status_code == 200
    billed = [record.payload for record in await operator.records() if record.type == "MODEL_RESPONSE"]
    assert [vector(each["usage"]) for each in billed] == list(bill.counted)
    assert [(each["usage"]["cost_micros"], each["estimated"]) for each in billed] == [(m, False) for m in bill.micros]
    told = NamespaceUsage.model_validate((await operator.http.get("/v1/namespaces/team-a/usage")).json())
    summed = dict(zip(NAMES, map(sum, zip(*bill.counted, strict=True)), strict=True)) | {
        "cost_micros": sum(bill.micros)
    }
    del summed["cache_write_1h_tokens"]  # part of the written ones: it has had its price by then
    for used in ((await operator.state())["usage"], told.days[0].model_dump()):
        assert {name: used.get(name, 0) for name in summed} == summed
