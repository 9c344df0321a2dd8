"""Entries from Redis into a stream that others publish to as well.

Knows: how to keep an ID where that is still possible, and the order in any case; how nothing is added twice.
Must never know: groups, pending entries, where the entries came from.

An entry keeps its ID if it is greater than the stream's last one. Whether it is can change at any moment, so
entries with IDs are published only if no other client has published meanwhile; of several entries, none or
all. What is too late gets a new ID, in one turn with the note of how far that is.
"""

import base64
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from app.cli.migration import reading
from app.cli.migration.peers import TURN_BYTES_MAX, Away, Command, CommandApi, RefusedReply, TooLarge
from app.cli.migration.reading import SourceEntry
from engine import ids
from weir.cli.failure import Failure

TOO_SMALL: Final = "ERR The ID specified in XADD is equal or smaller"
# Says why an entry was not taken.
Refuse = Callable[[int, str], None]


class Appended(NamedTuple):
    """How many entries were added, and how many of them with a new ID."""

    entries: int = 0
    renumbered: int = 0

    def plus(self, entries: int, renumbered: int = 0) -> "Appended":
        """The sum."""
        return Appended(self.entries + entries, self.renumbered + renumbered)


def append(
    target: CommandApi, stream: bytes, mark: bytes, entries: Sequence[SourceEntry], refuse: Refuse
) -> Appended:
    """Add those of the entries, in ascending order, that Weir does not have under their own ID.

    Whenever some have got new IDs, the last-delivered ID of the group `mark` becomes the last one's old ID.
    Raises Away: then another call, from the mark on, adds the rest.
    """
    added, left = Appended(), _missing(target, stream, entries)
    while left:
        view = reading.view(target, stream, ids.ID_MAX, 1)
        if view is None:
            raise Failure("it was deleted in Weir meanwhile")
        if left[0].id > view.last_id:
            some = _fitting(left)
            done = _keep(target, stream, view.last_id, some, refuse)
            if done is None:
                continue
            added, left = added.plus(done.entries), left[done.passed :]
        else:
            some = _fitting(list(takewhile(lambda entry: entry.id <= view.last_id, left)))  # noqa: B023 - used at once
            count = _renumber(target, stream, mark, some, refuse)
            added, left = added.plus(count, count), left[len(some) :]
    return added


def _missing(target: CommandApi, stream: bytes, entries: Sequence[SourceEntry]) -> list[SourceEntry]:
    if not entries:
        return []
    copies = reading.entries(target, stream, entries[0].id, entries[-1].id)
    pairs = reading.joined(iter(entries), copies)
    return [entry for _, entry, copy in pairs if entry is not None and entry != copy]


def _fitting(entries: list[SourceEntry]) -> list[SourceEntry]:
    """As many of them as go into one request, one at least."""
    size = 0
    for place, entry in enumerate(entries):
        size += entry.size
        if place and size > TURN_BYTES_MAX:
            return entries[:place]
    return entries


class _Kept(NamedTuple):
    """Of how many entries the fate is known, and how many were added."""

    passed: int
    entries: int


def _keep(
    target: CommandApi, stream: bytes, last_id: int, entries: list[SourceEntry], refuse: Refuse
) -> _Kept | None:
    """Add entries with their own IDs; None if another client published first."""
    try:
        rows = [_row(entry) for entry in entries]
        is_done = target.publish_after(stream.decode(), ids.format(last_id), rows)
    except Away:
        raise
    except Failure:
        # One of them is not what REST takes; the command API takes more, one by one.
        return _keep_one(target, stream, entries[0], refuse)
    return _Kept(len(entries), len(entries)) if is_done else None


def _keep_one(target: CommandApi, stream: bytes, entry: SourceEntry, refuse: Refuse) -> _Kept | None:
    try:
        reply = target.together([("XADD", stream, ids.format(entry.id), *entry.flat)])[0]
    except TooLarge as error:
        reply = RefusedReply(str(error))
    if not isinstance(reply, RefusedReply):
        return _Kept(1, 1)
    if reply.text.startswith(TOO_SMALL):
        return None
    refuse(entry.id, reply.text)
    return _Kept(1, 0)


def _renumber(
    target: CommandApi, stream: bytes, mark: bytes, entries: list[SourceEntry], refuse: Refuse
) -> int:
    """Add entries with new IDs; how many were."""
    commands: list[Command] = [("XADD", stream, "*", *entry.flat) for entry in entries]
    place = ("XGROUP", "SETID", stream, mark, ids.format(entries[-1].id))
    try:
        replies = target.together([*commands, place])[:-1]
    except TooLarge as error:
        if len(entries) == 1:
            refuse(entries[0].id, str(error))
            return 0
        half = len(entries) // 2
        return sum(_renumber(target, stream, mark, some, refuse) for some in (entries[:half], entries[half:]))
    for entry, reply in zip(entries, replies, strict=True):
        if isinstance(reply, RefusedReply):
            refuse(entry.id, reply.text)
    return sum(not isinstance(reply, RefusedReply) for reply in replies)


def _row(entry: SourceEntry) -> dict[str, object]:
    """An entry as REST takes it: in base64 where a value is no text."""
    names, values = entry.flat[::2], entry.flat[1::2]
    try:
        texts, encoding = [value.decode() for value in values], {}
    except UnicodeDecodeError:
        texts, encoding = [base64.b64encode(value).decode() for value in values], {"encoding": "base64"}
    pairs = [[name.decode(), text] for name, text in zip(names, texts, strict=True)]
    return {"id": ids.format(entry.id), "fields": pairs, **encoding}
