"""Private parts of uvicorn that connections are made of: each is there in the pinned version."""

import asyncio
import inspect

import pytest
import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

HTTP_METHODS = (
    *("connection_made", "connection_lost", "data_received", "on_message_begin", "on_url", "on_header"),
    *("on_headers_complete", "on_body", "on_message_complete", "pause_writing", "resume_writing"),
    *("handle_websocket_upgrade", "send_400_response", "shutdown"),
    *("_unset_keepalive_if_required", "_start_asgi_task"),
)
HTTP_STATE = (
    *("cycle", "pipeline", "flow", "server_state", "timeout_keep_alive", "timeout_keep_alive_task"),
    *("parser", "transport", "loop", "headers", "tasks"),
)
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


@pytest.mark.parametrize("name", ["pause_reading", "resume_reading"])
def test_the_flow_control_of_uvicorn_has_the_method(name: str) -> None:
    """It is replaced by one that stays paused while anything waits."""
    assert inspect.isfunction(getattr(FlowControl, name))


@pytest.mark.parametrize("name", HTTP_METHODS)
def test_an_http_connection_of_uvicorn_has_the_method(name: str) -> None:
    """Subclasses override or call it."""
    assert inspect.isfunction(getattr(HttpToolsProtocol, name))


@pytest.mark.parametrize("name", SOCKET_METHODS)
def test_a_websocket_connection_of_uvicorn_has_the_method(name: str) -> None:
    """The same."""
    assert inspect.isfunction(getattr(WebSocketsSansIOProtocol, name))


async def test_connections_of_uvicorn_have_the_state() -> None:
    """What subclasses read of `self`."""
    loop = asyncio.get_running_loop()
    http = HttpToolsProtocol(_config(), ServerState(), {}, loop)
    assert [name for name in HTTP_STATE if not hasattr(http, name)] == []
    socket = WebSocketsSansIOProtocol(_config(), ServerState(), {}, loop)
    assert [name for name in SOCKET_STATE if not hasattr(socket, name)] == []


def test_what_is_around_a_request_has_its_parts() -> None:
    """The cycle of a request, the flow of its connection, what the server shares, first lines of answers."""
    made = inspect.getsource(RequestResponseCycle.__init__)
    for name in ("response_complete", "response_started", "disconnected", "message_event", "keep_alive"):
        assert f"self.{name} = " in made
    assert {"pause_reading", "resume_reading"} <= vars(FlowControl).keys()
    assert "write_paused" in inspect.getsource(FlowControl)
    state = ServerState()
    assert (state.total_requests, state.default_headers) == (0, [])
    assert STATUS_LINE[200] == b"HTTP/1.1 200 OK\r\n"
