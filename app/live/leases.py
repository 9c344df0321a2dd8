"""Consumers read over connections: who has which, and when something of theirs may have been settled.

Knows: that a consumer has one reader, whatever it reads over, and that the next one waits until the one
before has no read under way, and has given back what that brought too late.
Must never know: the engine, sockets, entries.

What lies in a socket's buffer then may still leave: nobody knows before it has gone or the connection is
lost, which a reader that takes nothing puts off for seconds. The next one does not wait for that. It gets
those entries as its history, with one delivery more, whether or not the one before got them.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from app.live.in_flight import ConsumerKey


class ConsumerLease:
    """One reader's hold on its consumer.

    `alone` is done once nobody else reads as it, `until` when this reader has to stop, `over` when it has and
    nothing of what it read is in its hands; a socket's buffer is not its hands.
    """

    __slots__ = ("_left", "_replaced", "_under_way", "alone", "consumer", "over", "until")

    def __init__(self, consumer: ConsumerKey, replaced: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.consumer = consumer
        self.alone: asyncio.Future[None] = loop.create_future()
        self.until: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[None] = loop.create_future()
        self._replaced = replaced
        self._under_way = 0
        self._left = False

    def replace(self) -> None:
        """Tell the reader that another one comes."""
        if not self._left:
            self._replaced()

    def begin(self) -> None:
        """Something is under way for the reader."""
        self._under_way += 1

    def end(self) -> None:
        """It has come back."""
        self._under_way -= 1
        self._check_over()

    def stop(self) -> None:
        """The reader has to stop."""
        if not self.until.done():
            self.until.set_result(None)

    def leave(self) -> None:
        """The reader has stopped; its lease is free when what is under way has come back."""
        self._left = True
        self.stop()
        self._check_over()

    def _check_over(self) -> None:
        if self._left and not self._under_way and not self.over.done():
            self.over.set_result(None)


class ConsumerLeases:
    """All leases of a gateway."""

    def __init__(self) -> None:
        self._leases: dict[str, dict[ConsumerKey, ConsumerLease]] = {}
        # In the order in which they came, so that the first is woken first.
        self._watching: dict[str, dict[asyncio.Event, None]] = {}

    def acquire(self, consumer: ConsumerKey, replaced: Callable[[], None]) -> ConsumerLease:
        """Have the consumer, once whoever has it is gone, who is told; `replaced` is called when another
        reader takes it over in turn.
        """
        leases = self._leases.setdefault(consumer.stream, {})
        before = leases.get(consumer)
        lease = leases[consumer] = ConsumerLease(consumer, replaced)

        def forget(_: asyncio.Future[None]) -> None:
            if leases.get(consumer) is lease:
                del leases[consumer]
            if not leases and self._leases.get(consumer.stream) is leases:
                del self._leases[consumer.stream]

        lease.over.add_done_callback(forget)
        if before is None or before.over.done():
            lease.alone.set_result(None)
            return lease

        def alone(_: asyncio.Future[None]) -> None:
            lease.alone.set_result(None)
            lease.end()

        # Whoever waits for this lease waits for the one before it too.
        lease.begin()
        before.over.add_done_callback(alone)
        before.replace()
        return lease

    def active(self, stream: str) -> Collection[tuple[str, str]]:
        """Group and name of all consumers of the stream that somebody reads as, whether or not there is room
        for an entry at this moment.
        """
        return {(one.group, one.name) for one in self._leases.get(stream, ())}

    def settled(self, stream: str) -> None:
        """Something of the stream may have been acknowledged, given back or taken over."""
        for event in self._watching.get(stream, ()):
            event.set()

    def wake(self) -> None:
        """Let everybody who watches look around: the gateway stops."""
        for stream in self._watching:
            self.settled(stream)

    @contextmanager
    def watch(self, stream: str) -> Iterator[asyncio.Event]:
        """An event that is set each time that something may have been settled."""
        event = asyncio.Event()
        self._watching.setdefault(stream, {})[event] = None
        try:
            yield event
        finally:
            watching = self._watching[stream]
            del watching[event]
            if not watching:
                del self._watching[stream]
