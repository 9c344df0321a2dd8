"""Subscriptions: keyspace notifications of streams.

Knows: channels and patterns, which clients follow them, the two channels of an event.
Must never know: sockets, the protocol, what makes an event.

    XADD orders …  ─►  __keyspace@0__:orders   xadd
                       __keyevent@0__:xadd     orders
"""

from collections.abc import Callable, Sequence
from typing import Final

from app.glob import Glob
from engine.name_rules import NAME_BYTES_MAX

# Channels and patterns of one client.
SUBSCRIPTIONS_MAX: Final = 10_000
# Each pattern of each client is matched with each event, which takes a microsecond.
PATTERNS_MAX: Final = 100
_KEYSPACE: Final = b"__keyspace@0__:"
# The channel of the longest name. Matching a pattern costs its length times that of each channel.
CHANNEL_BYTES_MAX: Final = len(_KEYSPACE) + NAME_BYTES_MAX
_KEYEVENT: Final = b"__keyevent@0__:"

# Gets the pattern, if it was one, the channel and the message.
Deliver = Callable[[bytes | None, bytes, bytes], None]


class EventSubscriber:
    """One client's subscriptions. `may_see` says which streams' events it gets."""

    def __init__(self, deliver: Deliver, may_see: Callable[[str], bool]) -> None:
        self.channels: dict[bytes, None] = {}
        self.patterns: dict[bytes, Glob] = {}
        self.deliver = deliver
        self.may_see = may_see

    def __len__(self) -> int:
        return len(self.channels) + len(self.patterns)


class Subscriptions:
    """Those of all clients of a tenant. `follow` is called with whether there are any."""

    def __init__(self, follow: Callable[[bool], None]) -> None:
        self.channels: dict[bytes, dict[EventSubscriber, None]] = {}
        self.patterns: dict[bytes, dict[EventSubscriber, None]] = {}
        self._follow = follow

    def __len__(self) -> int:
        """How many channels and patterns are followed."""
        return len(self.channels) + len(self.patterns)

    def subscribe(self, subscriber: EventSubscriber, channel: bytes) -> None:
        """Follow a channel."""
        subscriber.channels[channel] = None
        self.channels.setdefault(channel, {})[subscriber] = None
        self._follow(True)  # noqa: FBT003 - the only argument

    def subscribe_pattern(self, subscriber: EventSubscriber, pattern: bytes) -> None:
        """Follow all channels that match."""
        subscriber.patterns[pattern] = Glob(pattern)
        self.patterns.setdefault(pattern, {})[subscriber] = None
        self._follow(True)  # noqa: FBT003 - the only argument

    def unsubscribe(self, subscriber: EventSubscriber, channel: bytes) -> None:
        """Follow it no more."""
        subscriber.channels.pop(channel, None)
        self._remove(self.channels, channel, subscriber)

    def unsubscribe_pattern(self, subscriber: EventSubscriber, pattern: bytes) -> None:
        """Follow it no more."""
        subscriber.patterns.pop(pattern, None)
        self._remove(self.patterns, pattern, subscriber)

    def leave(self, subscriber: EventSubscriber) -> None:
        """End all of them."""
        for channel in list(subscriber.channels):
            self.unsubscribe(subscriber, channel)
        for pattern in list(subscriber.patterns):
            self.unsubscribe_pattern(subscriber, pattern)

    def _remove(
        self, followed: dict[bytes, dict[EventSubscriber, None]], name: bytes, subscriber: EventSubscriber
    ) -> None:
        left = followed.get(name, {})
        left.pop(subscriber, None)
        if not left:
            followed.pop(name, None)
        if not self.channels and not self.patterns:
            self._follow(False)  # noqa: FBT003 - the only argument

    def publish(self, events: Sequence[tuple[str, str]]) -> None:
        """Deliver events: pairs of event and stream."""
        for event, stream in events:
            word, name = event.encode(), stream.encode()
            self._publish(_KEYSPACE + name, word, stream)
            self._publish(_KEYEVENT + word, name, stream)

    def _publish(self, channel: bytes, message: bytes, stream: str) -> None:
        for subscriber in list(self.channels.get(channel, ())):
            if subscriber.may_see(stream):
                subscriber.deliver(None, channel, message)
        for pattern, subscribers in list(self.patterns.items()):
            for subscriber in list(subscribers):
                if subscriber.may_see(stream) and subscriber.patterns[pattern].matches(channel):
                    subscriber.deliver(pattern, channel, message)
