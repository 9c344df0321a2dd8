"""Consumer leases of a front: the engine's process keeps them for all fronts.

Knows: which leases this front holds or waits for. Must never know: who else holds one.

The engine's process answers a lease when no other reader is left, and says when another one takes it over.
"""

from collections.abc import Callable
from itertools import count

from app.fronts.link import ProcessLink
from app.fronts.messages import MessageKind
from app.live.leases import ConsumerKey, ConsumerLease, ConsumerLeases


class RemoteLeases(ConsumerLeases):
    """Leases that are taken over `link`. Watchers hear of what this front settles."""

    def __init__(self, link: ProcessLink) -> None:
        super().__init__()
        self._link = link
        self._numbers = count()
        self._held: dict[int, ConsumerLease] = {}

    def acquire(self, consumer: ConsumerKey, replaced: Callable[[], None]) -> ConsumerLease:
        """Lease a consumer; the lease is `alone` when the engine's process has answered."""
        number, lease = next(self._numbers), ConsumerLease(consumer, replaced)
        self._held[number] = lease
        lease.over.add_done_callback(lambda _: self._leave(number))
        key = consumer._replace(stream=self._prefix + consumer.stream)
        self._link.send(MessageKind.LEASE, number, list(key))
        if self._link.is_lost:
            lease.alone.set_result(None)
        return lease

    def receive(self, kind: int, number: int) -> None:
        """Handle an answer of the engine's process; the reader may have left meanwhile."""
        lease = self._held.get(number)
        if lease is None:
            return
        if kind == MessageKind.REPLACED:
            lease.replace()
        elif not lease.alone.done():
            lease.alone.set_result(None)

    def lose(self) -> None:
        """The connection has ended: let no reader wait; what it reads is refused."""
        for lease in list(self._held.values()):
            if not lease.alone.done():
                lease.alone.set_result(None)

    def _leave(self, number: int) -> None:
        del self._held[number]
        self._link.send(MessageKind.LEFT, number)
