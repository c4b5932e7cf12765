"""What the page about streams says of limits and events is so."""

import re
from pathlib import Path
from typing import get_args

from moorage.api.streaming import Gap, StreamEnd, StreamKind
from moorage.cli.following import PATIENCE_S, SILENCE_S, TOLD_AFTER_S
from moorage.gateway.settings import GatewaySettings
from moorage.runner.output import CHUNK_BYTES, FLUSH_S, KEPT_BYTES, SLOWEST_FLUSH_S

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "streams.md").read_text()
LIMITS = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", PAGE, re.MULTILINE))


def limit(words: str) -> str:
    return next(value for name, value in LIMITS.items() if words in name)


def test_limits_are_the_true_ones() -> None:
    true = GatewaySettings()
    assert limit("latest events") == f"{true.stream_ring_bytes >> 20} MiB"
    assert limit("on its way").startswith(f"{max(true.stream_page_bytes, true.stream_chunk_bytes) >> 10} KiB")
    assert limit("take nothing") == f"{true.stream_patience_ms // 1000} s"
    assert limit("read at one moment") == str(true.stream_catch_ups)
    assert (true.keep_alive_ms, true.stream_recheck_ms) == (10_000, 60_000)
    assert (PATIENCE_S, TOLD_AFTER_S) == (600, 2)
    assert f"hears nothing for {SILENCE_S:.0f} s" in PAGE
    assert true.keep_alive_ms * 2 < SILENCE_S * 1000, "two signs of life may be late"
    for told in ("each minute", "ten minutes", "after two seconds", "every ten seconds"):
        assert told in PAGE
    assert f"at most {CHUNK_BYTES >> 10} KiB" in PAGE
    assert f"up to {KEPT_BYTES >> 20} MiB for an attempt" in PAGE
    assert (FLUSH_S, SLOWEST_FLUSH_S) == (0.5, 5.0)


def test_events_and_their_fields_are_named() -> None:
    assert {kind for kind in StreamKind if f"`{kind}`" not in PAGE} == set()
    reasons = get_args(Gap.model_fields["reason"].annotation)
    assert {reason for reason in reasons if f"`{reason}`" not in PAGE} == set()
    assert {name for name in Gap.model_fields if f"`{name}`" not in PAGE} == set()
    assert {name for name in StreamEnd.model_fields if f'"{name}"' not in PAGE} == set()
