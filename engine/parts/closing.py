"""That a stream has ended: what is known of its end, and what that refuses.

Must never know: who closes, who waits for the end.

No command opens a stream again: a copy is open, and so is a stream that is created anew.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

from engine import errors, ids
from engine.errors import EngineError
from engine.parts.part import Holder, StreamPart, Streams
from engine.record import Record

# What is said of why a stream was closed: a word for readers, no document.
REASON_BYTES_MAX: Final = 256
# What a closed stream has beside the text of its reason.
_CLOSED_BYTES: Final = 120


def _closed(stream: str, generation: str, last_id: str, at_ms: str | int) -> EngineError:
    return errors.stream_closed(stream, generation, last_id, ids.rfc3339(int(at_ms)))


class Closed(StreamPart):
    """When a stream was closed, by the wall clock, and why, in the words of who closed it."""

    __slots__ = ("at_ms", "reason")
    rank = 10
    is_end = True
    refusals: ClassVar = {"stream_closed": _closed}

    def __init__(self, at_ms: int, reason: str) -> None:
        self.at_ms, self.reason = at_ms, reason

    @property
    def footprint_bytes(self) -> int:
        """How much memory it takes, about."""
        return _CLOSED_BYTES + len(self.reason.encode())

    def before(self, stream: str) -> Sequence[Record]:
        """It never changes."""
        return [CloseStream(stream, self.at_ms, self.reason)]

    def may_append(self, name: str, key: Holder, now_ms: int) -> EngineError:
        """Nothing any more."""
        return _closed(name, key.generation, ids.format(key.stream.last_id), self.at_ms)


class CloseStream(Record, frozen=True):
    """The stream has ended: behind its last entry comes nothing more, and what was scheduled goes. A copy of
    it is open.
    """

    number = 33
    event = "xclose"
    stream: str
    at_ms: int
    reason: str

    def apply(self, keyspace: Streams) -> None:
        keyspace.put_part(self.stream, Closed(self.at_ms, self.reason))
        keyspace.end(self.stream)
