"""The way to the models' providers: a request goes out once, and its answer comes back piece by piece.

Every piece of every stream passes here, so this is aiohttp, whose parser isn't Python. It follows no redirect, keeps no
cookie, heeds no proxy of the environment and sends nothing again by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self

import aiohttp
import httpx
from yarl import URL

RawHeaders = Sequence[tuple[bytes, bytes]]
LONGEST_HEADER: Final = 64 * 1024
MOST_HEADERS: Final = 512
KEPT_S: Final = 4.0
"""How long an idle connection is used again. Some servers close theirs after 5 s (uvicorn, and vLLM with it): what is
sent at that moment is lost, and a request that may have arrived isn't sent again.
"""
SILENT: Final = "ReadTimeout"
"""The problem of one that says nothing for as long as anybody may."""
UNSAID = ("accept", "content-type", "user-agent")
"""Headers that the library would add where the agent has none."""


class Unheard(Exception):
    """No answer came, or not all of it. `problem`: why, in a word for the journal. `left`: the request may be there."""

    def __init__(self, problem: str, *, left: bool = True) -> None:
        self.problem, self.left = problem, left
        super().__init__(problem)


@dataclass(frozen=True)
class Outgoing:
    """A POST. `headers`: their bytes as latin-1, as ASGI has them. `connect_s` until somebody is there who takes it,
    `read_s` until the next byte of the answer.
    """

    url: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    connect_s: float
    read_s: float


class Coming(Protocol):
    """An answer whose body is still to come."""

    @property
    def status(self) -> int:
        """HTTP's."""

    @property
    def headers(self) -> RawHeaders:
        """As they came."""

    def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes, its encoding undone. Raise Unheard."""

    async def close(self) -> None:
        """The provider has nothing under way for it any more."""


class Providers(Protocol):
    """Whoever can be asked."""

    async def post(self, outgoing: Outgoing) -> Coming:
        """Raise Unheard."""

    async def close(self) -> None:
        """Let go of all connections."""


class HttpProviders:
    """Over HTTP; nobody waits for somebody else's connection. Closed by whoever made it."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def post(self, outgoing: Outgoing) -> Coming:
        """See the port."""
        try:
            async with asyncio.timeout(outgoing.connect_s + outgoing.read_s):  # the library's leaves out the sending
                return _Coming(await self._ask(outgoing))
        except FAILURES as error:
            raise unheard(error) from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """See the port."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _ask(self, outgoing: Outgoing) -> aiohttp.ClientResponse:
        connect_s = outgoing.connect_s
        return await self._opened().post(
            _url(outgoing),
            data=outgoing.body,
            headers={name: _text(value) for name, value in outgoing.headers.items()},
            timeout=aiohttp.ClientTimeout(connect=connect_s, sock_connect=connect_s, sock_read=outgoing.read_s),
            allow_redirects=False,
        )

    def _opened(self) -> aiohttp.ClientSession:
        """Made at the first request: it belongs to the event loop."""
        if self._session is None:
            trusted = httpx.create_ssl_context(trust_env=False)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, use_dns_cache=False, ssl=trusted, keepalive_timeout=KEPT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=UNSAID,
                max_line_size=LONGEST_HEADER,
                max_field_size=LONGEST_HEADER,
                max_headers=MOST_HEADERS,
            )
        return self._session


class _Coming:
    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> RawHeaders:
        return self._answer.raw_headers

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        try:
            async for piece in self._answer.content.iter_any():
                yield piece
        except FAILURES as error:
            raise unheard(error) from None

    async def close(self) -> None:
        self._answer.close()


def _url(outgoing: Outgoing) -> URL:
    """The query as the agent wrote it. Raise Unheard where there is no such address."""
    try:
        url = URL(outgoing.url)
        return URL(f"{url}?{outgoing.query}", encoded=True) if outgoing.query else url
    except ValueError:
        raise Unheard("InvalidURL", left=False) from None


def _text(value: str) -> str:
    """The library writes UTF-8: what is that already leaves as it came."""
    try:
        return value if value.isascii() else value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value


FAILURES = (aiohttp.ClientError, OSError, TimeoutError, ValueError)
NEVER_LEFT: tuple[tuple[type[Exception], str], ...] = (
    (aiohttp.ConnectionTimeoutError, "ConnectTimeout"),
    (aiohttp.ClientConnectorError, "ConnectError"),
    (aiohttp.NonHttpUrlClientError, "UnsupportedProtocol"),
    (aiohttp.InvalidURL, "InvalidURL"),
)
MAY_HAVE_LEFT: tuple[tuple[type[Exception], str], ...] = (
    (TimeoutError, SILENT),
    (aiohttp.ClientPayloadError, "RemoteProtocolError"),
    (aiohttp.ServerDisconnectedError, "RemoteProtocolError"),
    (aiohttp.ClientResponseError, "RemoteProtocolError"),
    (ValueError, "LocalProtocolError"),
)


def unheard(error: Exception) -> Unheard:
    """What the library's error means for the request; it may name addresses, which stay out of the journal."""
    for kind, problem in NEVER_LEFT:
        if isinstance(error, kind):
            return Unheard(problem, left=False)
    return Unheard(next((problem for kind, problem in MAY_HAVE_LEFT if isinstance(error, kind)), "ReadError"))
