"""Requests that two servers may read in two ways: refused, the connection closed, nothing of them served."""

import pytest

from tests.hostile.peers import HOST, answers, exchange
from tests.server import Server

BODY = b'{"fields":{"a":"1"}}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
POST = b"POST /v1/streams/s/entries HTTP/1.1\r\n"
JSON = HOST + b"Content-Type: application/json\r\n"
# What an attacker would have a second server take for a request of its own.
HIDDEN = POST.replace(b"/s/", b"/smuggled/") + JSON + LENGTH + b"\r\n" + BODY


def post(headers: bytes, body: bytes = CHUNKS + HIDDEN) -> bytes:
    return POST + JSON + headers + b"\r\n" + body


def get(target: bytes, headers: bytes = HOST, version: bytes = b"HTTP/1.1") -> bytes:
    return b"GET " + target + b" " + version + b"\r\n" + headers + b"\r\n"


def chunked(body: bytes) -> bytes:
    return post(CHUNKED, body)


LENGTHS = {
    "length and chunked": post(LENGTH + CHUNKED),
    "chunked and length": post(CHUNKED + LENGTH),
    "two lengths": post(LENGTH + LENGTH, BODY + HIDDEN),
    "two different lengths": post(LENGTH + b"Content-Length: 0\r\n", BODY + HIDDEN),
    "list of lengths": post(b"Content-Length: 20, 20\r\n", BODY + HIDDEN),
    "signed length": post(b"Content-Length: +20\r\n", BODY + HIDDEN),
    "negative length": post(b"Content-Length: -1\r\n", BODY + HIDDEN),
    "hexadecimal length": post(b"Content-Length: 0x14\r\n", BODY + HIDDEN),
    "empty length": post(b"Content-Length:\r\n", BODY + HIDDEN),
    "length with a gap": post(b"Content-Length: 2 0\r\n", BODY + HIDDEN),
    "length with an underscore": post(b"Content-Length: 2_0\r\n", BODY + HIDDEN),
    "length beyond 64 bits": post(b"Content-Length: 18446744073709551636\r\n", BODY + HIDDEN),
    "length, space before the colon": post(b"Content-Length : 20\r\n", BODY + HIDDEN),
    "misspelt length": post(b"Content_Length: 20\r\n", BODY + HIDDEN),
}
CODINGS = {
    name: post(b"Transfer-Encoding" + value + b"\r\n")
    for name, value in {
        "xchunked": b": xchunked",
        "identity": b": identity",
        "chunked, identity": b": chunked, identity",
        "identity, chunked": b": identity, chunked",
        "gzip, chunked": b": gzip, chunked",
        "chunked with a parameter": b": chunked;a=b",
        "quoted": b': "chunked"',
        "vertical tab": b": \x0bchunked",
        "space before the colon": b" : chunked",
        "folded": b":\r\n chunked",
        "empty": b":",
        "twice": b": chunked\r\nTransfer-Encoding: chunked",
        "chunked and identity": b": chunked\r\nTransfer-Encoding: identity",
    }.items()
} | {"in HTTP/1.0": post(CHUNKED).replace(b"HTTP/1.1", b"HTTP/1.0", 1)}
LINES = {
    "bare LF": post(LENGTH, b"").replace(b"\r\n", b"\n"),
    "bare LF at the end of the head": (POST + JSON + LENGTH + b"\n" + BODY),
    "bare LF in a header": post(b"X: a\n" + LENGTH, BODY),
    "bare CR in a header": post(b"X: a\rb\r\n" + LENGTH, BODY),
    "NUL in a header": post(b"X: a\0b\r\n" + LENGTH, BODY),
    "NUL in a header's name": post(b"X\0: a\r\n" + LENGTH, BODY),
    "obs-fold": post(b"X: a\r\n b\r\n" + LENGTH, BODY),
    "folded first header": POST + b" " + JSON + LENGTH + b"\r\n" + BODY,
    "header without a colon": post(b"Content-Length\r\n", BODY),
    "header without a name": post(b": 20\r\n", BODY),
    "blank before the method": b" " + get(b"/v1/streams"),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00",
}
REQUESTS = {
    "HTTP/0.9": b"GET /v1/streams\r\n\r\n",
    "HTTP/0.9, named": get(b"/v1/streams", version=b"HTTP/0.9"),
    "HTTP/1.9": get(b"/v1/streams", version=b"HTTP/1.9"),
    "HTTP/2.0": get(b"/v1/streams", version=b"HTTP/2.0"),
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "CONNECT": b"CONNECT evil:80 HTTP/1.1\r\n" + HOST + b"\r\n",
    "lower-case method": b"get /v1/streams HTTP/1.1\r\n" + HOST + b"\r\n",
    "unknown method": b"SMUGGLE /v1/streams HTTP/1.1\r\n" + HOST + b"\r\n",
    "foreign absolute form": get(b"http://evil/v1/streams"),
    "absolute form with a user": get(b"http://localhost@evil/v1/streams"),
    "absolute form of another scheme": get(b"ftp://localhost/v1/streams"),
    "absolute form without a Host": get(b"http://localhost/v1/streams", b""),
    "authority form": get(b"localhost"),
    "fragment": get(b"/v1/streams#a"),
    "blank in the path": get(b"/v1/ streams"),
    "raw UTF-8": get("/v1/streams/é".encode()),
    "raw byte": get(b"/v1/streams/\xff"),
    "raw NUL": get(b"/v1/streams/\0"),
    "foreign upgrade, then more": get(b"/v1/ws", HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n")
    + HIDDEN,
}
SIZES = {
    "signed": chunked(b"+14\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "negative": chunked(b"-14\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "prefixed": chunked(b"0x14\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "with an underscore": chunked(b"1_4\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "with a blank behind": chunked(b"14 \r\n" + BODY + b"\r\n0\r\n\r\n"),
    "with a blank before": chunked(b" 14\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "ended by LF": chunked(b"14\n" + BODY + b"\r\n0\r\n\r\n"),
    "LF in its extension": chunked(b"14;a\nb\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "data without an end": chunked(b"14\r\n" + BODY + b"0\r\n\r\n"),
    "data ended by LF": chunked(b"14\r\n" + BODY + b"\n0\r\n\r\n"),
    "smaller than its data": chunked(b"3\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "17 digits": chunked(b"F" * 17 + b"\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "length in the trailer": chunked(b"14\r\n" + BODY + b"\r\n0\r\nContent-Length: 5\r\n\r\n"),
}
MATRIX = {
    f"{kind}: {name}": sent
    for kind, cases in {
        "length": LENGTHS,
        "coding": CODINGS,
        "line": LINES,
        "request": REQUESTS,
        "chunk size": SIZES,
    }.items()
    for name, sent in cases.items()
}


@pytest.mark.parametrize("sent", MATRIX.values(), ids=MATRIX)
def test_smuggling(untouched: Server, sent: bytes) -> None:
    """T18. One 400, the connection closed, nothing stored: neither the request nor what it hides."""
    received, closed = exchange(untouched.port, sent)
    assert closed
    assert [answer.status for answer in answers(received)] == [400]
    assert b"Traceback" not in received


@pytest.mark.parametrize("size", [b"F" * 16, b"100000014"])
def test_smuggling_by_a_chunk_that_never_ends(untouched: Server, size: bytes) -> None:
    """T18. A size that would wrap around in 32 or 64 bits is waited for, as any other, and then 408."""
    received, closed = exchange(untouched.port, chunked(size + b"\r\n" + BODY + b"\r\n0\r\n\r\n" + HIDDEN))
    assert closed
    assert [answer.status for answer in answers(received)] == [408]


@pytest.mark.parametrize(
    "hosts",
    [
        b"", HOST + HOST, HOST + b"Host: evil\r\n", b"Host:\r\n", b"Host: evil\r\n",
        b"Host: localhost, evil\r\n", b"Host: 127.0.0.1.evil\r\n",
        b"Host: localhost@evil\r\n", b"Host: localhost:80@evil\r\n", b"Host: localhost:evil\r\n",
        b"Host: localhost/evil\r\n", b"Host: localhost.evil\r\n", b"Host: [::1]evil\r\n",
    ],
)  # fmt: skip
def test_host_confusion(untouched: Server, hosts: bytes) -> None:
    """T18. None or two: 400. One that only begins like this machine: 403. Before anything is looked at."""
    sent = POST + hosts + b"Connection: close\r\nContent-Type: application/json\r\n" + LENGTH + b"\r\n" + BODY
    received, _ = exchange(untouched.port, sent)
    (answer,) = answers(received)
    one = hosts.count(b"Host:") == 1
    expected = (403, "origin_refused") if one else (400, "malformed_request")
    assert (answer.status, answer.json()["code"]) == expected


@pytest.mark.parametrize("target", [b"http://localhost/v1/streams", b"HTTP://LOCALHOST/v1/streams?limit=1"])
def test_absolute_form_of_this_host_is_served(untouched: Server, target: bytes) -> None:
    """T18. RFC 9112 3.2.2 wants it, where both names are one."""
    received, _ = exchange(untouched.port, get(target, HOST + b"Connection: close\r\n"))
    assert [answer.status for answer in answers(received)] == [200]


def test_trailers_are_no_headers(server: Server) -> None:
    """T18. What stands behind a body decides nothing: no second Host, no encoding, no request ID."""
    trailers = b"Host: evil\r\nWeir-Encoding: base64\r\nWeir-Request-Id: evil\r\nOrigin: http://evil\r\n"
    body = b'["ECHO","YQ=="]'
    sent = b"POST /v1/commands HTTP/1.1\r\n" + JSON + CHUNKED + b"Connection: close\r\n\r\n"
    received, _ = exchange(server.port, sent + b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailers))
    (answer,) = answers(received)
    assert (answer.status, answer.json()) == (200, {"result": "YQ=="})
    assert b"evil" not in received


@pytest.mark.parametrize("line", [b"GET /v1/streams", b"HEAD /nowhere"])
def test_a_body_that_nobody_reads_is_no_request(untouched: Server, line: bytes) -> None:
    """T18. A body of a call that has none is passed over whole, refusals included."""
    head = line + b" HTTP/1.1\r\n" + HOST
    received, _ = exchange(untouched.port, head + b"Content-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN, 2)
    assert received.count(b"HTTP/1.1 ") == 1


def test_an_upgrade_that_is_not_taken_hides_nothing(untouched: Server) -> None:
    """T18. h2c is answered as HTTP/1.1, and what follows is not read."""
    upgrade = HOST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    received, _ = exchange(untouched.port, get(b"/v1/streams", upgrade) + HIDDEN, 2)
    assert received.count(b"HTTP/1.1 ") == 1
