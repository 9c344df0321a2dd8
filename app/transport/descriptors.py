"""Logs when the process has no file descriptors left: the event loop itself does not report it.

Knows: a new descriptor has the lowest free number, so the highest number means that none is left.
Must never know: what a connection is for.

libuv, under uvloop, closes what it cannot accept without a word: clients see a connection that ends at once,
and the log would say nothing.
"""

import resource
from typing import Final

from app import logs

_AGAIN_S: Final = 60.0


class Descriptors:
    """One for each process. Logs at most once a minute, however many connections come."""

    def __init__(self) -> None:
        self._quiet_until_s = 0.0

    def are_used_up(self, now_s: float) -> bool:
        """Whether the last one was in use within a minute."""
        return now_s < self._quiet_until_s

    def taken(self, number: int, now_s: float) -> None:
        """Note the descriptor of a new connection."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if number < limit - 1 or now_s < self._quiet_until_s:
            return
        self._quiet_until_s = now_s + _AGAIN_S
        logs.get().error(
            "all file descriptors are in use: further connections are closed at once",
            limit=limit,
            remedy="raise the limit (systemd: LimitNOFILE, shell: ulimit -n), or have fewer clients",
        )
