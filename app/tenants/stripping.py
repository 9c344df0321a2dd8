"""Replies and refusals of the engine as a tenant sees them: without the prefix in any name.

Knows: where each reply holds names of streams, how refusals quote names.
Must never know: commands, who reads a reply.

The table names every type of reply; any other is refused: `tests/app/tenants/test_tables.py` holds the table
against the engine's replies.
"""

from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, Final

from msgspec.structs import asdict, replace

from app.tenants.sources import names_source, rename_in_body, rename_in_entry
from app.tenants.tenant_names import TenantNames
from engine import EngineError, entries, errors, replies
from engine.replies import Reply, by_type

Strip = Callable[[Any, TenantNames], Any]


class ShownInfo(replies.StreamInfo, frozen=True):
    """A stream as a tenant sees it, where that differs. `real` is what the engine has: a precondition means
    that.
    """

    real: replies.StreamInfo


def strip_prefix(reply: Reply, names: TenantNames) -> Reply:
    """The reply for the tenant. Raises `internal` for a type that is not in the table."""
    strip = by_type(REPLIES, reply)
    if strip is None:
        raise errors.internal()
    stripped: Reply = strip(reply, names)
    return stripped


def strip_refusal(error: EngineError, added: Mapping[str, str]) -> EngineError:
    """The refusal for the tenant; `added` has the tenant's names by those of the engine."""
    redis, detail = error.redis, error.detail
    for full, name in added.items():
        # As `engine.errors` quotes them.
        for quoted, shown in ((repr(full), repr(name)), (f"'{full}'", f"'{name}'")):
            redis, detail = redis.replace(quoted, shown), detail.replace(quoted, shown)
    members = {
        key: added.get(value, value) if isinstance(value, str) else value
        for key, value in error.members.items()
    }
    return EngineError(error.code, redis, detail, **members)


# ---- texts of entries


def _joined(text: bytes, names: TenantNames) -> bytes:
    """Stored entries, joined by commas."""
    if not names_source(text):
        return text
    return b",".join([_entry(entry, names) for entry in entries.texts(text)])


def _entry(text: bytes, names: TenantNames) -> bytes:
    return rename_in_entry(text, lambda source: source.removeprefix(names.prefix_bytes))


def _text(text: bytes | None, names: TenantNames) -> bytes | None:
    return None if text is None else _entry(text, names)


# ---- replies


def _same(reply: Any, _: TenantNames) -> Any:  # noqa: ANN401 - any reply without names
    return reply


def _entries(given: replies.Entries, names: TenantNames) -> replies.Entries:
    return replace(given, parts=[_joined(part, names) for part in given.parts])


def _stream_entries(given: replies.StreamEntries, names: TenantNames) -> replies.StreamEntries:
    return replace(given, stream=names.strip(given.stream), entries=_entries(given.entries, names))


def _streams_read(reply: replies.StreamsRead, names: TenantNames) -> replies.StreamsRead:
    return replies.StreamsRead(
        streams=[_stream_entries(stream, names) for stream in reply.streams],
        cursors=[(names.strip(name), cursor) for name, cursor in reply.cursors],
        unfinished=[names.strip(name) for name in reply.unfinished],
        generations=reply.generations,
        closed=_ends(reply.closed, names),
    )


def _ends(ends: Sequence[replies.StreamEnd], names: TenantNames) -> list[replies.StreamEnd]:
    return [replace(end, stream=names.strip(end.stream)) for end in ends]


def _closed(reply: replies.Closed, names: TenantNames) -> replies.Closed:
    return replace(reply, end=replace(reply.end, stream=names.strip(reply.end.stream)))


def _delivered(given: Sequence[replies.Delivered], names: TenantNames) -> list[replies.Delivered]:
    return [
        entry
        if entry.text is None or not names_source(entry.text)
        else replace(entry, text=_entry(entry.text, names))
        for entry in given
    ]


def _deliveries(given: replies.StreamDeliveries, names: TenantNames) -> replies.StreamDeliveries:
    return replace(given, stream=names.strip(given.stream), entries=_delivered(given.entries, names))


def _group_read(reply: replies.GroupRead, names: TenantNames) -> replies.GroupRead:
    return replies.GroupRead(
        streams=[_deliveries(stream, names) for stream in reply.streams],
        unfinished=[names.strip(name) for name in reply.unfinished],
        closed=_ends(reply.closed, names),
        paused=[names.strip(name) for name in reply.paused],
    )


def _claimed(reply: Any, names: TenantNames) -> Any:  # noqa: ANN401 - both kinds of claims
    return replace(reply, entries=_delivered(reply.entries, names))


def _info(info: replies.StreamInfo, names: TenantNames) -> replies.StreamInfo:
    shown: dict[str, object] = {
        "first_entry": _text(info.first_entry, names),
        "last_entry": _text(info.last_entry, names),
    }
    if info.forked_from is not None:
        shown["forked_from"] = names.strip(info.forked_from)
    if all(value == getattr(info, name) for name, value in shown.items()):
        return info
    return ShownInfo(**{**asdict(info), **shown}, real=info)


def _group(info: replies.GroupInfo, names: TenantNames) -> replies.GroupInfo:
    letters = info.dead_letter_stream
    return info if letters is None else replace(info, dead_letter_stream=names.strip(letters))


def _detail(reply: replies.StreamDetail, names: TenantNames) -> replies.StreamDetail:
    return replies.StreamDetail(
        stream=_info(reply.stream, names),
        entries=_entries(reply.entries, names),
        groups=[replace(detail, group=_group(detail.group, names)) for detail in reply.groups],
    )


def _next(full: str | None, names: TenantNames) -> str | None:
    """Where a list goes on: at a name of the tenant, which may be one that it cannot use."""
    return None if full is None else full.removeprefix(names.prefix)


def _listing(reply: replies.Listing, names: TenantNames) -> replies.Listing:
    own = [names.strip(name) for name in reply.names if names.has(name)]
    return replies.Listing(own, _next(reply.next, names))


def _page(reply: replies.StreamPage, names: TenantNames) -> replies.StreamPage:
    own = [(names.strip(name), _info(info, names)) for name, info in reply.streams if names.has(name)]
    return replies.StreamPage(own, _next(reply.next, names))


def _schedule(info: replies.ScheduleInfo, names: TenantNames) -> replies.ScheduleInfo:
    if not names_source(info.body):
        return info
    shown = rename_in_body(info.body, lambda source: source.removeprefix(names.prefix_bytes))
    return replace(info, body=shown)


def _schedule_set(reply: replies.ScheduleSet, names: TenantNames) -> replies.ScheduleSet:
    return replace(reply, schedule=_schedule(reply.schedule, names))


def _schedules(reply: replies.SchedulePage, names: TenantNames) -> replies.SchedulePage:
    return replace(reply, schedules=[_schedule(one, names) for one in reply.schedules])


def _dropped(reply: replies.Dropped, names: TenantNames) -> replies.Dropped:
    return replace(reply, reply=strip_prefix(reply.reply, names))


def _of_stream(reply: Any, names: TenantNames) -> Any:  # noqa: ANN401 - replies with a stream
    return replace(reply, stream=names.strip(reply.stream))


def _published(reply: replies.Published, names: TenantNames) -> replies.Published:
    return replace(reply, streams=[(names.strip(name), added) for name, added in reply.streams])


def _republished(reply: replies.Republished, names: TenantNames) -> replies.Republished:
    return replies.Republished([_of_stream(stream, names) for stream in reply.streams])


def _planned(reply: replies.Planned, names: TenantNames) -> replies.Planned:
    streams, previous = ([_of_stream(one, names) for one in some] for some in (reply.streams, reply.previous))
    return replies.Planned(streams, [names.strip(name) for name in reply.missing], previous)


def _each(reply: Sequence[Any], names: TenantNames) -> list[Any]:
    return [_in_lists(part, names) for part in reply]


def _in_lists(part: Any, names: TenantNames) -> Any:  # noqa: ANN401 - what lists hold
    strip = by_type(IN_LISTS, part)
    if strip is None:
        raise errors.internal()
    return strip(part, names)


IN_LISTS: Final[Mapping[type, Strip]] = {
    replies.ConsumerInfo: _same,
    replies.GroupInfo: _group,
    replies.Presence: _same,
}
# Those that answer a command which is refused are not here: NamedValues, Measured, MetadataPage.
REPLIES: Final[Mapping[type, Strip]] = {
    NoneType: _same,
    bool: _same,
    int: _same,
    list: _each,
    str: _same,
    tuple: _each,
    replies.AcknowledgedIds: _same,
    replies.Added: _same,
    replies.AddedScheduled: _same,
    replies.AutoClaimed: _claimed,
    replies.BatchesAppended: _same,
    replies.Closed: _closed,
    replies.Dropped: _dropped,
    replies.Claimed: _claimed,
    replies.DeadLettered: _of_stream,
    replies.DeadLettersFound: _same,
    replies.Deletions: _same,
    replies.DurableAppended: _same,
    replies.DurableCreated: _same,
    replies.DurableInfo: _same,
    replies.Archived: _same,
    replies.Edges: _same,
    replies.StreamUse: _same,
    replies.Entries: _entries,
    replies.GroupInfo: _group,
    replies.GroupRead: _group_read,
    replies.Listing: _listing,
    replies.Outcomes: _same,
    replies.PendingList: _same,
    replies.PendingSummary: _same,
    replies.Planned: _planned,
    replies.Published: _published,
    replies.Redriven: _same,
    replies.Republished: _republished,
    replies.ScheduleInfo: _schedule,
    replies.SchedulePage: _schedules,
    replies.ScheduleSet: _schedule_set,
    replies.StreamDetail: _detail,
    replies.StreamInfo: _info,
    replies.StreamPage: _page,
    replies.StreamsRead: _streams_read,
    replies.Trimmed: _same,
}
