"""Wakes reads that wait, without a connection for each: one subscription to keyspace notifications a primary.

Knows: which streams are watched and where they are, channels and probes, that notifications may be lost.
Must never know: what waits and what it reads.

    watch(stream, wake) ──SUBSCRIBE __keyspace@0__:stream──► its primary
    wake ◄── a change ┊ the subscription stands ┊ the stream has moved ┊ every `poll_s`, about

`wake` means only that there may be something: a read follows, which finds it or not. A notification counts
for nothing else, so losing one costs no more than `poll_s`.
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final

from engine.cluster.figures import BackendFigures
from engine.cluster.wire import ConnectionLostError, ServerConnection, ServerError

Wake = Callable[[], None]

# Events of streams, of keys as such, and of expiry, on channels of the keys.
EVENTS: Final = "Ktgx"
_CHANNELS_AT_ONCE: Final = 500
# Polls of one period go in that many steps, so that not all streams are read at once.
_POLL_STEPS: Final = 20
# A probe that has not come back by then: the subscriptions are gone, though the connection stands.
PROBE_S_MAX: Final = 30.0
_PROBE_S: Final = 10.0


# Opens and starts the connection for the notifications of one primary: `on_up` and `on_push` as in `wire`.
Open = Callable[[Any, Callable[[], None], Callable[[list[Any]], None]], ServerConnection]


class Watch:
    """A wait for changes of one stream; `close` it."""

    __slots__ = ("_wakeups", "stream", "wake")

    def __init__(self, wakeups: "Wakeups", stream: str, wake: Wake) -> None:
        self.stream = stream
        self.wake = wake
        self._wakeups = wakeups

    def close(self) -> None:
        """Watch no longer; closing again has no effect."""
        self._wakeups.forget(self)


class Wakeups:
    """All watches of this process. `where` names the primary of a stream, None while there is none.

    Belongs to one event loop.
    """

    def __init__(
        self,
        open_connection: Open,
        where: Callable[[str], Any],
        poll_s: float,
        front: str,
        database: int = 0,
        figures: BackendFigures | None = None,
    ) -> None:
        self.figures: Final = figures or BackendFigures()
        # By primary.
        self._missing_events: dict[Any, str] = {}
        self.on_missing_events: Callable[[str], None] = lambda _: None
        self._open = open_connection
        self._where = where
        self._poll_s = poll_s
        self._front = front
        self._database = database
        self._watches: dict[str, dict[Watch, None]] = {}
        self._places: dict[str, Any] = {}
        self._listeners: dict[Any, _Listener] = {}
        # Connections to primaries that have no watched stream any more.
        self._ending: set[asyncio.Future[None]] = set()
        self._polling: asyncio.TimerHandle | None = None
        # Streams in the order of their polls. One that is not watched keeps its place until its turn comes:
        # else each wait that ends and begins again would put it last.
        self._turns: OrderedDict[str, None] = OrderedDict()
        # How many streams are to be polled now, times _POLL_STEPS.
        self._poll_due = 0

    @property
    def missing_events(self) -> str | None:
        """Why the notifications of a primary do not come, None where all do: its reads are woken by polling
        alone.
        """
        return next(iter(self._missing_events.values()), None)

    def __len__(self) -> int:
        """The number of watched streams."""
        return len(self._watches)

    def channel_of(self, stream: str) -> str:
        """The channel of what happens to a key."""
        return f"__keyspace@{self._database}__:{stream}"

    def watch(self, stream: str, wake: Wake) -> Watch:
        """Call `wake` whenever the stream may have changed, from now on: read after this. Never before this
        returns.
        """
        watch = Watch(self, stream, wake)
        watches = self._watches.setdefault(stream, {})
        watches[watch] = None
        self._turns.setdefault(stream)
        if len(watches) == 1:
            self._place(stream)
        else:
            # Its subscription may stand already: then no change would tell of what came before.
            asyncio.get_running_loop().call_soon(self._wake_one, watch)
        if self._polling is None:
            self._poll_later()
        return watch

    def forget(self, watch: Watch) -> None:
        """Remove a watch; the last one of a stream ends its subscription."""
        watches = self._watches.get(watch.stream, {})
        watches.pop(watch, None)
        if not watches and watch.stream in self._watches:
            del self._watches[watch.stream]
            self._leave(watch.stream)

    def rearrange(self) -> None:
        """The slots, or a primary, have changed: listen where the streams are now."""
        wanted: dict[Any, list[str]] = {}
        for stream in self._watches:
            place = self._where(stream)
            if place is not None and place != self._places.get(stream):
                self._leave(stream)
                self._places[stream] = place
                wanted.setdefault(place, []).append(stream)
        for place, streams in wanted.items():
            self._listener(place).subscribe(streams)
        for place, listener in list(self._listeners.items()):
            if not listener.streams:
                del self._listeners[place]
                self._missing_events.pop(place, None)
                ending = asyncio.ensure_future(listener.close())
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)

    def note_events(self, place: Any, missing: str | None) -> None:  # noqa: ANN401 - names a primary, no more
        """Why the notifications of a primary do not come, None where they do."""
        if missing is None:
            self._missing_events.pop(place, None)
            return
        is_news = missing not in self._missing_events.values()
        self._missing_events[place] = missing
        if is_news:
            self.on_missing_events(missing)

    def wake(self, streams: Iterable[str]) -> None:
        """Wake what waits for these streams."""
        for stream in streams:
            for watch in list(self._watches.get(stream, ())):
                self._wake_one(watch)

    async def close(self) -> None:
        """End the connections; no watch is woken any more."""
        self._watches.clear()
        if self._polling is not None:
            self._polling.cancel()
        await asyncio.gather(*self._ending, *(listener.close() for listener in self._listeners.values()))
        self._listeners.clear()

    def _wake_one(self, watch: Watch) -> None:
        if watch not in self._watches.get(watch.stream, ()):
            return
        try:
            watch.wake()
        except Exception as error:  # noqa: BLE001 - the others are woken
            context = {"message": "waking a read failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def _place(self, stream: str) -> None:
        place = self._where(stream)
        if place is not None:
            self._places[stream] = place
            self._listener(place).subscribe([stream])

    def _leave(self, stream: str) -> None:
        listener = self._listeners.get(self._places.pop(stream, None))
        if listener is not None:
            listener.unsubscribe(stream)

    def _listener(self, place: Any) -> "_Listener":  # noqa: ANN401 - names a primary, no more
        listener = self._listeners.get(place)
        if listener is None:
            listener = self._listeners[place] = _Listener(self, self._open, place, self._front)
        return listener

    # --- what notifications have missed

    def _poll_later(self) -> None:
        pause_s = self._poll_s / _POLL_STEPS * random.uniform(0.75, 1.25)  # noqa: S311 - jitter
        self._polling = asyncio.get_running_loop().call_later(pause_s, self._poll)

    def _poll(self) -> None:
        """Wake some streams, so that each has its turn once in `poll_s`."""
        self._poll_due += len(self._watches)
        while self._turns and self._poll_due >= _POLL_STEPS:
            stream, _ = self._turns.popitem(last=False)
            if stream in self._watches:
                self._poll_due -= _POLL_STEPS
                self._turns[stream] = None
                self.figures.wakes["poll"] += 1
                self.wake([stream])
        if self._watches:
            self._poll_later()
        else:
            self._polling = None
            self._turns.clear()
            self._poll_due = 0


class _Listener:
    """The subscriptions at one primary. They are made again, and all is read again, after each greeting."""

    def __init__(self, wakeups: Wakeups, open_connection: Open, place: Any, front: str) -> None:  # noqa: ANN401
        self.streams: dict[str, None] = {}
        self._wakeups = wakeups
        self._place = place
        self._probe = f"weir/probe/{front}"
        self._probing: asyncio.TimerHandle | None = None
        self._is_up = False
        self._heard_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._connection = open_connection(place, self._begin, self._take)

    def subscribe(self, streams: list[str]) -> None:
        """Listen for these too; each is woken once its subscription stands."""
        self.streams.update(dict.fromkeys(streams))
        if self._is_up:
            self._subscribe(streams)

    def unsubscribe(self, stream: str) -> None:
        """Listen for it no longer."""
        if stream in self.streams:
            del self.streams[stream]
            if self._is_up:
                self._connection.send(("UNSUBSCRIBE", self._wakeups.channel_of(stream)), None)

    async def close(self) -> None:
        """End the connection."""
        if self._probing is not None:
            self._probing.cancel()
        await self._connection.close()

    def _begin(self) -> None:
        """The connection is new: nothing is subscribed, and anything may have happened."""
        self._is_up = True
        self._connection.send(("CONFIG", "GET", "notify-keyspace-events"), self._check_events)
        self._subscribe(list(self.streams))
        self._connection.send(("SUBSCRIBE", self._probe), None)
        self._heard_s = self._loop.time()
        if self._probing is None:
            self._probing = self._loop.call_later(_PROBE_S, self._send_probe)

    def _subscribe(self, streams: list[str]) -> None:
        for start in range(0, len(streams), _CHANNELS_AT_ONCE):
            some = streams[start : start + _CHANNELS_AT_ONCE]
            channels = [self._wakeups.channel_of(stream) for stream in some]
            self._connection.send(("SUBSCRIBE", *channels), None)

    def _take(self, push: list[Any]) -> None:
        kind, channel = push[0], push[1]
        if kind in {b"message", b"subscribe"}:
            if channel == self._probe.encode():
                self._heard_s = self._loop.time()
            else:
                reason = "notification" if kind == b"message" else "subscription"
                self._wakeups.figures.wakes[reason] += 1
                self._wakeups.wake([channel.partition(b":")[2].decode()])

    def _check_events(self, reply: Any) -> None:  # noqa: ANN401 - as the server sent it
        """Have the server notify, where it does not yet and allows it."""
        if isinstance(reply, ConnectionLostError):
            # The next connection asks again.
            return
        if isinstance(reply, ServerError):
            # Without CONFIG it cannot be known: polling makes up for what does not come.
            self._wakeups.note_events(self._place, str(reply))
            return
        notified = next(iter(reply.values()), b"").decode()
        if notifies(notified):
            self._wakeups.note_events(self._place, None)
            return
        events = "".join(dict.fromkeys(notified + EVENTS))
        self._connection.send(("CONFIG", "SET", "notify-keyspace-events", events), self._check_set)

    def _check_set(self, reply: Any) -> None:  # noqa: ANN401 - as the server sent it
        if isinstance(reply, ConnectionLostError):
            return
        self._wakeups.note_events(self._place, str(reply) if isinstance(reply, ServerError) else None)
        self._wakeups.wake(list(self.streams))

    def _send_probe(self) -> None:
        """Ask for a message of its own. Where none came for long, the subscriptions are made again."""
        self._probing = self._loop.call_later(_PROBE_S, self._send_probe)
        if self._loop.time() - self._heard_s > PROBE_S_MAX:
            self._begin()
        self._connection.send(("PUBLISH", self._probe, ""), lambda _: None)


def notifies(events: str) -> bool:
    """Whether a server with these `notify-keyspace-events` send all that matters."""
    return "K" in events and ("A" in events or set("tgx") <= set(events))
