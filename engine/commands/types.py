"""The commands: frozen, typed, one a Redis command, free of any wire format.

Knows: what each command may be asked, and the special cursors. IDs are integers, names text, times
milliseconds.
Must never know: how a command was written down, and what it does.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final

import msgspec


class Refs(Enum):
    """What becomes of a deleted entry's references in the groups' pending lists."""

    KEEP = "keep"
    """The pending entries stay and dangle."""
    DELETE = "delete"
    """They go too."""
    ACKED = "acked"
    """The entry is deleted only when every group has read and acknowledged it."""


class Cursor(Enum):
    """Words in the place of an ID. A parked read never holds one: they are resolved once."""

    LATEST = "$"
    LAST_ENTRY = "+"
    NEW = ">"


class NackMode(Enum):
    """What XNACK does to the delivery count: one back, nothing, to the largest number."""

    SILENT = "silent"
    FAIL = "fail"
    FATAL = "fatal"


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all."""


class AutoSequence(msgspec.Struct, frozen=True):
    """`ms-*`: the milliseconds are given, the sequence is the engine's."""

    ms: int


# None is `*`: wholly the engine's.
NewId = int | AutoSequence | None
Ids = Sequence[int]


class Trim(msgspec.Struct, frozen=True, kw_only=True):
    """One of `maxlen`, `minid` and `older_than_ms`. `limit` None is the default of `~`, 0 no limit.

    With `count_pending` the answer tells how many pending entries lose their entry, which costs a look into
    every group; else it says 0. Below a deleted entry that is exact for the first 10,000; beyond, pending
    entries that have lost theirs before count too.
    """

    maxlen: int | None = None
    minid: int | None = None
    older_than_ms: int | None = None
    approx: bool = False
    limit: int | None = None
    refs: Refs = Refs.KEEP
    count_pending: bool = False


class Production(msgspec.Struct, frozen=True):
    """IDMP and IDMPAUTO: who produces, and what tells one entry of theirs from another (both raw bytes)."""

    producer: bytes
    key: bytes


class IdempotencyKey(msgspec.Struct, frozen=True):
    """The HTTP header's key, per stream, and a digest of the body that it came with."""

    key: str
    digest: bytes


class XAdd(Command, frozen=True, kw_only=True):
    """Append entries, all or none. Reply: `Added`, or None where `mkstream` is false and the stream missing.

    `bodies` are stored forms without their ID (`engine.entries.body`). `ids` is empty (all automatic and
    consecutive) or has one for each body. `expected_last_id` is a precondition (0: empty or missing).
    """

    stream: str
    bodies: Sequence[bytes]
    ids: Sequence[NewId] = ()
    mkstream: bool = True
    trim: Trim | None = None
    production: Production | None = None
    idempotency: IdempotencyKey | None = None
    expected_last_id: int | None = None


class XLen(Command, frozen=True, kw_only=True):
    stream: str


class XRange(Command, frozen=True, kw_only=True):
    """`start` and `end` inclusive, `start` the lower one also in reverse. Reply: `Entries`.

    `count` None is all; 0 answers None on an existing stream (Redis's null array). `bytes_max` bounds the
    text, at least one entry is given.
    """

    stream: str
    start: int
    end: int
    count: int | None = None
    reverse: bool = False
    bytes_max: int | None = None


class XDel(Command, frozen=True, kw_only=True):
    stream: str
    ids: Ids


class XDelEx(Command, frozen=True, kw_only=True):
    """Reply: `Deletions`. On a missing stream all IDs are absent."""

    stream: str
    ids: Ids
    refs: Refs = Refs.KEEP


class XTrim(Command, frozen=True, kw_only=True):
    """Reply: `Trimmed`. `dry_run` only tells; `guard` refuses to remove what a group still needs."""

    stream: str
    trim: Trim
    dry_run: bool = False
    guard: bool = False


class XRead(Command, frozen=True, kw_only=True):
    """Reply: `StreamsRead`. `count` is per stream, None no limit; `block_ms` None does not wait."""

    streams: Sequence[tuple[str, int | Cursor]]
    count: int | None = None
    block_ms: int | None = None
    bytes_max: int | None = None


class XReadGroup(Command, frozen=True, kw_only=True):
    """Reply: `GroupRead`. Cursors are IDs (history) or `Cursor.NEW`.

    With `claims_own` false, CLAIM passes over what the consumer holds itself, which Redis claims too. At most
    one such read of a consumer waits.
    """

    group: str
    consumer: str
    streams: Sequence[tuple[str, int | Cursor]]
    count: int | None = None
    block_ms: int | None = None
    noack: bool = False
    claim_min_idle_ms: int | None = None
    claims_own: bool = True
    bytes_max: int | None = None


class XAck(Command, frozen=True, kw_only=True):
    stream: str
    group: str
    ids: Ids


class XAckDel(Command, frozen=True, kw_only=True):
    """Reply: `Deletions`. Where stream or group is missing all IDs are absent."""

    stream: str
    group: str
    ids: Ids
    refs: Refs = Refs.KEEP


class Nack(msgspec.Struct, frozen=True, kw_only=True):
    ids: Ids
    mode: NackMode
    retry_count: int | None = None
    force: bool = False


class XNack(Command, frozen=True, kw_only=True):
    stream: str
    group: str
    nack: Nack


class XPending(Command, frozen=True, kw_only=True):
    """Reply: `PendingSummary`."""

    stream: str
    group: str


class XPendingRange(Command, frozen=True, kw_only=True):
    """Reply: `PendingList`. `count` 0 or less gives an empty list."""

    stream: str
    group: str
    start: int
    end: int
    count: int
    consumer: str | None = None
    min_idle_ms: int = 0


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """`idle_ms` and `time_ms` exclude each other (the later word wins); `last_id` raises the group's."""

    ids: Ids
    min_idle_ms: int
    idle_ms: int | None = None
    time_ms: int | None = None
    retry_count: int | None = None
    force: bool = False
    just_ids: bool = False
    last_id: int | None = None


# Bytes of entries that a claim takes over where it does not say: they are answered all at once.
claimed_bytes_max: Final = 8 << 20


class XClaim(Command, frozen=True, kw_only=True):
    """Reply: `Claimed`. Entries beyond `bytes_max` stay as they were; one is always given."""

    stream: str
    group: str
    consumer: str
    claim: Claim
    bytes_max: int = claimed_bytes_max


class XAutoClaim(Command, frozen=True, kw_only=True):
    """Reply: `AutoClaimed`. `start` is inclusive; it ends at `count` or `bytes_max`, one is always given."""

    stream: str
    group: str
    consumer: str
    min_idle_ms: int
    start: int
    count: int = 100
    just_ids: bool = False
    bytes_max: int = claimed_bytes_max


class XGroupCreate(Command, frozen=True, kw_only=True):
    """`start` is where the group begins to read (exclusive); `entries_read` None is unknown. Reply: True."""

    stream: str
    group: str
    start: int | Cursor
    mkstream: bool = False
    entries_read: int | None = None


class XGroupSetId(Command, frozen=True, kw_only=True):
    stream: str
    group: str
    start: int | Cursor
    entries_read: int | None = None


class XGroupDestroy(Command, frozen=True, kw_only=True):
    stream: str
    group: str


class XGroupCreateConsumer(Command, frozen=True, kw_only=True):
    stream: str
    group: str
    consumer: str


class XGroupDelConsumer(Command, frozen=True, kw_only=True):
    """Reply: how many pending entries the consumer had; they are no longer pending."""

    stream: str
    group: str
    consumer: str


class XSetId(Command, frozen=True, kw_only=True):
    stream: str
    last_id: int
    entries_added: int | None = None
    max_deleted_id: int | None = None


class IdmpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """At least one of them."""

    duration_s: int | None = None
    maxsize: int | None = None


class XCfgSet(Command, frozen=True, kw_only=True):
    stream: str
    settings: IdmpSettings


class XIdmpRecord(Command, frozen=True, kw_only=True):
    stream: str
    production: Production
    id: int


class XInfoStream(Command, frozen=True, kw_only=True):
    """Reply: `StreamInfo`."""

    stream: str


class XInfoStreamFull(Command, frozen=True, kw_only=True):
    """Reply: `StreamDetail`. `count` bounds entries and each pending list, None is all."""

    stream: str
    count: int | None = 10


class XInfoGroups(Command, frozen=True, kw_only=True):
    """Reply: a list of `GroupInfo`, by name."""

    stream: str


class XInfoConsumers(Command, frozen=True, kw_only=True):
    """Reply: a list of `ConsumerInfo`, by name."""

    stream: str
    group: str


class Delete(Command, frozen=True, kw_only=True):
    """DEL, UNLINK. Reply: how many there were."""

    streams: Sequence[str]


class Exists(Command, frozen=True, kw_only=True):
    """Reply: how many of the names there are, repeated ones counted each time."""

    streams: Sequence[str]


class FindGroup(Command, frozen=True, kw_only=True):
    """Weir's own: look for the group on each of the streams. Reply: a `Presence` for each, in order."""

    streams: Sequence[str]
    group: str


class Type(Command, frozen=True, kw_only=True):
    """Reply: `"stream"` or `"none"`."""

    stream: str


class ListStreams(Command, frozen=True, kw_only=True):
    """Reply: `Listing`, in order of names after `after` that start with `prefix`; `limit` None is all."""

    prefix: str = ""
    after: str | None = None
    limit: int | None = None


class DbSize(Command, frozen=True, kw_only=True):
    pass


class FlushAll(Command, frozen=True, kw_only=True):
    """Reply: True."""


class ConfigGet(Command, frozen=True, kw_only=True):
    """Reply: `Settings`: all of the engine's, by name; the door filters."""


class ConfigSet(Command, frozen=True, kw_only=True):
    """Names and values as written; a wrong one refuses all. Reply: True."""

    values: Sequence[tuple[str, str]]
