"""T3: metadata addresses, never. What a tenant names as its remote or its provider is called by the gateway, from a
place where a cloud's metadata service would answer."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
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
    address: Address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address in METADATA or any(address in network for network in LINK_LOCAL)
