"""The gateway's state: its phase, its engine, its blocked reads.

Knows: when the engine may be used, how a blocked read ends early. Must never know: routes, bytes on the wire.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from app import logs
from app.auth import AccessPolicy, OpenPolicy, Principal
from app.auth.tickets import Tickets
from app.backups import Backups
from app.dead_letter_log import DeadLetterLog
from app.errors import RefusalError, to_refusal
from app.limits import CommandLimits, EntryLimits, ReadLimits
from app.live.feeds import Feeds
from app.live.leases import ConsumerLeases
from app.live.sessions import AccessEnd, OpenSessions
from app.memory_limit import MemoryLog
from app.settings import Settings
from engine import Clock, EngineError, EngineProtocol, errors

T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Phase(Enum):
    """The phases of the gateway, in order."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    DRAINING = "draining"


class RecoveryProgress(NamedTuple):
    """Progress of recovery: the current step, bytes done and bytes in total."""

    step: str
    done_bytes: int
    total_bytes: int


class ClientLeftError(Exception):
    """The client closed the connection before its response was ready."""


class Gateway:
    """One for each process. Call `open` when the engine has recovered, `drain` before the process stops."""

    def __init__(self, settings: Settings, clock: Clock, policy: AccessPolicy | None = None) -> None:
        self.settings = settings
        self.clock = clock
        self.policy = policy or OpenPolicy()
        self.phase = Phase.STARTING
        self.progress: RecoveryProgress | None = None
        self.entry_limits = EntryLimits.of(settings)
        self.read_limits = ReadLimits.of(settings)
        self.command_limits = CommandLimits.of(settings)
        self.dead_letters = DeadLetterLog()
        self.backups = Backups(settings, clock)
        self._engine: EngineProtocol | None = None
        self._feeds: Feeds | None = None
        self._waits = 0
        # WebSocket connections closed by an unexpected exception, since the start.
        self.failed_conversations = 0
        self._started_at = clock.monotonic()
        # The number of connections; set by the server.
        self.connections: Callable[[], int] = lambda: 0
        self.leases = ConsumerLeases()
        self.tickets = Tickets(clock.monotonic)
        # Connections and reads that end with their token.
        self.sessions = OpenSessions(clock)
        # Called when the gateway stops.
        self.on_drain: list[Callable[[], None]] = []
        # Called when the engine is replaced: release everything that belongs to it.
        self.on_restart: list[Callable[[], None]] = []
        self._disk_log = logs.FullLog(
            clock.monotonic,
            full="the disk is full: writes get 507 storage_full; reads go on",
            room="there is room on the disk again: writes go on",
            remedy="make room on the disk of the data directory: writes go on then without a restart",
        )
        # Called to replace a faulty engine; without it, a fault refuses every request until the process ends.
        self.on_fault: Callable[[], None] = lambda: None

    @property
    def engine(self) -> EngineProtocol:
        """The engine. Raises `draining`, `restarting` or `starting` if requests may not use it."""
        if self._engine is not None and self.phase is Phase.READY:
            return self._engine
        if self.phase is Phase.DRAINING:
            raise draining()
        if self.phase is Phase.RESTARTING:
            raise to_refusal(errors.restarting())
        raise RefusalError("starting", "the log is being read: try again in a moment")

    @property
    def feeds(self) -> Feeds:
        """The feeds of the engine; raises as `engine` does."""
        _ = self.engine
        assert self._feeds is not None, "it came with the engine"
        return self._feeds

    def open(self, engine: EngineProtocol) -> None:
        """Serve requests with this engine."""
        self._engine = engine
        self._feeds = Feeds(engine)
        MemoryLog(engine.memory, self.clock.monotonic)
        engine.on_dead_lettered = self.dead_letters.note
        engine.when_log_fails(_log_failed)
        engine.when_full(self._disk_changed)
        engine.rewriting.on_failed = _rewrite_failed
        engine.active_readers = self.leases.active
        if self.phase is not Phase.DRAINING:
            self.phase = Phase.READY
        # Last: its first turns have run, and one of them may have failed.
        engine.when_faulty(self._fault)

    def _disk_changed(self, reason: str | None) -> None:
        """Log that the disk refuses writes for `reason`; without a reason, that it accepts them again."""
        self._disk_log.change({} if reason is None else {"reason": reason}, is_full=reason is not None)

    def _fault(self, error: BaseException) -> None:
        """Handle a failed turn: nothing more is served from the engine's memory."""
        if self.phase is Phase.READY:
            self.phase = Phase.RESTARTING
        logs.get().critical(
            "a fault inside the engine",
            error=repr(error),
            trace=logs.trace(error),
            remedy="the engine is restarted from its log, nothing acknowledged is lost; report this line",
        )
        self.on_fault()

    def drop(self) -> None:
        """Drop the engine: end its readers and followers with a retry, and release all consumer leases."""
        feeds, self._engine, self._feeds = self._feeds, None, None
        for restarting in self.on_restart:
            restarting()
        if feeds is not None:
            feeds.close(errors.restarting())
        self.leases.wake()
        self.leases = ConsumerLeases()

    def drain(self) -> None:
        """Begin nothing new. Blocked reads end at once, without entries."""
        self.phase = Phase.DRAINING
        self.leases.wake()
        for notify in self.on_drain:
            notify()
        if self._engine is not None:
            self._engine.end_waits()

    @property
    def state(self) -> str:
        """The phase, or `storage_failed` if the log accepts no writes."""
        engine = self._engine
        if self.phase is Phase.READY and engine is not None and engine.log_figures().failure is not None:
            return "storage_failed"
        return self.phase.value

    @property
    def uptime_ms(self) -> int:
        """Time since the start, in milliseconds."""
        return round((self.clock.monotonic() - self._started_at) * 1000)

    @property
    def followers(self) -> int:
        """The number of blocked reads and of connections that follow streams."""
        return self._waits

    def follow(self) -> None:
        """Count one more blocked read or following connection, until `unfollow`.

        Raises `too_many_waiters`.
        """
        if self._waits >= self.settings.waiters_max:
            raise RefusalError("too_many_waiters", "too many reads wait already: try again later")
        self._waits += 1

    def unfollow(self) -> None:
        """Count one less."""
        self._waits -= 1

    async def wait(
        self,
        work: Coroutine[Any, Any, T],
        receive: Receive,
        principal: Principal,
        until: asyncio.Future[None] | None = None,
        give_back: Callable[[T], None] | None = None,
    ) -> T:
        """Run a read that may block. It ends when the client disconnects, its token ends or the gateway
        drains.

        A read that delivers entries to a consumer is ended by `until`, never cancelled, and `give_back`
        returns entries that arrive for a client that has left.

        Raises ClientLeftError, `draining`, `too_many_waiters`, `unauthenticated`.
        """
        try:
            self.follow()
        except RefusalError:
            work.close()
            raise
        waiting = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(wait_for_disconnect(receive))
        ended: asyncio.Future[AccessEnd] = asyncio.get_running_loop().create_future()
        session = self.sessions.enter(principal, ended.set_result)
        try:
            await asyncio.wait((waiting, leaving, ended), return_when=asyncio.FIRST_COMPLETED)
            if leaving.done() or ended.done():
                await _end_read(waiting, until)
                failed = waiting.cancelled() or waiting.exception() is not None
                if give_back is not None and not failed:
                    give_back(waiting.result())
                raise ended.result().refusal if ended.done() else ClientLeftError
        finally:
            session.leave()
            self.unfollow()
            waiting.cancel()
            leaving.cancel()
        try:
            return waiting.result()
        except EngineError as error:
            if error.code == "draining":
                raise draining() from None
            raise


def _log_failed(reason: str) -> None:
    """Log that the gateway is read-only, and the remedy."""
    remedy = "check the disk, then restart the gateway: until then it takes no writes and answers 503"
    logs.get().critical("the log has failed", reason=reason, remedy=remedy)


def _rewrite_failed(reason: str, retry_s: float) -> None:
    remedy = "the log goes on as it was: make room for a second copy of it, or check the disk"
    logs.get().error("a rewrite has failed", reason=reason, again_in_s=retry_s, remedy=remedy)


def draining() -> RefusalError:
    """503: the gateway is stopping."""
    return RefusalError("draining", "the gateway is shutting down: try again in a moment, here or elsewhere")


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end_read(task: asyncio.Future[Any], until: asyncio.Future[None] | None) -> None:
    """End the read, and wait until the engine has removed it."""
    if until is None:
        task.cancel()
    elif not until.done():
        until.set_result(None)
    await asyncio.wait((task,))
