"""A worker: a consumer of a group that acknowledges what it has done.

Knows: how the program gets entries, when the worker ends, and what to do where a stream is gone.
Must never know: frames or requests; `_links.py` has the two ways to a gateway, `_holdings.py` what is held.
"""

import asyncio
import contextlib
import logging
import math
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self

from weir import _tracing
from weir._async_client import AsyncClient
from weir._holdings import DELAY_S_MAX, Delivery, Holdings, keep_leases
from weir._http import Token, Verify
from weir._links import LongPollLink, WebSocketLink
from weir._membership import Membership
from weir.entries import Gap
from weir.errors import ClientClosedError, InvalidValueError, NotFoundError

log: Final = logging.getLogger("weir.worker")

CREDIT_DEFAULT: Final = 100
GRACE_S_DEFAULT: Final = 30.0
# Else a stream that something deletes again and again would keep the gateway busy.
RECREATE_PAUSE_S: Final = 0.1

Handler = Callable[[Delivery], Awaitable[None]]

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

    With `ordered_by` the group is made with that order: entries with the same value of that field (`*`: all
    entries) are worked on one after the other, or `in_flight_per_key` at a time, by all workers of the group
    together. A group that is there with another order is refused.
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
        ordered_by: str | None = None,
        in_flight_per_key: int = 1,
    ) -> None:
        if credit is not None and credit < 1:
            raise InvalidValueError("credit is at least 1")
        if priority != "strict":
            raise InvalidValueError("the priority of several streams is strict")
        if ordered_by is None and in_flight_per_key != 1:
            raise InvalidValueError("in_flight_per_key needs ordered_by: the field that holds the key")
        named = _named(stream, streams)
        order = (
            {} if ordered_by is None else {"ordered_by": ordered_by, "in_flight_per_key": in_flight_per_key}
        )
        self.group = group
        self.consumer = consumer
        self.client = AsyncClient(url, token=token, retry_s=None, verify=verify)
        self._member = Membership(
            self.client, named, group, consumer, start, claim_min_idle_ms, order=order, on_gap=on_gap
        )
        # Of several streams it takes no more than it works on.
        self._credit_by_concurrency = credit is None and len(named) > 1
        self.holdings = Holdings(
            self._member, credit or (1 if self._credit_by_concurrency else CREDIT_DEFAULT)
        )
        self._on_gone = on_gone
        self._retry = retry
        self._lease = lease
        self._grace_s = grace_s
        link = WebSocketLink if via == "websocket" and len(named) == 1 else LongPollLink
        self._link = link(self._member, self.holdings)
        self._linking: asyncio.Task[None] | None = None
        self._leasing: asyncio.Task[None] | None = None

    # --- for programs -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self.client.is_closed:
            raise ClientClosedError("worker")
        if self._linking is None:
            # Else `run` inside of `async with`: a second link would take the consumer's place from the first.
            self._linking = asyncio.create_task(self._keep_linked())
            if self._lease == "auto":
                self._leasing = asyncio.create_task(keep_leases(self._member, self.holdings))
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
        while (delivery := await self.holdings.take()) is not None:
            yield delivery
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
            self.holdings.credit = concurrency
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
        if not self.holdings.stopping:
            self.holdings.stop()

    async def close(self) -> None:
        """Stop, wait up to `grace_s` until everything held is settled and confirmed, and disconnect. Entries
        that are held even then stay pending for this consumer.
        """
        self.stop()
        linking = self._linking
        tasks = [task for task in (linking, self._leasing) if task is not None]
        try:
            if linking is not None:
                settling = asyncio.ensure_future(self.holdings.until_settled())
                tasks.append(settling)
                await asyncio.wait(
                    (linking, settling), timeout=self._grace_s, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            # Also where the wait is cancelled.
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            await self.client.close()

    # --- inside -------------------------------------------------------------------------------------------

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
                self.holdings.finish(delivery)

    async def _keep_linked(self) -> None:
        try:
            while True:
                try:
                    return await self._link.run()
                except NotFoundError as error:
                    stream, gone = await self._member.name_missing(error)
                if self._on_gone == "raise":
                    raise gone
                self.holdings.forget(stream)
                if self.holdings.stopping:
                    return None
                await self._recreate(stream)
        finally:
            # The code that iterates learns how it ended.
            self.holdings.end()

    async def _recreate(self, stream: str) -> None:
        """Make the group again, and the stream where it is missing."""
        await asyncio.sleep(RECREATE_PAUSE_S)
        await self._member.make_group(stream, "0")
        last_ids = self.holdings.last_ids
        self._member.gap(Gap(last_ids[stream], None, None, "recreated"), stream)
        last_ids[stream] = "0-0"

    def _raise_failure(self) -> None:
        if self._linking is not None and self._linking.done() and not self._linking.cancelled():
            error = self._linking.exception()
            if error is not None:
                raise error

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
