"""Which addresses the gateway calls: public ones, and such as the installation names; metadata services, never."""

from collections.abc import Sequence

import pytest

from moorage.gateway.addresses import AddressForbidden, forbidden, leads_to_metadata, reachable

METADATA = [
    "169.254.169.254",
    "100.100.100.200",
    "fe80::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "fd00:c1::a9fe:a9fe",
    "::ffff:169.254.169.254",
    "::ffff:0:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a9fe:a9fe",
    "64:ff9b:1:a9fe:a9:fe00::",
    "64:ff9b:1:a9:fe:a9fe::",
    "64:ff9b:1:0:a9:fea9:fe00:0",
    "2002:a9fe:a9fe::1",
    "2001:0:a9fe:a9fe::1",
    "2001:0:808:808:0:0:5601:5601",
    "::a9fe:a9fe",
]
INSIDE = [
    "10.0.0.7",
    "127.0.0.1",
    "100.64.0.1",
    "fd12::1",
    "fec0::1",
    "64:ff9b::a00:7",
    "64:ff9b:1::808:808",
    "2002:a00:7::1",
    "2002:7f00:1::1",
    "2001:0:808:808:0:0:f5ff:fff8",
    "::a00:7",
    "::808:808",
    "::1",
]
NOWHERE = ["0.0.0.0", "::", "::ffff:0.0.0.0", "64:ff9b::", "224.0.0.1", "239.1.1.1", "ff02::1", "ff0e::1"]
RESERVED = ["240.0.0.1", "255.255.255.255", "4000::1", "100::1", "2001:db8::1"]
PUBLIC = ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]


async def called(address: str, *private: str) -> Sequence[str]:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return ["8.8.8.8", address]

    return await reachable("a.example.com", 443, private, resolve)


@pytest.mark.rule("T3")
@pytest.mark.parametrize("address", METADATA)
async def test_metadata_is_reached_by_no_way_of_writing_it_and_nobodys_word(address: str) -> None:
    assert forbidden(address)
    literal = f"[{address}]" if ":" in address else address
    assert await leads_to_metadata(f"http://{literal}/latest")
    with pytest.raises(AddressForbidden, match="is at"):
        await called(address, "0.0.0.0/0", "::/0")


@pytest.mark.rule("T3")
@pytest.mark.parametrize("address", NOWHERE)
async def test_what_is_no_hosts_address_is_reached_by_nobodys_word(address: str) -> None:
    with pytest.raises(AddressForbidden):
        await called(address, "0.0.0.0/0", "::/0")


@pytest.mark.rule("T3")
@pytest.mark.parametrize("address", [*INSIDE, *RESERVED])
async def test_what_is_not_public_is_reached_where_the_installation_names_its_network(address: str) -> None:
    with pytest.raises(AddressForbidden):
        await called(address, "192.168.0.0/16")
    assert address in await called(address, "0.0.0.0/0", "::/0")


@pytest.mark.parametrize("address", PUBLIC)
async def test_public_addresses_are_reached_also_by_way_of_nat64(address: str) -> None:
    assert not forbidden(address)
    assert address in await called(address)
