"""Consumer leases: each consumer has one reader at a time, over WebSocket or SSE.

Knows: which reader holds which consumer. A new reader waits until the previous one has no read in progress
and has given back the entries that arrived too late.
Must never know: how reads are run, sockets, entries.

The new reader does not wait for the previous reader's socket buffer, which a stalled client can hold for
seconds. It reads the entries in that buffer as its history, with one more delivery, whether or not the
previous reader has received them.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from copy import copy
from typing import NamedTuple, Self

from app.live.waiting import Done, Wait
from engine import Call, CommandEngine, EngineError, ReadHandle
from engine.commands.types import XReadGroup
from engine.commands.weir_commands import EndWait, GiveBack
from engine.replies import GroupRead

Settled = Callable[[Sequence[int]], None]


class ConsumerKey(NamedTuple):
    """The consumer whose entries are read."""

    stream: str
    group: str
    name: str

    def give_back(self, entry_ids: Sequence[int]) -> GiveBack:
        """Return entries that were not sent; their delivery counts are restored."""
        return GiveBack(stream=self.stream, group=self.group, consumer=self.name, ids=tuple(entry_ids))


class ConsumerLease:
    """One reader's lease of its consumer.

    `alone` is done when no other reader reads as this consumer, with the refusal if this one may not either.
    `over` is done when this one has stopped and has sent or given back all that it read.
    """

    __slots__ = (
        "_left",
        "_reading",
        "_replaced",
        "_under_way",
        "alone",
        "consumer",
        "is_stopped",
        "lacks_credit",
        "over",
        "took_over",
    )

    def __init__(self, consumer: ConsumerKey, replaced: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.consumer = consumer
        self.alone: asyncio.Future[EngineError | None] = loop.create_future()
        self.over: asyncio.Future[None] = loop.create_future()
        self.is_stopped = False
        # Whether its reader has room for no more; and whether it took the consumer from another one.
        self.lacks_credit = self.took_over = False
        # Its last read, which may wait still.
        self._reading: Wait | None = None
        self._replaced = replaced
        self._under_way = 0
        self._left = False

    def wait_for(self, ends: Sequence[asyncio.Future[None]]) -> None:
        """Be `alone` once these are done."""
        left = {end for end in ends if not end.done()}
        if not left:
            self.alone.set_result(None)
            return

        def ended(end: asyncio.Future[None]) -> None:
            left.discard(end)
            if not left:
                self.alone.set_result(None)
                self.end_operation()

        # A reader that waits for this lease also waits for the one before it.
        self.begin_operation()
        for end in tuple(left):
            end.add_done_callback(ended)

    async def wait_alone(self) -> None:
        """Wait until `alone`. Raises EngineError where it may not read."""
        # By itself it would be cancelled with the caller.
        await asyncio.wait((self.alone,))
        if (refusal := self.alone.result()) is not None:
            raise refusal

    def replace(self) -> None:
        """Notify the reader that another one takes over."""
        if not self._left:
            self._replaced()

    def begin_operation(self) -> None:
        """Count one more operation in progress."""
        self._under_way += 1

    def end_operation(self) -> None:
        """Count one operation less."""
        self._under_way -= 1
        if self._left:
            self._check_over()

    def read_group(
        self, engine: CommandEngine, command: XReadGroup, done: Done, *, going_on: bool = False
    ) -> None:
        """Read as the consumer, until the reader has to stop. It is in progress until `end_operation`."""
        self._under_way += 1
        self.lacks_credit = False
        if self.is_stopped:
            asyncio.get_running_loop().call_soon(done, GroupRead(()))
        else:
            call = Call((command,), waits=ReadHandle(), going_on=going_on)
            self._reading = Wait(engine, call, done)

    def give_back(self, engine: CommandEngine, entry_ids: Sequence[int]) -> None:
        """Return entries to the group that were not sent; their delivery counts are restored."""
        engine.send(Call((self.consumer.give_back(entry_ids),)), lambda _: None)

    def stop(self) -> None:
        """Make the reader stop, and end its read."""
        if not self.is_stopped:
            self.is_stopped = True
            if self._reading is not None:
                self._reading.end()

    def close(self, engine: CommandEngine) -> None:
        """End the lease, and the consumer's read: it counts as read until now, even if delivery was delayed
        by backpressure.
        """
        stream, group, name = self.consumer
        engine.send(Call((EndWait(streams=[stream], group=group, consumer=name),)), lambda _: None)
        self.leave()

    def leave(self) -> None:
        """End the lease; the consumer is free when no operation is in progress."""
        self._left = True
        self.stop()
        self._check_over()

    def _check_over(self) -> None:
        if self._left and not self._under_way and not self.over.done():
            self.over.set_result(None)


class ConsumerLeases:
    """All consumer leases of a gateway, kept under the engine's names of streams."""

    def __init__(self) -> None:
        self._prefix = ""
        self._leases: dict[str, dict[ConsumerKey, ConsumerLease]] = {}
        # Ordered: the first to follow is the first to be called.
        self._following: dict[str, dict[Settled, None]] = {}

    def under(self, prefix: str) -> Self:
        """The same leases for a tenant, whose names of streams are without this prefix."""
        leases = copy(self)
        leases._prefix = prefix  # noqa: SLF001 - of its own class
        return leases

    def acquire(self, consumer: ConsumerKey, replaced: Callable[[], None]) -> ConsumerLease:
        """Lease a consumer. The previous reader is notified; the lease is `alone` when it has ended.

        `replaced` is called when another reader takes over this lease.
        """
        key = consumer._replace(stream=self._prefix + consumer.stream)
        leases = self._leases.setdefault(key.stream, {})
        before = leases.get(key)
        lease = leases[key] = ConsumerLease(consumer, replaced)

        def forget(_: asyncio.Future[None]) -> None:
            if leases.get(key) is lease:
                del leases[key]
            if not leases and self._leases.get(key.stream) is leases:
                del self._leases[key.stream]

        lease.over.add_done_callback(forget)
        elsewhere = self._elsewhere(key, before)
        lease.wait_for(
            [end for end in (None if before is None else before.over, elsewhere) if end is not None]
        )
        if before is not None:
            lease.took_over = not before.over.done()
            before.replace()
        return lease

    def _elsewhere(self, key: ConsumerKey, before: ConsumerLease | None) -> "asyncio.Future[None] | None":
        """Done when no other gateway has a reader of the consumer; `before` is the previous one here."""
        return None

    def active(self, stream: str) -> Collection[tuple[str, str]]:
        """Group and name of the stream's connected consumers, so that they are not expired as idle while
        backpressure delays their reads.
        """
        return {(key.group, key.name) for key in self._leases.get(self._prefix + stream, ())}

    def explain(self, stream: str, group: str, consumer: str | None) -> list[tuple[str, str]]:
        """What holds up consumers of the group that are connected here, or this one: a word and its name."""
        return [
            (code, key.name)
            for key, lease in self._leases.get(self._prefix + stream, {}).items()
            if key.group == group and consumer in (None, key.name)
            for code, holds in (("credit_used", lease.lacks_credit), ("replaced", lease.took_over))
            if holds
        ]

    def settled(self, stream: str, entry_ids: Sequence[int]) -> None:
        """Call the followers of the stream: these entries may have been acknowledged, given back or claimed;
        none is any of them.
        """
        for callback in [*self._following.get(self._prefix + stream, ())]:
            callback(entry_ids)

    def wake(self) -> None:
        """Call all followers: the gateway stops."""
        for callback in [one for each in self._following.values() for one in each]:
            callback(())

    def follow(self, stream: str, callback: Settled) -> Callable[[], None]:
        """Call this whenever entries of the stream may have been settled. Returns what stops that."""
        stream = self._prefix + stream
        self._following.setdefault(stream, {})[callback] = None

        def stop() -> None:
            following = self._following.get(stream, {})
            following.pop(callback, None)
            if not following:
                self._following.pop(stream, None)

        return stop
