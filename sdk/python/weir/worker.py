"""A worker: a consumer of a group that acknowledges what it has done.

Knows: which entries the program holds, what it has settled, and that a lost connection changes neither.
Must never know: frames or requests; `_links.py` has the two ways to a gateway.

    link → receive → queue → the program → ack or nack → settle → link
"""

import asyncio
import contextlib
import logging
import math
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Final, Literal, Self

from weir import _tracing
from weir._async_client import AsyncClient
from weir._calls import NackMode, References
from weir._http import Token, Verify
from weir._leases import LostDeliveries, keep_leases
from weir._links import LongPollLink, WebSocketLink, WorkerLink
from weir._settling import Settlement
from weir.entries import Entry, Gap
from weir.errors import (
    ClientClosedError,
    ForbiddenError,
    GroupDeletedError,
    InvalidValueError,
    NotFoundError,
    StreamDeletedError,
    describe_gap,
)

log: Final = logging.getLogger("weir.worker")

CREDIT_DEFAULT: Final = 100
GRACE_S_DEFAULT: Final = 30.0
# The gateway's limit, and a week.
DELAY_S_MAX: Final = 7 * 24 * 3600
# Else a stream that something deletes again and again would keep the gateway busy.
RECREATE_PAUSE_S: Final = 0.1

Handler = Callable[["Delivery"], Awaitable[None]]

# The running workers that a signal stops: an event loop has one handler for each signal.
_STOPPED_BY: Final[dict[tuple[asyncio.AbstractEventLoop, signal.Signals], list["Worker"]]] = {}


@dataclass(frozen=True, slots=True)
class Backoff:
    """After how many seconds a worker gives back what its handler failed with: `first` after the first
    delivery, `factor` times as long after each further one, `max` at most.
    """

    first: float = 1.0
    factor: float = 2.0
    max: float = 3_600.0

    def __post_init__(self) -> None:
        if not (0 <= self.first <= self.max <= DELAY_S_MAX and self.factor >= 1):
            raise InvalidValueError(
                f"of a Backoff, 0 <= first <= max <= {DELAY_S_MAX}, and factor is at least 1"
            )

    def after(self, deliveries: int) -> float:
        """How long to wait after this number of deliveries, in seconds."""
        try:
            # Of floats: an integer would grow for ever.
            times = float(self.factor) ** (deliveries - 1)
        except OverflowError:
            times = math.inf
        return min(self.max, self.first * times) if self.first else 0.0


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Delivery:
    """An entry that this worker holds until it acknowledges it or gives it back.

    `async with delivery:` does that by itself: it acknowledges at the end, and gives back if an exception
    leaves the block.
    """

    entry: Entry
    _worker: "Worker"

    @property
    def key(self) -> tuple[str, str]:
        """Stream and ID: two streams may have entries of one ID."""
        return self.entry.stream, self.entry.id

    def ack(self, *, delete: References | None = None) -> None:
        """The work is done. With `delete` the entry is removed from the stream as well.

        Returns at once; the worker repeats it over lost connections until the gateway has confirmed it.
        """
        self._worker.settle(self, Settlement(*self.key, "ack", delete))

    def nack(self, *, mode: NackMode = "fail") -> None:
        """Give the entry back to the group: after a failure (`fail`), as if it was never delivered
        (`silent`), or for good (`fatal`). Returns at once, as `ack`.
        """
        self._worker.settle(self, Settlement(*self.key, "nack", mode))

    def retry_in(self, seconds: float, *, mode: NackMode = "fail") -> None:
        """Give the entry back to the group after this time, seven days at most: no consumer gets it before.
        The gateway keeps the time, even if this worker ends. Returns at once, as `ack`.
        """
        if not 0 <= seconds <= DELAY_S_MAX:
            raise InvalidValueError(f"an entry can be given back in 0 to {DELAY_S_MAX} seconds")
        self._worker.settle(self, Settlement(*self.key, "nack", mode, round(seconds * 1000)))

    async def extend(self) -> bool:
        """Say that the work goes on, so that no other consumer takes the entry over; whether it is still
        held, as `lost` says. A worker does that by itself, unless its `lease` is `off`.
        """
        await self._worker.extend_each([self])
        return not self.lost and self._worker.is_held(self)

    @property
    def lost(self) -> bool:
        """Whether the gateway has given the entry to another consumer meanwhile: stop working on it. After
        that only `ack()` counts, which says that the work is done all the same.
        """
        return self._worker.tell_lost(self)

    async def __aenter__(self) -> Entry:
        return self.entry

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._worker.finish(self)
        else:
            self.nack(mode="fail" if isinstance(error, Exception) else "silent")


def _named(stream: str | None, streams: Sequence[str]) -> tuple[str, ...]:
    """The streams of a worker, in their order."""
    if (stream is None) is (not streams) or len(set(streams)) < len(streams):
        raise InvalidValueError("a worker has one stream, or several streams, each once")
    return tuple(streams) if stream is None else (stream,)


class Worker:
    """Consumes a stream, or several, as one consumer of a group; the group is created where it is missing.

    First come entries that this consumer was given in an earlier life and did not acknowledge, then what
    others gave back, then new ones. At most `credit` entries are held at a time. A lost connection is made
    again, for ever; entries that are held meanwhile stay held and are not delivered twice to this worker.

    With `on_gone="recreate"` a worker whose stream or group was deleted makes the group again, before the
    oldest entry, and goes on: `on_gap` is called with the reason `recreated`. What it holds of the old stream
    is forgotten: settling it does nothing. Otherwise the worker ends.

    Of several `streams` (in the place of `stream`, over long-polls) entries of the first come before those of
    the second, and so on: as long as the first has any, none of the others is taken, however long they wait.
    The worker holds no more than it works on (`credit`), so that it is soon free for the first.

    `url` and `token` as for `AsyncClient`. `start` is where a group that is created begins: `0` with the
    oldest entry, `$` with the next. `claim_min_idle_ms` also takes over what other consumers have held for so
    long. `via` is the way to the gateway. `on_gap` is called for entries that were removed unread; without
    it a warning is logged. `retry` is how long `run` waits before it gives back what its handler failed with;
    without it others get that at once. `lease` says whether what it holds is extended by itself: with `auto`
    neither the group's `ack_timeout_ms` nor others' `claim_min_idle_ms` takes it while this worker lives.
    `grace_s` is how long `close` waits for what is being worked on.
    """

    def __init__(  # noqa: PLR0913 - a worker's options
        self,
        url: str | None,
        stream: str | None = None,
        *,
        group: str,
        consumer: str,
        streams: Sequence[str] = (),
        priority: Literal["strict"] = "strict",
        start: str = "0",
        credit: int | None = None,
        claim_min_idle_ms: int | None = None,
        via: Literal["websocket", "long-poll"] = "websocket",
        token: Token = None,
        verify: Verify = None,
        on_gap: Callable[[Gap], None] | None = None,
        on_gone: Literal["raise", "recreate"] = "raise",
        retry: Backoff | None = None,
        lease: Literal["auto", "off"] = "auto",
        grace_s: float = GRACE_S_DEFAULT,
    ) -> None:
        if credit is not None and credit < 1:
            raise InvalidValueError("credit is at least 1")
        if priority != "strict":
            raise InvalidValueError("the priority of several streams is strict")
        self.streams = _named(stream, streams)
        # The first one.
        self.stream = self.streams[0]
        self.group = group
        self.consumer = consumer
        # Of several streams it takes no more than it works on.
        self._credit_by_concurrency = credit is None and len(self.streams) > 1
        self.credit = credit or (1 if self._credit_by_concurrency else CREDIT_DEFAULT)
        self._start = start
        self._claim_min_idle_ms = claim_min_idle_ms
        self._on_gap = on_gap
        self._on_gone = on_gone
        self._retry = retry
        self._lease = lease
        self._lost = LostDeliveries()
        # What is being extended: were it given back meanwhile, the gateway might do that first.
        self._extending: Counter[tuple[str, str]] = Counter()
        # The entry that was delivered last, of each stream.
        self._last_ids = dict.fromkeys(self.streams, "0-0")
        self._grace_s = grace_s
        self._client = AsyncClient(url, token=token, retry_s=None, verify=verify)
        # By the place of their streams, and of each in order; None is the end.
        self._queue: asyncio.PriorityQueue[tuple[float, int, Delivery | None]] = asyncio.PriorityQueue()
        self._serials = count()
        # What the program holds or is about to get; what it has settled and the gateway has not confirmed.
        self._held: dict[tuple[str, str], Delivery] = {}
        self._unconfirmed: dict[tuple[str, str], Settlement] = {}
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        # Of which streams the group delivers nothing, as far as this worker knows.
        self._paused: set[str] = set()
        over_socket = via == "websocket" and len(self.streams) == 1
        self._link: WorkerLink = WebSocketLink(self) if over_socket else LongPollLink(self)
        self._linking: asyncio.Task[None] | None = None
        self._leasing: asyncio.Task[None] | None = None

    # --- for programs -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._client.is_closed:
            raise ClientClosedError("worker")
        if self._linking is None:
            # Else `run` inside of `async with`: a second link would take the consumer's place from the first.
            self._linking = asyncio.create_task(self._keep_linked())
            if self._lease == "auto":
                self._leasing = asyncio.create_task(keep_leases(self))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        """Deliveries, until `stop`. Use it inside `async with worker`.

        Raises ApiError for what the gateway refuses for good (StreamDeletedError, GroupDeletedError and
        ForbiddenError among it), ConsumerReplacedError where another connection took the consumer's place.
        """
        while (delivery := (await self._queue.get())[-1]) is not None:
            if not self.tell_lost(delivery):
                yield delivery
        # For others that iterate.
        self._enqueue(None)
        self._raise_failure()

    async def run(
        self,
        handle: Handler,
        *,
        concurrency: int = 1,
        stop_on: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM),
    ) -> None:
        """Call `handle` for each delivery, `concurrency` at a time, until `stop` or one of the signals.

        What `handle` returns from is acknowledged, unless it settled the delivery itself. What it raises from
        is logged and given back (`fail`). The worker is closed at the end, inside of `async with` too.
        """
        if self._credit_by_concurrency:
            self.credit = concurrency
        with self._stopped_by(stop_on):
            try:
                async with self, asyncio.TaskGroup() as group:
                    for _ in range(concurrency):
                        group.create_task(self._work(handle))
            except BaseExceptionGroup as errors:
                # All tasks see the same end of the link.
                raise errors.exceptions[0] from None

    def stop(self) -> None:
        """Take no more entries: `run` and iterators end once the work in hand is settled."""
        if not self.stopping:
            self._stopping.set()
            self._give_back()
            self._enqueue(None)
            self._link.wake()

    async def close(self) -> None:
        """Stop, wait up to `grace_s` until everything held is settled and confirmed, and disconnect. Entries
        that are held even then stay pending for this consumer.
        """
        self.stop()
        linking = self._linking
        try:
            if linking is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._grace_s):
                        await self._until_settled(linking)
        finally:
            # Also where the wait is cancelled.
            tasks = [task for task in (linking, self._leasing) if task is not None]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            await self._client.close()

    # --- for links and deliveries -------------------------------------------------------------------------

    @property
    def client(self) -> AsyncClient:
        """For requests beside the link's connection."""
        return self._client

    @property
    def start(self) -> str:
        """Where a group that is created begins."""
        return self._start

    @property
    def claim_min_idle_ms(self) -> int | None:
        """After how long others' entries are taken over; None: never."""
        return self._claim_min_idle_ms

    @property
    def stopping(self) -> bool:
        """Whether it takes no more entries."""
        return self._stopping.is_set()

    async def until_stopping(self) -> None:
        """Wait for that."""
        await self._stopping.wait()

    @property
    def room(self) -> int:
        """How many more entries may be taken; none once it stops."""
        return 0 if self.stopping else self.credit - len(self._held) - len(self._unconfirmed)

    @property
    def unconfirmed(self) -> list[Settlement]:
        """What the gateway has not confirmed yet and may be sent, oldest first."""
        unconfirmed = self._unconfirmed.items()
        return [one for key, one in unconfirmed if one.kind == "ack" or not self._extending[key]]

    @property
    def is_paused(self) -> bool:
        """Whether it knows that its group is paused, of any stream."""
        return bool(self._paused)

    def note_paused(self, stream: str, *, paused: bool) -> None:
        """The group of a stream delivers nothing, or again: said once in the log."""
        if paused != (stream in self._paused):
            self._paused ^= {stream}
            what = "is paused: nothing comes until it is resumed" if paused else "was resumed"
            log.warning("group %s of %s %s", self.group, stream, what)

    def receive(self, entry: Entry, *, history: bool) -> None:
        """An entry was delivered; `history` if this consumer had it before the connection was made."""
        if not history:
            self.note_paused(entry.stream, paused=False)
        delivery = Delivery(entry, self)
        key = delivery.key
        settled = self._unconfirmed.get(key)
        if key in self._held or (settled is not None and (history or settled.kind == "ack")):
            return
        self._last_ids[entry.stream] = entry.id
        if (lost := self._lost.take_back(key)) is not None:
            # It is being worked on: it is not begun a second time.
            self._held[key] = lost
            return
        # Otherwise a settled entry has been given back, and comes again before the answer to that.
        self._unconfirmed.pop(key, None)
        if entry.deleted:
            self._unconfirmed[key] = Settlement(*key, "ack", None)
            self._link.wake()
        elif self.stopping:
            self._unconfirmed[key] = Settlement(*key, "nack", "silent")
            self._link.wake()
        else:
            self._held[key] = delivery
            self._enqueue(delivery)

    def give_back(self, stream: str, entry_id: str) -> None:
        """An entry was delivered to this consumer and never reached this program."""
        key = stream, entry_id
        if key not in self._held and key not in self._unconfirmed:
            self._unconfirmed[key] = Settlement(*key, "nack", "silent")
            self._link.wake()

    def confirm(self, settlements: list[Settlement]) -> None:
        """The gateway has carried these out."""
        for one in settlements:
            if self._unconfirmed.get(one[:2]) is one:
                del self._unconfirmed[one[:2]]
        self._changed.set()

    def gap(self, gap: Gap, stream: str | None = None) -> None:
        """Entries of the stream were removed before the group had read them."""
        if self._on_gap is not None:
            self._on_gap(gap)
        else:
            sentence = describe_gap(stream or self.stream, gap.requested, gap.lost, gap.reason)
            log.warning("group %s: %s", self.group, sentence)

    async def until_changed(self) -> None:
        """Wait until something was settled or confirmed."""
        self._changed.clear()
        await self._changed.wait()

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """The program has decided about an entry that it holds; a second decision does not count, and none
        about an entry of a stream that was deleted: another one may have its ID by now. Of one that was lost
        it counts that the work is done.
        """
        counts = self._lost.settle(delivery, is_done=settlement.kind == "ack")
        if not counts and not self.is_held(delivery):
            return
        self._held.pop(delivery.key, None)
        self._unconfirmed[delivery.key] = settlement
        self._changed.set()
        self._link.wake()

    def finish(self, delivery: Delivery) -> None:
        """The program has left an entry without a decision: the work is done, unless it was told to stop."""
        if not self._lost.is_dropped(delivery):
            delivery.ack()

    async def extend_each(self, deliveries: Sequence[Delivery]) -> None:
        """Start the idle time of entries of one stream anew, as far as the program holds them. What this
        consumer has no more is lost.
        """
        held = [one for one in deliveries if self.is_held(one)]
        if not held:
            return
        keys, group = [one.key for one in held], self._client.group(held[0].entry.stream, self.group)
        self._extending.update(keys)
        try:
            extended = set(await group.extend(self.consumer, *(one.entry.id for one in held)))
        finally:
            self._extending.subtract(keys)
            self._extending = +self._extending
            self._link.wake()
        self._lose([one for one in held if one.entry.id not in extended])

    def is_held(self, delivery: Delivery) -> bool:
        """Whether the program holds this entry, and has not decided about it."""
        return self._held.get(delivery.key) is delivery

    @property
    def held(self) -> list[Delivery]:
        """What the program holds or is about to get."""
        return list(self._held.values())

    def tell_lost(self, delivery: Delivery) -> bool:
        """Whether the entry was given to another consumer while the program held it, which knows that now."""
        return self._lost.tell(delivery)

    # --- inside -------------------------------------------------------------------------------------------

    def _lose(self, deliveries: Sequence[Delivery]) -> None:
        """The gateway says that these are not this consumer's: what the program has not settled meanwhile is
        another's.
        """
        for delivery in filter(self.is_held, deliveries):
            del self._held[delivery.key]
            self._lost.add(delivery)
            log.warning("entry %s of %s is this consumer's no more", delivery.entry.id, delivery.entry.stream)
        self._changed.set()
        self._link.wake()

    def _give_back(self) -> None:
        """What the program has not begun with goes back to the group as if it was never delivered."""
        while not self._queue.empty():
            *_, delivery = self._queue.get_nowait()
            if delivery is not None:
                delivery.nack(mode="silent")

    def _enqueue(self, delivery: Delivery | None) -> None:
        """Put a delivery behind those of its stream and of those before it, or the end behind all."""
        place = math.inf if delivery is None else self.streams.index(delivery.entry.stream)
        self._queue.put_nowait((place, next(self._serials), delivery))

    async def _work(self, handle: Handler) -> None:
        async for delivery in self:
            try:
                with _tracing.processing(delivery.entry, self.group, self.consumer):
                    await handle(delivery)
            except Exception:
                log.exception(
                    "the handler failed for entry %s of %s", delivery.entry.id, delivery.entry.stream
                )
                wait_s = 0.0 if self._retry is None else self._retry.after(delivery.entry.delivery_count or 1)
                delivery.retry_in(wait_s)
            except BaseException:
                delivery.nack(mode="silent")
                raise
            else:
                self.finish(delivery)

    async def _keep_linked(self) -> None:
        try:
            while True:
                try:
                    return await self._link.run()
                except NotFoundError as error:
                    stream, gone = await self._name_missing(error)
                if self._on_gone == "raise":
                    raise gone
                self._forget(stream)
                if self.stopping:
                    return None
                await self._recreate(stream)
        finally:
            # The code that iterates learns how it ended.
            self._enqueue(None)

    async def _name_missing(self, error: NotFoundError) -> tuple[str, NotFoundError]:
        """What is gone, and of which stream: gateways also say `no_group` where the stream is missing."""
        if isinstance(error, StreamDeletedError | GroupDeletedError):
            return self.stream, error
        for stream in self.streams:
            with contextlib.suppress(ForbiddenError):
                if await self._client.get_stream(stream) is None:
                    return stream, StreamDeletedError(stream)
        for stream in self.streams[:-1]:
            try:
                await self._client.group(stream, self.group).info()
            except NotFoundError:
                return stream, GroupDeletedError(stream, self.group)
            except ForbiddenError:
                continue
        return self.streams[-1], GroupDeletedError(self.streams[-1], self.group)

    def _forget(self, stream: str) -> None:
        """What it holds of the stream and has not settled belongs to a group that is gone."""
        waiting = []
        while not self._queue.empty():
            waiting.append(self._queue.get_nowait())
        for row in waiting:
            if row[-1] is None or row[-1].entry.stream != stream:
                self._queue.put_nowait(row)
        self._lost.forget(stream)
        self._held = {key: one for key, one in self._held.items() if key[0] != stream}
        self._unconfirmed = {key: one for key, one in self._unconfirmed.items() if key[0] != stream}
        self._changed.set()

    async def _recreate(self, stream: str) -> None:
        """Make the group again, and the stream where it is missing."""
        await asyncio.sleep(RECREATE_PAUSE_S)
        await self._client.group(stream, self.group).ensure(start="0")
        self.gap(Gap(self._last_ids[stream], None, None, "recreated"), stream)
        self._last_ids[stream] = "0-0"

    def _raise_failure(self) -> None:
        if self._linking is not None and self._linking.done() and not self._linking.cancelled():
            error = self._linking.exception()
            if error is not None:
                raise error

    async def _until_settled(self, linking: asyncio.Task[None]) -> None:
        while (self._held or self._unconfirmed) and not linking.done():
            waiting = asyncio.ensure_future(self.until_changed())
            try:
                await asyncio.wait((waiting, linking), return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()

    @contextlib.contextmanager
    def _stopped_by(self, signals: tuple[signal.Signals, ...]) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        keys = [(loop, number) for number in signals]
        for key in keys:
            _STOPPED_BY.setdefault(key, []).append(self)
            # Elsewhere than in the main thread, and on Windows, there are no handlers.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(key[1], _stop_all, key)
        try:
            yield
        finally:
            for key in keys:
                _STOPPED_BY[key].remove(self)
                if not _STOPPED_BY[key]:
                    del _STOPPED_BY[key]
                    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                        loop.remove_signal_handler(key[1])


def _stop_all(key: tuple[asyncio.AbstractEventLoop, signal.Signals]) -> None:
    for worker in _STOPPED_BY[key]:
        worker.stop()
