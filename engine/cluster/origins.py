"""Numbers for writes, so that one whose reply was lost can be sent again and is done once.

Knows: which writes of this process have no reply yet. Must never know: what they write, connections.

    number   5  6  7  8      a server keeps the answers of 6 to 8, under this process's name, for 60 s
    reply    ✓     ✓         settled: all up to 5
"""

import secrets
from typing import Final

from engine.clock import Clock
from engine.cluster.scripts import WriteOrigin
from engine.cluster.wire import IDENTITY


class Origins:
    """The writes of this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._front: Final = secrets.token_hex(8)
        self._last = 0
        self._without_reply: dict[int, None] = {}

    def begin_write(self) -> WriteOrigin:
        """The origin of another write; `end` it after its reply."""
        self._last += 1
        self._without_reply[self._last] = None
        settled = next(iter(self._without_reply)) - 1
        return WriteOrigin(
            secrets.token_hex(8), IDENTITY, self._front, self._last, settled, self._clock.wall_ms()
        )

    def end_write(self, number: int) -> None:
        """It is not sent again. 0 is no number."""
        self._without_reply.pop(number, None)


def unnumbered(now_ms: int = 0) -> WriteOrigin:
    """The origin of a write that is not sent again."""
    return WriteOrigin(secrets.token_hex(8), IDENTITY, now_ms=now_ms)
