"""A Redis of another version, as far as an import asks: Weir's own engine behind RESP2.

Knows: RESP2, MULTI and EXEC, and how to leave out what a version did not have.
Must never know: what is tested with it.
"""

import socketserver
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, Final

from app.redis import Resp
from engine import EngineError
from tests.redis_session import RedisSession
from tests.serving import serving

_SINCE_7: Final = (
    b"max-deleted-entry-id",
    b"entries-added",
    b"recorded-first-entry-id",
    b"entries-read",
    b"lag",
)
_SINCE_8: Final = (b"idmp-duration", b"idmp-maxsize")
WITHOUT: Final = {"8.8": (), "7.0": _SINCE_8, "5.0": (*_SINCE_7, *_SINCE_8)}


class OtherRedis(socketserver.ThreadingTCPServer):
    """Speaks as `version` did; `session` is what it has."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, version: str, now_ms: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.session = RedisSession(now_ms)
        self.without = WITHOUT[version]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.server_address[1]}"

    def answer(self, words: Sequence[bytes]) -> bytes:
        """One command's reply on the wire."""
        try:
            return _written(self._fit(self.session.run(words)))
        except EngineError as refusal:
            return f"-{refusal.redis}\r\n".encode()

    def _fit(self, reply: Resp) -> Resp:
        if not isinstance(reply, list):
            return reply
        kept: list[Resp] = []
        places = iter(reply)
        for one in places:
            if isinstance(one, bytes) and one in self.without:
                next(places)
            else:
                kept.append(self._fit(one))
        return kept


class _Handler(socketserver.StreamRequestHandler):
    server: OtherRedis

    def handle(self) -> None:
        queued: list[list[bytes]] | None = None
        while words := _read(self.rfile):
            name = words[0].upper()
            if name == b"MULTI":
                queued, reply = [], b"+OK\r\n"
            elif name == b"EXEC" and queued is not None:
                replies = [self.server.answer(one) for one in queued]
                queued, reply = None, b"*%d\r\n%b" % (len(replies), b"".join(replies))
            elif queued is not None:
                queued.append(words)
                reply = b"+QUEUED\r\n"
            else:
                reply = self.server.answer(words)
            self.wfile.write(reply)


def _read(file: BinaryIO | Any) -> list[bytes]:
    head = file.readline()
    if not head:
        return []
    words = []
    for _ in range(int(head[1:])):
        size = int(file.readline()[1:])
        words.append(file.read(size + 2)[:size])
    return words


def _written(reply: Resp) -> bytes:
    if reply is None:
        return b"*-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, str):
        return f"+{reply}\r\n".encode()
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n%b" % (len(reply), b"".join(map(_written, reply)))


@contextmanager
def other_redis(version: str, now_ms: int = 1_700_000_000_000) -> Iterator[OtherRedis]:
    """One that runs while it is used."""
    with serving(OtherRedis(version, now_ms)) as server:
        yield server
