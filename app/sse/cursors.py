"""Tails as clients see them: the cursor of several streams, entries as events.

Knows: the form of a cursor, of an entry's event and of the events around it.
Must never know: sockets, parameters, where entries come from.

The cursor of several streams is one ID for each, in the order of the request, behind a hash of these
streams: `1c2d3e4f.1526919030474-55~0-0`. For clients it is opaque.
"""

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from app.errors import RefusalError, problem
from app.http import projection, query
from app.http.entries.entry_pages import gap_members, gap_text
from app.live.feeds import FeedGap, FeedPage
from app.sse import events
from engine import entries, ids
from engine.commands import Cursor
from engine.replies import Gap as EngineGap

_MARK_BYTES: Final = 4


class TailOptions(msgspec.Struct, frozen=True):
    """What a tail is asked for: `after` has a cursor for each stream; `last` wins over them.

    With a `mark` there are several streams: cursors are of all, entries and gaps name theirs.
    """

    streams: Sequence[str]
    after: Sequence[int | Cursor]
    mark: str = ""
    last: int | None = None
    fail_on_gap: bool = False
    fields: Sequence[str] | None = None

    @property
    def several(self) -> bool:
        """Whether cursors are of all."""
        return bool(self.mark)

    def written(self, cursors: Sequence[int]) -> bytes:
        """Where a client goes on."""
        texts = "~".join(map(ids.format, cursors))
        return f"{self.mark}.{texts}".encode() if self.mark else texts.encode()


# ---- cursors


def mark_for(streams: Sequence[str]) -> str:
    """A digest of these streams in this order."""
    return hashlib.blake2b("/".join(streams).encode(), digest_size=_MARK_BYTES).hexdigest()


def parse_composite(streams: Sequence[str], text: str, place: str) -> list[int]:
    """The cursor of each stream. Raises `malformed_id`, for a cursor of other streams too."""
    mark, _, rest = text.partition(".")
    cursors = [cursor for piece in rest.split("~") if (cursor := ids.parse(piece)) is not None]
    if mark != mark_for(streams) or len(cursors) != len(streams) or rest.count("~") != len(streams) - 1:
        raise query.malformed_id(place, "it is the cursor that a tail of these streams gave, in their order")
    return cursors


# ---- events


def page(found: FeedPage, wanted: TailOptions, place: int, cursors: Sequence[int]) -> bytes:
    """A page as events. `cursors` are those of all streams before it; its own is at `place`."""
    kept = None if wanted.fields is None else tuple(wanted.fields)
    texts = partial(_texts, fields=kept)
    if not wanted.several:
        # Made once for all that want these fields.
        return found.cached(("sse", kept), lambda page: _events(texts(page)))
    before, behind = map(ids.format, cursors[:place]), map(ids.format, cursors[place + 1 :])
    head = f"{wanted.mark}.{'~'.join([*before, ''])}".encode()
    name = b'{"stream":%b,' % msgspec.json.encode(found.stream)
    return _events(texts(found), head, "~".join(["", *behind]).encode(), name)


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


def gap(missed: FeedGap, *, named: bool) -> bytes:
    """What was lost; where there are several streams, of which."""
    members: dict[str, object] = {"stream": missed.stream} if named else {}
    members |= gap_members(missed.gap)
    return events.event(b"gap", msgspec.json.encode(members))


def group_gap(missed: EngineGap) -> bytes:
    """What a group can no longer read."""
    return events.event(b"gap", gap_text(missed))


def end(reason: str, retry_ms: int) -> bytes:
    """The connection ends; come back a little later, not all at once."""
    return events.event(b"end", msgspec.json.encode({"reason": reason}), retry_ms=retry_ms)


def error(refusal: RefusalError, request_id: str) -> bytes:
    """What went wrong, as a problem."""
    return events.event(b"error", problem(refusal, request_id))
