"""Tails as clients see them: the cursor of several streams, entries as events.

Knows: the form of a cursor, of an entry's event and of the events around it.
Must never know: sockets, parameters, where entries come from.

The cursor of several streams is one cursor for each, in the order of the request, behind a hash of these
streams: `1c2d3e4f.1526919030474-55~0-0`. For clients it is opaque.
"""

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from app.doors.sse import events
from app.errors import RefusalError, problem
from app.http import cursors as written_cursors
from app.http import projection, query
from app.http.cursors import Place
from app.http.entries.entry_pages import GapReport
from app.live.feeds import FeedEnd, FeedGap, FeedPage
from engine import entries, ids
from engine.replies import Gap as EngineGap
from engine.replies import StreamEnd

_MARK_BYTES: Final = 4


class TailOptions(msgspec.Struct, frozen=True):
    """What a tail is asked for: `after` has a cursor for each stream; `last` wins over them.

    With a `mark` there are several streams: cursors are of all, entries and gaps name theirs.
    """

    streams: Sequence[str]
    after: Sequence[Place]
    mark: str = ""
    last: int | None = None
    fail_on_gap: bool = False
    fields: Sequence[str] | None = None
    shows_generations: bool = False

    @property
    def several(self) -> bool:
        """Whether cursors are of all."""
        return bool(self.mark)

    def place(self, cursor: int, generation: str) -> str:
        """Where a client goes on in one stream."""
        return written_cursors.written(cursor, generation if self.shows_generations else "")

    def written(self, places: Sequence[str]) -> bytes:
        """Where a client goes on."""
        texts = "~".join(places)
        return f"{self.mark}.{texts}".encode() if self.mark else texts.encode()

    def report(self, gap: EngineGap, generation: str) -> GapReport:
        """A gap as the client gets it."""
        return GapReport(gap, generation if self.shows_generations else "", self.shows_generations)


# ---- cursors


def mark_for(streams: Sequence[str]) -> str:
    """A digest of these streams in this order."""
    return hashlib.blake2b("/".join(streams).encode(), digest_size=_MARK_BYTES).hexdigest()


def parse_place(text: str, name: str) -> Place:
    """The cursor of one stream. Raises `malformed_id`."""
    cursor = written_cursors.parse(text)
    if cursor is None:
        raise query.malformed_id(name, written_cursors.HINT)
    return cursor


def parse_composite(streams: Sequence[str], text: str, place: str) -> list[Place]:
    """The cursor of each stream. Raises `malformed_id`, for a cursor of other streams too."""
    mark, _, rest = text.partition(".")
    places = [cursor for piece in rest.split("~") if (cursor := written_cursors.parse(piece)) is not None]
    if mark != mark_for(streams) or len(places) != len(streams) or rest.count("~") != len(streams) - 1:
        raise query.malformed_id(place, "it is the cursor that a tail of these streams gave, in their order")
    return places


# ---- events


def page(entries: FeedPage, wanted: TailOptions, place: int, places: Sequence[str]) -> bytes:
    """A page as events. `places` are those of all streams before it; its own is at `place`."""
    kept = None if wanted.fields is None else tuple(wanted.fields)
    texts = partial(_texts, fields=kept)
    behind_id = f".{entries.generation}" if wanted.shows_generations and entries.generation else ""
    if not wanted.several:
        # Made once for all that want these fields.
        return entries.cached(
            ("sse", kept, bool(behind_id)), lambda page: _events(texts(page), tail=behind_id.encode())
        )
    head = f"{wanted.mark}.{'~'.join([*places[:place], ''])}".encode()
    name = b'{"stream":%b,' % msgspec.json.encode(entries.stream)
    tail = behind_id + "~".join(["", *places[place + 1 :]])
    return _events(texts(entries), head, tail.encode(), name)


def _texts(page: FeedPage, fields: Sequence[str] | None) -> list[bytes]:
    return entries.texts(page.entries if fields is None else projection.project(page.entries, fields))


def _events(texts: Sequence[bytes], head: bytes = b"", tail: bytes = b"", name: bytes = b"{") -> bytes:
    """Entries as events, with what stands around their IDs and at the beginning of their objects."""
    return b"".join(
        [
            events.event(b"entry", name + text[1:], b"%b%b%b" % (head, text[7 : text.index(b'"', 7)], tail))
            for text in texts
        ]
    )


def caught_up(cursor: bytes) -> bytes:
    """Everything that there was has been sent."""
    return events.event(b"caught_up", b'{"next":"%b"}' % cursor)


def gap(missed: FeedGap, wanted: TailOptions, place: int, places: Sequence[str]) -> bytes:
    """What was lost; where there are several streams, of which. A gap that tells where to go on is a place to
    come back to.
    """
    report = wanted.report(missed.gap, missed.generation)
    members: dict[str, object] = {"stream": missed.stream} if wanted.several else {}
    members |= report.members()
    event_id = (
        wanted.written([*places[:place], report.next, *places[place + 1 :]]) if report.has_next else None
    )
    return events.event(b"gap", msgspec.json.encode(members), event_id)


def closed(found: FeedEnd, wanted: TailOptions) -> bytes:
    """The stream is closed, and all of it has been sent. It has no ID: the client keeps the last entry's."""
    members = {"stream": found.stream} if wanted.several else {}
    return events.event(b"closed", msgspec.json.encode(members | found.members()))


def group_closed(end: StreamEnd) -> bytes:
    """The group has nothing left to read. With an ID, for a reconnect to be known as one."""
    return events.event(
        b"closed", msgspec.json.encode(FeedEnd(end).members()), ids.format(end.last_id).encode()
    )


def drained() -> bytes:
    """Nor is anything pending in it."""
    return events.event(b"drained", b"{}")


def group_paused(*, paused: bool) -> bytes:
    """The group delivers nothing, or again."""
    return events.event(b"paused" if paused else b"resumed", b"{}")


def group_gap(missed: EngineGap) -> bytes:
    """What a group can no longer read."""
    return events.event(b"gap", GapReport(missed).text())


def end(reason: str, retry_ms: int) -> bytes:
    """The connection ends; come back a little later, not all at once."""
    return events.event(b"end", msgspec.json.encode({"reason": reason}), retry_ms=retry_ms)


def error(refusal: RefusalError, request_id: str) -> bytes:
    """What went wrong, as a problem."""
    return events.event(b"error", problem(refusal, request_id))
