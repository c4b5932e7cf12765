"""Which headers go on to the world and which come back, the same for every door that leads out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from urllib.parse import quote

import orjson

from moorage.api.budget import Budget
from moorage.api.quantity import dollars
from moorage.core.constraints.limits import COST, DIMENSIONS

LONGEST = 1_000
HEADERS = {name: re.sub("[A-Z]", lambda found: f"-{found[0].lower()}", name) for name in DIMENSIONS}
"""What a header calls a dimension."""
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
        "x-http-method",
        "x-http-method-override",
        "x-method-override",
        "x-original-uri",
        "x-original-url",
        "x-real-ip",
        "x-rewrite-url",
    }
)
"""T3: also what makes a host take a request for another one than its first line says."""
NOT_FORWARDED_STARTS = ("x-moorage-", "x-forwarded-", "cf-")
HIDDEN = b"[the credential]"
NOTHING: Mapping[str, str] = MappingProxyType({})
_SCHEME = re.compile("^(bearer|basic|token) ", re.IGNORECASE)
NOT_RETURNED = frozenset({"connection", "content-length", "keep-alive", "set-cookie", "transfer-encoding", "upgrade"})


def budget_headers(budget: Budget) -> dict[str, str]:
    """C7: what is used and left before an answer; costs in dollars, warnings as ASCII."""
    told = {f"x-moorage-{HEADERS[name]}-left": _amount(name, left) for name, left in budget.left.items()}
    told["x-moorage-cost-used"] = dollars(budget.used.get(COST.name, 0))
    if budget.warnings:
        told["x-moorage-warning"] = "; ".join(budget.warnings).encode("ascii", "backslashreplace").decode()[:LONGEST]
    return {name: value.replace("\n", " ").replace("\r", " ") for name, value in told.items()}


def _amount(name: str, amount: int) -> str:
    return dollars(amount) if name == COST.name else str(amount)


def forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    """What goes on: no credential of ours, nothing of the hop, and a wish for an answer that can be read."""
    return {name: value for name, value in headers.items() if _goes_on(name)} | {"accept-encoding": "identity"}


def _goes_on(name: str) -> bool:
    """Hosts behind a CGI can't tell '_' from '-'."""
    known = name.replace("_", "-")
    return known not in NOT_FORWARDED and not known.startswith(NOT_FORWARDED_STARTS)


def returned(
    raw: Iterable[tuple[bytes, bytes]], *, decoded: bool = False, credential: Mapping[str, str] = NOTHING
) -> dict[str, str]:
    """What goes back to the agent, as it came but for the credential that had gone out; its type is told apart.
    `decoded`: the body's encoding was undone.
    """
    kept_back = NOT_RETURNED | {"content-type"} | ({"content-encoding"} if decoded else frozenset())
    told = ((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw)
    return {name: plainly(value, credential) for name, value in told if name not in kept_back}


def content_type(raw: Iterable[tuple[bytes, bytes]], otherwise: str) -> str:
    """What an answer says that its body is."""
    told = (value.decode("latin-1") for name, value in raw if name.lower() == b"content-type")
    return next(told, otherwise)


def without(content: bytes, credential: Mapping[str, str]) -> bytes:
    """T2: what was answered without the credential that had gone out: some say in a refusal what they refuse."""
    for spelling in _spellings(credential):
        content = content.replace(spelling.encode("latin-1"), HIDDEN)
    return content


def plainly(text: str, credential: Mapping[str, str]) -> str:
    """The same of text."""
    for spelling in _spellings(credential):
        text = text.replace(spelling, HIDDEN.decode())
    return text


def _spellings(credential: Mapping[str, str]) -> list[str]:
    """What stands behind a header's scheme, as it is, as a URL writes it and as JSON does; the longest first."""
    bare = {_SCHEME.sub("", value) for value in credential.values()}
    told = {each for one in bare for each in (one, quote(one, safe=""), orjson.dumps(one)[1:-1].decode("utf-8"))}
    return sorted(told - {""}, key=len, reverse=True)
