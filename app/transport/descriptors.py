"""Logs when the process has no file descriptors left; the event loop does not report it.

Knows: a new descriptor gets the lowest free number, so the highest number means that none is left.
Must never know: what a connection is for.

Without descriptors, libuv (under uvloop) closes new connections silently: clients see them end at once, and
the log would not say why.
"""

import resource
from typing import Final

from app import logs

_AGAIN_S: Final = 60.0


class Descriptors:
    """One for each process. Logs at most once a minute."""

    def __init__(self) -> None:
        self._quiet_until_s = 0.0

    def are_used_up(self, now_s: float) -> bool:
        """Whether the last descriptor was in use within the last minute."""
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
