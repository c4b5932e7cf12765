"""Which headers go on to the world and which come back, the same for every door that leads out."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

NOT_FORWARDED = frozenset(
    {
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "cookie",
        "expect",
        "forwarded",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "via",
        "x-api-key",
        "x-real-ip",
    }
)
NOT_FORWARDED_STARTS = ("x-moorage-", "x-forwarded-", "cf-")
NOT_RETURNED = frozenset(
    {"connection", "content-encoding", "content-length", "keep-alive", "set-cookie", "transfer-encoding", "upgrade"}
)


def forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    """What goes on: no credential of ours, nothing of the hop, and a wish for an answer that can be read."""
    kept = {
        name: value
        for name, value in headers.items()
        if name not in NOT_FORWARDED and not name.startswith(NOT_FORWARDED_STARTS)
    }
    return kept | {"accept-encoding": "identity"}


def returned(headers: httpx.Headers) -> dict[str, str]:
    """What goes back to the agent, as it came; its type is told apart."""
    told = ((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers.raw)
    return {name: value for name, value in told if name not in NOT_RETURNED and name != "content-type"}
