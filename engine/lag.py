"""How far a group is behind: Redis's exact algorithm for `entries_read` and lag (docs/semantics.md, Lag).

Knows: the counters of a stream and the position of a group.
Must never know: pending lists, consumers, commands.
"""

from collections.abc import Sequence

from engine.stream import Stream


def entries_read_after(
    stream: Stream, last_delivered_id: int, entries_read: int | None, delivered_id: int
) -> int | None:
    """`entries_read` once `delivered_id`, the next new entry, was delivered; None is unknown."""
    if entries_read is not None and _counts_on(stream, last_delivered_id):
        return entries_read + 1
    return stream.distance_from_first(delivered_id) if stream.entries_added else entries_read


def entries_read_after_run(
    stream: Stream, last: int, entries_read: int | None, new_ids: Sequence[int]
) -> int | None:
    """The same after several entries, one after the other; `last` is the ID delivered before them."""
    for place, entry_id in enumerate(new_ids):
        if entries_read is not None and _counts_on(stream, last):
            return entries_read + len(new_ids) - place
        entries_read = entries_read_after(stream, last, entries_read, entry_id)
        last = entry_id
    return entries_read


def _counts_on(stream: Stream, last_delivered_id: int) -> bool:
    """Whether every entry from here on counts as one."""
    return last_delivered_id >= stream.first_id and not stream.has_tombstone_from(last_delivered_id)


def lag(stream: Stream, last_delivered_id: int, entries_read: int | None) -> int | None:
    """How many entries the group has not read yet, or None where deletions make it unknowable."""
    if stream.entries_added == 0 or stream.length == 0:
        return 0
    if last_delivered_id < stream.first_id and stream.max_deleted_id < stream.first_id:
        return stream.length
    if entries_read is not None and not stream.has_tombstone_from(last_delivered_id):
        return stream.entries_added - entries_read
    seen = stream.distance_from_first(last_delivered_id)
    return None if seen is None else stream.entries_added - seen
