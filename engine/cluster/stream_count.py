"""How many streams the servers have, counted a part at a time: no server keeps that number.

Knows: how far the count of each server has come. Must never know: when the servers are asked, connections.

    each look   SCAN of 1,000 keys at each primary, from where the look before it ended
                a round ends ──► its number stands until the next round ends
"""

from collections.abc import Sequence
from typing import Final

from engine.cluster.keys import is_stream_name
from engine.cluster.wire import Address, Words

# A thousandth of a second of a server's time, about.
_KEYS: Final = 1_000


class _Round:
    """Of one server: where the round is, what it has found, and what the round before it found."""

    def __init__(self) -> None:
        self.cursor = b"0"
        self.found = 0
        self.last: int | None = None


class StreamCount:
    """Streams that are made or removed during a round are counted in it or not."""

    def __init__(self) -> None:
        self._rounds: dict[Address, _Round] = {}

    @property
    def streams(self) -> int:
        """How many there are; during a server's first round those found so far."""
        return sum(one.found if one.last is None else one.last for one in self._rounds.values())

    def question(self, server: Address) -> Words:
        """The command that goes on at this server."""
        cursor = self._rounds[server].cursor if server in self._rounds else b"0"
        return ("SCAN", cursor, "COUNT", _KEYS, "TYPE", "stream")

    def note(self, replies: Sequence[tuple[Address, tuple[bytes, Sequence[bytes]]]]) -> None:
        """Take the replies of all servers that there are: others are forgotten."""
        self._rounds = {server: self._rounds.get(server) or _Round() for server, _ in replies}
        for server, (cursor, names) in replies:
            one = self._rounds[server]
            one.cursor = cursor
            one.found += sum(map(is_stream_name, names))
            if cursor == b"0":
                one.found, one.last = 0, one.found
