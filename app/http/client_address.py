"""The network address of a request's client, behind proxies as well.

Knows: where the server says it, which proxies may say another one. Must never know: what an address is for.

Only `X-Forwarded-For` is read. A client may send `Forwarded`, `X-Real-IP` or `X-Forwarded-Host` itself, and a
proxy that does not know them passes them on.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, Final

FORWARDED_FOR: Final = b"x-forwarded-for"
# Addresses that are looked at, from the last one on: more proxies stand in no row.
_HOPS_MAX: Final = 16
_REMEMBERED_MAX: Final = 4_096

Client = tuple[str, int]


def client_address(scope: Mapping[str, Any]) -> str:
    """The address of the client, empty where the server does not know it."""
    client = scope.get("client")
    return client[0] if client else ""


class TrustedProxies:
    """Finds the client behind proxies in these networks.

    Each proxy appends the address that it was called from. So the list is read from its end, for as long as
    the address before was a trusted proxy's; what stands in front of that, a client may have written itself.
    """

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ip_network(network) for network in networks]
        self._trusts = lru_cache(_REMEMBERED_MAX)(self._is_inside)

    def find(self, peer: Client | None, forwarded: Sequence[bytes]) -> Client | None:
        """The client of a request that came from `peer` with these headers. What is no address ends the
        search: the proxy that passed it on counts as the client.
        """
        if peer is None or not forwarded or not self._trusts(peer[0]):
            return peer
        found = peer
        for word in reversed(b",".join(forwarded).rsplit(b",", _HOPS_MAX)[-_HOPS_MAX:]):
            address = _read(word)
            if address is None:
                break
            found = address, 0
            if not self._trusts(address):
                break
        return found

    def resolve(self, scope: Mapping[str, Any]) -> Client | None:
        """The client of an ASGI request."""
        forwarded = [value for name, value in scope["headers"] if name == FORWARDED_FOR]
        return self.find(scope.get("client"), forwarded)

    def _is_inside(self, text: str) -> bool:
        try:
            address = _unmapped(ip_address(text))
        except ValueError:
            return False
        return any(address in network for network in self._networks)


def _read(word: bytes) -> str | None:
    """One address of the list, which some proxies write with a port."""
    text = word.strip().decode("latin-1")
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(_unmapped(ip_address(text)))
    except ValueError:
        return None


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """A listener of IPv6 names an IPv4 peer as ::ffff:a.b.c.d."""
    return getattr(address, "ipv4_mapped", None) or address
