"""The service as a process: its socket, its signals, what strangers may take of it. Must never know: pages.

Anybody who reaches it may send a head before its token is looked at: connections are the gateway's own, which
bound the bytes of a head and the time in which a request arrives.
"""

import asyncio
import ctypes
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

import uvloop

from app.doors.http.http_connection import HttpConnection
from app.doors.http.listening import HttpServer, Times
from app.doors.http.service import HttpService, Limits
from app.http.responses import refuse
from app.metrics.faults import Faults
from history.service import History

# Gateways ask with a name, a range and a token.
LIMITS: Final = Limits(head_bytes_max=32 << 10, request_s_max=10.0, stall_s_max=30.0, keep_alive_s=75.0)
# As in glibc's malloc.h; other libraries have none of it.
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = 1 << 20
# At a stop pages under way have this long.
_TIMES: Final = Times(handshake_s_max=10.0, drain_s_max=10.0)


def run(history: History, listening: socket.socket, say: Callable[[], None]) -> None:
    """Serve on a socket until SIGTERM or SIGINT; `say` is called when it can."""
    _give_back_large_blocks()
    uvloop.run(_serve(history, listening, say))


def _give_back_large_blocks() -> None:
    """Have the C library return a large block where it is freed: it keeps those that are smaller than the
    largest one so far, in each thread, and the bound of memory would not hold.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def server_of(history: History) -> HttpServer:
    """What serves it."""
    clock, answer = history.clock, partial(refuse, request_id="")
    service = HttpService(history.app(), LIMITS, answer, None, clock, Faults(clock.monotonic))
    return HttpServer(service, partial(HttpConnection, service), _TIMES)


async def _serve(history: History, listening: socket.socket, say: Callable[[], None]) -> None:
    server, loop = server_of(history), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    loop.call_soon(say)
    try:
        await server.serve(listening)
    finally:
        history.close()
