"""A gateway as a process: its socket, its signals.

Knows: listening before recovery, draining before stopping.
Must never know: routes, settings' sources, what a terminal looks like.
"""

import asyncio
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import uvloop

from app import logs
from app.api.socket import FRAME_OVERHEAD_BYTES
from app.auth import TokenPolicy
from app.doors.http.asgi_request import AsgiApp
from app.doors.http.http_connection import DESCRIPTORS
from app.doors.http.listening import BACKLOG, HttpServer, Times
from app.doors.http.planned import PlannedConnection
from app.doors.http.service import HttpService, Limits
from app.doors.http.serving import Serving
from app.doors.resp.listening import RespServer, addresses
from app.doors.websocket.websocket_connection import SocketLimits, guarded_socket
from app.fronts.control import READY, Control
from app.gateway import Gateway
from app.http.operations.plans import Planner
from app.lifespan import CLOSE_S_MAX, FAILED, EngineLife, ServerStoppedError, check_exposure
from app.live.stalls import STALL_S_MAX
from app.main import ROUTES, App, create_app
from app.operating import Phase
from app.policies import static_tokens
from app.settings import Settings, SettingsError
from app.transport import tls
from app.transport.systemd import Systemd
from engine import Clock

if TYPE_CHECKING:
    from app.fronts.front_life import FrontLife

# A peer that is gone without a word is noticed after this long, while something waits to be sent to it.
_USER_TIMEOUT_MS: Final = 10_000
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
# After a signal to stop the process ends this long behind the time that answers and the log have for it.
# With the default of `drain_s_max` that is before the 30 s of the supervisors in deploy/.
_STUCK_S: Final = 2.0
# How long a thread, such as one that reads a large body, keeps the interpreter's lock while the event loop
# waits. The loop asks for it before each callback: with Python's 5 ms, a request beside that takes 8 ms.
_SWITCH_S: Final = 0.0005

T = TypeVar("T")
# What something is called, and where or what it is.
Say = Callable[[str, str], None]


class NoPortError(ServerStoppedError):
    """An address cannot be listened to."""


class ListenAddress(NamedTuple):
    """Where it listens; the port is the real one."""

    host: str
    port: int
    scheme: str = "http"

    @property
    def url(self) -> str:
        """For people and programs on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        return (
            f"{self.scheme}://[{host}]:{self.port}" if ":" in host else f"{self.scheme}://{host}:{self.port}"
        )


def run(settings: Settings, clock: Clock, say: Say, systemd: Systemd) -> None:
    """Serve until SIGTERM or SIGINT. Raises ServerStoppedError for every end but that."""
    # Before there are threads, which inherit it: one alone waits for these signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    check_exposure(settings)
    context = tls.server_context(settings)
    listeners = [_listen_publicly(settings), *_listen_for_admin(settings)]
    uvloop.run(_Process(settings, clock, listeners, context, systemd).run(say))


def run_engine(settings: Settings, clock: Clock, control: Control) -> None:
    """Run the engine for the fronts, beside the admin port and the one for Redis clients, until SIGTERM.
    Raises ServerStoppedError.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    listeners = _listen_for_admin(settings)
    uvloop.run(
        _EngineProcess(settings, clock, listeners, tls.server_context(settings), control).run(_say_nothing)
    )


def run_front(settings: Settings, clock: Clock, control: Control) -> None:
    """Serve HTTP before the engine's process, until SIGTERM. Raises ServerStoppedError."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    listeners = [ListeningSocket(_bind(settings.host, settings.port, shared=True), http_server)]
    uvloop.run(
        _FrontProcess(settings, clock, listeners, tls.server_context(settings), control).run(_say_nothing)
    )


def reserve(settings: Settings) -> socket.socket:
    """Take the port for fronts, without listening: they bind it too, and others find it taken. Raises
    ServerStoppedError.
    """
    # SO_REUSEPORT alone would let a second gateway of the same user have it as well.
    with _listen(settings.host, settings.port) as free:
        port = free.getsockname()[1]
    return _bind(settings.host, port, shared=True)


def _say_nothing(_: str, __: str) -> None:
    """The supervisor speaks for its processes."""


def _listen_publicly(settings: Settings) -> "ListeningSocket":
    return ListeningSocket(_listen(settings.host, settings.port), http_server)


def _listen_for_admin(settings: Settings) -> "list[ListeningSocket]":
    return [] if settings.admin is None else [ListeningSocket(_listen(*settings.admin), admin_server)]


def say_data(settings: Settings, say: Say) -> None:
    """What is opened, before that: it may take a while, and may be refused."""
    if settings.is_embedded:
        say("data", f"{settings.data} (fsync {settings.fsync})")
    else:
        from app.backend import durability_of  # noqa: PLC0415 - imports what no other start needs

        # No password is in it: `Settings` refuses a URL with one.
        say("backend", f"{settings.backend} (durability {durability_of(settings).name})")
    if not settings.is_loopback and not settings.has_tokens:
        say("WARNING", "anybody who reaches this address may read, write and delete everything (--insecure)")


def _place(listener: socket.socket) -> tuple[str, int]:
    host, port = listener.getsockname()[:2]
    return host, port


def say_urls(places: Sequence[ListenAddress], settings: Settings, say: Say) -> None:
    """Say where everything is, once it can be used."""
    place, *admin = places
    say("API", f"{place.url}/v1")
    say("console", f"{place.url}/console")
    say("docs", f"{place.url}/docs")
    for one in admin:
        say("metrics", f"{one.url}/metrics")
    for address in addresses(settings):
        say("Redis", address)


def _bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket at this address, which is not listened to yet; `shared` with other processes."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
    try:
        listener.bind((host.strip("[]"), port))
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from None
    return listener


def _listen(host: str, port: int) -> socket.socket:
    listener = _bind(host, port)
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from None
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> ServerStoppedError:
    remedy = "end what listens there, or name another port: --port, --admin-listen"
    return NoPortError(FAILED, f"cannot listen on {host}:{port}: {error.strerror or error}", remedy)


class ListeningSocket(NamedTuple):
    """A socket that is listened to, and what serves its connections."""

    socket: socket.socket
    configure: Callable[[Settings, App, ssl.SSLContext | None], HttpServer]


class _Process:
    """From listening to the last byte."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        listeners: Sequence[ListeningSocket],
        context: tls.ServerContext | None,
        systemd: Systemd,
    ) -> None:
        self._settings = settings
        self._listeners = listeners
        self._tls = context
        self._app: App = create_app(settings, clock)
        self._servers = [listener.configure(settings, self._app, context) for listener in listeners]
        self._app.gateway.operator.connections = self._count_connections
        self._app.gateway.operator.health.checks["descriptors_used_up"] = _has_no_descriptors
        self._life = self._make_life()
        self._systemd = systemd
        # The loop holds tasks weakly.
        self._reloading: asyncio.Task[None] | None = None

    async def run(self, say: Say) -> None:
        """Listen, recover, serve, drain, close."""
        sys.setswitchinterval(_SWITCH_S)
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._await_stop, args=(loop,), name="weir-stop", daemon=True).start()
        if self._reloads:
            loop.add_signal_handler(signal.SIGHUP, self._reload)
            # A supervisor has it wait until here.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
        self._systemd.start()
        say_data(self._settings, say)
        redis_clients = await self._listen_for_redis_clients()
        self._app.life.on_drain.append(redis_clients.drain)
        serving = asyncio.gather(
            *[
                self._serve(server, listener.socket)
                for server, listener in zip(self._servers, self._listeners, strict=True)
            ]
        )
        opening = asyncio.create_task(self._life.open())
        stopping = asyncio.create_task(self._life.stopping.wait())
        await asyncio.wait((serving, opening, stopping), return_when=asyncio.FIRST_COMPLETED)
        refusal = None
        try:
            # A thread cannot be stopped: what is being read is read to the end, then closed.
            await opening
            if not self._life.stopping.is_set():
                self._announce(say)
            await self._life.keep()
        except ServerStoppedError as error:
            refusal = error
        self._note_stop()
        self._app.life.drain()
        for server in self._servers:
            server.stop()
        await asyncio.gather(serving, redis_clients.close())
        self._app.flush_logs()
        await self._life.close()
        await asyncio.to_thread(self._app.gateway.access.audit.flush)
        self._systemd.close()
        if refusal is not None:
            raise refusal

    def _make_life(self) -> "EngineLife | FrontLife":
        return EngineLife(self._app.life, self._app.flush_logs)

    async def _serve(self, server: HttpServer, listener: socket.socket) -> None:
        """Serve the connections of one socket, until the end."""
        await server.serve(listener)

    def _announce(self, say: Say) -> None:
        """Say where everything is: it can be used now."""
        scheme = "http" if self._tls is None else "https"
        places = [ListenAddress(*_place(listener.socket), scheme) for listener in self._listeners]
        say_urls(places, self._settings, say)
        self._systemd.ready()

    def _note_stop(self) -> None:
        """The stop has begun."""
        note_stop(self._settings, self._systemd)

    @property
    def _reloads(self) -> bool:
        return reloads(self._settings, self._systemd)

    async def _listen_for_redis_clients(self) -> RespServer:
        try:
            return await RespServer(self._app.gateway, self._tls).start()
        except OSError as error:
            places = " and ".join(addresses(self._settings))
            # asyncio puts "error while attempting to bind on address (…): " before the reason.
            reason = (error.strerror or str(error)).rpartition("): ")[2]
            raise ServerStoppedError(FAILED, f"cannot listen on {places}: {reason}") from None

    def _count_connections(self) -> int:
        return sum(len(server.service.connections) for server in self._servers)

    def _reload(self) -> None:
        self._reloading = asyncio.create_task(self._reload_after(self._reloading))

    async def _reload_after(self, before: asyncio.Task[None] | None) -> None:
        # In order: what an earlier signal has read must not replace what this one reads.
        if before is not None:
            await before
        with self._systemd.reloading():
            self._app.gateway.access.audit.reopen()
            await reload_tokens(self._app.gateway)
            await reload_hooks(self._app.gateway)
            if self._tls is not None:
                is_read = await asyncio.to_thread(self._tls.reload, self._settings)
                self._app.gateway.operator.health.stale["certificate_stale"] = not is_read

    def _await_stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop with each signal, in a thread: the loop may hang in a write, and its handlers with it. The
        process ends where that takes too long, also where its log is still being read.
        """
        bound_s = self._settings.drain_s_max + CLOSE_S_MAX + _STUCK_S
        signal.sigwait(_STOP_SIGNALS)
        giving_up = threading.Timer(bound_s, self._life.give_up, (FAILED,))
        giving_up.daemon = True
        giving_up.start()
        while not loop.is_closed():
            loop.call_soon_threadsafe(self._stop)
            signal.sigwait(_STOP_SIGNALS)

    def _stop(self) -> None:
        if self._life.stopping.is_set():
            for server in self._servers:
                server.stop(at_once=True)
        self._life.stop()


def _has_no_descriptors() -> bool:
    return DESCRIPTORS.are_used_up(asyncio.get_running_loop().time())


class _ChildProcess(_Process):
    """One of several processes: its supervisor speaks for it, and sends it SIGHUP only where that reloads."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        listeners: Sequence[ListeningSocket],
        context: tls.ServerContext | None,
        control: Control,
    ) -> None:
        self._control = control
        super().__init__(settings, clock, listeners, context, Systemd({}))
        self._app.gateway.operator.processes.phase = lambda: control.common.phase
        self._app.life.on_ready.append(lambda: control.say(READY))

    @property
    def _reloads(self) -> bool:
        return True

    def _announce(self, say: Say) -> None:
        """The supervisor does, once all processes are ready."""

    def _note_stop(self) -> None:
        """The supervisor does."""


class _EngineProcess(_ChildProcess):
    """The process with the engine. Its application serves the admin port, and what fronts forward."""

    def _make_life(self) -> EngineLife:
        from app.fronts.ports import FrontPorts  # noqa: PLC0415 - a gateway of one process has no fronts

        self._ports = FrontPorts(self._app.life, {route.label: route for route in ROUTES})
        self._control.on_link = self._ports.add
        # The supervisor is the process to end: it would start this one again.
        life = EngineLife(self._app.life, self._app.flush_logs, holder=os.getppid())
        self._app.life.on_fault.append(self._control.common.end_ready)
        return life

    async def run(self, say: Say) -> None:
        """As any process, for fronts."""
        self._control.start()
        await super().run(say)


class _FrontProcess(_ChildProcess):
    """A process that speaks HTTP."""

    _life: "FrontLife"

    def _make_life(self) -> "FrontLife":
        from app.fronts.front_life import FrontLife  # noqa: PLC0415 - as above

        return FrontLife(self._app.life, self._control)

    async def _serve(self, server: HttpServer, listener: socket.socket) -> None:
        """As any process. One that is started again gets connections once it serves: the others have them."""
        if self._control.common.phase is not Phase.STARTING:
            await self._life.opened()
        await super()._serve(server, listener)

    async def _listen_for_redis_clients(self) -> RespServer:
        return RespServer(self._app.gateway, self._tls)


def note_stop(settings: Settings, systemd: Systemd) -> None:
    """Say that the stop has begun, and what it waits for."""
    systemd.stopping()
    logs.get().info("stopping", answers_wait_s_max=settings.drain_s_max)


def reloads(settings: Settings, systemd: Systemd) -> bool:
    """Whether SIGHUP reads files again. Otherwise it means, as usual, that the terminal is gone."""
    return bool(
        settings.has_tokens
        or settings.hooks_file
        or settings.audit_file
        or settings.tls_certificate
        or systemd.is_there
    )


async def reload_tokens(gateway: Gateway) -> None:
    """Read the files of tokens again. What waits or follows with a token that is gone, or that allows
    something else now, ends. A file that cannot be read changes nothing.
    """
    policy = gateway.access.policy
    if isinstance(policy, TokenPolicy):
        tokens = await _read_again(gateway, "tokens", partial(static_tokens, gateway.settings))
        if tokens is not None:
            policy.replace_tokens(tokens)
            ended = gateway.access.sessions.revoke(policy.is_revoked)
            logs.get().info("tokens were read again", ended=ended)


async def reload_hooks(gateway: Gateway) -> None:
    """Read the file of hooks again. One that cannot be read changes nothing."""
    if count := await _read_again(gateway, "hooks", gateway.hooks.read_again):
        logs.get().info("hooks were read again", hooks=count)


async def _read_again(gateway: Gateway, what: str, read: Callable[[], T]) -> T | None:
    """What `read` gives, or None where it raises SettingsError, which is logged and shown as failing."""
    try:
        found = await asyncio.to_thread(read)
    except SettingsError as error:
        remedy = f"the {what} that were read before stay in use: repair the file, and send SIGHUP again"
        logs.get().error(f"{what} were not read again", reason=str(error), remedy=remedy)
        gateway.operator.health.stale[f"{what}_stale"] = True
        return None
    gateway.operator.health.stale[f"{what}_stale"] = False
    return found


def http_server(settings: Settings, app: App, context: ssl.SSLContext | None = None) -> HttpServer:
    """What serves the application; over TLS with a context."""
    return _http_server(settings, app, app, app.plans, context)


def admin_server(settings: Settings, app: App, context: ssl.SSLContext | None) -> HttpServer:
    """What serves the admin port, under the same limits."""
    return _http_server(settings, app, app.serve_admin, app.admin_plans, context)


def http_service(settings: Settings, app: App, serve: AsgiApp) -> HttpService:
    """What the connections share that are served so."""
    limits = Limits(
        settings.head_bytes_max, settings.request_s_max, settings.stall_s_max, settings.keep_alive_s
    )
    connect = guarded_socket(
        SocketLimits(
            min(settings.stall_s_max, STALL_S_MAX),
            settings.request_s_max,
            settings.entry_bytes_max + FRAME_OVERHEAD_BYTES,
        )
    )
    gateway = app.gateway
    return HttpService(serve, limits, app.refuse, connect, gateway.clock, gateway.reports.faults)


def _http_server(
    settings: Settings, app: App, serve: AsgiApp, plans: Planner, context: ssl.SSLContext | None
) -> HttpServer:
    service = http_service(settings, app, serve)
    connect = partial(PlannedConnection, service, Serving(app.gateway, plans, app.exchanges, app.proxies))
    return HttpServer(service, connect, Times(settings.handshake_s_max, settings.drain_s_max), context)
