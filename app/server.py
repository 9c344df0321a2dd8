"""A gateway as a process: its socket, its signals.

Knows: listening before recovery, draining before stopping.
Must never know: routes, settings' sources, what a terminal looks like.
"""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import uvicorn
import uvloop

from app import logs
from app.api.socket import FRAME_OVERHEAD_BYTES
from app.auth import TokenPolicy
from app.gateway import Gateway
from app.lifespan import FAILED, EngineLife, ServerStoppedError, check_exposure
from app.main import App, create_app
from app.policies import static_tokens
from app.settings import Settings, SettingsError
from app.transport.fast_path import fast_path
from app.transport.http_connection import Limits, guarded
from app.transport.websocket_connection import SocketLimits, guarded_socket
from engine import Clock

_BACKLOG: Final = 2_048
# What a socket does not take in this time ends its connection.
SOCKET_STALL_S_MAX: Final = 10.0
# A peer that is gone without a word is noticed after this long, while something waits to be sent to it.
_USER_TIMEOUT_MS: Final = 10_000

Say = Callable[[str], None]


class ListenAddress(NamedTuple):
    """Where it listens; the port is the real one."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """For people and programs on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def run(settings: Settings, clock: Clock, say: Say) -> None:
    """Serve until SIGTERM or SIGINT. Raises Stopped for every end but that."""
    check_exposure(settings)
    listener = _listen(settings)
    uvloop.run(_Process(settings, clock, listener).run(say))


def _say_data(settings: Settings, say: Say) -> None:
    """What is opened, before that: it may take a while, and may be refused."""
    say(f"data     {settings.data} (fsync {settings.fsync})")
    if not settings.is_loopback and not settings.has_tokens:
        say("WARNING: anybody who reaches this address may read, write and delete everything (--insecure)")


def _say_urls(place: ListenAddress, say: Say) -> None:
    """Where everything is, once it can be used."""
    say(f"API      {place.url}/v1")
    say(f"console  {place.url}/console")
    say(f"docs     {place.url}/docs")


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
    try:
        listener.bind((settings.host.strip("[]"), settings.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ServerStoppedError(
            FAILED, f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}"
        ) from None
    return listener


class _Server(uvicorn.Server):
    """uvicorn without its hands on the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Process:
    """From listening to the last byte."""

    def __init__(self, settings: Settings, clock: Clock, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._app: App = create_app(settings, clock)
        self._server = _Server(config(settings, self._app))
        self._app.gateway.connections = lambda: len(self._server.server_state.connections)
        self._life = EngineLife(self._app.gateway, self._app.flush_logs)
        # The loop holds tasks weakly.
        self._reloading: asyncio.Task[None] | None = None

    async def run(self, say: Say) -> None:
        """Listen, recover, serve, drain, close."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        if self._settings.has_tokens:
            # Otherwise it means, as usual, that the terminal is gone.
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        _say_data(self._settings, say)
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        opening = asyncio.create_task(self._life.open())
        stopping = asyncio.create_task(self._life.stopping.wait())
        await asyncio.wait((serving, opening, stopping), return_when=asyncio.FIRST_COMPLETED)
        refusal = None
        try:
            # A thread cannot be stopped: what is being read is read to the end, then closed.
            await opening
            if not self._life.stopping.is_set():
                _say_urls(ListenAddress(*self._listener.getsockname()[:2]), say)
            await self._life.keep()
        except ServerStoppedError as error:
            refusal = error
        self._app.gateway.drain()
        self._server.should_exit = True
        await serving
        self._app.flush_logs()
        await self._life.close()
        if refusal is not None:
            raise refusal

    def _reload(self) -> None:
        self._reloading = asyncio.create_task(self._reload_after(self._reloading))

    async def _reload_after(self, before: asyncio.Task[None] | None) -> None:
        # In order: what an earlier signal has read must not replace what this one reads.
        if before is not None:
            await before
        await reload_tokens(self._app.gateway)

    def _stop(self) -> None:
        if self._life.stopping.is_set():
            self._server.force_exit = True
        self._life.stop()


async def reload_tokens(gateway: Gateway) -> None:
    """Read the files of tokens again. What waits or follows with a token that is gone, or that allows
    something else now, ends. A file that cannot be read changes nothing.
    """
    policy = gateway.policy
    if not isinstance(policy, TokenPolicy):
        return
    try:
        policy.replace_tokens(await asyncio.to_thread(static_tokens, gateway.settings))
    except SettingsError as error:
        remedy = "the tokens that were read before stay in use: repair the file, and send SIGHUP again"
        logs.get().error("tokens were not read again", reason=str(error), remedy=remedy)
        return
    logs.get().info("tokens were read again", ended=gateway.sessions.revoke(policy.is_revoked))


def config(settings: Settings, app: App) -> uvicorn.Config:
    """How uvicorn serves the application: under limits, with the fast path if the application has it."""
    limits = Limits(settings.head_bytes_max, settings.request_s_max, settings.stall_s_max)
    protocol = guarded(limits, app.refuse) if app.fast_path is None else fast_path(app.fast_path, limits)
    return uvicorn.Config(
        app,
        http=protocol,
        ws=guarded_socket(SocketLimits(min(settings.stall_s_max, SOCKET_STALL_S_MAX))),
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws_per_message_deflate=False,
        ws_max_size=settings.entry_bytes_max + FRAME_OVERHEAD_BYTES,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=settings.drain_s_max,
    )
