"""When a peer counts as stalled: it takes nothing of what waits for it. A slow one takes little, and goes on.

Knows: how much the peer's system has acknowledged. Must never know: what was sent, what a stall ends.
"""

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Final

# At most, on connections that stay open: event streams, sockets, Redis connections.
STALL_S_MAX: Final = 10.0
# Looks until a peer counts as stalled, so that its time is measured to a tenth.
_LOOKS: Final = 10
# `tcpi_bytes_acked` in the kernel's `struct tcp_info`, a u64.
_ACKED: Final = slice(120, 128)


class StallTimer:
    """Calls `stalled` when the peer has taken nothing for `stall_s_max`. `cancel` it once all is sent."""

    __slots__ = ("_looks", "_loop", "_stall_s_max", "_stalled", "_taken", "_timer", "_transport")

    def __init__(
        self, transport: asyncio.WriteTransport, stall_s_max: float, stalled: Callable[[], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._stall_s_max = stall_s_max
        self._stalled = stalled
        self._looks = 0
        self._taken = taken_bytes(transport)
        self._wait()

    def cancel(self) -> None:
        """Do not call `stalled`."""
        self._timer.cancel()

    def _wait(self) -> None:
        self._timer = self._loop.call_later(self._stall_s_max / _LOOKS, self._look)

    def _look(self) -> None:
        taken = taken_bytes(self._transport)
        self._looks = 0 if taken > self._taken else self._looks + 1
        self._taken = taken
        if self._looks == _LOOKS:
            self._stalled()
        else:
            self._wait()


def taken_bytes(transport: asyncio.WriteTransport) -> int:
    """A number that grows while the peer takes data.

    The system accepts more only when a third of its send buffer is free, which may be a megabyte, so TCP says
    what was acknowledged. Of other sockets only what waits in the process is known.
    """
    try:
        info = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED.stop)
    except (OSError, AttributeError, ValueError):
        # ValueError is uvloop's, where the connection is closed.
        return -transport.get_write_buffer_size()
    return int.from_bytes(info[_ACKED], sys.byteorder)
