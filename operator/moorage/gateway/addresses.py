"""T3: metadata addresses, never. What a tenant names as its remote or its provider is called by the gateway, from a
place where a cloud's metadata service would answer."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from urllib.parse import urlsplit

METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "100.100.100.200",  # Alibaba Cloud
        "192.0.0.192",  # Oracle Cloud
        "168.63.129.16",  # Azure's wire server
        "fd00:ec2::254",  # AWS, over IPv6
    )
)
LINK_LOCAL = (ipaddress.ip_network("169.254.0.0/16"), ipaddress.ip_network("fe80::/10"))

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_http(url: str) -> bool:
    """Whether the URL is one that an HTTP client can be sent to."""
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


async def leads_to_metadata(url: str) -> bool:
    """Whether the URL's host is, or resolves to, an address that nobody has business at. A host that doesn't resolve
    isn't judged: whoever calls it says so better."""
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return False
    if not host:
        return False
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(forbidden(str(entry[4][0])) for entry in found)


def forbidden(text: str) -> bool:
    """Whether this address is link-local or a known metadata service's, also when IPv6 wraps it."""
    address = _plain(text)
    return address in METADATA or any(address in network for network in LINK_LOCAL)


Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class AddressForbidden(Exception):
    """The host's address is none that this installation lets agents reach; the message names it."""


async def resolved(host: str, port: int) -> Sequence[str]:
    """The host's addresses, as this machine's resolver tells them. Raises OSError, UnicodeError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def reachable(host: str, port: int, private: Iterable[str], resolve: Resolve) -> Sequence[str]:
    """The addresses to connect to: looked up once, so that what was judged is what is called.

    Raises AddressForbidden where any of them is a metadata service's, or neither public nor in `private`; OSError.
    """
    networks = [ipaddress.ip_network(text) for text in private]
    found = await resolve(host, port)
    for text in found:
        address = _plain(text)
        if forbidden(text) or not (address.is_global or any(address in network for network in networks)):
            raise AddressForbidden(f"{host} is at {text}")
    return found


def _plain(text: str) -> Address:
    address: Address = ipaddress.ip_address(text.partition("%")[0])
    wrapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return wrapped or address
