"""What readers have seen of streams that a server lost when it restarted: without it they get no gap.

Knows: of each stream that was read its generation and how far it was seen, before the last restart and since.
Must never know: connections, how a restart is noticed.

A server that comes back empty, or with less, has not even the mark of it. So a reader whose cursor is an ID
alone is taken for one of the stream that this gateway knew, where it was seen that far before.
"""

from typing import Final, TypeVar

import msgspec

from engine.commands.base import Command
from engine.commands.types import XRead
from engine.replies import StreamsRead

# Streams that are kept, about 200 bytes each: the ones read last.
_STREAMS_MAX: Final = 10_000

Seen = tuple[str, int]
C = TypeVar("C", bound=Command)
V = TypeVar("V")


class Losses:
    """What was seen of each stream: the generation and the highest ID."""

    def __init__(self) -> None:
        # With what was seen of the generation before, which a restart may have ended before it was noticed.
        self._seen: dict[str, tuple[Seen, Seen | None]] = {}
        self._lost: dict[str, Seen] = {}

    def note(self, reply: StreamsRead) -> None:
        """Keep how far each stream was seen."""
        entries = {stream.stream: stream for stream in reply.streams}
        for (stream, cursor), generation in zip(reply.cursors, reply.generations, strict=False):
            read = entries.get(stream)
            if not generation or (read is not None and read.gap is not None and read.gap.next is not None):
                continue
            highest = max(cursor, read.entries.last) if read is not None else cursor
            now, before = self._seen.pop(stream, (None, None))
            if now is not None and now[0] != generation:
                now, before = None, now
            self._seen[stream] = ((generation, max(highest, now[1] if now is not None else 0)), before)
            _drop_oldest(self._seen)

    def note_restart(self) -> None:
        """A server came back: what it has by now may be less than was seen."""
        for stream, (now, before) in self._seen.items():
            self._lost.pop(stream, None)
            self._lost[stream] = before or now
            _drop_oldest(self._lost)
        self._seen.clear()

    def informed(self, command: C) -> C:
        """A read with the generations of cursors that were seen before the restart; any other as it is."""
        if not isinstance(command, XRead) or command.known is None or not self._lost:
            return command
        known = [
            self._known(stream, cursor) if not generation and isinstance(cursor, int) else generation
            for (stream, cursor), generation in zip(command.streams, command.known, strict=True)
        ]
        return msgspec.structs.replace(command, known=known)

    def _known(self, stream: str, cursor: int) -> str:
        generation, highest = self._lost.get(stream, ("", 0))
        return generation if 0 < cursor <= highest else ""


def _drop_oldest(kept: dict[str, V]) -> None:
    if len(kept) > _STREAMS_MAX:
        del kept[next(iter(kept))]
