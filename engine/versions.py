"""Versions of the streams that clients watch: whether one has changed since, even if it is back as it was.

Knows: names and their versions. Must never know: what a change is, clients, transactions.
"""

from secrets import randbits
from typing import Final

# Names that are known, about 100 bytes each. Who watches one that was forgotten sees a change.
VERSIONS_MAX: Final = 10_000


class Versions:
    """The versions of watched streams, missing ones too: a stream loses its own when it changes. None comes
    twice, from another process neither.
    """

    __slots__ = ("_by_stream", "_last")

    def __init__(self) -> None:
        self._by_stream: dict[str, int] = {}
        self._last = randbits(60)

    def __len__(self) -> int:
        return len(self._by_stream)

    def watch(self, stream: str) -> int:
        """The version of a stream, known from now on."""
        version = self._by_stream.pop(stream, None)
        if version is None:
            version = self._last = self._last + 1
            if len(self._by_stream) >= VERSIONS_MAX:
                del self._by_stream[next(iter(self._by_stream))]
        self._by_stream[stream] = version
        return version

    def has(self, stream: str, version: int) -> bool:
        """Whether it is still that version."""
        return self._by_stream.get(stream) == version

    def change(self, stream: str) -> None:
        """The stream is another version from now on."""
        self._by_stream.pop(stream, None)

    def change_all(self) -> None:
        """All streams are."""
        self._by_stream.clear()
