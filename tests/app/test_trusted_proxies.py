"""X-Forwarded-For: believed from trusted proxies, and from nothing in front of them."""

import http.client
import json
import re
from contextlib import closing
from pathlib import Path

import pytest

from app.http.client_address import TrustedProxies
from app.settings import SettingsError, load
from tests.server import Server

PROXIES = TrustedProxies(("10.0.0.0/8", "192.0.2.7", "fd00::/8"))
PROXY = ("10.0.0.1", 4_711)


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ([], "10.0.0.1"),
        (["203.0.113.5"], "203.0.113.5"),
        # What a client writes itself stands in front of what the proxy appends.
        (["127.0.0.1, 203.0.113.5"], "203.0.113.5"),
        (["10.9.9.9, 203.0.113.5"], "203.0.113.5"),
        (["203.0.113.9", "203.0.113.5"], "203.0.113.5"),
        # Through two proxies, of which the first was called by the client.
        (["203.0.113.5, 10.0.0.2"], "203.0.113.5"),
        (["203.0.113.5, 192.0.2.7, 10.0.0.2"], "203.0.113.5"),
        (["203.0.113.5, 192.0.2.8, 10.0.0.2"], "192.0.2.8"),
        # No client outside: the first proxy itself has asked.
        (["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        # With a port, as some proxies write it.
        (["203.0.113.5:1234"], "203.0.113.5"),
        (["[2001:db8::1]:1234"], "2001:db8::1"),
        (["2001:DB8:0::1"], "2001:db8::1"),
        (["2001:db8::1, fd00::2"], "2001:db8::1"),
        (["::ffff:203.0.113.5"], "203.0.113.5"),
        # Garbage ends the search at the proxy that passed it on.
        ([""], "10.0.0.1"),
        (["unknown"], "10.0.0.1"),
        (["203.0.113.5, unknown"], "10.0.0.1"),
        (["203.0.113.5, unknown, 10.0.0.2"], "10.0.0.2"),
        (["203.0.113.5,"], "10.0.0.1"),
        (["203.0.113.5 203.0.113.6"], "10.0.0.1"),
        (["203.0.113.5\x00"], "10.0.0.1"),
        (["0x7f000001", "017700000001"], "10.0.0.1"),
        (["\xff\xfe"], "10.0.0.1"),
        (["1.2.3.4," * 16 + "10.0.0.2"], "1.2.3.4"),
        # More proxies than there are: the last one that was looked at.
        (["203.0.113.5" + ", 10.0.0.2" * 15], "203.0.113.5"),
        (["203.0.113.5" + ", 10.0.0.2" * 16], "10.0.0.2"),
    ],
)
def test_the_client_is_the_last_address_that_no_trusted_proxy_has(forwarded: list[str], client: str) -> None:
    found = PROXIES.find(PROXY, [value.encode("latin-1") for value in forwarded])
    assert found is not None
    assert found[0] == client


@pytest.mark.parametrize("peer", ["203.0.113.1", "192.0.2.8", "11.0.0.1", "127.0.0.1", "", "testclient"])
def test_an_untrusted_peer_is_the_client_whatever_it_says(peer: str) -> None:
    assert PROXIES.find((peer, 1), [b"198.51.100.1", b"10.0.0.1"]) == (peer, 1)
    assert PROXIES.find(None, [b"198.51.100.1"]) is None


def test_a_peer_of_ipv4_on_a_listener_of_ipv6_is_the_same_peer() -> None:
    assert PROXIES.find(("::ffff:10.0.0.1", 1), [b"203.0.113.5"]) == ("203.0.113.5", 0)


@pytest.mark.parametrize("text", ["10.0.0.1/8", "proxy.example", "10.0.0.0/33", "10.0.0", "*"])
def test_what_is_no_network_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(SettingsError, match="trusted_proxies"):
        load({"trusted_proxies": text})


def test_a_head_that_was_seen_has_the_same_client(tmp_path: Path) -> None:
    """Over a real connection, whose peer is the proxy: each client has a budget of its own."""
    options = ["--set", "rate_requests=1/s burst 1000"]
    entry, kind = json.dumps({"fields": {"a": "1"}}), {"content-type": "application/json"}
    with Server(tmp_path / "data", *options, "--set", "trusted_proxies=127.0.0.1") as server:

        def left(forwarded: str) -> int:
            connection.request("POST", "/v1/streams/s/entries", entry, {**kind, "x-forwarded-for": forwarded})
            answer = connection.getresponse()
            answer.read()
            found = re.search(r"r=(\d+)", answer.headers["ratelimit"])
            assert found is not None
            return int(found[1])

        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=15)) as connection:
            # Less is given back meanwhile than the requests take.
            assert [left("203.0.113.5") for _ in range(50)][-1] < 975
            assert left("203.0.113.6") == 999
            invented = [left(f"198.51.100.{number}, 203.0.113.7") for number in range(50)]
            assert invented[0] == 999
            assert invented[-1] < 975
