"""Listening for Redis clients: over TCP, on a Unix socket, or both.

Knows: addresses, who may connect to a Unix socket, how long a stop waits for replies.
Must never know: what is said on a connection.
"""

import asyncio
import os
import socket
import ssl
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from app import logs
from app.doors.resp.connection import RespConnection
from app.doors.resp.port import Port
from app.doors.resp.session import RespSession
from app.gateway import Gateway
from app.settings import Settings

_BACKLOG: Final = 2_048
# A peer that vanished is noticed within ten minutes, as by Redis: its connection counts until then.
KEEPALIVE_S: Final = 300
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S // 3),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
# Only the user that runs the gateway may connect to its Unix socket.
_SOCKET_MODE: Final = 0o600


class RespServer:
    """The listeners of one gateway; none where the settings name none."""

    def __init__(self, gateway: Gateway, context: ssl.SSLContext | None = None) -> None:
        # TCP speaks TLS with a context; a Unix socket needs none.
        self._tls = context
        self.port: Port[RespSession] = Port(gateway)
        self._settings = gateway.settings
        self._servers: list[asyncio.Server] = []

    async def start(self) -> Self:
        """Listen. Raises OSError."""
        loop, settings = asyncio.get_running_loop(), self._settings

        def connect() -> RespConnection:
            return RespConnection(self.port)

        if settings.resp is not None:
            server = await loop.create_server(
                connect,
                *settings.resp,
                backlog=_BACKLOG,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else settings.handshake_s_max,
            )
            for listener in server.sockets:
                for level, option, value in _KEEPALIVE:
                    listener.setsockopt(level, option, value)
            self._servers.append(server)
        if settings.resp_path is not None:
            bound = await asyncio.to_thread(_bind, settings.resp_path)
            server = await loop.create_unix_server(connect, sock=bound, backlog=_BACKLOG)
            self._servers.append(server)
        return self

    def drain(self) -> None:
        """Close each connection as soon as its work is done."""
        port = self.port
        if port.sessions and not port.draining:
            logs.get().info(
                "the gateway stops: Redis clients are disconnected behind their replies",
                clients=len(port.sessions),
            )
        port.draining = True
        for session in list(port.sessions.values()):
            session.end_if_idle()

    async def close(self) -> None:
        """Take no connection, let the others end their work, and end those that do not."""
        for server in self._servers:
            server.close()
        self.drain()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.port.empty.wait(), self._settings.drain_s_max)
        for session in list(self.port.sessions.values()):
            session.abort("the gateway stops, and its work takes longer than drain_s_max")
        self.port.log.lines.flush()
        if self._settings.resp_path is not None and self._servers:
            await asyncio.to_thread(_remove_stale, self._settings.resp_path)


def addresses(settings: Settings) -> list[str]:
    """Where Redis clients are listened to, for people."""
    found = []
    if settings.resp is not None:
        scheme, (host, port) = "rediss" if settings.tls_certificate else "redis", settings.resp
        found.append(f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}")
    if settings.resp_path is not None:
        found.append(f"redis+unix://{settings.resp_path}")
    return found


def _bind(path: Path) -> socket.socket:
    """A socket at this path, never open to others, not even at first."""
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 & ~_SOCKET_MODE)
    try:
        listener.bind(str(path))
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def _remove_stale(path: Path) -> None:
    """Remove the socket of a gateway that was killed; nothing else of that name."""
    try:
        if stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
    except FileNotFoundError:
        pass
