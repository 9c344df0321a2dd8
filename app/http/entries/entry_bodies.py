"""Bodies of published entries → their stored forms, by Content-Type.

Knows: the four shapes that a publisher may send, their limits, and what is refused with which words.
Must never know: streams, query parameters, statuses, sockets.

Two ways in: the plain case is read by typed decoders in a few calls for the whole body; what those cannot
prove to be plain goes to the strict reader, entry by entry, which also finds the words for what is wrong.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Any, Final

import msgspec

from app.errors import RefusalError, invalid, locate, step
from app.http import strict_json
from app.http.entries.values import INT64_MIN, UINT64_MAX, Value, form_pair, from_base64, named_values
from app.http.entries.values import fields as fields_of
from app.http.media import MediaType
from app.http.strict_json import Json, NotPlainError, Number, Object, without_escapes
from app.limits import EntryLimits
from engine import entries, ids
from engine.commands import AutoSequence, NewId
from engine.rows import Form
from engine.rows import read as read_rows

# Such a body is no row of texts: to try that costs 3 us more. Python's `json` writes the blank.
ENVELOPE_STARTS: Final = b'{"fields":{', b'{"fields": {'
_ENVELOPE_MEMBERS: Final = {"id", "fields", "encoding"}
# If they are null they were not given.
_OPTIONAL_MEMBERS: Final = {"id", "encoding", "entries"}
# Where a batch says that it is one, unless its writer is fond of blanks.
_PEEK_BYTES: Final = 32
_ALONE: Final = "a batch has no other members"
_A_LIST: Final = "it is a list of entries"
_BLANKS: Final = b" \t\r\n"
# Beyond this a single entry's names are counted before it is read; its own members are no fields.
_CROWDED_BYTES_MIN: Final = 64 << 10
_MEMBERS_MAX: Final = 8
# What clients call JSON without meaning to have it stored whole: browsers send strings as plain text, others
# have names of their own for it, or none.
_SAID_OF_JSON: Final = {
    "",
    "text/plain",
    "text/json",
    "application/x-json",
    "application/ndjson",
    "application/jsonl",
    "application/jsonlines",
    "application/x-jsonlines",
}
# Lines by which a text is known as NDJSON: no batch has more by default, and they take a few ms.
_JSON_LINES_MAX: Final = 10_000
# A decoder lets no other thread go on: with more strings than half of these a batch is read piece by piece.
_QUOTES_AT_ONCE_MAX: Final = 300_000
# What is decoded and encoded in one call then: up to 10 ms.
_PIECE_BYTES: Final = 512 << 10
# What the strict reader takes in the loop: some ms.
_STRICT_INLINE_BYTES_MAX: Final = 16 << 10
# Of an entry beyond `_CROWDED_BYTES_MIN` whose values may be nested: a few ms for the strict reader.
_NESTED_VALUES_MAX: Final = 20_000


class ParsedEntries(msgspec.Struct, frozen=True):
    """Stored forms without IDs. `ids` is empty where all are the engine's; `batch` decides the form of the
    response.

    `digest` identifies the body, if requested.
    """

    bodies: Sequence[bytes]
    ids: Sequence[NewId] = ()
    batch: bool = False
    digest: bytes = b""


def read(
    body: bytes,
    media: MediaType,
    limits: EntryLimits,
    *,
    digest: bool = False,
    quick: bool = False,
    raw: bool = False,
) -> ParsedEntries:
    """The entries of a body of any media type. All or nothing: the first bad entry refuses the whole. `raw`:
    one entry, also if it is JSON.

    `quick`: raise NotPlainError rather than read a long body strictly, which takes long.
    """
    if raw:
        published = _raw(body, media, limits)
    elif media.name in _JSON_READERS:
        plain, strict = _JSON_READERS[media.name]
        try:
            published = plain(body, limits)
        except NotPlainError:
            if quick and len(body) > _STRICT_INLINE_BYTES_MAX:
                raise
            published = strict(body, limits)
    elif media.name == _FORM:
        published = _form(body, limits)
    else:
        _check_is_no_json(body, media)
        published = _raw(body, media, limits)
    if not digest:
        return published
    return msgspec.structs.replace(published, digest=digest_of(body))


def digest_of(body: bytes) -> bytes:
    """A digest that identifies a body, for idempotency keys."""
    return blake2b(body, digest_size=16).digest()


class _One(msgspec.Struct, forbid_unknown_fields=True):
    fields: dict[str, str]
    id: str = ""


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    entries: list[_One]


class _MixedOne(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    id: str = ""
    fields: dict[str, str | int | float | bool] = {}


class _Mixed(msgspec.Struct, forbid_unknown_fields=True):
    entries: list[_MixedOne]


class _Split(msgspec.Struct, forbid_unknown_fields=True):
    entries: list[msgspec.Raw]


# msgspec reads one entry in 0.41 us and 1,000 in 646 us; orjson and pydantic take 3 to 13 times as long (CPU
# time, `python -m bench.decoding`): docs/decisions/msgspec-for-entries-and-frames.md.
_decode_one: Final = msgspec.json.Decoder(_One).decode
_decode_many: Final = msgspec.json.Decoder(_Batch).decode
_decode_mixed: Final = msgspec.json.Decoder(_Mixed).decode
_decode_mixed_entries: Final = msgspec.json.Decoder(list[_MixedOne]).decode
_split_batch: Final = msgspec.json.Decoder(_Split).decode
_decode_rows: Final = msgspec.json.Decoder(dict[str, str]).decode_lines
_decode_mixed_rows: Final = msgspec.json.Decoder(dict[str, str | int | float | bool]).decode_lines
_decode_nested_rows: Final = msgspec.json.Decoder(dict[str, Any]).decode_lines
_decode_envelopes: Final = msgspec.json.Decoder(_One).decode_lines
_skim: Final = msgspec.json.Decoder(msgspec.Raw).decode
_encode: Final = msgspec.json.Encoder().encode
_encode_lines: Final = msgspec.json.Encoder().encode_lines

# What stands around the fields in a stored form; many bodies are made with one `replace`.
_BEFORE, _, _BEHIND = entries.body_of_fields(b"\n").partition(b"\n")
_BETWEEN: Final = _BEHIND + b"\n" + _BEFORE

Fields = dict[str, str]


# ---- JSON


def _plain_body(body: bytes, limits: EntryLimits) -> ParsedEntries:
    form = Form.LIST if _is_list(body) else Form.BATCH if b'"entries"' in body[:_PEEK_BYTES] else Form.ONE
    bodies = _in_one_pass(body, form, limits)
    if bodies is not None:
        return ParsedEntries(bodies, batch=form is not Form.ONE)
    if form is Form.LIST:
        return _quick_lines(_as_lines(_items(body, limits)), limits)
    if strict_json.has_more_objects(body, _objects_max(limits)) and b'"entries"' in body[:_PEEK_BYTES]:
        _check_count(limits.entries_max + 1, limits)
    for attempt in (_plain_json, _mixed_json):
        try:
            return attempt(body, limits)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, NotPlainError):
            continue
    raise NotPlainError


def _in_one_pass(body: bytes, form: Form, limits: EntryLimits) -> Sequence[bytes] | None:
    if limits.nested:
        return None
    return read_rows(
        body,
        form,
        entries_max=limits.entries_max,
        fields_max=limits.fields_max,
        entry_bytes_max=limits.entry_bytes_max,
    )


def _strict_body(body: bytes, limits: EntryLimits) -> ParsedEntries:
    if _is_list(body):
        items = _items(body, limits)
        rows = (_row(None, bytes(item), index, limits) for index, item in enumerate(items))
        return _batch(rows, len(items), limits)
    return _large_json(body, limits) if len(body) > _CROWDED_BYTES_MIN else _strict_json(body, limits)


def _is_list(body: bytes) -> bool:
    return body.lstrip(_BLANKS).startswith(b"[")


def _items(body: bytes, limits: EntryLimits) -> Sequence[msgspec.Raw]:
    """The entries of a list, which are read as lines are."""
    items = strict_json.items_of(body, _A_LIST)
    _check_count(len(items), limits)
    return items


def _as_lines(items: Sequence[msgspec.Raw]) -> bytes:
    lines = b"\n".join(items)
    if lines.count(b"\n") >= len(items):
        # Between the parts of an item a line may end.
        raise NotPlainError
    return lines


def _objects_max(limits: EntryLimits) -> int:
    """Of a body: its entries, their fields, and what stands around them. Values are no objects."""
    return 2 * limits.entries_max + 2


def _plain_json(body: bytes, limits: EntryLimits) -> ParsedEntries:
    if b'"entries"' in body[:_PEEK_BYTES]:
        if body.count(b'"') > _QUOTES_AT_ONCE_MAX:
            return _batch_in_pieces(body, limits)
        many = _decode_many(body).entries
        _check_names_kept(body, many, names_besides=1)
        return _of_envelopes(many, limits)
    if len(body) > _CROWDED_BYTES_MIN:
        _check_crowd(body, limits)
    one = _decode_one(body)
    _check_names_kept(body, [one], names_besides=0)
    bodies = _of_rows([one.fields], limits)
    return ParsedEntries(bodies, [_plain_id(one.id)] if one.id else ())


def _mixed_json(body: bytes, limits: EntryLimits) -> ParsedEntries:
    """A batch with numbers and booleans, in canonical form, as `_mixed_rows` has it."""
    if b'"entries"' not in body[:_PEEK_BYTES] or body.count(b'"') > _QUOTES_AT_ONCE_MAX:
        raise NotPlainError
    batch = _decode_mixed(body)
    if _encode(batch).translate(None, _BLANKS) != body.translate(None, _BLANKS):
        raise NotPlainError
    return _of_envelopes(_as_text(batch.entries, limits), limits)


def _as_text(mixed: Sequence[_MixedOne], limits: EntryLimits) -> list[_One]:
    return [_One({name: _text(value, limits) for name, value in one.fields.items()}, one.id) for one in mixed]


def _batch_in_pieces(body: bytes, limits: EntryLimits) -> ParsedEntries:
    """A large batch, some entries in each call, so that other threads go on meanwhile."""
    if strict_json.has_more_items(body, limits.entries_max, at_depth=2):
        raise NotPlainError
    found, strings = _of_split(_split_batch(body).entries, limits)
    _check_strings(body, 1 + strings)
    return found


def _of_split(rows: Sequence[msgspec.Raw], limits: EntryLimits) -> tuple[ParsedEntries, int]:
    """The entries, and how many strings they have as they were sent."""
    parts, strings = list[ParsedEntries](), 0
    for piece in _in_pieces(rows):
        envelopes, found = _envelopes_of(piece, limits)
        strings += found
        parts.append(_of_envelopes(envelopes, limits))
    return _joined(parts, limits), strings


def _envelopes_of(rows: Sequence[msgspec.Raw], limits: EntryLimits) -> tuple[list[_One], int]:
    """The same, in one piece."""
    try:
        plain = [_decode_one(row) for row in rows]
    except msgspec.ValidationError:
        text = b"[%b]" % b",".join(rows)
        mixed = _decode_mixed_entries(text)
        if _encode(mixed).translate(None, _BLANKS) != text.translate(None, _BLANKS):
            raise NotPlainError from None
        return _as_text(mixed, limits), without_escapes(text).count(b'"') // 2
    pairs = sum([len(one.fields) + (one.id != "") for one in plain])
    return plain, len(plain) + 2 * pairs


def _in_pieces(rows: Sequence[msgspec.Raw]) -> Iterator[Sequence[msgspec.Raw]]:
    """Neighbours that have a piece's bytes together; none may have far more than an entry's fields."""
    start = size = 0
    for at, row in enumerate(rows):
        if len(row) > _PIECE_BYTES:
            raise NotPlainError
        if size + len(row) > _PIECE_BYTES:
            yield rows[start:at]
            start, size = at, 0
        size += len(row)
    yield rows[start:]


def _joined(parts: Sequence[ParsedEntries], limits: EntryLimits) -> ParsedEntries:
    bodies = [body for part in parts for body in part.bodies]
    _check_count(len(bodies), limits)
    new_ids = [new_id for part in parts for new_id in part.ids or [None] * len(part.bodies)]
    return ParsedEntries(bodies, new_ids if any(part.ids for part in parts) else (), batch=True)


def _large_json(body: bytes, limits: EntryLimits) -> ParsedEntries:
    """A batch is read entry by entry, so that the first wrong one ends it; and counted before."""
    members = strict_json.members_of(body, _MEMBERS_MAX)
    if "entries" not in members:
        _check_values(body, "/fields", limits)
        return _strict_json(body, limits)
    if len(members) > 1:
        raise invalid("/entries", _ALONE)
    return _large_batch(members["entries"], "/entries", limits)


def _large_batch(text: bytes, place: str, limits: EntryLimits) -> ParsedEntries:
    if not text.startswith(b"["):
        raise invalid(place, _A_LIST)
    rows = _items_of(text, _A_LIST, limits)
    return _batch(
        (_large_entry(bytes(row), index, limits, place) for index, row in enumerate(rows)), len(rows), limits
    )


def _items_of(text: bytes, hint: str, limits: EntryLimits) -> Sequence[msgspec.Raw]:
    if strict_json.has_more_items(text, limits.entries_max):
        _check_count(limits.entries_max + 1, limits)
    return strict_json.items_of(text, hint)


def _large_entry(text: bytes, index: int, limits: EntryLimits, place: str) -> tuple[bytes, NewId, bool]:
    with _Indexed(index):
        _check_values(text, f"{place}/{index}/fields", limits)
        row = strict_json.parse(text, depth_max=limits.depth_max, depth=place.count("/") + 1)
    return _batch_entry(row, index, limits, place)


def _check_values(text: bytes, place: str, limits: EntryLimits) -> None:
    """Refuse an entry of far too many values by counting values of any type: a pair is three."""
    if len(text) <= _CROWDED_BYTES_MIN:
        return
    if limits.nested:
        if strict_json.exceeds(text, _NESTED_VALUES_MAX):
            raise invalid(place, f"an entry has at most {_NESTED_VALUES_MAX} values, nested ones included")
    elif strict_json.exceeds(text, 3 * limits.fields_max + 2 * _MEMBERS_MAX):
        raise invalid(place, f"an entry has at most {limits.fields_max} fields")


def _check_crowd(body: bytes, limits: EntryLimits) -> None:
    """Refuse an entry of far too many fields by counting, before a reader spends most of a second on it.

    Inside a string a quotation mark has a backslash before it, so at least that many names end in it.
    """
    names = body.count(b'":') - body.count(b'\\":')
    if names > limits.fields_max + _MEMBERS_MAX:
        raise invalid("/fields", f"an entry has at most {limits.fields_max} fields")


def _strict_json(body: bytes, limits: EntryLimits) -> ParsedEntries:
    value = strict_json.parse(body, depth_max=limits.depth_max)
    if not isinstance(value, Object):
        raise invalid(
            "", 'an entry is an object, {"fields": {…}}, a batch {"entries": [{"fields": {…}}, …]} or a list'
        )
    members = _members(value, "")
    if "entries" not in members:
        entry_body, new_id = _envelope(members, "", limits)
        return ParsedEntries([entry_body], [new_id] if "id" in members else ())
    if len(members) > 1:
        raise invalid("/entries", _ALONE)
    rows = members["entries"]
    if not isinstance(rows, list) or isinstance(rows, Object):
        raise invalid("/entries", _A_LIST)
    return _batch((_batch_entry(row, index, limits) for index, row in enumerate(rows)), len(rows), limits)


def _batch_entry(
    row: Json, index: int, limits: EntryLimits, place: str = "/entries"
) -> tuple[bytes, NewId, bool]:
    pointer = f"{place}/{index}"
    with _Indexed(index):
        if not isinstance(row, Object):
            raise invalid(pointer, 'an entry is an object, {"fields": {…}}')
        members = _members(row, pointer)
        return *_envelope(members, pointer, limits), "id" in members


# ---- many streams


class _Streams(msgspec.Struct, forbid_unknown_fields=True):
    streams: dict[str, list[_One]]


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
    if strict_json.has_more_objects(body, _objects_max(limits)):
        _check_count(limits.entries_max + 1, limits)
    try:
        return _plain_streams(body, limits, streams_max)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, NotPlainError):
        if quick and len(body) > _STRICT_INLINE_BYTES_MAX:
            raise NotPlainError from None
        large = len(body) > _CROWDED_BYTES_MIN
        return _large_streams(body, limits, streams_max) if large else _strict_streams(body, limits)


def _plain_streams(body: bytes, limits: EntryLimits, streams_max: int) -> Mapping[str, ParsedEntries]:
    # Each list is a stream's: others are pairs, or nothing.
    if body.count(b"[") > _SLACK * streams_max:
        raise NotPlainError
    if body.count(b'"') > _QUOTES_AT_ONCE_MAX:
        return _streams_in_pieces(body, limits, streams_max)
    streams = _decode_streams(body).streams
    if len(streams) > streams_max:
        raise invalid("/streams", f"one request names at most {streams_max} streams")
    every = [one for rows in streams.values() for one in rows]
    if not all(streams.values()):
        raise NotPlainError
    _check_names_kept(body, every, names_besides=1 + len(streams))
    whole = _of_envelopes(every, limits)
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
        found[name], inside = _of_split(rows, limits)
        strings += inside
    _check_strings(body, strings)
    _check_count(sum(len(one.bodies) for one in found.values()), limits)
    return found


def _large_streams(body: bytes, limits: EntryLimits, streams_max: int) -> Mapping[str, ParsedEntries]:
    """The same as `_large_json`, over all streams."""
    members = strict_json.members_of(body, _MEMBERS_MAX)
    if len(members) != 1 or not members.get("streams", b"").startswith(b"{"):
        raise invalid("/streams", _STREAMS)
    try:
        texts = strict_json.members_of(members["streams"], _SLACK * streams_max)
    except RefusalError as refusal:
        refusal.places = [locate(f"/streams{place.name}", place.detail) for place in refusal.places]
        raise
    rows_of = {name: _rows(text, f"/streams/{step(name)}", limits) for name, text in texts.items()}
    _check_count(sum(map(len, rows_of.values())) or 1, limits)
    return {name: _large_batch(texts[name], f"/streams/{step(name)}", limits) for name in texts}


def _rows(text: bytes, place: str, limits: EntryLimits) -> Sequence[msgspec.Raw]:
    rows = _items_of(text, _SOME, limits) if text.startswith(b"[") else ()
    if not rows:
        raise invalid(place, _SOME)
    return rows


def _strict_streams(body: bytes, limits: EntryLimits) -> Mapping[str, ParsedEntries]:
    value = strict_json.parse(body, depth_max=limits.depth_max)
    members = _members(value, "") if isinstance(value, Object) else {}
    streams = members.get("streams")
    if len(members) != 1 or not isinstance(streams, Object) or not streams:
        raise invalid("/streams", _STREAMS)
    rows_of = _members(streams, "/streams")
    _check_count(sum(len(rows) for rows in rows_of.values() if isinstance(rows, list)) or 1, limits)
    return {name: _run(rows, f"/streams/{step(name)}", limits) for name, rows in rows_of.items()}


def _run(rows: Json, place: str, limits: EntryLimits) -> ParsedEntries:
    if not isinstance(rows, list) or isinstance(rows, Object) or not rows:
        raise invalid(place, _SOME)
    return _batch(
        (_batch_entry(row, index, limits, place) for index, row in enumerate(rows)), len(rows), limits
    )


# ---- NDJSON


def _plain_ndjson(body: bytes, limits: EntryLimits) -> ParsedEntries:
    bodies = _in_one_pass(body, Form.LINES, limits)
    if bodies is not None:
        return ParsedEntries(bodies, batch=True)
    # Counted before anything is decoded: a line costs more memory as an object than as text.
    if body.count(b"\n") >= limits.entries_max:
        _check_count(_rows_in(body, limits), limits)
    return _quick_lines(body, limits)


def _quick_lines(body: bytes, limits: EntryLimits) -> ParsedEntries:
    # Nested numbers have no quotes.
    if body.count(b'"') <= _QUOTES_AT_ONCE_MAX and not limits.nested:
        return _plain_lines(body, limits)
    return _joined([_plain_lines(piece, limits) for piece in _pieces_of_lines(body)], limits)


def _plain_lines(body: bytes, limits: EntryLimits) -> ParsedEntries:
    attempts = [_plain_rows, _mixed_rows]
    if not limits.nested:
        # Those come first that these may be.
        at = 0 if body.startswith(ENVELOPE_STARTS) else 1
        attempts.insert(at, _plain_envelopes)
    for attempt in attempts:
        try:
            return attempt(body, limits)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, NotPlainError):
            continue
    raise NotPlainError


def _pieces_of_lines(body: bytes) -> Iterator[bytes]:
    """The lines, some in each piece, so that other threads go on meanwhile."""
    start = 0
    while start < len(body):
        stop = body.rfind(b"\n", start, start + _PIECE_BYTES) + 1
        if len(body) - start <= _PIECE_BYTES:
            stop = len(body)
        elif not stop:
            # No usual entry is that large.
            raise NotPlainError
        piece = body[start:stop]
        if not piece.isspace():
            yield piece
        start = stop


def _strict_lines(body: bytes, limits: EntryLimits) -> ParsedEntries:
    rows = [(number, line) for number, line in enumerate(body.split(b"\n"), 1) if _is_row(line)]
    return _batch((_row(*row, index, limits) for index, row in enumerate(rows)), len(rows), limits)


def _plain_rows(body: bytes, limits: EntryLimits) -> ParsedEntries:
    rows = _decode_rows(body)
    text = _encode_lines(rows)
    # The newline behind the last row may be missing.
    if text != body and text[:-1] != body:
        _check_lines(body, len(rows))
        _check_strings(body, 2 * sum(map(len, rows)))
    return ParsedEntries(_of_rows(rows, limits, text), batch=True)


def _plain_envelopes(body: bytes, limits: EntryLimits) -> ParsedEntries:
    envelopes = _decode_envelopes(body)
    _check_lines(body, len(envelopes))
    _check_names_kept(body, envelopes, names_besides=0)
    return _of_envelopes(envelopes, limits)


def _mixed_rows(body: bytes, limits: EntryLimits) -> ParsedEntries:
    """Rows with numbers and booleans, in canonical form: then encoding them again gives the same text but
    for blanks.

    Taking the blanks out of both sides, those inside strings too, cannot make different texts equal: strings
    are as they were read, and no two other tokens stand side by side in JSON.
    """
    rows = (_decode_nested_rows if limits.nested else _decode_mixed_rows)(body)
    _check_lines(body, len(rows))
    if _encode_lines(rows).translate(None, _BLANKS) != body.translate(None, _BLANKS):
        raise NotPlainError
    texts = [{name: _text(value, limits) for name, value in row.items()} for row in rows]
    return ParsedEntries(_of_rows(texts, limits), batch=True)


def _text(value: object, limits: EntryLimits) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float):
        text = _encode(value)
        # Its row is a level too.
        if text.count(b"[") + text.count(b"{") >= limits.depth_max:
            raise NotPlainError
        return text.decode()
    # Beyond a double the decoder refuses by itself.
    if not INT64_MIN <= value <= UINT64_MAX and isinstance(value, int):
        raise NotPlainError
    return _encode(value).decode()


def _rows_in(body: bytes, limits: EntryLimits) -> int:
    """How many lines have something on them; not all are counted beyond the limit."""
    text = body.translate(None, b" \t\r\x0b\x0c")
    rows, goes_on = 0, False
    for start in range(0, len(text), _PIECE_BYTES):
        piece = text[start : start + _PIECE_BYTES]
        rows += len(piece.split()) - (goes_on and piece[:1] != b"\n")
        goes_on = piece[-1:] != b"\n"
        if rows > limits.entries_max:
            break
    return rows


def _is_row(line: bytes) -> bool:
    return bool(line) and not line.isspace()


def _row(number: int | None, text: bytes, index: int, limits: EntryLimits) -> tuple[bytes, NewId, bool]:
    """An entry on a line, or an item of a list."""
    pointer = f"/{index}"
    with _Indexed(index, number):
        _check_values(text, pointer, limits)
        row = strict_json.parse(text, depth_max=limits.depth_max)
        if not isinstance(row, Object):
            raise invalid(pointer, f"{'an item' if number is None else 'a line'} is an object")
        fields = dict(row).get("fields")
        # Programs that send nested values do not know of envelopes, and may have a value of this name.
        if limits.nested or not isinstance(fields, list):
            _check_fields(len(row), pointer, limits)
            return _stored(named_values(row, pointer, nested=limits.nested), pointer, limits), None, False
        members = _members(row, pointer)
        return *_envelope(members, pointer, limits), "id" in members


# ---- form and raw


def _form(body: bytes, limits: EntryLimits) -> ParsedEntries:
    if body.count(b"&") > limits.fields_max:
        raise invalid("", f"an entry has at most {limits.fields_max} fields")
    # Decoded, three bytes become one; stored, none becomes less.
    _check_size(len(body) - 2 * body.count(b"%"), limits)
    pairs = [form_pair(piece) for piece in body.split(b"&") if piece]
    if len(pairs) == 1 and pairs[0][0].lstrip().startswith("{"):
        hint = "this looks like JSON sent as a form: say Content-Type: application/json (curl has --json)"
        raise RefusalError("unsupported_media_type", hint)
    return ParsedEntries([_stored(pairs, "", limits)])


def _raw(body: bytes, media: MediaType, limits: EntryLimits) -> ParsedEntries:
    if not body and not media.text:
        raise invalid("", "there is no entry: the body is empty")
    _check_size(len(body), limits)
    kind = [("content-type", media.text)] if media.text else []
    return ParsedEntries([_stored([("data", body), *kind], "", limits)])


def _check_is_no_json(body: bytes, media: MediaType) -> None:
    if media.name in _SAID_OF_JSON and _is_json(body):
        hint = (
            f"this is JSON sent as {media.name or 'a body without a type'}, as fetch does with a string: say "
            "Content-Type: application/json, application/x-ndjson for one entry a line, or "
            "application/octet-stream or the query raw=true to store the text as it is"
        )
        raise RefusalError("unsupported_media_type", hint)


def _is_json(body: bytes) -> bool:
    """Whether a body is a JSON object or list, or objects line by line; a long one by its first lines.

    Skimmed, not decoded: megabytes take milliseconds.
    """
    if not body.lstrip().startswith((b"{", b"[")):
        return False
    if _skims(body):
        return True
    lines = body.split(b"\n", _JSON_LINES_MAX)[:_JSON_LINES_MAX]
    rows = [line for line in lines if _is_row(line)]
    return len(rows) > 1 and all(row.lstrip().startswith(b"{") and _skims(row) for row in rows)


def _skims(text: bytes) -> bool:
    try:
        _skim(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


# ---- entries


class _Indexed:
    """Names the entry's place in a refusal that leaves the block, and its line where it has one."""

    def __init__(self, index: int, line: int | None = None) -> None:
        self._index = index
        self._line = line

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RefusalError):
            error.members["index"] = self._index
            if error.code == "malformed_json" and self._line is None:
                error.detail = f"entry {self._index}: {error.detail}"
            if self._line is not None:
                error.members["line"] = self._line
                error.detail = f"line {self._line}: {error.detail}"


def _batch(rows: Iterable[tuple[bytes, NewId, bool]], count: int, limits: EntryLimits) -> ParsedEntries:
    _check_count(count, limits)
    done = list(rows)
    bodies = [entry_body for entry_body, _, _ in done]
    new_ids = [new_id for _, new_id, _ in done] if any(given for _, _, given in done) else ()
    return ParsedEntries(bodies, new_ids, batch=True)


def _envelope(members: dict[str, Json], pointer: str, limits: EntryLimits) -> tuple[bytes, NewId]:
    """`{"id"?, "fields", "encoding"?}` → its stored form and its ID."""
    unknown = members.keys() - _ENVELOPE_MEMBERS
    if unknown or "fields" not in members:
        name = min(unknown, default="fields")
        hint = 'an entry is {"fields": {…}}, beside it only "id" and "encoding"'
        raise invalid(f"{pointer}/{step(name)}", f"{'unknown member' if unknown else 'missing'}; {hint}")
    if isinstance(members["fields"], list):
        # Before each of them is looked at.
        _check_fields(len(members["fields"]), f"{pointer}/fields", limits)
    pairs = fields_of(members["fields"], f"{pointer}/fields", nested=limits.nested)
    encoding = members.get("encoding")
    if "encoding" in members:
        if encoding != "base64" or isinstance(encoding, Number):
            raise invalid(f"{pointer}/encoding", 'the only encoding is "base64"')
        pairs = [(name, from_base64(value, f"{pointer}/fields/{step(name)}")) for name, value in pairs]
    new_id = _new_id(members["id"], f"{pointer}/id") if "id" in members else None
    return _stored(pairs, f"{pointer}/fields", limits), new_id


def _new_id(value: Json, pointer: str) -> NewId:
    if not isinstance(value, str) or isinstance(value, Number):
        raise invalid(pointer, "an ID is a string")
    if value == "*":
        return None
    ms, auto, rest = value.rpartition("-*")
    parsed = ids.parse(ms if auto and "-" not in ms else value)
    if parsed is None or (rest and auto):
        hint = "an ID is '<ms>-<seq>', '<ms>-*' or '*'"
        raise RefusalError("malformed_id", f"{pointer}: {hint}", places=[locate(pointer, hint)])
    return AutoSequence(ids.ms_of(parsed)) if auto else parsed


def _members(value: Object, pointer: str) -> dict[str, Json]:
    twice = strict_json.repeated_name(value)
    if twice is not None:
        raise invalid(f"{pointer}/{step(twice)}", "the member occurs twice")
    return {name: member for name, member in value if member is not None or name not in _OPTIONAL_MEMBERS}


def _stored(pairs: Sequence[tuple[str, Value]], pointer: str, limits: EntryLimits) -> bytes:
    _check_fields(len(pairs), pointer, limits)
    entry_body = entries.body(pairs)
    _check_size(len(entry_body), limits)
    return entry_body


# ---- the fast way's parts


def _of_envelopes(envelopes: Sequence[_One], limits: EntryLimits) -> ParsedEntries:
    bodies = _of_rows([envelope.fields for envelope in envelopes], limits)
    given = [envelope.id for envelope in envelopes]
    return ParsedEntries(bodies, list(map(_plain_id, given)) if any(given) else (), batch=True)


def _plain_id(text: str) -> NewId:
    try:
        return _new_id(text, "") if text else None
    except RefusalError:
        raise NotPlainError from None


def _of_rows(rows: Sequence[Fields], limits: EntryLimits, text: bytes | None = None) -> list[bytes]:
    """The stored forms of rows of text values; `text` is their encoding, one a line, where it is known.

    What is beyond a limit is left to the strict reader, which knows what is wrong first, and the words for
    it.
    """
    sizes = set(map(len, rows))
    if not 0 < len(rows) <= limits.entries_max or 0 in sizes or max(sizes) > limits.fields_max:
        raise NotPlainError
    lines = _encode_lines(rows) if text is None else text
    bodies = (_BEFORE + lines[:-1].replace(b"\n", _BETWEEN) + _BEHIND).split(b"\n")
    # If the whole batch fits the limit of one entry, each entry does.
    is_large = len(lines) + len(_BETWEEN) > limits.entry_bytes_max
    if is_large and len(max(bodies, key=len)) > limits.entry_bytes_max:
        raise NotPlainError
    return bodies


def _check_names_kept(body: bytes, envelopes: Sequence[_One], *, names_besides: int) -> None:
    pairs = sum([len(envelope.fields) + (envelope.id != "") for envelope in envelopes])
    _check_strings(body, names_besides + len(envelopes) + 2 * pairs)


def _check_strings(body: bytes, strings: int) -> None:
    """A decoder keeps the last of two equal names: then the text has more strings than what came out of
    it.
    """
    if without_escapes(body).count(b'"') != 2 * strings:
        raise NotPlainError


def _check_lines(body: bytes, count: int) -> None:
    """The decoder takes objects side by side or over several lines; a batch has one a line."""
    if b"\r" in body:
        body = body.replace(b"\r\n", b"\n")
    body = body.strip()
    if not body.count(b"\n") == body.count(b"}\n{") == count - 1:
        raise NotPlainError


def _check_count(count: int, limits: EntryLimits) -> None:
    if count == 0:
        raise invalid("", "there is no entry: a batch has at least one")
    if count > limits.entries_max:
        raise RefusalError("too_many_entries", f"a batch has at most {limits.entries_max} entries")


def _check_fields(count: int, pointer: str, limits: EntryLimits) -> None:
    if count == 0:
        raise invalid(pointer, "an entry has at least one field")
    if count > limits.fields_max:
        raise invalid(pointer, f"an entry has at most {limits.fields_max} fields")


def _check_size(size: int, limits: EntryLimits) -> None:
    if size > limits.entry_bytes_max:
        raise RefusalError(
            "entry_too_large", f"an entry has at most {limits.entry_bytes_max} bytes as stored JSON"
        )


_FORM: Final = "application/x-www-form-urlencoded"
_Reader = Callable[[bytes, EntryLimits], ParsedEntries]
# The fast reader, and the one that takes what that cannot prove to be plain.
_JSON_READERS: Final[dict[str, tuple[_Reader, _Reader]]] = {
    "application/json": (_plain_body, _strict_body),
    "application/x-ndjson": (_plain_ndjson, _strict_lines),
}
