"""Bodies of one entry, or of a batch, as JSON.

Knows: how both are read fast, and what is read again with care. Must never know: streams, media types.

    {"entries": […]}                  a batch of envelopes
    {"fields": {…}, "id": …}          an envelope: `fields` is an object or a list
    {"action": "opened", "id": 7}     an entry with these fields
    [{"action": "opened"}, …]         a batch of both
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from app.errors import invalid
from app.http import strict_json
from app.http.entries.line_bodies import piece_of_lines, quick_lines, read_fields, read_row, text_of
from app.http.entries.stored_entries import (
    BLANKS,
    CROWDED_BYTES_MIN,
    MEMBERS_MAX,
    PIECE_BYTES,
    Envelope,
    Indexed,
    ParsedEntries,
    ParsedEntry,
    check_count,
    check_least,
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
from app.http.strict_json import Json, NotPlainError, Object
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
_NAMED: Final = b'"fields"'
_decode_one: Final = msgspec.json.Decoder(Envelope).decode
_decode_many: Final = msgspec.json.Decoder(_Batch).decode
_decode_mixed: Final = msgspec.json.Decoder(_Mixed).decode
_decode_mixed_entries: Final = msgspec.json.Decoder(list[_MixedOne]).decode
_split_batch: Final = msgspec.json.Decoder(_Split).decode


# ---- JSON


def plain_body(body: bytes, limits: EntryLimits) -> ParsedEntries:
    """One entry, a list, or a batch, read fast. Raises NotPlainError where that proves nothing."""
    form = Form.LIST if _is_list(body) else Form.BATCH if b'"entries"' in body[:_PEEK_BYTES] else Form.ONE
    if form is Form.ONE:
        check_least(body, limits)
    bodies = in_one_pass(body, form, limits)
    if bodies is not None:
        return ParsedEntries(bodies, batch=form is not Form.ONE)
    if form is Form.LIST:
        pieces = _in_pieces(_items(body, limits))
        return join_parts((piece_of_lines(_as_lines(piece), limits) for piece in pieces), limits)
    if strict_json.has_more_objects(body, objects_max(limits)) and b'"entries"' in body[:_PEEK_BYTES]:
        check_count(limits.entries_max + 1, limits)
    # Nested values may be those of a batch, or of an envelope.
    is_named = _NAMED in body[:_PEEK_BYTES] or limits.nested
    for attempt in (_plain_json, _mixed_json) if is_named else _OF_OBJECTS:
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
    items = items_of(body, _A_LIST, limits)
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
        if len(body) > PIECE_BYTES:
            return _batch_in_pieces(body, limits)
        many = _decode_many(body).entries
        check_names_kept(body, many, names_besides=1)
        return of_envelopes(many, limits)
    if len(body) > CROWDED_BYTES_MIN:
        _check_crowd(body, limits)
        # Its values are decoded, and stored in three steps.
        strict_json.expect_room(body, copies=3, strings=1)
    envelope = _decode_one(body)
    check_names_kept(body, [envelope], names_besides=0)
    bodies = of_rows([envelope.fields], limits)
    return ParsedEntries(bodies, [plain_id(envelope.id)] if envelope.id else ())


def _plain_object(body: bytes, limits: EntryLimits) -> ParsedEntries:
    """An entry with the members of an object as its fields: as the only line of a batch."""
    found = quick_lines(body, limits)
    if len(found.bodies) > 1:
        raise NotPlainError
    return ParsedEntries(found.bodies, found.ids)


def _mixed_json(body: bytes, limits: EntryLimits) -> ParsedEntries:
    """A batch with numbers and booleans, in canonical form, as `_mixed_rows` has it."""
    if b'"entries"' not in body[:_PEEK_BYTES] or len(body) > PIECE_BYTES:
        raise NotPlainError
    batch = _decode_mixed(body)
    if encode_json(batch).translate(None, BLANKS) != body.translate(None, BLANKS):
        raise NotPlainError
    return of_envelopes(_as_text(batch.entries, limits), limits)


# What is tried of a body that does not begin with the member `fields`.
_OF_OBJECTS: Final = _plain_object, _plain_json, _mixed_json


def _as_text(mixed: Sequence[_MixedOne], limits: EntryLimits) -> list[Envelope]:
    return [
        Envelope({name: text_of(value, limits) for name, value in envelope.fields.items()}, envelope.id)
        for envelope in mixed
    ]


def _batch_in_pieces(body: bytes, limits: EntryLimits) -> ParsedEntries:
    """A large batch, some entries in each call, so that other threads go on meanwhile."""
    if strict_json.has_more_items(body, limits.entries_max, at_depth=2):
        raise NotPlainError
    entries, strings = of_split(_split_batch(strict_json.within(body)).entries, limits)
    check_strings(body, 1 + strings)
    return entries


def of_split(rows: Sequence[msgspec.Raw], limits: EntryLimits) -> tuple[ParsedEntries, int]:
    """The entries, and how many strings they have as they were sent."""
    strings = 0

    def parts() -> Iterator[ParsedEntries]:
        nonlocal strings
        for piece in _in_pieces(rows):
            part, some = _part_of(piece, limits)
            strings += some
            yield part

    return join_parts(parts(), limits), strings


def _part_of(piece: Sequence[msgspec.Raw], limits: EntryLimits) -> tuple[ParsedEntries, int]:
    is_long = len(piece) == 1 and len(piece[0]) > PIECE_BYTES
    if is_long and len(piece[0]) > limits.entry_bytes_max:
        raise NotPlainError
    text = b'{"entries":[%b]}' % (piece[0] if is_long else b",".join(piece))
    bodies = in_one_pass(text, Form.BATCH, limits)
    if bodies is not None:
        # It takes no name twice.
        return ParsedEntries(bodies, batch=True), strict_json.quotes_of(text) // 2 - 1
    if is_long:
        # It may have far more fields than an entry has.
        raise NotPlainError
    envelopes, strings = _envelopes_of(piece, limits)
    return of_envelopes(envelopes, limits), strings


def _envelopes_of(rows: Sequence[msgspec.Raw], limits: EntryLimits) -> tuple[list[Envelope], int]:
    """The same, in one piece."""
    try:
        plain = [_decode_one(row) for row in rows]
    except msgspec.ValidationError:
        text = b"[%b]" % b",".join(rows)
        mixed = _decode_mixed_entries(text)
        if encode_json(mixed).translate(None, BLANKS) != text.translate(None, BLANKS):
            raise NotPlainError from None
        return _as_text(mixed, limits), strict_json.quotes_of(text) // 2
    pairs = sum([len(envelope.fields) + (envelope.id != "") for envelope in plain])
    return plain, len(plain) + 2 * pairs


def _in_pieces(rows: Sequence[msgspec.Raw]) -> Iterator[Sequence[msgspec.Raw]]:
    """Neighbours that have a piece's bytes together, or a longer one alone."""
    start = size = 0
    for at, row in enumerate(rows):
        if size + len(row) > PIECE_BYTES and at > start:
            yield rows[start:at]
            start, size = at, 0
        size += len(row)
    yield rows[start:]


def _large_json(body: bytes, limits: EntryLimits) -> ParsedEntries:
    """A batch is read entry by entry, so that the first wrong one ends it; and counted before."""
    if not strict_json.has_more_items(body, MEMBERS_MAX):
        members = strict_json.members_of(body, None)
        if members.get("entries", b"").startswith(b"["):
            if len(members) > 1:
                raise invalid("/entries", _ALONE)
            return large_batch(members.pop("entries"), "/entries", limits)
        # Its text again, which is large.
        del members
    check_values(body, "", limits)
    return _strict_json(body, limits)


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


def read_list(text: bytes, place: str, limits: EntryLimits) -> ParsedEntries:
    """The entries of a list at `place`, as fast as it goes."""
    try:
        if text.startswith(b"["):
            entries, strings = of_split(items_of(text, _A_LIST, limits), limits)
            check_strings(text, strings)
            return entries
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, NotPlainError):
        pass
    return large_batch(text, place, limits)


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
    given = dict(value)
    rows = given.get("entries")
    if isinstance(rows, list) and not isinstance(rows, Object):
        if len(members_of(value, "")) > 1:
            raise invalid("/entries", _ALONE)
        return make_batch(
            (batch_entry(row, index, limits) for index, row in enumerate(rows)), len(rows), limits
        )
    if not isinstance(given.get("fields"), list):
        return make_one(read_fields(value, "", limits))
    return make_one(read_envelope(members_of(value, ""), "", limits))


def batch_entry(row: Json, index: int, limits: EntryLimits, place: str = "/entries") -> ParsedEntry:
    """One entry of a batch, for `make_batch`."""
    pointer = f"{place}/{index}"
    with Indexed(index):
        if not isinstance(row, Object):
            raise invalid(pointer, 'an entry is an object, {"fields": {…}}')
        return read_envelope(members_of(row, pointer), pointer, limits)
