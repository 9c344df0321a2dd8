"""How the head of an answer is written.

Knows: first lines, headers as bytes, the date. Must never know: what is answered, connections.
"""

import asyncio
import re
from collections.abc import Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from engine import Clock

Header = tuple[bytes, bytes]

CLOSE: Final = (b"connection", b"close")
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

# `map` with it makes no frame of Python for each line.
HEADER_LINE: Final = b"%b: %b\r\n".__mod__
_PHRASES: Final = {int(status): status.phrase for status in HTTPStatus}
_STATUS_LINES: Final = {
    status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode() for status in range(100, 600)
}
# Lines of headers: a name, and a value without the control characters that would end or break its line.
_SOUND: Final = re.compile(rb"(?:[!#-'*+\-.0-9A-Z^_`a-z|~]+: [^\x00-\x08\x0a-\x1f\x7f]*\r\n)*")


def status_line(status: int) -> bytes:
    """The first line of an answer with this status."""
    return _STATUS_LINES[status]


def header_lines(headers: Sequence[Header]) -> bytes:
    """The lines of headers."""
    return b"".join(map(HEADER_LINE, headers))


def are_sound(lines: bytes) -> bool:
    """Whether these are lines of headers, of which no value pretends to be another line."""
    return _SOUND.fullmatch(lines) is not None


class ServerHeaders:
    """What every answer begins with: a first line, and the date."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # From when an answer needs them to the end of their second.
        self._current: list[Header] = []
        # How answers begin, by their status; empty again in the next second.
        self.starts: dict[int, bytes] = {}

    def now(self) -> list[Header]:
        """The headers of this second; a new list each second."""
        if not self._current:
            second, ms = divmod(self._clock.wall_ms(), 1_000)
            self._current = [(b"date", formatdate(second, usegmt=True).encode())]
            asyncio.get_running_loop().call_later((1_000 - ms) / 1_000, self._forget)
        return self._current

    def start(self, status: int) -> bytes:
        """How an answer with this status begins in this second, which is kept in `starts`."""
        made = self.starts[status] = status_line(status) + header_lines(self.now())
        return made

    def _forget(self) -> None:
        self._current = []
        self.starts.clear()
