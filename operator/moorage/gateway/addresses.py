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
        "fd20:ce::254",  # Google Cloud, over IPv6
        "fd00:c1::a9fe:a9fe",  # Oracle Cloud, over IPv6
    )
)
LINK_LOCAL = (ipaddress.ip_network("169.254.0.0/16"), ipaddress.ip_network("fe80::/10"))
TRANSLATED = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))
"""IPv4 by another name: mapped, and NAT64's own prefix (RFC 6052), where DNS64 puts any public host."""
EMBEDDING = (ipaddress.IPv6Network("::/96"), ipaddress.IPv6Network("::ffff:0:0:0/96"))
"""IPv4 in the last four bytes: compatible and SIIT addresses, which nobody should use any more."""
LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
"""RFC 8215: an installation cuts prefixes of its own out of it, and their lengths say where IPv4 stands."""
LOCAL_PLACES = ((6, 7, 9, 10), (7, 9, 10, 11), (9, 10, 11, 12), (12, 13, 14, 15))  # /48, /56, /64 and /96

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


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
    if _literal(host):  # nobody has to be asked
        return forbidden(host)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(forbidden(str(entry[4][0])) for entry in found)


def _literal(host: str) -> bool:
    """An address as everybody writes it; resolvers know others."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def forbidden(text: str) -> bool:
    """Whether this address is link-local or a known metadata service's, also where IPv6 wraps it."""
    address = _plain(text)
    return any(_metadata(one) for one in (address, *_within(address)))


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
        if forbidden(text) or not _open(_plain(text), networks):
            raise AddressForbidden(f"{host} is at {text}")
    return found


def _metadata(address: Address) -> bool:
    return address in METADATA or any(address in network for network in LINK_LOCAL)


def _open(address: Address, networks: Iterable[Network]) -> bool:
    """Whether agents may have business there: by its public place, or by the installation's word for its network."""
    if address.is_multicast or address.is_unspecified:
        return False
    return any(address in network for network in networks) or all(_public(a) for a in (address, *_within(address)))


def _public(address: Address) -> bool:
    """Stricter than `is_global`, which knows some of these and not in every release of Python."""
    if address.is_multicast or address.is_reserved or not address.is_global:
        return False
    return isinstance(address, ipaddress.IPv4Address) or not (address.is_site_local or address in LOCAL_NAT64)


def _plain(text: str) -> Address:
    """The address that is meant: IPv4 where it is only translated."""
    address: Address = ipaddress.ip_address(text.partition("%")[0])
    translated = isinstance(address, ipaddress.IPv6Address) and any(address in network for network in TRANSLATED)
    return ipaddress.IPv4Address(address.packed[12:]) if translated else address


def _within(address: Address) -> Sequence[Address]:
    """The IPv4 addresses that this one may lead to, by whatever way it carries them."""
    if isinstance(address, ipaddress.IPv4Address):
        return ()
    if address.teredo:
        return address.teredo
    if address.sixtofour:
        return (address.sixtofour,)
    packed = address.packed
    if address in LOCAL_NAT64:
        return [ipaddress.IPv4Address(bytes(packed[at] for at in places)) for places in LOCAL_PLACES]
    return [ipaddress.IPv4Address(packed[12:])] if any(address in network for network in EMBEDDING) else ()
