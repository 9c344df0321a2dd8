"""Answers of the fast path as bytes, each in one piece.

Knows: the order of an answer's lines, which is that of the ordinary way. Must never know: requests, sockets.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from app.doors.http.answer_heads import CLOSE, Header, header_lines, status_line
from app.http.middleware.request_id import SAFETY
from app.http.responses import Response

_SAFETY: Final = header_lines(SAFETY)
_SAFETY_NAMES: Final = frozenset(name for name, _ in SAFETY)
_NAME: Final = itemgetter(0)
GOODBYE: Final = header_lines([CLOSE])
_STORED: Final = b'{"id":"', b'","duplicate":false}'
# By the length of the ID, which has at most 41 bytes.
_LENGTHS: Final = [
    b"\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (sum(map(len, _STORED)) + size)
    for size in range(42)
]


class FastAnswers:
    """Those of one application."""

    def __init__(self) -> None:
        # How answers begin, by status; made of the server's headers, which change with the date.
        self._starts: dict[int, bytes] = {}
        self._defaults: Sequence[Header] = ()

    def start(self, status: int, defaults: Sequence[Header]) -> bytes:
        """The beginning of an answer: its status and the server's headers."""
        if defaults is not self._defaults:
            self._defaults, self._starts = defaults, {}
        if status not in self._starts:
            self._starts[status] = status_line(status) + header_lines(defaults)
        return self._starts[status]

    def head(
        self, response: Response, defaults: Sequence[Header], request_id: str, *, is_last: bool
    ) -> bytes:
        """The head of an answer; after the last one the connection closes."""
        given = _SAFETY_NAMES.intersection(map(_NAME, response.raw_headers))
        return b"%b%bweir-request-id: %b\r\n%b%b\r\n" % (
            self.start(response.status_code, defaults),
            header_lines(response.raw_headers),
            request_id.encode(),
            header_lines([header for header in SAFETY if header[0] not in given]) if given else _SAFETY,
            GOODBYE if is_last and CLOSE not in response.raw_headers else b"",
        )


def whole(own: bytes, limits: bytes, request_id: str, goodbye: bytes, body: bytes) -> bytes:
    """An answer. `own` is its beginning with the operation's own headers, `limits` are lines that show its
    caller's rate, `goodbye` is `GOODBYE` or nothing.
    """
    return b"".join(
        (own, limits, b"weir-request-id: %b\r\n" % request_id.encode(), _SAFETY, goodbye, b"\r\n", body)
    )


def entry_stored(before: bytes, entry_id: bytes) -> tuple[bytes, bytes]:
    """The answer of the route for a single entry: its beginning with the operation's own headers, and its
    body. `before` is the beginning up to the ID that its location ends with.
    """
    return b"%b%b%b" % (before, entry_id, _LENGTHS[len(entry_id)]), b"%b%b%b" % (
        _STORED[0],
        entry_id,
        _STORED[1],
    )
