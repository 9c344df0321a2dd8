"""Which addresses an endpoint may have, and that no other one is connected to."""

from collections.abc import Sequence
from ipaddress import ip_address, ip_network

import httpcore
import pytest

from tests.push.receiver import Receiver
from weir.push.addresses import GuardedBackend, RefusedAddressError, may_connect

PUBLIC = """
1.1.1.1 8.8.8.8 93.184.216.34 172.15.255.255 172.32.0.0 192.0.1.1 223.255.255.255
2606:4700::1111 2001:4860:4860::8888 64:ff9b::808:808 2002:808:808:: ::ffff:8.8.8.8
"""
REFUSED = """
0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 127.0.0.1 127.255.255.255 169.254.169.254 172.16.0.1 172.31.255.255
192.0.0.1 192.0.0.192 192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1
239.255.255.255 240.0.0.1 255.255.255.255
:: ::1 ::127.0.0.1 ::10.0.0.1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe
64:ff9b:1::1 64:ff9b:1:ffff::808:808 100::1 100:0:0:1::1 2001::1 2001:0:4136:e378:8000:63bf:80ff:fffe
2001:db8::1 2002:7f00:1:: 2002:a00:1:: 3fff::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1 ff0e::1
"""


@pytest.mark.parametrize("text", PUBLIC.split())
def test_public_addresses_pass(text: str) -> None:
    assert may_connect(ip_address(text))


@pytest.mark.parametrize("text", REFUSED.split())
def test_all_others_do_not(text: str) -> None:
    """Private, local, shared, reserved, multicast, documentation; and what carries one of these."""
    assert not may_connect(ip_address(text))


def test_networks_may_be_allowed() -> None:
    """And what carries an address of theirs; at the edge, and one beside it."""
    allowed = [ip_network("10.1.0.0/16"), ip_network("fd00:1::/32")]
    assert may_connect(ip_address("10.1.255.255"), allowed)
    assert may_connect(ip_address("::ffff:10.1.0.0"), allowed)
    assert may_connect(ip_address("fd00:1::7"), allowed)
    assert not may_connect(ip_address("10.2.0.0"), allowed)
    assert not may_connect(ip_address("fd00:2::7"), allowed)


class Names:
    """A resolver that gives the answers that it has, one after the other."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        return self.answers.pop(0)


async def test_one_address_that_does_not_pass_refuses_the_name() -> None:
    """Beside a public one too: which of them is taken would be luck. Nothing is connected to."""
    async with Receiver() as receiver:
        for found in (["8.8.8.8", "127.0.0.1"], ["::1"], ["fe80::1%lo"], ["127.0.0.1"]):
            backend = GuardedBackend((), Names(found))
            with pytest.raises(RefusedAddressError, match="which is not public"):
                await backend.connect_tcp("example.com", receiver.port)
        with pytest.raises(httpcore.ConnectError, match="no address"):
            await GuardedBackend((), Names([])).connect_tcp("example.com", receiver.port)


async def test_a_name_that_changes_its_address_is_looked_at_each_time() -> None:
    """What was looked at is what is connected to: the name is not resolved a second time (rebinding)."""
    loopback = [ip_network("127.0.0.0/8")]
    async with Receiver() as receiver:
        names = Names(["127.0.0.1"], ["10.0.0.1"])
        backend = GuardedBackend(loopback, names)
        stream = await backend.connect_tcp("example.com", receiver.port)
        assert stream.get_extra_info("server_addr") == ("127.0.0.1", receiver.port)
        await stream.aclose()
        assert names.answers == [["10.0.0.1"]]
        with pytest.raises(RefusedAddressError):
            await backend.connect_tcp("example.com", receiver.port)


async def test_another_address_is_tried_where_one_does_not_answer() -> None:
    async with Receiver() as receiver:
        backend = GuardedBackend([ip_network("127.0.0.0/8")], Names(["127.0.0.9", "127.0.0.1"]))
        stream = await backend.connect_tcp("example.com", receiver.port, timeout=5)
        assert stream.get_extra_info("server_addr")[0] == "127.0.0.1"
        await stream.aclose()
