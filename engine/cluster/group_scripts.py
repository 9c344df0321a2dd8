"""What groups need that Redis's commands do not do, as scripts: reads that do not wait, and releasing.

Knows: the scripts' arguments and replies; that a released entry belongs to a consumer of that name.
Must never know: connections, who waits (`group_waits`).
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec

from engine import errors, ids
from engine.cluster.dead_letters import Dying, due_of, none_configured
from engine.cluster.ends import end_from
from engine.cluster.replies import deliveries_of
from engine.cluster.scripts import ScriptCall, Word, as_it_is, script, stream_keys
from engine.cluster.stored import text_of
from engine.commands.group_reading import DELIVERY_COUNT_MAX, one_more
from engine.commands.types import Cursor, NackMode, XNack, XPendingRange, XReadGroup
from engine.commands.weir_commands import Acknowledge, DeadLetterEntries, Extend, GiveBack, Undo
from engine.replies import (
    AcknowledgedIds,
    BackendMark,
    DeadLettered,
    Delivered,
    Gap,
    GroupRead,
    Outcomes,
    StreamDeliveries,
    StreamEnd,
)

_parse: Final = ids.parse_canonical


def start_word(start: int | Cursor) -> str:
    """Where a group begins."""
    return ids.format(start) if isinstance(start, int) else "$"


def read_group(command: XReadGroup) -> ScriptCall:
    """XREADGROUP of its only stream, without waiting. Reply: `GroupRead`, or `Dying` with it."""
    ((stream, cursor),) = command.streams
    call = read_stream(command, stream, cursor)

    def decode(reply: Any) -> GroupRead | Dying:  # noqa: ANN401 - as the server sent it
        found = call.decode(reply)
        if isinstance(found, Dying):
            return msgspec.structs.replace(found, reply=group_read([found.reply]))
        return group_read([found])

    return msgspec.structs.replace(call, decode=decode)


class GroupFound(NamedTuple):
    """What one stream gave to its group, its end where nothing is left to read, and whether the group is
    paused.
    """

    deliveries: StreamDeliveries
    end: StreamEnd | None
    paused: bool = False


def group_read(found: Sequence[GroupFound]) -> GroupRead:
    """The reply of XREADGROUP: a stream without new entries is left out."""
    streams = [one.deliveries for one in found]
    return GroupRead(
        [one for one in streams if one.entries or one.history],
        unfinished=tuple(one.stream for one in streams if one.more and not (one.entries or one.history)),
        closed=tuple(one.end for one in found if one.end is not None),
        paused=tuple(one.deliveries.stream for one in found if one.paused),
    )


def read_stream(
    command: XReadGroup, stream: str, cursor: int | Cursor, *, has_given: bool = False
) -> ScriptCall:
    """XREADGROUP of one of its streams, without waiting. Reply: `GroupFound`, or `Dying` with it. Where
    the read `has_given` entries of other streams, even the first of this one may be too long.
    """
    arguments: list[Word] = [
        *(command.group, command.consumer, _or_empty(command.count_of_one), int(command.noack)),
        *(_or_empty(command.claim_min_idle_ms), int(command.claims_own), _or_empty(command.bytes_of_all)),
        *(ids.format(cursor) if isinstance(cursor, int) else Cursor.NEW.value, int(has_given)),
    ]

    def decode(reply: Any) -> GroupFound | Dying:  # noqa: ANN401 - as the server sent it
        if reply[0] == b"no":
            raise errors.no_group_in_read(stream, command.group)
        _, due, letters, generation, paused, expired, *rest, ended = reply
        given = _history(stream, rest, cursor) if isinstance(cursor, int) else _new(stream, rest, command)
        found = GroupFound(given, _end(stream, *ended) if ended else None, bool(paused))
        if not due and not expired:
            return found
        names = (stream, command.group, letters.decode(), generation.decode())
        return Dying(*names, due_of(due), found, expired)

    keys = stream_keys(stream)[:2]
    return ScriptCall(script("read_group", "policies", "deferring"), keys, arguments, decode)


def _end(stream: str, mark: bytes, last_id: bytes, drained: int) -> StreamEnd | None:
    return end_from(stream, mark, _parse(last_id), drained=bool(drained))


def _or_empty(number: int | None) -> Word:
    return "" if number is None else number


def _history(stream: str, reply: Sequence[Any], after: int) -> StreamDeliveries:
    rows, before, more = reply
    given = [
        Delivered(_parse(entry_id), None if words is None else text_of(entry_id, words), count)
        for entry_id, words, count in rows
    ]
    return StreamDeliveries(
        stream, given, history=True, after=after, last_delivered_id=_parse(before), more=bool(more)
    )


def _new(stream: str, reply: Sequence[Any], command: XReadGroup) -> StreamDeliveries:
    claimed, rows, *edges, lost, more, entries_read, began_ms, ended_ms = reply
    began, before, last, removed_upto, first = map(_parse, edges)
    given = [
        Delivered(_parse(entry_id), text_of(entry_id, words), one_more(count), idle_ms, count, bool(released))
        for entry_id, words, idle_ms, number, released in claimed
        for count in [deliveries_of(number)]
    ]
    first_time = (None, None) if command.claim_min_idle_ms is None else (0, 0)
    given += [
        Delivered(_parse(entry_id), text_of(entry_id, words), 1, *first_time) for entry_id, words in rows
    ]
    gap = None
    if rows and 0 < began < removed_upto:
        gap = Gap(began, first, lost if lost >= 0 else None)
    mark = None
    if rows:
        read = None if entries_read < 0 else entries_read
        mark = BackendMark(before, read, last, began_ms, ended_ms, len(claimed))
    return StreamDeliveries(
        stream,
        given,
        history=False,
        after=before,
        last_delivered_id=last,
        gap=gap,
        more=bool(more),
        mark=mark,
    )


def look_at_pending(command: DeadLetterEntries) -> ScriptCall:
    """The pending ones of the entries, to be dead letters. Reply: `Dying`."""
    consumer = command.consumer or ""
    arguments = [command.group, consumer, *map(ids.format, dict.fromkeys(command.ids))]

    def decode(reply: Any) -> Dying:  # noqa: ANN401 - as the server sent it
        if reply[0] == b"no":
            raise errors.no_group(command.stream, command.group)
        _, letters, generation, rows, not_held = reply
        if not letters:
            raise none_configured()
        given = DeadLettered(letters.decode(), [], list(map(_parse, not_held)))
        return Dying(
            *(command.stream, command.group, letters.decode(), generation.decode()),
            due_of(rows, command.reason),
            given,
            holder=consumer,
        )

    keys = stream_keys(command.stream)[:2]
    return ScriptCall(script("look_at_pending", "policies", "deferring"), keys, arguments, decode)


def give_back_later(command: XNack) -> ScriptCall:
    """XNACK, at once or after a delay. Reply: `Outcomes`."""
    nack = command.nack
    less = {NackMode.SILENT: "less", NackMode.FAIL: "same", NackMode.FATAL: str(DELIVERY_COUNT_MAX)}
    count = less[nack.mode] if nack.retry_count is None else str(nack.retry_count)
    words: list[Word] = [command.group, count, int(nack.force), nack.delay_ms, command.consumer or ""]
    words += map(ids.format, nack.ids)

    def decode(reply: Any) -> Outcomes:  # noqa: ANN401 - as the server sent it
        rows = list(zip(nack.ids, reply, strict=True))
        not_held = dict.fromkeys(entry_id for entry_id, outcome in rows if outcome < 0)
        return Outcomes([entry_id for entry_id, outcome in rows if outcome > 0], list(not_held))

    keys = stream_keys(command.stream)[:2]
    return ScriptCall(script("give_back_later", "deferring"), keys, words, decode)


def extend(command: Extend) -> ScriptCall:
    """Start the idle time of the consumer's entries anew."""
    # An ID that is named again is extended once.
    words = [command.group, command.consumer, *map(ids.format, dict.fromkeys(command.ids))]

    def decode(reply: Any) -> Outcomes:  # noqa: ANN401 - as the server sent it
        return Outcomes(*(list(map(_parse, part)) for part in reply))

    return ScriptCall(script("extend", "deferring"), stream_keys(command.stream)[:1], words, decode)


def find_deferred(command: XPendingRange) -> ScriptCall:
    """Those of the page that come back later. Reply: the time of each."""
    between = (ids.format(command.start), ids.format(command.end))
    words: list[Word] = [command.group, *between, max(0, command.count) + 1]

    def decode(reply: Any) -> dict[int, int]:  # noqa: ANN401 - as the server sent it
        pairs = zip(reply[::2], reply[1::2], strict=True)
        return {_parse(entry_id): int(until_ms or 0) for entry_id, until_ms in pairs}

    return ScriptCall(script("pending", "deferring"), stream_keys(command.stream)[:2], words, decode)


def give_back(command: GiveBack) -> ScriptCall:
    """Release what the consumer holds of these."""
    words = [command.group, command.consumer, *map(ids.format, command.ids)]
    return ScriptCall(script("give_back"), stream_keys(command.stream)[:1], words, as_it_is)


def undo(command: Undo) -> ScriptCall:
    """Undo a delivery that reached no reader, if nothing else has moved the group; else count it less."""
    mark = command.mark
    assert isinstance(mark, BackendMark), "a server made it"
    words: list[Word] = [
        *(command.group, command.consumer, ids.format(mark.last_delivered_id)),
        -1 if mark.entries_read is None else mark.entries_read,
        ids.format(mark.last_delivered_id_after),
        mark.began_ms,
        mark.ended_ms,
        *map(ids.format, command.ids),
    ]
    return ScriptCall(script("undo", "policies"), stream_keys(command.stream)[:1], words, bool)


def acknowledge(command: Acknowledge) -> ScriptCall:
    """XACK that says which of the IDs were pending, and which others hold."""
    if command.holders:
        return _acknowledge_held(command)
    words = [command.group, "", *map(ids.format, command.ids)]

    def decode(reply: Any) -> AcknowledgedIds:  # noqa: ANN401 - as the server sent it
        return AcknowledgedIds(list(map(_parse, reply)))

    return ScriptCall(script("acknowledge", "deferring"), stream_keys(command.stream)[:1], words, decode)


def _acknowledge_held(command: Acknowledge) -> ScriptCall:
    words: list[Word] = [command.group]
    named = zip(command.ids, command.holders, strict=True)
    for holder, pairs in groupby(named, itemgetter(1)):
        wanted = [entry_id for entry_id, _ in pairs]
        edges = ids.format(min(wanted)), ids.format(max(wanted))
        words += [holder, len(wanted), *edges, *map(ids.format, wanted)]

    def decode(reply: Any) -> AcknowledgedIds:  # noqa: ANN401 - as the server sent it
        return AcknowledgedIds(*(list(map(_parse, part)) for part in reply))

    return ScriptCall(script("acknowledge_held", "deferring"), stream_keys(command.stream)[:1], words, decode)
