"""Which frame an answer about a stream depends on: the last one that touched the stream.

Knows: positions of frames, by stream, as long as they may not be safe.
Must never know: commands, waiting.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from engine.records import Record, RemoveAll, RenameStream

# Positions are forgotten, once safe, when there are more than this.
_POSITIONS_MAX: Final = 1024


class Touched:
    """The position of the last frame of each stream. Records that name no stream belong to ""."""

    __slots__ = ("_by_stream", "_else", "_many")

    def __init__(self) -> None:
        self._by_stream: dict[str, int] = {}
        # The position of streams without one of their own: that of the last frame that removed all streams.
        self._else = 0
        self._many = _POSITIONS_MAX

    def note(self, records: Sequence[Record], position: int) -> None:
        """A frame of these records ends at `position`."""
        for record in records:
            self._by_stream[getattr(record, "stream", "")] = position
            if type(record) is RenameStream:
                self._by_stream[record.target] = position
            elif type(record) is RemoveAll:
                self._by_stream, self._else = {"": position}, position

    @property
    def are_many(self) -> bool:
        """Whether `forget` is due."""
        return len(self._by_stream) > self._many

    def forget(self, safe_upto: int) -> None:
        """Forget positions that are safe."""
        self._by_stream = {name: upto for name, upto in self._by_stream.items() if upto > safe_upto}
        self._many = max(_POSITIONS_MAX, 2 * len(self._by_stream))

    def upto(self, streams: Iterable[str] | None) -> int:
        """The position on which an answer about these streams depends; None means all streams.

        Forgotten positions are safe, and no answer shows what is in a frame that touches no stream.
        """
        if streams is None:
            return max(self._by_stream.values(), default=0)
        return max([self._by_stream.get(stream, self._else) for stream in streams], default=0)
