"""Records as the payload of a frame, and back.

Knows: which number each record has, and how its fields are written.
Must never know: what a record does, files, frames.

A payload is a MessagePack array of records, each an array of its number and its fields in order:

    [[3, "orders", {"id":"1-0",…},{"id":"2-0",…}], [14, "orders", "g", …]]

IDs are 16 bytes, big-endian; lists of IDs the same side by side; entries their stored text joined by `,`.
A bound that excludes every ID below it may be 2^128, above them all: that one takes 17 bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from sys import modules
from typing import Any, Final, get_type_hints

import msgspec

from engine import entries, rows
from engine.ids import ID_BYTES, ID_MAX
from engine.keyspace import Keyspace
from engine.parts import GROUP_PARTS, PARTS
from engine.record import Record
from engine.records import changes, durable, restored

_Pack = Callable[[Any], object]


def _pack_ids(packed: Sequence[int]) -> bytes:
    return b"".join([entry_id.to_bytes(ID_BYTES, "big") for entry_id in packed])


def _unpack_ids(packed: bytes) -> list[int]:
    return [int.from_bytes(packed[at : at + ID_BYTES], "big") for at in range(0, len(packed), ID_BYTES)]


def _pack_id(entry_id: int) -> bytes:
    return entry_id.to_bytes(ID_BYTES, "big")


def _pack_bound(bound: int) -> bytes:
    return bound.to_bytes(ID_BYTES + (bound > ID_MAX), "big")


# Called for each ID of each stream of a snapshot; big-endian is its default.
_unpack_id: Final[_Pack] = int.from_bytes

_FORMS: Final[dict[str, tuple[_Pack, _Pack]]] = {
    "id": (_pack_id, _unpack_id),
    "bound": (_pack_bound, _unpack_id),
    "ids": (_pack_ids, _unpack_ids),
    "texts": (
        lambda texts: texts[0] if len(texts) == 1 else rows.join(texts, 0, len(texts)),
        lambda joined: entries.texts(joined) if joined else [],
    ),
    "in the texts": (lambda _: None, lambda _: ()),
}


class _Form:
    """How the fields of one kind of record are written: the places of those not written as they are."""

    def __init__(self, kind: type[Record]) -> None:
        self.kind = kind
        hints = get_type_hints(kind, include_extras=True)
        names = [field.name for field in msgspec.structs.fields(kind)]
        marked = [(place, getattr(hints[name], "__metadata__", ())) for place, name in enumerate(names)]
        self.special = [(place, *_FORMS[marks[0]]) for place, marks in marked if marks]
        self.fields = len(names)
        self.texts_at = names.index("texts") if "texts" in names else None
        self.ids_at = names.index("ids") if "ids" in names else None

    def row(self, record: Record) -> list[object]:
        values: list[Any] = [record.number, *msgspec.structs.astuple(record)]
        for place, pack, _ in self.special:
            values[place + 1] = pack(values[place + 1])
        return values

    def record(self, values: list[Any]) -> Record:
        for place, _, unpack in self.special:
            values[place] = unpack(values[place])
        if self.texts_at is not None and self.ids_at is not None:
            values[self.ids_at] = entries.ids_of(values[self.texts_at])
        return self.kind(*values)


_ROOMS: Final = (changes, durable, restored, *(modules[part.__module__] for part in (*PARTS, *GROUP_PARTS)))
_KINDS_OF_ALL: Final = {
    kind
    for room in _ROOMS
    for kind in vars(room).values()
    if isinstance(kind, type) and issubclass(kind, Record) and hasattr(kind, "number")
}
# Every kind of record, by its number.
KINDS: Final[Mapping[int, type[Record]]] = {
    kind.number: kind for kind in sorted(_KINDS_OF_ALL, key=lambda kind: kind.number)
}
assert len(KINDS) == len(_KINDS_OF_ALL), "a number is one kind's"
_FORM_OF: Final = {number: _Form(kind) for number, kind in KINDS.items()}
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[list[Any]]).decode
# Without a look at what is in the fields.
_split: Final = msgspec.msgpack.Decoder(list[list[msgspec.Raw]]).decode
_number: Final = msgspec.msgpack.Decoder(int).decode


class NewerRecordError(ValueError):
    """A record that a later version has written. Its text names it."""


def encode(records: Sequence[Record]) -> bytes:
    """The payload of a frame."""
    return _encode([_FORM_OF[record.number].row(record) for record in records])


def decode(payload: bytes) -> list[Record]:
    """The records of a payload. Raises NewerRecordError, ValueError if these are none."""
    try:
        return [_FORM_OF[number].record(values) for number, *values in _decode(payload)]
    except (KeyError, TypeError, msgspec.DecodeError) as error:
        newer = find_newer(payload)
        if newer is not None:
            raise NewerRecordError(newer) from error
        raise ValueError(f"not a payload of this version: {error!r}") from error


def find_newer(payload: bytes) -> str | None:
    """What this version does not know: a kind of record, or fields of one. None where it knows all, and where
    these are no records.
    """
    with suppress(msgspec.DecodeError):
        for first, *values in _split(payload):
            number = _number(first)
            form = _FORM_OF.get(number)
            if form is None:
                return f"record {number}"
            if len(values) > form.fields:
                return f"record {number} with {len(values)} fields"
    return None


def replay(keyspace: Keyspace, payload: bytes) -> None:
    """Apply what a frame holds."""
    for record in decode(payload):
        record.apply(keyspace)
