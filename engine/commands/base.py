"""The facts that every command class states, which the engine reads before it runs the command.

Knows: the questions, and the usual answers. A command's class gives its own where they differ, so that no
other code asks of what type a command is.
Must never know: single commands, and how they run.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, ClassVar, Final, Self

import msgspec

from engine.keyspace import Keyspace
from engine.name_marks import StreamKey
from engine.quotas import Quota

# In the place of a stream's name: what belongs to none, as settings and idempotency keys over several.
NO_STREAM: Final = ""
# To find a stream, and to look at its ends.
_STREAM_US: Final = 2


class MemoryNeed(Enum):
    """What a command needs memory for, which decides when it is refused.

    memory          ADDS        DELIVERS    NONE
    below limit     runs        runs        runs
    full            refused     runs        runs
    over by 1/10    refused     refused     runs
    """

    ADDS = "entries, streams, groups, consumers or answers to remember"
    DELIVERS = "entries that become pending, or a consumer in passing"
    NONE = "nothing: it reads, makes room, or changes what is there"


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command: immutable, typed, free of any wire format."""

    # False: it never changes anything, so the log need not have room for it.
    changes: ClassVar[bool] = True
    needs: ClassVar[MemoryNeed] = MemoryNeed.NONE
    # Whether it does nothing but remove: on a full disk it may use a part of the log's reserve.
    makes_room: ClassVar[bool] = False
    # Whether the turn looks up each of `named_ids` in its stream.
    looks_up: ClassVar[bool] = True
    # Whether it takes entries for which others may be waiting: then it runs behind them.
    queues: ClassVar[bool] = False
    # Whether the reply grows with what is stored, so that its connection has to hold memory for it first.
    long_reply: ClassVar[bool] = False
    # Whether a transaction ends behind it, with nothing changed, if it answers False.
    guards: ClassVar[bool] = False
    # Whether pending entries of the streams that it names may be settled by it, released or taken over.
    settles: ClassVar[bool] = False
    # Whether the streams that it names count as used (OBJECT IDLETIME).
    touches: ClassVar[bool] = True
    # Whether the engine gives it to itself: no caller sends it.
    is_internal: ClassVar[bool] = False

    def named_streams(self) -> tuple[str, ...] | None:
        """The streams that it names; None for a command on all of them."""
        return None

    def depends_on(self) -> tuple[str, ...] | None:
        """The streams on which its reply depends, `NO_STREAM` among them; None for all of them."""
        return self.named_streams()

    def named_ids(self) -> Sequence[int]:
        """The IDs for which the turn must have room before it runs."""
        return ()

    def entry_bytes(self) -> int:
        """The bytes of entries that it brings into the log."""
        return 0

    def memory_need(self, keyspace: Keyspace) -> MemoryNeed:
        """What it needs memory for, as things stand."""
        return self.needs

    def work_us(self, keyspace: Keyspace) -> int:
        """About how many microseconds it takes beyond what a turn counts while it runs, as things stand: for
        rows of groups, of consumers and of streams. What a transaction would take is added up beforehand.
        """
        return _STREAM_US * len(self.named_streams() or ())

    def grown_streams(self, keyspace: Keyspace, quota: Quota) -> Sequence[str]:
        """The streams of the quota that it may create, or add to."""
        if self.memory_need(keyspace) is not MemoryNeed.ADDS:
            return ()
        return [name for name in self.named_streams() or () if quota.matches(name)]

    def has_long_reply(self) -> bool:
        """Whether the reply grows with what is stored."""
        return self.long_reply

    def to_nonblocking(self) -> Self:
        """The same, which does not wait."""
        return self


class StreamCommand(Command, frozen=True, kw_only=True):
    """A command on one stream."""

    stream: StreamKey

    def named_streams(self) -> tuple[str, ...]:
        return (self.stream,)


class BlockingCommand(Command, frozen=True, kw_only=True):
    """A read of several streams, each with a place to read from. `block_ms` waits while there is nothing for
    it, None does not.
    """

    streams: Sequence[tuple[StreamKey, Any]]
    block_ms: int | None = None

    def named_streams(self) -> tuple[str, ...]:
        return tuple([name for name, _ in self.streams])

    def to_nonblocking(self) -> Self:
        return self if self.block_ms is None else msgspec.structs.replace(self, block_ms=None)

    def reader(self) -> tuple[str, str] | None:
        """The group and the consumer that wait, None if the wait is of no consumer."""
        return None

    def wake_cost(self) -> int:
        """What looking at it once more costs, in plain reads of one stream."""
        return 1
