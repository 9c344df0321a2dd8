"""The bound of a request's head, with bytes that are cut anywhere: of each head, not of all that arrive."""

import pytest

from app.doors.http.request_parser import RequestHead, RequestParser
from app.errors import RefusalError

BYTES_MAX = 100
GET = b"GET /v1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /v1 HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789"
CHUNKS = (
    b"POST /v1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n200\r\n"
    + b"x" * 512
    + b"\r\n0\r\n\r\n"
)
PIECES = (1, 7, 20, 64, 101, 150, 256, 1_000, 4_096)


class Sink:
    """Counts what came."""

    def __init__(self) -> None:
        self.heads = self.ends = 0

    def begin_request(self, head: RequestHead) -> None:
        self.heads += 1

    def receive_body(self, data: bytes) -> None:
        pass

    def end_request(self) -> None:
        self.ends += 1


def feed(data: bytes, piece_bytes: int, first_bytes: int = 0) -> Sink:
    """Parse it in pieces of this size, the first one of another."""
    sink = Sink()
    parser = RequestParser(sink, BYTES_MAX)
    cuts = [*range(first_bytes, len(data), piece_bytes), len(data)]
    for at, end in zip([0, *cuts], cuts, strict=False):
        if at < end:
            parser.feed(data[at:end])
    return sink


@pytest.mark.parametrize("piece_bytes", PIECES)
def test_any_number_of_requests_is_taken(piece_bytes: int) -> None:
    """Of all forms."""
    sink = feed((GET + POST + CHUNKS) * 30, piece_bytes)
    assert (sink.heads, sink.ends) == (90, 90)


@pytest.mark.parametrize("end", [b"x\r\n0\r\n\r\n", b"\r\n0\r\n\r\n", b"0\r\n\r\n", b"\r\n"])
def test_what_comes_behind_a_body_is_another_request(end: bytes) -> None:
    """Its bytes are no part of the body before, the end of which comes with it."""
    assert CHUNKS.endswith(end)
    sink = feed(CHUNKS + GET * 30 + GET[:20], 4_096, first_bytes=len(CHUNKS) - len(end))
    assert (sink.heads, sink.ends) == (31, 31)


@pytest.mark.parametrize("piece_bytes", PIECES)
def test_a_longer_head_is_refused(piece_bytes: int) -> None:
    """The first one, or one behind others; over or not."""
    long = b"GET /v1 HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 101
    for before in (b"", GET * 10, POST, CHUNKS):
        with pytest.raises(RefusalError, match="at most 100 bytes"):
            feed(before + long, piece_bytes, first_bytes=len(before))
