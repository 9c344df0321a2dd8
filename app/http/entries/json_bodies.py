"""Bodies of one entry, or of a batch, as JSON.

Knows: how both are read fast, and what is read again with care. Must never know: streams, media types.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from app.errors import invalid
from app.http import strict_json
from app.http.entries.line_bodies import quick_lines, read_row, text_of
from app.http.entries.stored_entries import (
    BLANKS,
    CROWDED_BYTES_MIN,
    MEMBERS_MAX,
    PIECE_BYTES,
    QUOTES_AT_ONCE_MAX,
    Envelope,
    Indexed,
    ParsedEntries,
    ParsedEntry,
    check_count,
    check_names_kept,
    check_strings,
    check_values,
    encode_json,
    in_one_pass,
    join_parts,
    make_batch,
    make_one,
    members_of,
    of_envelopes,
    of_rows,
    plain_id,
    read_envelope,
)
from app.http.strict_json import Json, NotPlainError, Object, without_escapes
from app.limits import EntryLimits
from engine.rows import Form

# Where a batch says that it is one, unless its writer is fond of blanks.
_PEEK_BYTES: Final = 32
_ALONE: Final = "a batch has no other members"
_A_LIST: Final = "it is a list of entries"


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    entries: list[Envelope]


class _MixedOne(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    id: str = ""
    fields: dict[str, str | int | float | bool] = {}


class _Mixed(msgspec.Struct, forbid_unknown_fields=True):
    entries: list[_MixedOne]


class _Split(msgspec.Struct, forbid_unknown_fields=True):
    entries: list[msgspec.Raw]


# msgspec reads one entry in 0.41 us and 1,000 in 646 us; orjson and pydantic take 3 to 13 times as long (CPU
# time, `python -m bench.decoding`): docs/decisions/msgspec-for-entries-and-frames.md.
_decode_one: Final = msgspec.json.Decoder(Envelope).decode
_decode_many: Final = msgspec.json.Decoder(_Batch).decode
_decode_mixed: Final = msgspec.json.Decoder(_Mixed).decode
_decode_mixed_entries: Final = msgspec.json.Decoder(list[_MixedOne]).decode
_split_batch: Final = msgspec.json.Decoder(_Split).decode


# ---- JSON


def plain_body(body: bytes, limits: EntryLimits) -> ParsedEntries:
    """One entry, a list, or a batch, read fast. Raises NotPlainError where that proves nothing."""
    form = Form.LIST if _is_list(body) else Form.BATCH if b'"entries"' in body[:_PEEK_BYTES] else Form.ONE
    bodies = in_one_pass(body, form, limits)
    if bodies is not None:
        return ParsedEntries(bodies, batch=form is not Form.ONE)
    if form is Form.LIST:
        return quick_lines(_as_lines(_items(body, limits)), limits)
    if strict_json.has_more_objects(body, objects_max(limits)) and b'"entries"' in body[:_PEEK_BYTES]:
        check_count(limits.entries_max + 1, limits)
    for attempt in (_plain_json, _mixed_json):
        try:
            return attempt(body, limits)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, NotPlainError):
            continue
    raise NotPlainError


def strict_body(body: bytes, limits: EntryLimits) -> ParsedEntries:
    """The same, read entry by entry. Raises RefusalError."""
    if _is_list(body):
        items = _items(body, limits)
        rows = (read_row(None, bytes(item), index, limits) for index, item in enumerate(items))
        return make_batch(rows, len(items), limits)
    return _large_json(body, limits) if len(body) > CROWDED_BYTES_MIN else _strict_json(body, limits)


def _is_list(body: bytes) -> bool:
    return body.lstrip(BLANKS).startswith(b"[")


def _items(body: bytes, limits: EntryLimits) -> Sequence[msgspec.Raw]:
    """The entries of a list, which are read as lines are."""
    items = strict_json.items_of(body, _A_LIST)
    check_count(len(items), limits)
    return items


def _as_lines(items: Sequence[msgspec.Raw]) -> bytes:
    lines = b"\n".join(items)
    if lines.count(b"\n") >= len(items):
        # Between the parts of an item a line may end.
        raise NotPlainError
    return lines


def objects_max(limits: EntryLimits) -> int:
    """Of a body: its entries, their fields, and what stands around them. Values are no objects."""
    return 2 * limits.entries_max + 2


def _plain_json(body: bytes, limits: EntryLimits) -> ParsedEntries:
    if b'"entries"' in body[:_PEEK_BYTES]:
        if body.count(b'"') > QUOTES_AT_ONCE_MAX:
            return _batch_in_pieces(body, limits)
        many = _decode_many(body).entries
        check_names_kept(body, many, names_besides=1)
        return of_envelopes(many, limits)
    if len(body) > CROWDED_BYTES_MIN:
        _check_crowd(body, limits)
    envelope = _decode_one(body)
    check_names_kept(body, [envelope], names_besides=0)
    bodies = of_rows([envelope.fields], limits)
    return ParsedEntries(bodies, [plain_id(envelope.id)] if envelope.id else ())


def _mixed_json(body: bytes, limits: EntryLimits) -> ParsedEntries:
    """A batch with numbers and booleans, in canonical form, as `_mixed_rows` has it."""
    if b'"entries"' not in body[:_PEEK_BYTES] or body.count(b'"') > QUOTES_AT_ONCE_MAX:
        raise NotPlainError
    batch = _decode_mixed(body)
    if encode_json(batch).translate(None, BLANKS) != body.translate(None, BLANKS):
        raise NotPlainError
    return of_envelopes(_as_text(batch.entries, limits), limits)


def _as_text(mixed: Sequence[_MixedOne], limits: EntryLimits) -> list[Envelope]:
    return [
        Envelope({name: text_of(value, limits) for name, value in envelope.fields.items()}, envelope.id)
        for envelope in mixed
    ]


def _batch_in_pieces(body: bytes, limits: EntryLimits) -> ParsedEntries:
    """A large batch, some entries in each call, so that other threads go on meanwhile."""
    if strict_json.has_more_items(body, limits.entries_max, at_depth=2):
        raise NotPlainError
    entries, strings = of_split(_split_batch(body).entries, limits)
    check_strings(body, 1 + strings)
    return entries


def of_split(rows: Sequence[msgspec.Raw], limits: EntryLimits) -> tuple[ParsedEntries, int]:
    """The entries, and how many strings they have as they were sent."""
    parts, strings = list[ParsedEntries](), 0
    for piece in _in_pieces(rows):
        envelopes, texts = _envelopes_of(piece, limits)
        strings += texts
        parts.append(of_envelopes(envelopes, limits))
    return join_parts(parts, limits), strings


def _envelopes_of(rows: Sequence[msgspec.Raw], limits: EntryLimits) -> tuple[list[Envelope], int]:
    """The same, in one piece."""
    try:
        plain = [_decode_one(row) for row in rows]
    except msgspec.ValidationError:
        text = b"[%b]" % b",".join(rows)
        mixed = _decode_mixed_entries(text)
        if encode_json(mixed).translate(None, BLANKS) != text.translate(None, BLANKS):
            raise NotPlainError from None
        return _as_text(mixed, limits), without_escapes(text).count(b'"') // 2
    pairs = sum([len(envelope.fields) + (envelope.id != "") for envelope in plain])
    return plain, len(plain) + 2 * pairs


def _in_pieces(rows: Sequence[msgspec.Raw]) -> Iterator[Sequence[msgspec.Raw]]:
    """Neighbours that have a piece's bytes together; none may have far more than an entry's fields."""
    start = size = 0
    for at, row in enumerate(rows):
        if len(row) > PIECE_BYTES:
            raise NotPlainError
        if size + len(row) > PIECE_BYTES:
            yield rows[start:at]
            start, size = at, 0
        size += len(row)
    yield rows[start:]


def _large_json(body: bytes, limits: EntryLimits) -> ParsedEntries:
    """A batch is read entry by entry, so that the first wrong one ends it; and counted before."""
    members = strict_json.members_of(body, MEMBERS_MAX)
    if "entries" not in members:
        check_values(body, "/fields", limits)
        return _strict_json(body, limits)
    if len(members) > 1:
        raise invalid("/entries", _ALONE)
    return large_batch(members["entries"], "/entries", limits)


def large_batch(text: bytes, place: str, limits: EntryLimits) -> ParsedEntries:
    """The entries of a list at `place`, with care, in little memory."""
    if not text.startswith(b"["):
        raise invalid(place, _A_LIST)
    rows = items_of(text, _A_LIST, limits)
    return make_batch(
        (_large_entry(bytes(row), index, limits, place) for index, row in enumerate(rows)), len(rows), limits
    )


def items_of(text: bytes, hint: str, limits: EntryLimits) -> Sequence[msgspec.Raw]:
    """The items of a list as they are written; `hint` says what it should be."""
    if strict_json.has_more_items(text, limits.entries_max):
        check_count(limits.entries_max + 1, limits)
    return strict_json.items_of(text, hint)


def _large_entry(text: bytes, index: int, limits: EntryLimits, place: str) -> ParsedEntry:
    with Indexed(index):
        check_values(text, f"{place}/{index}/fields", limits)
        row = strict_json.parse(text, depth_max=limits.depth_max, depth=place.count("/") + 1)
    return batch_entry(row, index, limits, place)


def _check_crowd(body: bytes, limits: EntryLimits) -> None:
    """Refuse an entry of far too many fields by counting, before a reader spends most of a second on it.

    Inside a string a quotation mark has a backslash before it, so at least that many names end in it.
    """
    names = body.count(b'":') - body.count(b'\\":')
    if names > limits.fields_max + MEMBERS_MAX:
        raise invalid("/fields", f"an entry has at most {limits.fields_max} fields")


def _strict_json(body: bytes, limits: EntryLimits) -> ParsedEntries:
    value = strict_json.parse(body, depth_max=limits.depth_max)
    if not isinstance(value, Object):
        raise invalid(
            "", 'an entry is an object, {"fields": {…}}, a batch {"entries": [{"fields": {…}}, …]} or a list'
        )
    members = members_of(value, "")
    if "entries" not in members:
        return make_one(read_envelope(members, "", limits))
    if len(members) > 1:
        raise invalid("/entries", _ALONE)
    rows = members["entries"]
    if not isinstance(rows, list) or isinstance(rows, Object):
        raise invalid("/entries", _A_LIST)
    return make_batch((batch_entry(row, index, limits) for index, row in enumerate(rows)), len(rows), limits)


def batch_entry(row: Json, index: int, limits: EntryLimits, place: str = "/entries") -> ParsedEntry:
    """One entry of a batch, for `make_batch`."""
    pointer = f"{place}/{index}"
    with Indexed(index):
        if not isinstance(row, Object):
            raise invalid(pointer, 'an entry is an object, {"fields": {…}}')
        return read_envelope(members_of(row, pointer), pointer, limits)
