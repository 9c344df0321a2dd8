"""The engine's life within a process: opened on its data, replaced after a fault, closed.

Knows: how recovery and its end are logged, which end has which exit code, what the ASGI lifespan is.
Must never know: routes, sockets, which server runs the application.
"""

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

from app import logs
from app.auth.revocation_file import RevocationFile, RevocationFileError
from app.http.responses import Receive, Send
from app.life import Life
from app.live.other_gateways import OtherGateways
from app.metrics import memory_limit
from app.metrics.loop_lag import LoopLag
from app.operating import RecoveryProgress
from app.settings import Settings, SettingsError, host_is_loopback
from engine import (
    Caps,
    Engine,
    Growth,
    LogPoisonedError,
    LogRefusedError,
    Storage,
    StorageLockedError,
    StorageRefusedError,
)

if TYPE_CHECKING:
    from engine.cluster import ClusterEngine

FINE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
DATA_REFUSED: Final = 3
LOCKED: Final = 4
FAULT: Final = 5

# What to do where the gateway ends with this code.
_REMEDIES: Final = {
    FAILED: "check the disk and the directory of the data, then start the gateway again",
    USAGE: "correct the settings",
    DATA_REFUSED: "`weir log check` shows what is wrong; docs/durability.md says how to repair or restore",
    LOCKED: "end the other process that uses this data directory, or use another directory",
    FAULT: "report the lines of the faults; the data are as they were acknowledged",
}

_DIRECTORY_REMEDY: Final = (
    "name a directory that belongs to this user, or a new one where this user may make it"
)

_NEWER_REMEDY: Final = (
    "start the version that wrote the log, or restore a backup of before: docs/operations.md, Upgrade"
)

# While the log is read, its own log hears of it so often.
_REPORT_S: Final = 5.0
# Until a backend answers, its state is read this often.
_LOOK_S: Final = 0.2
# A fault inside the engine that comes again so soon is not cured by reading the log.
_FAULT_AGAIN_S: Final = 600.0
# After a fault, what threads still do with files has this long to end.
ABANDON_S_MAX: Final = 10.0
# At a stop the log has this long to be written and synced. With the default of `drain_s_max` it is less than
# the 30 s after which the supervisors in deploy/ kill the process.
CLOSE_S_MAX: Final = 15.0


class ServerStoppedError(Exception):
    """The gateway cannot run. `exit_code` is the process's, the text is for people. So is `remedy`, by
    default that of the exit code. It is logged once.
    """

    def __init__(self, exit_code: int, text: str, remedy: str | None = None) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.remedy = remedy or _REMEDIES[exit_code]
        self._is_logged = False

    def log(self, **process: str) -> None:
        """Say it, unless it was said."""
        if not self._is_logged:
            logs.get().critical("refused", **process, reason=str(self), remedy=self.remedy)
            self._is_logged = True


def check_exposure(settings: Settings) -> None:
    """Raise ServerStoppedError unless the settings say that strangers may reach it, and under which names."""
    if settings.has_tokens:
        return
    if settings.resp is not None and not host_is_loopback(settings.resp.host):
        raise ServerStoppedError(
            USAGE,
            f"listening for Redis clients on {settings.resp.host} needs tokens: set root_token_file or "
            "tokens_file, or stay on 127.0.0.1",
        )
    if settings.is_loopback:
        return
    host = settings.host
    if settings.admin is not None and host_is_loopback(host):
        host = settings.admin.host
    if not settings.insecure:
        raise ServerStoppedError(
            USAGE,
            f"listening on {host} would let everybody who reaches it read, write and delete "
            "everything: set root_token_file or tokens_file, stay on 127.0.0.1, or say --insecure",
        )
    if not settings.allowed_hosts:
        raise ServerStoppedError(
            USAGE,
            f"listening on {host} with --insecure needs allowed_hosts, the names that clients use "
            "for this gateway: without them any web page could call it by its own name (DNS rebinding). Say "
            "--set allowed_hosts=weir.example or WEIR_ALLOWED_HOSTS; loopback names are always allowed",
        )


def prepare() -> None:
    """What a process does before it makes files: other users may not read them."""
    os.umask(0o077)


class EngineLife:
    """The engine of one gateway: `open`, `keep` until `stop`, `close`. `holder` is the process that others
    find named as the user of the data; without it, this one.
    """

    def __init__(self, life: Life, flush_logs: Callable[[], None], *, holder: int | None = None) -> None:
        self.stopping = asyncio.Event()
        self._life = life
        self._gateway = gateway = life.gateway
        self._flush_logs = flush_logs
        self._holder = holder
        self._settings = gateway.settings
        self._clock = gateway.clock
        self._engine: Engine | None = None
        # The one instead, where the streams are in a server.
        self._backend: ClusterEngine | None = None
        self._revoked: RevocationFile | None = None
        self._broken = False
        # Set when the engine is broken, and when it is to stop.
        self._wake = asyncio.Event()
        self._fault_at: float | None = None
        self._report_at = gateway.clock.monotonic() + _REPORT_S
        life.on_fault.append(self._fault)
        self._lag = LoopLag(gateway.reports.counters.loop_lag)

    async def open(self) -> None:
        """Read the log, and let the gateway serve. Raises ServerStoppedError."""
        self._lag.start()
        self._gateway.access.audit.reopen()
        if self._settings.is_embedded:
            self._engine = await self._open(self._settings.data)
        else:
            await self._open_backend()

    async def keep(self) -> None:
        """Replace the engine after a fault, until `stop`. Raises ServerStoppedError."""
        while not self.stopping.is_set():
            await self._wake.wait()
            if self._broken and self._engine is not None and not self.stopping.is_set():
                broken, self._engine = self._engine, None
                self._broken = False
                self._wake.clear()
                self._engine = await self._replace(broken)

    def stop(self) -> None:
        """Begin nothing new, and end reads that wait."""
        self.stopping.set()
        self._wake.set()
        self._life.drain()

    async def close(self) -> None:
        """Bring the log to its end. Raises ServerStoppedError. A disk that hangs ends the process."""
        self._lag.stop()
        if self._gateway.reports.tracer is not None:
            await asyncio.to_thread(self._gateway.reports.tracer.close)
        if self._backend is not None:
            await self._backend.close()
        if self._engine is None:
            return
        # A thread: the event loop may hang in a write.
        giving_up = threading.Timer(CLOSE_S_MAX, self.give_up, (FAILED,))
        giving_up.daemon = True
        giving_up.start()
        try:
            await self._engine.close()
        except LogPoisonedError as error:
            # Logged already, with the remedy.
            raise ServerStoppedError(FAILED, f"the log could not be brought to its end: {error}") from None
        finally:
            giving_up.cancel()

    def give_up(self, exit_code: int) -> NoReturn:
        """End the process at once: a thread that hangs in the kernel would keep it from ending otherwise."""
        logs.get().critical(
            "a disk does not come back",
            remedy="check the disk: the process ends here as if it were killed, and so loses nothing written",
        )
        try:
            self._flush_logs()
        finally:
            os._exit(exit_code)

    def _fault(self) -> None:
        self._broken = True
        self._wake.set()

    async def _replace(self, broken: Engine) -> Engine:
        """Give up an engine that has failed within a turn, and open another one on its log. Raises
        ServerStoppedError where that happened a short while ago too.
        """
        now, before = self._clock.monotonic(), self._fault_at
        self._fault_at = now
        try:
            async with asyncio.timeout(ABANDON_S_MAX):
                await broken.finish_turns()
                self._life.drop()
                storage = await broken.abandon()
        except TimeoutError:
            self.give_up(FAULT)
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
        # What is read is no garbage: the collector would look at all of it again and again.
        gc.disable()
        try:
            engine = await asyncio.to_thread(self._recover, data)
        except ServerStoppedError as stopped:
            stopped.log()
            raise
        finally:
            gc.enable()
        await engine.start()
        # What was read stays: the collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        self._life.open(engine, self._revoked)
        found = engine.recovery
        log.info(
            "ready", frames=found.frames, bytes=found.bytes, s=round(self._clock.monotonic() - began_s, 3)
        )
        if found.torn_bytes:
            log.warning("torn tail cut", bytes=found.torn_bytes, kept_in=found.torn_file)
        for name in engine.set_aside:
            log.warning("a file that the log does not know was set aside", file=name)
        return engine

    async def _open_backend(self) -> None:
        """Wait until the server answers, or the gateway is to stop."""
        from app.backend import log_health, make_topology, read_access  # noqa: PLC0415 - a start over Weir's own log
        from engine.cluster import ClusterEngine  # noqa: PLC0415 - needs neither

        try:
            access = await asyncio.to_thread(read_access, self._settings)
            # Of this process: its backend's memory is another machine's.
            memory = await asyncio.to_thread(memory_limit.limits, self._settings)
            self._gateway.limits.budgets.size(memory.bytes_max)
        except SettingsError as error:
            raise ServerStoppedError(USAGE, str(error)) from None
        topology = make_topology(self._settings, access)
        backend = ClusterEngine(topology, self._clock, self._settings.backend_poll_s)
        self._backend = backend
        self._gateway.operator.backend = backend.backend_figures
        self._gateway.operator.health.backend_outage = lambda: backend.figures().outage
        self._gateway.operator.health.is_backend_full = lambda: backend.health.full is not None
        log_health(backend.health, self._clock, self._life.change_outage)
        backend.on_missing_events = self._warn_of_slow_waking
        backend.maintenance.on_refused = self._warn_of_no_maintenance
        if await self._is_met(backend):
            self._life.open(backend)
            logs.get().info("ready", backend=backend.figures().backend)

    async def _is_met(self, backend: "ClusterEngine") -> bool:
        """Wait until the backend answers, and log each reason why not once. False: the gateway stops.

        Raises ServerStoppedError if it can never answer.
        """
        is_up = asyncio.ensure_future(self._meet(backend))
        stopping = asyncio.ensure_future(self.stopping.wait())
        logged: set[str] = set()
        while not (is_up.done() or stopping.done() or backend.misfit):
            await asyncio.wait((is_up, stopping), timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            reason = backend.figures().outage
            if reason is not None and reason not in logged and not is_up.done():
                logs.get().warning("the backend cannot be used yet: it is tried again", reason=reason)
                logged.add(reason)
        stopping.cancel()
        if is_up.done():
            is_up.result()
            return True
        is_up.cancel()
        if backend.misfit and not self.stopping.is_set():
            raise ServerStoppedError(USAGE, f"backend: {backend.misfit}")
        return False

    def _warn_of_slow_waking(self, reason: str) -> None:
        logs.get().warning(
            "the backend sends no notifications, so waiting reads look again every few seconds",
            every_s=self._settings.backend_poll_s,
            reason=reason,
            remedy="set notify-keyspace-events to Ktgx in the server, or let the gateway's user run CONFIG",
        )

    def _warn_of_no_maintenance(self, reason: str) -> None:
        logs.get().warning(
            "streams are not maintained: retention, silent consumers, what a gateway that has died had due",
            reason=reason,
            remedy="do what the reason says: it goes on by itself then",
        )

    async def _meet(self, backend: "ClusterEngine") -> None:
        """Wait until the backend answers, and know of the other gateways over it."""
        await backend.start()
        others = OtherGateways(backend.gateways, self._gateway.access.tickets)
        await others.join()
        self._life.share(others)

    def _report(self, step: str, done_bytes: int, total_bytes: int) -> None:
        """Keep how far reading the log is, and log it every few seconds. Called in a thread."""
        self._gateway.operator.progress = RecoveryProgress(step, done_bytes, total_bytes)
        now = self._clock.monotonic()
        if now >= self._report_at:
            self._report_at = now + _REPORT_S
            logs.get().info("reading the log", step=step, bytes=done_bytes, of=total_bytes)

    def _recover(self, data: Path | Storage) -> Engine:
        kept = self._settings
        try:
            self._revoked = RevocationFile(kept.data)
            memory = memory_limit.limits(kept)
            return Engine.open(
                data,
                clock=self._clock,
                fsync=kept.fsync,
                caps=Caps(
                    kept.streams_max,
                    kept.groups_max,
                    kept.consumers_max,
                    memory.bytes_max,
                    memory_bytes_soft=memory.bytes_soft,
                ),
                growth=Growth(kept.rewrite_growth_percent, kept.rewrite_bytes_min),
                on_progress=self._report,
                holder=self._holder,
            )
        except StorageLockedError as error:
            raise ServerStoppedError(LOCKED, str(error)) from None
        except StorageRefusedError as error:
            raise ServerStoppedError(DATA_REFUSED, str(error), _DIRECTORY_REMEDY) from None
        except LogRefusedError as error:
            # The disk failed, or is full; what stands on it may be sound.
            is_disk = isinstance(error.__cause__, OSError)
            remedy = _NEWER_REMEDY if error.newer else _REMEDIES[FAILED] if is_disk else None
            raise ServerStoppedError(DATA_REFUSED, str(error), remedy) from None
        except (RevocationFileError, ValueError) as error:
            raise ServerStoppedError(DATA_REFUSED, str(error)) from None
        except OSError as error:
            raise ServerStoppedError(FAILED, f"{self._settings.data}: {error.strerror or error}") from None


async def serve_lifespan(life: EngineLife, receive: Receive, send: Send) -> None:
    """The ASGI lifespan: the engine is open from its startup to its shutdown."""
    await receive()
    try:
        await life.open()
    except ServerStoppedError as error:
        await send({"type": "lifespan.startup.failed", "message": f"weir: {error}"})
        return
    keeping = asyncio.create_task(_keep(life))
    _stop_with_signals(life)
    await send({"type": "lifespan.startup.complete"})
    await receive()
    life.stop()
    await keeping
    try:
        await life.close()
    except ServerStoppedError as error:
        await send({"type": "lifespan.shutdown.failed", "message": f"weir: {error}"})
        return
    await send({"type": "lifespan.shutdown.complete"})


async def _keep(life: EngineLife) -> None:
    try:
        await life.keep()
    except ServerStoppedError as error:
        logs.get().critical("stopped", reason=str(error), remedy=_REMEDIES[error.exit_code])
        # The server ends with it as at any other stop.
        signal.raise_signal(signal.SIGTERM)


def _stop_with_signals(life: EngineLife) -> None:
    """Drain as soon as the server begins to stop: it waits for its connections before the lifespan ends, and
    reads that wait would make it wait as long.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        server = signal.getsignal(number)
        if not callable(server):
            continue

        def stop(
            number: int,
            frame: FrameType | None,
            server: Callable[[int, FrameType | None], object] = server,
        ) -> None:
            loop.call_soon_threadsafe(life.stop)
            server(number, frame)

        signal.signal(number, stop)
