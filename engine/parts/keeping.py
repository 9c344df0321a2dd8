"""How much of a stream is kept: its retention, how far an archive has it, and what was deleted since.

Must never know: what a limit cuts, who archives.
"""

from bisect import insort
from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import astuple

from engine.memory import DELETED_BYTES
from engine.parts.part import Holder, StreamPart, Streams
from engine.record import Id, IdList, Record

# Deleted entries that are remembered of a stream with an archive.
DELETED_MAX: Final = 10_000
# To sort takes longer than to insert as many.
_INSERTED_MAX: Final = 8


class Retention(NamedTuple):
    """How much of a stream is kept; None is no limit.

    With `keep_unacknowledged` nothing goes that a group has still to read or to acknowledge, and until there
    was a first group only what is beyond `max_bytes`; with `keep_unarchived` nothing beyond `archived_up_to`.
    """

    max_len: int | None = None
    max_age_ms: int | None = None
    max_bytes: int | None = None
    keep_unacknowledged: bool = False
    keep_unarchived: bool = False


RETENTION_DEFAULT: Final = Retention()


class Kept(StreamPart):
    """Everything up to `archived_up_to` is kept elsewhere, 0 for nothing; `deleted` are the highest
    DELETED_MAX of the entries that were deleted since something is.
    """

    __slots__ = ("archived_up_to", "deleted", "retention")
    rank = 20

    def __init__(self, retention: Retention = RETENTION_DEFAULT, archived_up_to: int = 0) -> None:
        self.retention, self.archived_up_to = retention, archived_up_to
        self.deleted: list[int] = []

    @property
    def footprint_bytes(self) -> int:
        """How much memory it takes, about."""
        return len(self.deleted) * DELETED_BYTES

    @property
    def is_archived(self) -> bool:
        """As far as that says."""
        return self.archived_up_to > 0

    def copy(self) -> "Kept | None":
        """Nothing of a copy is archived."""
        return None if self.retention == RETENTION_DEFAULT else Kept(self.retention)

    def before(self, stream: str) -> Sequence[Record]:
        """Both, and what was deleted."""
        described = Describe(stream, *self.retention, self.archived_up_to)
        return [described, RestoreDeleted(stream, tuple(self.deleted))] if self.deleted else [described]

    def renamed(self, keyspace: Streams, name: str) -> None:
        """The archive of the name has nothing of the stream."""
        _keep(keyspace, name, self.retention, 0)

    def note_deleted(self, key: Holder, gone: Sequence[int]) -> None:
        """Remember these, which ascend, if there is an archive that may have them."""
        if not self.archived_up_to:
            return
        before = self.footprint_bytes
        if len(gone) <= _INSERTED_MAX:
            for one in gone:
                insort(self.deleted, one)
        else:
            self.deleted += gone
            self.deleted.sort()
        del self.deleted[:-DELETED_MAX]
        key.footprint.add(self.footprint_bytes - before)

    def keeps(self, key: Holder) -> bool:
        """What is still to be archived keeps a stream whose retention says so."""
        return self.retention.keep_unarchived and key.stream.last_live_id > self.archived_up_to


_NOTHING_KEPT: Final = Kept()


def kept_of(key: Holder) -> Kept:
    """What the stream has of it, or what all others have, which is only read."""
    for part in key.parts:
        if type(part) is Kept:
            return part
    return _NOTHING_KEPT


def _keep(keyspace: Streams, name: str, retention: Retention, archived_up_to: int) -> None:
    key = keyspace.keys[name]
    kept = Kept.of(key) or keyspace.put_part(name, Kept())
    kept.retention, kept.archived_up_to = retention, archived_up_to
    if not archived_up_to:
        key.footprint.add(-kept.footprint_bytes)
        kept.deleted.clear()
        if retention == RETENTION_DEFAULT:
            keyspace.drop_part(name, Kept)


class Describe(Record, frozen=True):
    """Retention, and how far the stream is archived."""

    number = 7
    stream: str
    max_len: int | None
    max_age_ms: int | None
    max_bytes: int | None
    keep_unacknowledged: bool
    keep_unarchived: bool
    archived_up_to: Id

    def apply(self, keyspace: Streams) -> None:
        key = keyspace.keys[self.stream]
        _, *limits, archived_up_to = astuple(self)
        _keep(keyspace, self.stream, Retention(*limits), archived_up_to)
        keyspace.maintained[self.stream] = None
        # It may have outlived its time because it was not archived.
        keyspace.expire_at(self.stream, key.expires_at_ms)


class RestoreDeleted(Record, frozen=True):
    """Of a snapshot: entries that were deleted, and that the stream's archive may have."""

    number = 77
    stream: str
    ids: IdList

    def apply(self, keyspace: Streams) -> None:
        key = keyspace.keys[self.stream]
        kept_of(key).note_deleted(key, self.ids)
