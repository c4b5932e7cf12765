"""From the gateway to an allowed host: where it is, what is added on the way, and whether what broke had left."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx
import orjson

from moorage.api.wire import ResolvedEgress
from moorage.gateway.addresses import AddressForbidden, reachable
from moorage.gateway.credentials import EGRESS_KEYS, demand_header_value, unfit
from moorage.gateway.errors import Refusal
from moorage.gateway.gate import GatewayDeps
from moorage.gateway.ledger import Run
from moorage.gateway.ports import SecretMissing

NEVER_LEFT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.LocalProtocolError, httpx.InvalidURL)


class Unreached(Exception):
    """Nothing was sent. The message says why, in a word."""


def unreachable(why: str) -> Refusal:
    """For the agent: nothing was sent, and it may ask again."""
    return Refusal(why, status=502, reason="TargetUnreachable")


class Lost(Exception):
    """It was sent, at least in part, and no answer came."""


@dataclass(frozen=True)
class Heard:
    """An answer, its body still to come; the credential that had gone out, which no answer shall tell on."""

    answer: httpx.Response
    credential: Mapping[str, str]


@dataclass(frozen=True)
class Outgoing:
    """A request without its credential and key, as it may be kept and sent again. `target` is path and query."""

    host: str
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    def packed(self) -> bytes:
        """As bytes, for the blob store."""
        body = base64.b64encode(self.body).decode()
        head = {"host": self.host, "method": self.method, "target": self.target, "headers": self.headers}
        return orjson.dumps({**head, "body": body})

    @classmethod
    def unpacked(cls, data: bytes) -> Outgoing:
        """The same again."""
        raw = orjson.loads(data)
        return cls(raw["host"], raw["method"], raw["target"], raw["headers"], base64.b64decode(raw["body"]))


class Outward:
    """Sends to hosts that were allowed already."""

    def __init__(self, deps: GatewayDeps) -> None:
        self._deps = deps

    async def credential(self, run: Run, entry: ResolvedEgress) -> dict[str, str]:
        """T2: read at use, kept by nobody. Raise Refusal where it is missing, or no header can carry it."""
        ref = entry.credentials
        if ref is None:
            return {}
        keys = (ref.key,) if ref.key else EGRESS_KEYS
        try:
            value = (await self._deps.secrets.read(run.tenant, ref)).text(*keys)
        except SecretMissing:
            value = None
        except UnicodeDecodeError:
            raise unfit(entry.host, ref.name, keys) from None
        if not value:
            why = f"the credential of {entry.host} is missing: Secret {ref.name}"
            raise Refusal(why, status=424, reason="CredentialMissing")
        demand_header_value(value, entry.host, ref.name, keys)
        name = entry.credential_header.lower()
        return {name: f"Bearer {value}" if name == "authorization" else value}

    async def addresses(self, entry: ResolvedEgress) -> list[str]:
        """Where the host is. Raise Unreached, and Refusal for an address that no agent has business at."""
        try:
            private = self._deps.settings.egress_private
            return list(await reachable(entry.host, entry.port, private, self._deps.resolve))
        except AddressForbidden as error:
            why = f"{error}, and this installation lets no agent reach that address (egress.privateNetworks)"
            raise Refusal(why, status=403, reason="AddressForbidden") from None
        except (OSError, UnicodeError) as error:
            raise Unreached(f"{entry.host} has no address ({type(error).__name__})") from None

    async def demand_addresses(self, entry: ResolvedEgress) -> list[str]:
        """The same, before anything is meant. Raise Refusal."""
        try:
            return await self.addresses(entry)
        except Unreached as error:
            raise unreachable(str(error)) from None

    async def send(self, run: Run, entry: ResolvedEgress, outgoing: Outgoing, key: str | None = None) -> Heard:
        """What the host says. `key` goes into the key header. Raise Unreached, Lost, Refusal."""
        credential = await self.credential(run, entry)
        added = credential if key is None else credential | {entry.key_header.lower(): key}
        why = f"{entry.host} has no address"
        for address in await self.addresses(entry):
            request = self._request(entry, outgoing, address, outgoing.headers | added)
            try:
                return Heard(await self._deps.http.send(request, stream=True), credential)
            except NEVER_LEFT as error:
                why = f"{entry.host} can't be reached ({type(error).__name__})"
            except httpx.HTTPError as error:
                raise Lost(f"no answer came ({type(error).__name__})") from None
        raise Unreached(why)

    async def connect(
        self, entry: ResolvedEgress, addresses: Sequence[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection, for a tunnel. Raise Unreached."""
        why = ""
        for address in addresses:
            try:
                async with asyncio.timeout(self._deps.settings.egress_connect_ms / 1000):
                    return await asyncio.open_connection(address, entry.port)
            except (OSError, TimeoutError) as error:
                why = type(error).__name__
        raise Unreached(f"{entry.host} can't be reached ({why})")

    def _request(
        self, entry: ResolvedEgress, outgoing: Outgoing, address: str, headers: dict[str, str]
    ) -> httpx.Request:
        """To that very address, under the host's name; on a connection that nothing else has used."""
        settings = self._deps.settings
        usual = 443 if entry.scheme == "https" else 80
        host = entry.host if entry.port == usual else f"{entry.host}:{entry.port}"
        url = httpx.URL(scheme=entry.scheme, host=address, port=entry.port, raw_path=outgoing.target.encode("latin-1"))
        told = [("host", host), ("connection", "close"), *headers.items()]
        connect = settings.egress_connect_ms / 1000
        return self._deps.http.build_request(
            outgoing.method,
            url,
            content=outgoing.body or None,
            headers=[(k.encode("latin-1"), v.encode("latin-1")) for k, v in told],
            timeout=httpx.Timeout(settings.egress_read_ms / 1000, connect=connect, pool=connect),
            extensions={"sni_hostname": entry.host},
        )
