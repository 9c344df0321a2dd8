"""The stored form of an entry: the JSON text that every reader gets, made once, when the entry is accepted.

Knows: how fields become that text and how other forms (ordered pairs of bytes) are taken from it again.
Must never know: streams, nodes, what a client sent, and through which API.

    mostly: names and values as they came
    {"id":"1526919030474-55","fields":{"sensor-id":"1234","temperature":"19.8"}}

    a value is not UTF-8: all values are base64
    {"id":"1-0","fields":{"a":"/w=="},"encoding":"base64"}

    a name occurs twice: `fields` has the last, `pairs` has all
    {"id":"1-0","fields":{"a":"2"},"pairs":[["a","1"],["a","2"]]}

    it has metadata, which are no fields and come last
    {"id":"1-0","fields":{"a":"1"},"meta":{"traceparent":"00-…"}}

Everything behind the ID is the entry's *body*, `,"fields":…}`: the API makes it before the ID is known.
Entries stand side by side in nodes, frames and answers, joined by `,`. The bytes `,{"id":"` occur between two
entries and nowhere else: inside a JSON string a quotation mark has a backslash before it, and no object of
this form contains another.
"""

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

Value = str | bytes
Pairs = Sequence[tuple[str, Value]]

SEPARATOR: Final = b',{"id":"'
_HEAD: Final = b'{"id":"'

_to_json: Final = msgspec.json.Encoder().encode


class _EntryJson(msgspec.Struct):
    id: str
    fields: dict[str, str]
    encoding: str | None = None
    pairs: list[tuple[str, str]] | None = None


# Within a string each quotation mark has a backslash before it, so this occurs nowhere else.
_META: Final = b',"meta":{'
_decode_meta: Final = msgspec.json.Decoder(dict[str, str]).decode
_check_json: Final = msgspec.json.Decoder().decode
_decode: Final = msgspec.json.Decoder(_EntryJson).decode


def body(pairs: Pairs) -> bytes:
    """The body of an entry with these fields, in order. Values are text, or bytes of any kind."""
    texts = [(name, _as_text(value)) for name, value in pairs]
    encoding = b""
    if any(value is None for _, value in texts):
        texts = [(name, _as_base64(value)) for name, value in pairs]
        encoding = b',"encoding":"base64"'
    fields = dict(texts)
    repeated = b',"pairs":' + _to_json(texts) if len(fields) != len(texts) else b""
    return b',"fields":%b%b%b}' % (_to_json(fields), encoding, repeated)


def body_of_fields(fields: bytes) -> bytes:
    """The body for `fields`, a compact JSON object of text values without repeated names (the caller has
    checked).
    """
    return b',"fields":' + fields + b"}"


def with_meta(entry_body: bytes, meta: Mapping[str, str]) -> bytes:
    """The body with metadata; nothing changes where there are none."""
    return b'%b,"meta":%b}' % (entry_body[:-1], _to_json(meta)) if meta else entry_body


def has_meta(entry: bytes) -> bool:
    """Whether a stored entry has metadata."""
    return _META in entry


def meta_of(entry: bytes) -> dict[str, str]:
    """The metadata of one stored entry."""
    at = entry.rfind(_META)
    return {} if at < 0 else _decode_meta(entry[at + len(_META) - 1 : -1])


def encode(entry_id: int, entry_body: bytes) -> bytes:
    """The whole stored form."""
    return b'{"id":"%d-%d"%b' % (entry_id >> 64, entry_id & 0xFFFFFFFFFFFFFFFF, entry_body)


def texts(joined: bytes) -> list[bytes]:
    """The single entries of a joined text."""
    if SEPARATOR not in joined:
        return [joined]
    return [_HEAD + piece for piece in joined[len(_HEAD) :].split(SEPARATOR)]


def find(joined: bytes, entry_id: int) -> tuple[int, bytes] | None:
    """The place of an entry in a joined text, and the entry; None where it is not there."""
    head = b'{"id":"%d-%d",' % (entry_id >> 64, entry_id & 0xFFFFFFFFFFFFFFFF)
    start = 0 if joined.startswith(head) else joined.find(b"," + head) + 1
    if not start and not joined.startswith(head):
        return None
    stop = joined.find(SEPARATOR, start)
    place = joined.count(SEPARATOR, 0, start + len(SEPARATOR) - 1) if start else 0
    return place, joined[start : stop if stop >= 0 else None]


def id_of(entry: bytes) -> int:
    """The ID of one stored entry."""
    ms, _, sequence = entry[7 : entry.index(b'"', 7)].partition(b"-")
    return int(ms) << 64 | int(sequence)


def ids_of(stored_texts: Sequence[bytes]) -> Sequence[int]:
    """The ascending IDs of stored entries. Those of one batch are consecutive."""
    if not stored_texts:
        return ()
    if len(stored_texts) == 1:
        return (id_of(stored_texts[0]),)
    first, last = id_of(stored_texts[0]), id_of(stored_texts[-1])
    if last - first == len(stored_texts) - 1:
        return range(first, last + 1)
    halves = [text[7 : text.index(b'"', 7)].split(b"-") for text in stored_texts]
    return [int(ms) << 64 | int(sequence) for ms, sequence in halves]


def blank(entry: bytes) -> bytes:
    """An entry of the same ID and length without fields: what stands for a deleted one in the open node."""
    head = entry[: entry.index(b'"', 7) + 1]
    empty = head + b',"fields":{'
    return empty + b" " * (len(entry) - len(empty) - 2) + b"}}"


def pairs_of(entry: bytes) -> list[tuple[str, bytes]]:
    """The fields of one stored entry, in order, repeated ones too; values as the bytes they stand for."""
    form = _decode(entry)
    texts = form.pairs if form.pairs is not None else form.fields.items()
    if form.encoding is None:
        return [(name, value.encode()) for name, value in texts]
    return [(name, base64.b64decode(value)) for name, value in texts]


def data_of(entry_body: bytes) -> bytes | None:
    """The value of the field `data`, where that is the only one."""
    pairs = pairs_of(_HEAD + b'0-0"' + entry_body)
    return pairs[0][1] if len(pairs) == 1 and pairs[0][0] == "data" else None


def data_body(data: bytes) -> bytes:
    """The body of an entry with this value in the one field `data`: as text where that is no longer than
    base64, which is less than what control characters take as text.
    """
    try:
        text = _to_json(data.decode())
    except UnicodeDecodeError:
        text = b""
    if text and len(text) <= (len(data) + 2) // 3 * 4 + len(b',"encoding":"base64"'):
        return body_of_fields(b'{"data":%b}' % text)
    return b',"fields":{"data":"%b"},"encoding":"base64"}' % base64.b64encode(data)


def is_json(data: bytes) -> bool:
    """Whether this is a JSON text (RFC 8259)."""
    try:
        _check_json(data)
    except msgspec.DecodeError:
        return False
    return True


def fingerprint(pairs: Pairs) -> bytes:
    """16 bytes that identify a set of fields for IDMPAUTO. The order does not count, repeated pairs do."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(_raw(pairs)):
        digest.update(b"%d:%b%d:%b" % (len(name), name, len(value), value))
    return digest.digest()


def _raw(pairs: Pairs) -> Iterator[tuple[bytes, bytes]]:
    return ((name.encode(), value.encode() if isinstance(value, str) else value) for name, value in pairs)


def _as_text(value: Value) -> str | None:
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _as_base64(value: Value) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()
