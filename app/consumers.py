"""Consumers read over connections: who has which, and when something of theirs may have been settled.

Knows: that a consumer has one reader, and that the next one waits until the one before has given back what it
did not send.
Must never know: the engine, sockets, entries.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

# Stream, group, consumer.
Key = tuple[str, str, str]


class Place:
    """One reader's hold on its consumer. `until` is done when it has to stop, `over` when it has."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.until: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[None] = loop.create_future()
        self.replaced = False

    def stop(self) -> None:
        """The reader has to stop."""
        if not self.until.done():
            self.until.set_result(None)


class Consumers:
    """All places of a gateway."""

    def __init__(self) -> None:
        self._places: dict[Key, Place] = {}
        self._watching: dict[str, set[asyncio.Event]] = {}

    async def take(self, key: Key) -> Place:
        """Have the consumer, once whoever had it is gone."""
        while (before := self._places.get(key)) is not None:
            before.replaced = True
            before.stop()
            await asyncio.wait((before.over,))
        place = self._places[key] = Place()
        return place

    def leave(self, key: Key, place: Place) -> None:
        """The reader has stopped; nothing of what it read is in its hands."""
        place.stop()
        if not place.over.done():
            place.over.set_result(None)
            del self._places[key]

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
        self._watching.setdefault(stream, set()).add(event)
        try:
            yield event
        finally:
            watching = self._watching[stream]
            watching.discard(event)
            if not watching:
                del self._watching[stream]
