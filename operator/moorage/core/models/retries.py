"""Whether a request that its provider didn't answer is sent again, and when. It is one decision all the while (O1).

Only what nobody has heard any of is sent again. Every retry spends from its run's budget, which the journal counts, so
that none is hidden (B3). The wait is what the provider asks for, else grows by doubling, with full jitter either way:
those who failed together don't come back together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

from moorage.api.wire import ResolvedRetries

FIRST_MS: Final = 500
"""The wait before a first retry is drawn from so much, and from twice as much before each next one."""
LONGEST_MS: Final = 30_000
"""It grows no further than this where the provider doesn't say how long it needs."""
PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
"""Statuses after which the same request may be answered: a limit of the moment, or a fault of the provider's."""
FAULTS: Final = PASSING - {425, 429}
"""Those that say nothing good of the provider's health; who asks too much is told so by a healthy one."""
SPENT_QUOTA: Final = (b"insufficient_quota", b"billing_hard_limit_reached")
"""What OpenAI's 429 says where no waiting helps."""


@dataclass(frozen=True)
class Failed:
    """A try that came to nothing. `status`: what the provider said (0: nothing). `asked_ms`: how long it asks to wait.

    `hopeless`: it says itself that asking again can't help. `ours`: it was the gateway that broke off.
    """

    status: int
    asked_ms: int | None = None
    hopeless: bool = False
    ours: bool = False

    @property
    def passing(self) -> bool:
        """Asking again may help."""
        return not self.hopeless and (self.status == 0 or self.status in PASSING)

    @property
    def fault(self) -> bool:
        """It speaks against the provider's health."""
        return not self.ours and (self.status == 0 or self.status in FAULTS)


def refused(status: int, headers: Mapping[str, str], body: bytes, now_ms: int) -> Failed:
    """What an answer that isn't a good one comes to. `headers`: names in lower case. `now_ms`: the wall clock."""
    hopeless = headers.get("x-should-retry") == "false" or any(word in body for word in SPENT_QUOTA)
    return Failed(status, retry_after_ms(headers, now_ms), hopeless)


def retry_after_ms(headers: Mapping[str, str], now_ms: int) -> int | None:
    """How long the provider asks to wait: `retry-after-ms`, or `retry-after` in seconds or as a date."""
    exact = _milliseconds(headers.get("retry-after-ms", ""), 1)
    if exact is not None:
        return exact
    told = headers.get("retry-after", "")
    seconds = _milliseconds(told, 1_000)
    return seconds if seconds is not None else _until(told, now_ms)


def _milliseconds(told: str, unit: int) -> int | None:
    """A decimal number of so many milliseconds, rounded up; never a float."""
    whole, _, part = told.strip().partition(".")
    if not (whole + part).isascii() or not whole.isdigit() or (part and not part.isdigit()) or len(whole) > 9:
        return None
    thousandths = int(whole) * 1_000 + int((part + "000")[:3])
    return -(-thousandths * unit // 1_000)


def _until(told: str, now_ms: int) -> int | None:
    try:
        at = parsedate_to_datetime(told)
    except ValueError:
        return None
    return max(0, int(at.timestamp()) * 1_000 - now_ms)


def pause_ms(policy: ResolvedRetries, failed: Failed, tries: int, left: int, lot: int) -> int | None:
    """How long to wait before the next try; None: there is none, and the agent hears what there is.

    `tries`: those that were made. `left`: retries that the run's budget still has. `lot`: drawn evenly from 0 to 2³²-1.
    """
    if not failed.passing or tries >= policy.max_attempts or left <= 0:
        return None
    if failed.asked_ms is not None:
        if failed.asked_ms > policy.max_wait_ms:
            return None
        return failed.asked_ms + _drawn(FIRST_MS, lot)
    return _drawn(min(FIRST_MS << min(tries - 1, 16), LONGEST_MS, policy.max_wait_ms), lot)


def _drawn(most: int, lot: int) -> int:
    return (most + 1) * lot >> 32
