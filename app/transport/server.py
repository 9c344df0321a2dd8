"""A gateway as a process: its socket, its signals, its engine's life.

Knows: listening before recovery, draining before stopping, which end has which exit code.
Must never know: routes, settings' sources, what a terminal looks like.
"""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import uvicorn
import uvloop

from app import logs
from app.api.socket import FRAME_OVERHEAD_BYTES
from app.gateway import RecoveryProgress
from app.main import App, create_app
from app.memory_limit import default_bytes
from app.settings import Settings
from app.transport.fast_path import fast_path
from app.transport.http_connection import Limits, guarded
from app.transport.websocket_connection import SocketLimits, guarded_socket
from engine import (
    Caps,
    Clock,
    Engine,
    Growth,
    LogPoisoned,
    LogRefused,
    Storage,
    StorageLocked,
    StorageRefused,
)

FINE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
DATA_REFUSED: Final = 3
LOCKED: Final = 4
FAULT: Final = 5

_BACKLOG: Final = 2_048
# While the log is read, its own log hears of it so often.
_TELL_S: Final = 5.0
# What a socket does not take in this time ends its connection.
SOCKET_STALL_S_MAX: Final = 10.0
# A peer that is gone without a word is noticed after this long, while something waits to be sent to it.
_USER_TIMEOUT_MS: Final = 10_000

# A fault inside the engine that comes again so soon is not cured by reading the log.
_FAULT_AGAIN_S: Final = 600.0
# After a fault, what threads still do with files has this long to end.
ABANDON_S_MAX: Final = 10.0

Say = Callable[[str], None]


class ServerStoppedError(Exception):
    """The gateway cannot run. `exit_code` is the process's, the text for whoever started it."""

    def __init__(self, exit_code: int, text: str) -> None:
        super().__init__(text)
        self.exit_code = exit_code


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
    if not settings.is_loopback:
        say("WARNING: anybody who reaches this address may read, write and delete everything (--insecure)")


def _say_urls(place: ListenAddress, say: Say) -> None:
    """Where everything is, once it can be used."""
    say(f"API      {place.url}/v1")
    say(f"console  {place.url}/console")
    say(f"docs     {place.url}/docs")


def check_exposure(settings: Settings) -> None:
    """Raise Stopped unless the settings say that strangers may reach it, and under which names."""
    if settings.is_loopback:
        return
    if not settings.insecure:
        raise ServerStoppedError(
            USAGE,
            f"listening on {settings.host} would let everybody who reaches it read, write and delete "
            "everything: stay on 127.0.0.1, or say --insecure",
        )
    if not settings.allowed_hosts:
        raise ServerStoppedError(
            USAGE,
            f"listening on {settings.host} with --insecure needs allowed_hosts, the names that clients use "
            "for this gateway: without them any web page could call it by its own name (DNS rebinding). Say "
            "--set allowed_hosts=weir.example or WEIR_ALLOWED_HOSTS; loopback names are always allowed",
        )


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
        self._clock = clock
        self._listener = listener
        self._app: App = create_app(settings, clock)
        self._server = _Server(config(settings, self._app))
        self._app.gateway.connections = lambda: len(self._server.server_state.connections)
        self._app.gateway.on_fault = self._fault
        self._stopping = asyncio.Event()
        self._broken = False
        # Set with either.
        self._wake = asyncio.Event()
        self._fault_at: float | None = None
        self._tell_at = clock.monotonic() + _TELL_S

    async def run(self, say: Say) -> None:
        """Listen, recover, serve, drain, close."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        _say_data(self._settings, say)
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        opening = asyncio.create_task(self._open(self._settings.data))
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((serving, opening, stopping), return_when=asyncio.FIRST_COMPLETED)
        engine, refusal = None, None
        try:
            # A thread cannot be stopped: what is being read is read to the end, then closed.
            engine = await opening
            if not self._stopping.is_set():
                _say_urls(ListenAddress(*self._listener.getsockname()[:2]), say)
            while not self._stopping.is_set():
                await self._wake.wait()
                if self._broken and not self._stopping.is_set():
                    broken, engine = engine, None
                    engine = await self._replace(broken)
        except ServerStoppedError as error:
            refusal = error
        self._app.gateway.drain()
        self._server.should_exit = True
        await serving
        self._app.flush_logs()
        if engine is not None:
            await _close(engine)
        if refusal is not None:
            raise refusal

    def _stop(self) -> None:
        if self._stopping.is_set():
            self._server.force_exit = True
        self._stopping.set()
        self._wake.set()
        self._app.gateway.drain()

    def _fault(self) -> None:
        self._broken = True
        self._wake.set()

    async def _replace(self, broken: Engine) -> Engine:
        """Give up an engine that has failed within a turn, and open another one on its log. Raises Stopped
        where that happened a short while ago too.
        """
        self._broken = False
        self._wake.clear()
        now, before = self._clock.monotonic(), self._fault_at
        self._fault_at = now
        try:
            async with asyncio.timeout(ABANDON_S_MAX):
                await broken.finish_turns()
                self._app.gateway.drop()
                storage = await broken.abandon()
        except TimeoutError:
            logs.get().critical("a disk does not come back", remedy="check the disk: the process ends here")
            self._app.flush_logs()
            # A thread that hangs in the kernel would keep an orderly end from ever coming.
            os._exit(FAULT)
        if before is not None and now - before < _FAULT_AGAIN_S:
            storage.unlock()
            raise ServerStoppedError(
                FAULT, f"a second fault inside the engine within {_FAULT_AGAIN_S / 60:.0f} minutes"
            )
        await broken.free()
        gc.unfreeze()
        await asyncio.to_thread(gc.collect)
        return await self._open(storage)

    async def _open(self, data: Path | Storage) -> Engine:
        log, began_s = logs.get(), self._clock.monotonic()
        try:
            engine = await asyncio.to_thread(self._recover, data)
        except ServerStoppedError as stopped:
            log.critical("refused", reason=str(stopped))
            raise
        await engine.start()
        # What was read stays: the collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        self._app.gateway.open(engine)
        found = engine.recovery
        log.info(
            "ready", frames=found.frames, bytes=found.bytes, s=round(self._clock.monotonic() - began_s, 3)
        )
        if found.torn_bytes:
            log.warning("torn tail cut", bytes=found.torn_bytes, kept_in=found.torn_file)
        for name in engine.set_aside:
            log.warning("a file that the log does not know was set aside", file=name)
        return engine

    def _tell(self, step: str, done_bytes: int, total_bytes: int) -> None:
        """How far reading the log is: for who asks, and every few seconds for the log. In a thread."""
        self._app.gateway.progress = RecoveryProgress(step, done_bytes, total_bytes)
        now = self._clock.monotonic()
        if now >= self._tell_at:
            self._tell_at = now + _TELL_S
            logs.get().info("reading the log", step=step, bytes=done_bytes, of=total_bytes)

    def _recover(self, data: Path | Storage) -> Engine:
        kept = self._settings
        try:
            return Engine.open(
                data,
                clock=self._clock,
                fsync=kept.fsync,
                caps=Caps(
                    kept.streams_max,
                    kept.groups_max,
                    kept.consumers_max,
                    kept.memory_bytes_max or default_bytes(),
                ),
                growth=Growth(kept.rewrite_growth_percent, kept.rewrite_bytes_min),
                tell=self._tell,
            )
        except StorageLocked as error:
            raise ServerStoppedError(LOCKED, str(error)) from None
        except (LogRefused, StorageRefused, ValueError) as error:
            raise ServerStoppedError(DATA_REFUSED, str(error)) from None
        except OSError as error:
            raise ServerStoppedError(FAILED, f"{self._settings.data}: {error.strerror or error}") from None


async def _close(engine: Engine) -> None:
    try:
        await engine.close()
    except LogPoisoned as error:
        # Told in the log by now, with the remedy.
        raise ServerStoppedError(FAILED, f"the log could not be brought to its end: {error}") from None


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


def prepare() -> None:
    """What a process does before it makes files: nobody else may read them."""
    os.umask(0o077)
