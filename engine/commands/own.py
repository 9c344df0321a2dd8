"""The commands that Redis does not have: retention, policies, dead letters, publishing into many streams.

Knows: what each may be asked, as `engine.commands.types` does for Redis's.
Must never know: how a command was written down, and what it does.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from engine.commands.types import Command, Cursor, IdempotencyKey, Ids, XAdd
from engine.keyspace import Retention


class EnsureStream(Command, frozen=True, kw_only=True):
    """Create the stream, or set the retention of the one there is. Reply: whether it was created."""

    stream: str
    retention: Retention = Retention()


class UpdateStream(Command, frozen=True, kw_only=True):
    """Change what is named, of the fields of `Retention`. Reply: True."""

    stream: str
    retention: Mapping[str, Any] = {}
    archived_up_to: int | None = None


class StreamInfos(Command, frozen=True, kw_only=True):
    """Reply: `StreamPage`, by name, at most `limit`."""

    prefix: str = ""
    after: str | None = None
    limit: int = 100


class DescribeEdges(Command, frozen=True, kw_only=True):
    """Reply: `Edges`, None for a missing stream; at the cost of a look, however long the stream."""

    stream: str


class EnsureGroup(Command, frozen=True, kw_only=True):
    """Create the group with the fields of `Policy` given; one that is there keeps position and policy.

    Reply: whether it was created.
    """

    stream: str
    group: str
    start: int | Cursor
    mkstream: bool = False
    entries_read: int | None = None
    policy: Mapping[str, Any] = {}


class UpdateGroup(Command, frozen=True, kw_only=True):
    """Move the group where `start` is given, and change what `policy` names (of `Policy`). Reply: True."""

    stream: str
    group: str
    start: int | Cursor | None = None
    entries_read: int | None = None
    policy: Mapping[str, Any] = {}


class DescribeGroup(Command, frozen=True, kw_only=True):
    """Reply: `GroupInfo`."""

    stream: str
    group: str


class RemoveGroup(Command, frozen=True, kw_only=True):
    """Refused while entries are pending, unless `drop`. Reply: True."""

    stream: str
    group: str
    drop: bool = False


class RemoveConsumer(Command, frozen=True, kw_only=True):
    """Refused while it holds pending entries, unless they are to be dropped or go to another consumer.

    Reply: how many it held.
    """

    stream: str
    group: str
    consumer: str
    drop: bool = False
    transfer_to: str | None = None


class BuryEntries(Command, frozen=True, kw_only=True):
    """Move pending entries to the group's dead-letter stream, by hand. Reply: `Buried`.

    As many as go into one frame; the others stay pending, for the next call.
    """

    stream: str
    group: str
    ids: Ids
    reason: str


class FindDeadLetters(Command, frozen=True, kw_only=True):
    """Look for dead letters of the group in the dead-letter stream `letters`, from `start` to `end`
    (inclusive), at most `count`; a bounded number of entries in one turn. Reply: `DeadLettersFound`.
    """

    stream: str
    group: str
    letters: str
    start: int
    end: int
    count: int
    consumer: str | None = None
    reason: str | None = None


class Redrive(Command, frozen=True, kw_only=True):
    """Append copies of dead letters of the group to the stream, and delete the dead letters. Reply:
    `Redriven`.

    `ids` are entries of the dead-letter stream `letters`, looked at in their order; those that are not there,
    or are no dead letters of this group, are passed over. As many as one turn takes; `upto` is how far the
    caller has looked for IDs, None where there are no others. With `dry_run` nothing changes.
    """

    stream: str
    group: str
    letters: str
    ids: Ids
    upto: int | None = None
    dry_run: bool = False
    idempotency: IdempotencyKey | None = None


class Chunk(msgspec.Struct, frozen=True):
    """One piece of what a producer publishes: which of its runs it is of, and which piece of that."""

    producer: str
    epoch: int
    number: int


class Publish(Command, frozen=True, kw_only=True):
    """Append to many streams, all or nothing; each stream once. Reply: `Published`, or for a chunk that was
    stored before `Republished`. At most one of `idempotency` and `chunk`.
    """

    parts: Sequence[XAdd]
    idempotency: IdempotencyKey | None = None
    chunk: Chunk | None = None


class Plan(Command, frozen=True, kw_only=True):
    """What there is of each stream after an ID, up to the one in `ends` where it is named, and which part of
    it is read next: at most `max_entries` and `max_bytes` over all streams, but one entry of each. Reply:
    `Planned`.

    `parts` is into how many pieces each range is cut at most. With `durable_only` a range ends where a crash
    may take back what follows. `block_ms` waits while there is nothing at all, None does not.
    """

    streams: Sequence[tuple[str, int]]
    ends: Mapping[str, int] = {}
    max_entries: int | None = None
    max_bytes: int | None = None
    parts: int = 1
    durable_only: bool = False
    block_ms: int | None = None


class KeepHouse(Command, frozen=True, kw_only=True):
    """The gateway's own, once a second: retention, overdue entries, silent consumers, old productions and
    answers.

    A bounded part of it in one turn; a round is over when every stream that needs it was looked at.
    `waiting` tells which (group, consumer) wait for entries of a stream: they are not silent. Nor does
    silence count from before `since_ms` (wall clock), while nobody listened.
    Reply: whether the round goes on, in another turn at once.
    """

    waiting: Callable[[str], Collection[tuple[str, str]]] = lambda _: ()
    since_ms: int = 0


class EndWait(Command, frozen=True, kw_only=True):
    """The gateway's own: a read of the group has waited in vain or gave up, or whoever read as the
    consumer has left. Reply: True.

    Where the group has a `consumer_timeout_ms` it counts from now: the consumer was there until now.
    """

    streams: Sequence[str]
    group: str
    consumer: str


class GiveBack(Command, frozen=True, kw_only=True):
    """Release, of these entries, those that this consumer holds: it went away before they reached it.

    As XNACK SILENT does, a delivery less; but what others have claimed meanwhile stays theirs. Reply: how
    many were released.
    """

    stream: str
    group: str
    consumer: str
    ids: Ids
