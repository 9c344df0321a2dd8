"""Whatever the names, heads and bodies of requests say, both servers answer alike, also where the head was
seen before, and no connection ends.

Knows: which operations need no task, as the table of routes has them; what a path, head and body may say.
Must never know: how an operation finds out what its requests have in common.
"""

from collections.abc import Iterator
from itertools import product
from typing import Final

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from app.main import _routes
from tests import halves
from tests.app.http_requests import ENTRY, JSON, LIMITS, post, request
from tests.app.pair import Pair

SETTINGS: Final = LIMITS.model_copy(update={"durable_streams": True})
ROUTES: Final = {one.label: one for one in _routes(SETTINGS) if one.is_plain and one.method == "POST"}
# The second one's head was seen before.
TIMES: Final = 3
KNOWN: Final = "s"
PLAIN_NAMES: Final = """
    a %61 a%20b a+b a~b %E6%B5%81 a%2Fb a%2fb . .. ... %2e %2e%2e .%2e %00 a%00b %7f %c2%85 %ff %f %zz %
    weir weir%2Fx weir%2F weir%2fjobs%2fx __ds __ds%2Fx _ds null * $ 0 %ed%a0%80 %f0%9f%98%80 entries ack
    a%2F..%2Fb a%2F%2Fb %2Fa a%2F"""
NAMES: Final = [*PLAIN_NAMES.split(), "", "x" * 512, "x" * 513, "%78" * 170]
# Where a name is all that is left of a path, it may hold slashes as they are.
SLASHES: Final = """
    weir/x weir/jobs/x weir/ weir//x weir/.. weir/%00 %77eir/x a/b a//b a/ /a a/../b a/. ./a __ds/x __ds/
    a/__ds a/%2F a/%00 a/%ff"""
OPEN_NAMES: Final = [*SLASHES.split(), "x" * 300 + "/" + "y" * 300]
TYPES: Final = [
    *("application/json", "application/x-ndjson", "text/plain", "application/octet-stream", "none", "/"),
    *("a/b; c", f"a/{'b' * 300}", "application/json;", "*", "application/json\t", "Application/JSON"),
    *("application/json; charset=utf-8", "application/json; charset=latin-1"),
]
HEADERS: Final = [
    *("Accept: */*", "User-Agent: wrk/4", "X-Forwarded-For: 10.0.0.1", "X-Forwarded-For: :::,[,%"),
    *("Authorization: Bearer x", "Authorization: Basic %", "Authorization: x", "Accept-Encoding: gzip;q=x"),
    *("Idempotency-Key: k", 'If-Match: "0-0"', "If-Match: x", "Prefer: durability=fsync"),
    *("traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "traceparent: x", "baggage: %"),
    *("Stream-Closed: true", "Stream-Closed: x", "Stream-Seq: 1", f"Stream-Seq: {'1' * 300}"),
    *("Prefer: return=minimal", "Accept-Encoding: gzip", "Connection: Keep-Alive", "X-Other: 1"),
    *("accept: application/json", "Accept: application/x-ndjson", "Accept:", "Cookie: a=b"),
]
# Who, in which run, which batch.
PRODUCERS: Final = [
    *[("p", "0", seq) for seq in ("0", "1", "5", "00", "9007199254740991", "9007199254740992", "9" * 17, "")],
    *[("p", epoch, "0") for epoch in ("1", "-1", "x", "")],
    *[(producer, "0", "0") for producer in ("q", "p" * 256, "p" * 257, "", "é", "*")],
]
MEDIA: Final = [*(f"Content-Type: {media}" for media in TYPES), "CONTENT-TYPE: \tapplication/json "]
ANY_NAME: Final = st.sampled_from([*NAMES, *OPEN_NAMES])
DEEP: Final = 1_000
BODIES: Final = [
    *(b"", b"{}", b"[]", b"1", b"null", b"[1,2]", b'["a",["b"]]', b"{", b"[", b"1e999", b"[1e999]", b"-"),
    *(ENTRY, b'{"fields":{"a":null}}', b'{"fields":{"a":"\\ud800"}}', b'["\\ud800"]', b'"\xff"', b" [1] \n"),
    *(b'{"ids":["1000-0"]}', b'{"ids":[]}', b'{"ids":["x"]}', b'{"ids":"1-0"}', b"\xef\xbb\xbf[1]"),
    b'{"ids":["1-1","1-1"],"delete":"acked"}',
    b'{"ids":["0-0","18446744073709551615-18446744073709551615","18446744073709551616-0"]}',
    *(b"[" * DEEP, b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    b'{"fields":{"a":%b}}' % (b"[" * DEEP + b"]" * DEEP),
    *(b'{"fields":{"a":"1","b":"2"}}', b'{"fields":{"a":"1","a":"1"}}', b'{"fields":{"a":1}}'),
    *(b'{"fields":{"a":"1"}', b'{"fields":{"a":"1"}}\n', b'{"fields":{"a":"1"}}{"fields":{"a":"1"}}'),
    *(b'{"fields":{"a":"1"}}\n{"fields":{"a":"1"}}', b'{"fields":{"a":"1"},"id":"*"}'),
    *(b'{"fields":{"a":"\xff"}}', b'{"a":"1"}', b'{"count":1}', b'{"fields":{"a":"%b"}}' % (b"x" * 5_000)),
    *(b'{"fields": {"a": "1", "b" :"2"}}', b'{"fields": {"a": 1}}', b'{"fields": {"a": "1"}, "id": "*"}'),
    *(b'{"fields":  {"a":"1"}}', b'{"fields": {"a": "\\u00e9", "a": "2"}}'),
    *(b"9" * 5_000, b"[" + b"1," * 200 + b"1]", b'["%b"]' % (b"x" * 9_000)),
]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair(SETTINGS) as pair:
        for line in (
            post(f"/v1/streams/{KNOWN}/entries", ENTRY),
            post(f"/v1/streams/{KNOWN}/groups", b'{"name":"s","start":"0"}'),
            request(f"PUT /v1/stream/{KNOWN}.json", b"", JSON),
        ):
            pair.both(line)
        yield pair


def assert_alike(pair: Pair, sent: bytes) -> None:
    """The same answer of both, each time, which is no fault."""
    for _ in range(TIMES):
        fast, full = pair.both(sent)
        assert full.startswith(b"HTTP/1.1 "), sent[:200]
        assert not full.startswith(b"HTTP/1.1 500 "), sent[:200]
        assert fast == full, sent[:200]


def paths(label: str, name: str) -> list[str]:
    """The paths of a route with this name in the place of each of its names, one at a time."""
    pieces = label.partition(" ")[2].split("/")
    places = [place for place, piece in enumerate(pieces) if piece.startswith("{")]
    usual = [KNOWN if place in places else piece for place, piece in enumerate(pieces)]
    if not places:
        return ["/".join(usual)]
    return ["/".join([*usual[:place], name, *usual[place + 1 :]]) for place in places]


def of_producer(producer: tuple[str, str, str]) -> list[str]:
    """The headers that say so."""
    names = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
    return [f"{name}: {value}" for name, value in zip(names, producer, strict=True)]


@pytest.mark.parametrize("label", ROUTES)
def test_each_name_is_answered_by_both_alike(pair: Pair, label: str) -> None:
    """In the place of each name of a path, also those that are none, or that are kept for Weir."""
    names = [*NAMES, *OPEN_NAMES] if ":path}" in label else NAMES
    for name, body in product(names, (b"[1]", ENTRY)):
        for path in paths(label, name):
            assert_alike(pair, post(path, body))


@pytest.mark.parametrize("label", ROUTES)
def test_each_head_and_body_is_answered_by_both_alike(pair: Pair, label: str) -> None:
    """One media type, one header beside the usual ones, one producer, one body at a time."""
    producers = [of_producer(one) for one in PRODUCERS]
    heads = [
        *[[f"Content-Type: {media}"] for media in TYPES],
        *[[JSON, one] for one in HEADERS],
        *[[JSON, *one] for one in (*producers, producers[0][:1], producers[0][:2], producers[0][1:])],
    ]
    (path, *_) = paths(label, KNOWN)
    for path_of in (path, f"{path}.json"):
        for head in heads:
            assert_alike(pair, post(path_of, ENTRY, *head))
        for body in BODIES:
            assert_alike(pair, post(path_of, body))


QUERIES: Final = [
    *("", "", "", "?", "?after=0", "?after=0&count=2", "?count=-1", "?count=1&count=1", "?maxlen=3"),
    *("?a", "?%zz"),
]


def _name_of(header: str) -> str:
    return header.partition(":")[0].lower()


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Ordinary and odd requests, each with an end that everybody agrees on."""
    method, name = draw(st.sampled_from(["GET", "POST", "POST", "POST", "HEAD", "DELETE"])), draw(ANY_NAME)
    entries = f"/v1/streams/{name}/entries"
    places = (
        paths(draw(st.sampled_from([*ROUTES])), name) if method == "POST" else (entries, f"{entries}/1-0")
    )
    drawn = draw(st.lists(st.sampled_from([JSON, JSON, *MEDIA, *HEADERS]), max_size=4, unique_by=_name_of))
    headers = [*drawn, *draw(st.just([]) | st.sampled_from([of_producer(one) for one in PRODUCERS]))]
    body = draw(st.sampled_from(BODIES)) if method == "POST" else b""
    framing = f"Content-Length: {len(body)}"
    if draw(st.integers(0, 4)) == 0:
        framing = "Transfer-Encoding: chunked"
        body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
    lines = draw(st.permutations([*headers, "Host: localhost", framing]))
    target = draw(st.sampled_from(places)) + draw(st.sampled_from(QUERIES))
    head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{line}\r\n" for line in lines)
    return head.encode("latin-1") + b"\r\n" + body


@hypothesis_settings(max_examples=halves.some(400), deadline=None)
@given(
    st.lists(requests(), min_size=1, max_size=4),
    st.integers(1, TIMES),
    st.lists(st.integers(0, 1_000), max_size=3),
)
def test_whatever_comes_in_whatever_pieces_is_answered_in_order_and_alike(
    pair: Pair, sent: list[bytes], times: int, cuts: list[int]
) -> None:
    """Several requests on one connection without waiting for answers, cut anywhere, with heads that were seen
    before. What is refused for one reason may be asked of for another first.
    """
    whole = b"".join([*sent * times, request("GET /healthz/live", None, "Connection: close")])
    places = sorted({cut % len(whole) for cut in cuts} - {0})
    pieces = [whole[start:end] for start, end in zip([0, *places], [*places, len(whole)], strict=True)]
    fast, full = pair.streams(*pieces)
    assert fast == full
    assert full.startswith(b"HTTP/1.1 ")
    assert b"HTTP/1.1 500 " not in full
