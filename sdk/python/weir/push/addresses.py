"""Which addresses an endpoint may have: public ones, and those of networks that are allowed.

Knows: special ranges of addresses, and how a name is resolved at each connection. Must never know: requests.

A customer chooses the URL. Without this, one would reach the metadata of a cloud, a database behind the
firewall or the gateway itself; with a check of the name alone, a name whose address changes in between would.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import httpcore

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

# `is_global` of Python 3.11 says True for these: protocol assignments, relays of 6to4, local NAT64, discards,
# documentation, segment routing.
_SPECIAL: Final[Sequence[Network]] = [
    ip_network(text)
    for text in (
        *("192.0.0.0/24", "192.88.99.0/24"),
        *("64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "3fff::/20", "5f00::/16"),
    )
]
_NAT64: Final = IPv6Network("64:ff9b::/96")
_COMPATIBLE: Final = IPv6Network("::/96")
_IPV4_MAX: Final = (1 << 32) - 1


class RefusedAddressError(OSError):
    """An endpoint's name leads to an address that it may not have."""


def may_connect(address: Address, allowed: Iterable[Network] = ()) -> bool:
    """Whether an endpoint may have this address."""
    if any(address in network for network in allowed):
        return True
    if isinstance(address, IPv6Address):
        embedded = _embedded(address)
        if embedded is not None:
            return may_connect(embedded, allowed)
        if address.is_site_local:
            return False
    is_special = any(address in network for network in _SPECIAL)
    return address.is_global and not address.is_multicast and not is_special


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that packets to this one get to."""
    if address in _NAT64 or address in _COMPATIBLE:
        return IPv4Address(int(address) & _IPV4_MAX)
    if address.teredo is not None:
        return address.teredo[1]
    return address.ipv4_mapped or address.sixtofour


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a name, as the system finds them. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


class GuardedBackend(httpcore.AnyIOBackend):
    """Connections of httpcore to addresses that pass: a name is resolved once, and what was looked at is what
    is connected to. If one of its addresses does not pass, none is used.
    """

    def __init__(self, allowed: Sequence[Network], resolver: Resolve = resolve) -> None:
        self._allowed = allowed
        self._resolver = resolver

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - of httpcore
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect. Raises RefusedAddressError, httpcore.ConnectError, ConnectTimeout."""
        try:
            found = await self._resolver(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(str(error)) from None
        # Of a link-local address, which does not pass, the zone stands behind it.
        wrong = [one for one in found if not may_connect(ip_address(one.partition("%")[0]), self._allowed)]
        if wrong:
            raise RefusedAddressError(f"{host} has the address {wrong[0]}, which is not public")
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in found:
            try:
                return await super().connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure
