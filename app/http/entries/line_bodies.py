"""Bodies of one entry a line: NDJSON, as rows of texts or as envelopes.

Knows: how lines are read fast, and what is read again with care. Must never know: other shapes, streams.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from app.errors import invalid
from app.http import strict_json
from app.http.entries.stored_entries import (
    BLANKS,
    PIECE_BYTES,
    Envelope,
    Indexed,
    ParsedEntries,
    ParsedEntry,
    check_count,
    check_fields,
    check_lines,
    check_names_kept,
    check_strings,
    check_values,
    encode_json,
    encode_lines,
    in_one_pass,
    join_parts,
    make_batch,
    members_of,
    of_envelopes,
    of_rows,
    read_envelope,
    store_pairs,
)
from app.http.entries.values import INT64_MIN, UINT64_MAX, named_values
from app.http.strict_json import NotPlainError, Object
from app.limits import EntryLimits
from engine.rows import Form

# Such a body is no row of texts: to try that costs 3 us more. Python's `json` writes the blank.
ENVELOPE_STARTS: Final = b'{"fields":{', b'{"fields": {'
_NOT_BLANK: Final = re.compile(rb"[^ \t\r\n\x0b\x0c]")
_decode_rows: Final = msgspec.json.Decoder(dict[str, str]).decode_lines
_decode_mixed_rows: Final = msgspec.json.Decoder(dict[str, str | int | float | bool]).decode_lines
_decode_nested_rows: Final = msgspec.json.Decoder(dict[str, Any]).decode_lines
_decode_envelopes: Final = msgspec.json.Decoder(Envelope).decode_lines


# ---- NDJSON


def plain_ndjson(body: bytes, limits: EntryLimits) -> ParsedEntries:
    """Lines, read fast. Raises NotPlainError where that proves nothing."""
    bodies = in_one_pass(body, Form.LINES, limits)
    if bodies is not None:
        return ParsedEntries(bodies, batch=True)
    # Counted before anything is decoded: a line costs more memory as an object than as text.
    if body.count(b"\n") >= limits.entries_max:
        check_count(_rows_in(body, limits), limits)
    return quick_lines(body, limits)


def quick_lines(body: bytes, limits: EntryLimits) -> ParsedEntries:
    """Lines by typed decoders, in pieces where they are many."""
    if len(body) <= PIECE_BYTES:
        return _plain_lines(body, limits)
    return join_parts((piece_of_lines(piece, limits) for piece in _pieces_of_lines(body)), limits)


def piece_of_lines(lines: bytes, limits: EntryLimits) -> ParsedEntries:
    """Some of many lines, which may be plain where others are not."""
    bodies = in_one_pass(lines, Form.LINES, limits)
    if bodies is not None:
        return ParsedEntries(bodies, batch=True)
    if len(lines) > PIECE_BYTES:
        # No usual entry is that large.
        raise NotPlainError
    return _plain_lines(lines, limits)


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
        stop = body.rfind(b"\n", start, start + PIECE_BYTES) + 1
        if len(body) - start <= PIECE_BYTES:
            stop = len(body)
        elif not stop:
            stop = body.find(b"\n", start + PIECE_BYTES) + 1 or len(body)
        piece = body[start:stop]
        if not piece.isspace():
            yield piece
        start = stop


def strict_lines(body: bytes, limits: EntryLimits) -> ParsedEntries:
    """Lines, read one by one. Raises RefusalError."""
    count = _rows_in(body, limits)
    rows = (read_row(*row, index, limits) for index, row in enumerate(_rows_of(body)))
    return make_batch(rows, count, limits)


def _rows_of(body: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that hold an entry, each with its number. What is blank between them is passed over in
    pieces, so that other threads go on meanwhile.
    """
    number, start = 1, 0
    while start < len(body):
        found = _NOT_BLANK.search(body, start, start + PIECE_BYTES)
        if found is None:
            at = min(start + PIECE_BYTES, len(body))
            number += body.count(b"\n", start, at)
            start = at
            continue
        end = body.find(b"\n", found.start())
        end = len(body) if end < 0 else end
        number += body.count(b"\n", start, found.start())
        yield number, body[max(start, body.rfind(b"\n", start, found.start()) + 1) : end]
        start = end


def _plain_rows(body: bytes, limits: EntryLimits) -> ParsedEntries:
    rows = _decode_rows(body)
    text = encode_lines(rows)
    # The newline behind the last row may be missing.
    if text != body and text[:-1] != body:
        check_lines(body, len(rows))
        check_strings(body, 2 * sum(map(len, rows)))
    return ParsedEntries(of_rows(rows, limits, text), batch=True)


def _plain_envelopes(body: bytes, limits: EntryLimits) -> ParsedEntries:
    envelopes = _decode_envelopes(body)
    check_lines(body, len(envelopes))
    check_names_kept(body, envelopes, names_besides=0)
    return of_envelopes(envelopes, limits)


def _mixed_rows(body: bytes, limits: EntryLimits) -> ParsedEntries:
    """Rows with numbers and booleans, in canonical form: then encoding them again gives the same text but
    for blanks.

    Taking the blanks out of both sides, those inside strings too, cannot make different texts equal: strings
    are as they were read, and no two other tokens stand side by side in JSON.
    """
    rows = (_decode_nested_rows if limits.nested else _decode_mixed_rows)(body)
    check_lines(body, len(rows))
    if encode_lines(rows).translate(None, BLANKS) != body.translate(None, BLANKS):
        raise NotPlainError
    texts = [{name: text_of(value, limits) for name, value in row.items()} for row in rows]
    return ParsedEntries(of_rows(texts, limits), batch=True)


def text_of(value: object, limits: EntryLimits) -> str:
    """A value as text, as JSON where it is nested. Raises NotPlainError where the strict reader must look."""
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float):
        text = encode_json(value)
        # Its row is a level too.
        if text.count(b"[") + text.count(b"{") >= limits.depth_max:
            raise NotPlainError
        return text.decode()
    # Beyond a double the decoder refuses by itself.
    if not INT64_MIN <= value <= UINT64_MAX and isinstance(value, int):
        raise NotPlainError
    return encode_json(value).decode()


def _rows_in(body: bytes, limits: EntryLimits) -> int:
    """How many lines have something on them; not all are counted beyond the limit."""
    text = body.translate(None, b" \t\r\x0b\x0c")
    rows, goes_on = 0, False
    for start in range(0, len(text), PIECE_BYTES):
        piece = text[start : start + PIECE_BYTES]
        rows += len(piece.split()) - (goes_on and piece[:1] != b"\n")
        goes_on = piece[-1:] != b"\n"
        if rows > limits.entries_max:
            break
    return rows


def is_row(line: bytes) -> bool:
    """Whether a line holds an entry."""
    return bool(line) and not line.isspace()


def read_row(number: int | None, text: bytes, index: int, limits: EntryLimits) -> ParsedEntry:
    """An entry on a line, or an item of a list."""
    pointer = f"/{index}"
    with Indexed(index, number):
        check_values(text, pointer, limits)
        row = strict_json.parse(text, depth_max=limits.depth_max)
        if not isinstance(row, Object):
            raise invalid(pointer, f"{'an item' if number is None else 'a line'} is an object")
        fields = dict(row).get("fields")
        # Programs that send nested values do not know of envelopes, and may have a value of this name.
        if limits.nested or not isinstance(fields, list):
            return read_fields(row, pointer, limits)
        return read_envelope(members_of(row, pointer), pointer, limits)


def read_fields(row: Object, pointer: str, limits: EntryLimits) -> ParsedEntry:
    """An entry with the members of an object as its fields."""
    check_fields(len(row), pointer, limits)
    pairs = named_values(row, pointer, nested=limits.nested)
    return ParsedEntry(store_pairs(pairs, pointer, limits))
