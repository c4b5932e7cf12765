"""Raw usage of three protocols, its vector, and what it costs: a table computed by hand."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from moorage.api.modelprovider import ProvidedModel
from moorage.api.wire import ResolvedPrices
from moorage.core.models.chat import CHAT
from moorage.core.models.prices import LONGEST_OUTPUT, MOST_OUTPUT, OVERHEAD, Reserve, cost_micros, worst
from moorage.core.models.usage import anthropic, openai_chat, openai_responses, total

# $3 and $15 a million in and out; cached reads at a tenth, writes at 1.25 and (for an hour) 2 of the input.
SONNET = ResolvedPrices(
    input=3_000_000, output=15_000_000, cache_read=300_000, cache_write=3_750_000, cache_write_1h=6_000_000
)
# $1.25 and $10; cached input at a tenth; writes cost what input does.
CODEX = ResolvedPrices(
    input=1_250_000, output=10_000_000, cache_read=125_000, cache_write=1_250_000, cache_write_1h=1_250_000
)

# Each line computed by hand from what the provider says of its fields. The vector: uncached input, output, read from a
# cache, written to one, of those for an hour, reasoning; all tokens; micro-dollars.
TABLE = {
    # 1000*3 + 500*15
    "messages, no cache": (
        anthropic, SONNET, {"input_tokens": 1_000, "output_tokens": 500}, (1_000, 500, 0, 0, 0, 0), 1_500, 10_500,
    ),
    # 11*3 + 25*15 + 500*0.3 + 40*3.75 = 33 + 375 + 150 + 150
    "messages, cached tokens beside the input": (
        anthropic,
        SONNET,
        {"input_tokens": 11, "output_tokens": 25, "cache_read_input_tokens": 500, "cache_creation_input_tokens": 40},
        (11, 25, 500, 40, 0, 0),
        576,
        708,
    ),
    # 7*3 + 1*15 + 100*3.75 + 200*6 = 21 + 15 + 375 + 1200
    "messages, a part of the cache for an hour": (
        anthropic,
        SONNET,
        {
            "input_tokens": 7,
            "output_tokens": 1,
            "cache_creation_input_tokens": 300,
            "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200},
        },
        (7, 1, 0, 300, 200, 0),
        308,
        1_611,
    ),
    # 1*0.3 = 0.3, rounded up
    "messages, less than a micro-dollar": (
        anthropic, SONNET, {"cache_read_input_tokens": 1}, (0, 0, 1, 0, 0, 0), 1, 1,
    ),
    # 117-100 = 17; 17*1.25 + 100*0.125 + 7*10 = 21.25 + 12.5 + 70 = 103.75
    "responses, cached tokens within the input": (
        openai_responses,
        CODEX,
        {
            "input_tokens": 117,
            "input_tokens_details": {"cached_tokens": 100},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 124,
        },
        (17, 7, 100, 0, 0, 0),
        124,
        104,
    ),
    # 2006-1920 = 86; 86*1.25 + 1920*0.125 + 300*10 = 107.5 + 240 + 3000 = 3347.5; reasoning is within the 300
    "responses, reasoning within the output": (
        openai_responses,
        CODEX,
        {
            "input_tokens": 2_006,
            "input_tokens_details": {"cached_tokens": 1_920},
            "output_tokens": 300,
            "output_tokens_details": {"reasoning_tokens": 256},
        },
        (86, 300, 1_920, 0, 0, 256),
        2_306,
        3_348,
    ),
    # the same by the names of Chat Completions
    "chat, cached and reasoning": (
        openai_chat,
        CODEX,
        {
            "prompt_tokens": 2_006,
            "prompt_tokens_details": {"cached_tokens": 1_920, "audio_tokens": 0},
            "completion_tokens": 300,
            "completion_tokens_details": {"reasoning_tokens": 256, "accepted_prediction_tokens": 0},
            "total_tokens": 2_306,
        },
        (86, 300, 1_920, 0, 0, 256),
        2_306,
        3_348,
    ),
    # 2006-1920-80 = 6; 6*3 + 1920*0.3 + 80*3.75 + 300*15 = 18 + 576 + 300 + 4500, as those tell it that pass on others
    "chat, a cache that is written to": (
        openai_chat,
        SONNET,
        {
            "prompt_tokens": 2_006,
            "prompt_tokens_details": {"cached_tokens": 1_920, "cache_write_tokens": 80},
            "completion_tokens": 300,
            "completion_tokens_details": {"reasoning_tokens": 256},
        },
        (6, 300, 1_920, 80, 0, 256),
        2_306,
        5_394,
    ),
    # all 10 are written; 10*3.75 = 37.5
    "responses, more written than asked": (
        openai_responses,
        SONNET,
        {"input_tokens": 10, "input_tokens_details": {"cache_write_tokens": 99}, "output_tokens": 0},
        (0, 0, 0, 10, 0, 0),
        10,
        38,
    ),
    # 8*1.25 + 2*10 = 30
    "chat, without details": (
        openai_chat, CODEX, {"prompt_tokens": 8, "completion_tokens": 2}, (8, 2, 0, 0, 0, 0), 10, 30,
    ),
    # a part is never more than its whole: all 5 are cached, 5*0.125 = 0.625; all 3 are reasoning, 3*10 = 30
    "chat, parts above their whole": (
        openai_chat,
        CODEX,
        {
            "prompt_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 9},
            "completion_tokens": 3,
            "completion_tokens_details": {"reasoning_tokens": 4},
        },
        (0, 3, 5, 0, 0, 3),
        8,
        31,
    ),
    "what is no count": (
        anthropic,
        SONNET,
        {"input_tokens": -10, "output_tokens": True, "cache_read_input_tokens": None, "cache_creation": 3},
        (0, 0, 0, 0, 0, 0),
        0,
        0,
    ),
    "details that are none": (
        openai_responses,
        CODEX,
        {"input_tokens": 4, "input_tokens_details": None, "output_tokens": "7"},
        (4, 0, 0, 0, 0, 0),
        4,
        5,
    ),
    "no usage": (openai_chat, CODEX, None, (0, 0, 0, 0, 0, 0), 0, 0),
}  # fmt: skip
NAMES = (
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "reasoning_tokens",
)


@pytest.mark.rule("B1")
@pytest.mark.parametrize("case", TABLE)
def test_usage_and_cost_are_as_computed_by_hand(case: str) -> None:
    shape, prices, told, counted, tokens, micros = TABLE[case]
    vector = shape(told)
    assert tuple(vector.get(name, 0) for name in NAMES) == counted
    assert vector.keys() <= set(NAMES)
    assert (total(vector), cost_micros(vector, prices)) == (tokens, micros)


@pytest.mark.rule("B1")
def test_a_chat_that_tells_its_usage_in_each_chunk_is_counted_by_its_last_word() -> None:
    """Of 1000 tokens, 900 were cached, which only the last usage says: 100*1.25 + 900*0.125 + 20*10 = 437.5."""
    early = {"prompt_tokens": 1_000, "completion_tokens": 1}
    final = {"prompt_tokens": 1_000, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 900}}
    chunks = [{"choices": [], "usage": told} for told in (early, early | {"completion_tokens": 9}, final, None, {})]
    reader = CHAT.reader()
    reader.feed(b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks) + b"data: [DONE]\n\n")
    vector, estimated = reader.reading.settled()
    assert (vector, estimated) == ({"input_tokens": 100, "cache_read_tokens": 900, "output_tokens": 20}, False)
    assert (total(vector), cost_micros(vector, CODEX)) == (1_020, 438)


COUNT = st.integers(min_value=0, max_value=10**9)
PRICE = st.integers(min_value=0, max_value=10**9)
PRICES = st.builds(ResolvedPrices, input=PRICE, output=PRICE, cache_read=PRICE, cache_write=PRICE, cache_write_1h=PRICE)


@given(COUNT, COUNT, COUNT, COUNT, COUNT)
def test_openais_shapes_lose_and_double_nothing(asked: int, cached: int, written: int, said: int, thought: int) -> None:
    vector = openai_responses(
        {
            "input_tokens": asked,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
            "output_tokens": said,
            "output_tokens_details": {"reasoning_tokens": thought},
        }
    )
    assert total(vector) == asked + said


@given(st.lists(st.tuples(COUNT, COUNT, COUNT)), PRICES)
def test_each_answer_is_charged_at_less_than_a_micro_dollar_too_much(
    calls: list[tuple[int, ...]], prices: ResolvedPrices
) -> None:
    vectors = [{"input_tokens": a, "cache_read_tokens": b, "output_tokens": c} for a, b, c in calls]
    exact = sum(a * prices.input + b * prices.cache_read + c * prices.output for a, b, c in calls)
    charged = sum(cost_micros(vector, prices) for vector in vectors)
    assert exact <= charged * 10**6 < exact + max(1, len(calls)) * 10**6


@pytest.mark.rule("B2")
@given(st.text(max_size=200), st.integers(min_value=0, max_value=MOST_OUTPUT), st.data(), PRICES)
def test_no_answer_within_its_cap_costs_more_than_its_reserve(
    text: str, cap: int, data: st.DataObject, prices: ResolvedPrices
) -> None:
    size = len(json.dumps({"input": text}).encode())
    read, written, fresh = (data.draw(st.integers(min_value=0, max_value=size // 3)) for _ in range(3))
    lasting = data.draw(st.integers(min_value=0, max_value=written))
    vector = {
        "input_tokens": fresh,
        "cache_read_tokens": read,
        "cache_write_tokens": written,
        "cache_write_1h_tokens": lasting,
        "output_tokens": data.draw(st.integers(min_value=0, max_value=cap)),
    }
    reserved = worst(size, cap, prices)
    assert total(vector) <= reserved.tokens
    assert cost_micros(vector, prices) <= reserved.cost_micros


def test_a_reserve_without_a_cap_or_prices() -> None:
    assert worst(10, None, None) == Reserve(10 + OVERHEAD, LONGEST_OUTPUT, 0)
    assert worst(10, 5, SONNET) == Reserve(2_058, 5, 12_423)  # 2058*6 + 5*15


def test_what_nobody_tells_is_charged_as_reserved() -> None:
    assert worst(10, 5, SONNET).charged == {"input_tokens": 2_058, "output_tokens": 5, "cost_micros": 12_423}
    assert worst(10, 5, None).charged == {"input_tokens": 2_058, "output_tokens": 5}


@pytest.mark.parametrize("cap", [MOST_OUTPUT + 1, 2**53, 2**63, 10**30])
def test_no_request_reserves_more_than_an_answer_can_have(cap: int) -> None:
    assert worst(10, cap, SONNET) == worst(10, MOST_OUTPUT, SONNET)


def test_the_longest_answer_is_as_long_as_a_provider_can_say() -> None:
    assert ProvidedModel(name="m", max_output_tokens=MOST_OUTPUT).max_output_tokens == MOST_OUTPUT
    with pytest.raises(ValidationError):
        ProvidedModel(name="m", max_output_tokens=MOST_OUTPUT + 1)
