"""The gateway's state: starting, ready, draining; its engine, and the reads that wait on it.

Knows: when the engine may be used, how a waiting read ends early. Must never know: routes, bytes on the wire.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from app.auth import OpenPolicy, Policy
from app.backups import Backups
from app.consumers import Consumers
from app.errors import Refusal
from app.feeds import Feeds
from app.letters import DeadLetters
from app.redis import Limits as CommandLimits
from app.settings import Settings
from app.wire.columns import ColumnsLimits
from app.wire.publish import EntryLimits
from app.wire.read import ReadLimits
from engine import Clock, Engine, EngineError

T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Phase(Enum):
    """Where in its life the gateway is."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Progress(NamedTuple):
    """How far reading the log is: the step, and the bytes that it has behind it, of how many."""

    step: str
    done_bytes: int
    total_bytes: int


class ClientLeft(Exception):  # noqa: N818 - nothing is wrong, there is only nobody to answer
    """The client closed the connection before its answer was there."""


class Gateway:
    """One for each process. `open` once the engine has recovered, `drain` when the process is to stop."""

    def __init__(self, settings: Settings, clock: Clock, policy: Policy | None = None) -> None:
        self.settings = settings
        self.clock = clock
        self.policy = policy or OpenPolicy()
        self.phase = Phase.STARTING
        self.progress: Progress | None = None
        self.entry_limits = EntryLimits(
            entries_max=settings.batch_entries_max,
            entry_bytes_max=settings.entry_bytes_max,
            fields_max=settings.entry_fields_max,
            depth_max=settings.json_depth_max,
        )
        self.read_limits = ReadLimits(
            count_default=min(settings.count_default, settings.count_max),
            count_max=settings.count_max,
            bytes_max=settings.answer_bytes_max,
            wait_ms_max=settings.wait_ms_max,
        )
        self.columns_limits = ColumnsLimits(settings.columns_count_max, settings.answer_bytes_max)
        self.command_limits = CommandLimits(
            entry_bytes_max=settings.entry_bytes_max,
            entry_fields_max=settings.entry_fields_max,
            ids_max=settings.ids_max,
            request_streams_max=settings.request_streams_max,
            rows_max=settings.count_max,
            answer_bytes_max=settings.answer_bytes_max,
        )
        self.dead_letters = DeadLetters()
        self.backups = Backups(settings, clock)
        self._engine: Engine | None = None
        self._feeds: Feeds | None = None
        self._waits = 0
        self.consumers = Consumers()
        # Who is told when it stops.
        self.on_drain: list[Callable[[], None]] = [self.consumers.wake]

    @property
    def engine(self) -> Engine:
        """The engine, while requests may use it; else the refusal that tells why not."""
        if self.phase is Phase.DRAINING:
            raise draining()
        if self._engine is None:
            raise Refusal("starting", "the log is being read: try again in a moment")
        return self._engine

    @property
    def feeds(self) -> Feeds:
        """What follows the engine's streams, under the same conditions."""
        _ = self.engine
        assert self._feeds is not None, "it came with the engine"
        return self._feeds

    def open(self, engine: Engine) -> None:
        """From now on requests are served by this engine."""
        self._engine = engine
        self._feeds = Feeds(engine)
        engine.on_buried = self.dead_letters.note
        engine.attended = self.consumers.attended
        if self.phase is Phase.STARTING:
            self.phase = Phase.READY

    def drain(self) -> None:
        """From now on nothing new is begun; reads that wait end at once, with nothing delivered to them."""
        self.phase = Phase.DRAINING
        for told in self.on_drain:
            told()
        if self._engine is not None:
            self._engine.end_waits()

    def follow(self) -> None:
        """Count one more read that waits, or connection that follows streams, until `unfollow`.

        Raises `too_many_waiters`.
        """
        if self._waits >= self.settings.waiters_max:
            raise Refusal("too_many_waiters", "too many reads wait already: try again later")
        self._waits += 1

    def unfollow(self) -> None:
        """One less."""
        self._waits -= 1

    async def wait(self, work: Coroutine[Any, Any, T], receive: Receive) -> T:
        """Run a read that may wait. It ends with the client's connection and with the gateway's drain.

        Raises ClientLeft, `draining`, `too_many_waiters`.
        """
        try:
            self.follow()
        except Refusal:
            work.close()
            raise
        waiting = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(left(receive))
        try:
            await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                await _ended(waiting)
                raise ClientLeft
        finally:
            self.unfollow()
            waiting.cancel()
            leaving.cancel()
        try:
            return waiting.result()
        except EngineError as error:
            if error.code == "draining":
                raise draining() from None
            raise


def draining() -> Refusal:
    """503: the gateway is about to stop."""
    return Refusal("draining", "the gateway is shutting down: try again in a moment, here or elsewhere")


async def left(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _ended(task: asyncio.Future[Any]) -> None:
    """Cancel, and wait until the engine has taken the read off its list."""
    task.cancel()
    await asyncio.wait((task,))
