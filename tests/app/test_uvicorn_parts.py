"""Private parts of uvicorn that connections are made of: each is there in the pinned version."""

import asyncio
import inspect

import pytest
import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

SOCKET_METHODS = (
    *("connection_made", "connection_lost", "data_received", "handle_connect", "handle_cont", "handle_text"),
    *("handle_bytes", "handle_ping", "handle_close", "shutdown"),
)
SOCKET_STATE = (
    *("conn", "transport", "loop", "frames", "curr_msg_data_type", "close_sent", "disconnected"),
    *("handshake_complete", "handshake_initiated", "close_timer", "ping_interval", "writable"),
)


class _App:
    """Never called: with an async __call__ uvicorn takes it for ASGI 3."""

    async def __call__(self, scope: object, receive: object, send: object) -> None:
        raise AssertionError


def _config() -> Config:
    config = uvicorn.Config(_App(), log_config=None)
    config.load()
    return config


@pytest.mark.parametrize("name", SOCKET_METHODS)
def test_a_websocket_connection_of_uvicorn_has_the_method(name: str) -> None:
    """Subclasses override or call it."""
    assert inspect.isfunction(getattr(WebSocketsSansIOProtocol, name))


async def test_connections_of_uvicorn_have_the_state() -> None:
    """What subclasses read of `self`."""
    loop = asyncio.get_running_loop()
    socket = WebSocketsSansIOProtocol(_config(), ServerState(), {}, loop)
    assert [name for name in SOCKET_STATE if not hasattr(socket, name)] == []
