"""What tokens cost, and what a request may cost at worst: integers all the way (B1).

A price is micro-dollars for a million tokens, so that amount times price is a millionth of a micro-dollar each. The sum
over the kinds of one answer is exact; it is rounded up, once, to the next micro-dollar. So an answer is never charged
at less than it costs, and at less than one micro-dollar more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moorage.api.wire import ResolvedPrices

MILLION = 10**6
OVERHEAD = 2_048
"""Tokens that a provider adds to what it is asked, such as what explains tools to a model: some hundreds are known."""
LONGEST_OUTPUT = 128_000
"""Output tokens of an answer where neither the request nor the ModelProvider says how many there may be."""
MOST_OUTPUT = 10_000_000
"""Output tokens that an answer can have, whatever a request allows: as many as a ModelProvider can say. So what is
reserved, and added up, stays far below the integers that a journal takes."""


def cost_micros(vector: Mapping[str, int], prices: ResolvedPrices) -> int:
    """Of one answer."""
    lasting = vector.get("cache_write_1h_tokens", 0)
    exact = (
        vector.get("input_tokens", 0) * prices.input
        + vector.get("cache_read_tokens", 0) * prices.cache_read
        + (vector.get("cache_write_tokens", 0) - lasting) * prices.cache_write
        + lasting * prices.cache_write_1h
        + vector.get("output_tokens", 0) * prices.output
    )
    return -(-exact // MILLION)


@dataclass(frozen=True)
class Reserve:
    """The worst case of one request (B2): no token is shorter than a byte, and no answer longer than its cap."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_micros: int = 0

    @property
    def tokens(self) -> int:
        """Of both kinds."""
        return self.input_tokens + self.output_tokens

    @property
    def charged(self) -> dict[str, int]:
        """The usage of a request of which nobody will tell more."""
        counted = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        return counted | ({"cost_micros": self.cost_micros} if self.cost_micros else {})


def worst(size: int, cap: int | None, prices: ResolvedPrices | None) -> Reserve:
    """Of a request of `size` bytes that allows `cap` tokens of output; input at the dearest of its kinds."""
    asked, said = size + OVERHEAD, LONGEST_OUTPUT if cap is None else min(cap, MOST_OUTPUT)
    if prices is None:
        return Reserve(asked, said)
    dearest = max(prices.input, prices.cache_read, prices.cache_write, prices.cache_write_1h)
    return Reserve(asked, said, -(-(asked * dearest + said * prices.output) // MILLION))
