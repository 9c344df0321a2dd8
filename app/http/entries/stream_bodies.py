"""Bodies with entries of many streams, as JSON.

Knows: the shape, and how it is read in pieces. Must never know: what is done with the streams.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import Final

import msgspec

from app.errors import RefusalError, invalid, locate, step
from app.http import strict_json
from app.http.entries.json_bodies import batch_entry, items_of, large_batch, objects_max, of_split
from app.http.entries.stored_entries import (
    CROWDED_BYTES_MIN,
    MEMBERS_MAX,
    PIECE_BYTES,
    STRICT_INLINE_BYTES_MAX,
    Envelope,
    ParsedEntries,
    check_count,
    check_names_kept,
    check_strings,
    make_batch,
    members_of,
    of_envelopes,
)
from app.http.strict_json import Json, NotPlainError, Object
from app.limits import EntryLimits

# ---- many streams


class _Streams(msgspec.Struct, forbid_unknown_fields=True):
    streams: dict[str, list[Envelope]]


class _SplitStreams(msgspec.Struct, forbid_unknown_fields=True):
    streams: dict[str, list[msgspec.Raw]]


_STREAMS: Final = 'the body is {"streams": {name: [{"fields": {…}}, …], …}}'
_SOME: Final = "it is a list of at least one entry"
# A little beyond a limit is left to who knows its words.
_SLACK: Final = 2
_decode_streams: Final = msgspec.json.Decoder(_Streams).decode
_split_streams: Final = msgspec.json.Decoder(_SplitStreams).decode


def read_many(
    body: bytes, limits: EntryLimits, streams_max: int, *, quick: bool = False
) -> Mapping[str, ParsedEntries]:
    """The entries of `{"streams": {name: [entries]}}`, by name. All or nothing, over all streams. `quick` as
    above.
    """
    if strict_json.has_more_objects(body, objects_max(limits)):
        check_count(limits.entries_max + 1, limits)
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError, NotPlainError):
        return _plain_streams(body, limits, streams_max)
    # Behind the exception, which holds what has been read so far.
    if quick and len(body) > STRICT_INLINE_BYTES_MAX:
        raise NotPlainError
    large = len(body) > CROWDED_BYTES_MIN
    return _large_streams(body, limits, streams_max) if large else _strict_streams(body, limits)


def _plain_streams(body: bytes, limits: EntryLimits, streams_max: int) -> Mapping[str, ParsedEntries]:
    # Each list is a stream's: others are pairs, or nothing.
    if body.count(b"[") > _SLACK * streams_max:
        raise NotPlainError
    if len(body) > PIECE_BYTES:
        return _streams_in_pieces(body, limits, streams_max)
    streams = _decode_streams(body).streams
    if len(streams) > streams_max:
        raise invalid("/streams", f"one request names at most {streams_max} streams")
    every = [one for rows in streams.values() for one in rows]
    if not all(streams.values()):
        raise NotPlainError
    check_names_kept(body, every, names_besides=1 + len(streams))
    whole = of_envelopes(every, limits)
    ends = accumulate(map(len, streams.values()), initial=0)
    return {
        name: ParsedEntries(whole.bodies[start:stop], whole.ids[start:stop], batch=True)
        for name, (start, stop) in zip(streams, pairwise(ends), strict=True)
    }


def _streams_in_pieces(body: bytes, limits: EntryLimits, streams_max: int) -> Mapping[str, ParsedEntries]:
    """The same as `_batch_in_pieces`, over all streams."""
    if strict_json.has_more_items(body, limits.entries_max, at_depth=3):
        raise NotPlainError
    streams = _split_streams(body).streams
    if len(streams) > streams_max or not all(streams.values()):
        raise NotPlainError
    found, strings = dict[str, ParsedEntries](), 1 + len(streams)
    for name, rows in streams.items():
        found[name], inside = of_split(rows, limits)
        strings += inside
    check_strings(body, strings)
    check_count(sum(len(one.bodies) for one in found.values()), limits)
    return found


def _large_streams(body: bytes, limits: EntryLimits, streams_max: int) -> Mapping[str, ParsedEntries]:
    """The same as `_large_json`, over all streams."""
    members = strict_json.members_of(body, MEMBERS_MAX)
    if len(members) != 1 or not members.get("streams", b"").startswith(b"{"):
        raise invalid("/streams", _STREAMS)
    try:
        texts = strict_json.members_of(members.pop("streams"), _SLACK * streams_max)
    except RefusalError as refusal:
        refusal.places = [locate(f"/streams{place.name}", place.detail) for place in refusal.places]
        raise
    rows_of = {name: _rows(text, f"/streams/{step(name)}", limits) for name, text in texts.items()}
    check_count(sum(map(len, rows_of.values())) or 1, limits)
    return {name: large_batch(texts.pop(name), f"/streams/{step(name)}", limits) for name in [*texts]}


def _rows(text: bytes, place: str, limits: EntryLimits) -> Sequence[msgspec.Raw]:
    rows = items_of(text, _SOME, limits) if text.startswith(b"[") else ()
    if not rows:
        raise invalid(place, _SOME)
    return rows


def _strict_streams(body: bytes, limits: EntryLimits) -> Mapping[str, ParsedEntries]:
    value = strict_json.parse(body, depth_max=limits.depth_max)
    members = members_of(value, "") if isinstance(value, Object) else {}
    streams = members.get("streams")
    if len(members) != 1 or not isinstance(streams, Object) or not streams:
        raise invalid("/streams", _STREAMS)
    rows_of = members_of(streams, "/streams")
    check_count(sum(len(rows) for rows in rows_of.values() if isinstance(rows, list)) or 1, limits)
    return {name: _run(rows, f"/streams/{step(name)}", limits) for name, rows in rows_of.items()}


def _run(rows: Json, place: str, limits: EntryLimits) -> ParsedEntries:
    if not isinstance(rows, list) or isinstance(rows, Object) or not rows:
        raise invalid(place, _SOME)
    return make_batch(
        (batch_entry(row, index, limits, place) for index, row in enumerate(rows)), len(rows), limits
    )
