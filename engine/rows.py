"""Rows: bodies of many entries, as they come in and as they are stored, without an object for each.

Knows: the four operations on them, in Python; and the compiled reader `engine._rows`, which does the same in
one pass where it was built.
Must never know: streams, nodes, what is refused with which words.

    read      JSON or NDJSON → bodies: the compiled reader alone does it, with what it can prove to be plain
    stored    bodies → stored texts with consecutive IDs
    join      stored texts → one text, as nodes and frames have it
    size      bytes of all of them
"""

from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from importlib import import_module
from typing import Any, Final, Literal, cast, overload

from engine import entries

# The compiled module, None where there was no compiler; a test takes it away.
compiled: Any = None
with suppress(ImportError):
    compiled = import_module("engine._rows")

# Runs of fewer entries rarely fill a whole node, and a node of longer ones seals before it has as many as it
# may: single entries take less time then.
_JOINED_ENTRIES_MIN: Final = 150
_JOINED_BODY_BYTES_MAX: Final = 512
# Sequence numbers with the quotation mark behind them. A batch mostly begins at 0: the clock has moved on.
_SMALL_NUMBERS: Final = [b'%d"' % number for number in range(2_000)]
_SEQUENCE_MAX: Final = 0xFFFFFFFFFFFFFFFF


class Form(IntEnum):
    """The forms of a body, as `engine/_rows.c` numbers them."""

    # An object of fields, or `{"fields": {…}}`, a line each.
    LINES = 0
    # The same in a JSON array.
    LIST = 1
    # `{"entries": [{"fields": {…}}, …]}`
    BATCH = 2
    # `{"fields": {…}}`
    ONE = 3


def way() -> Literal["c", "python"]:
    """What reads rows here: `c` or `python`."""
    return "python" if compiled is None else "c"


def read(
    body: bytes, form: Form, *, entries_max: int, fields_max: int, entry_bytes_max: int
) -> Sequence[bytes] | None:
    """The bodies of the entries in `body`. None where they are not plain, are beyond a limit, have IDs, or
    nothing compiled is there to read them: then they are read in the careful way.
    """
    if compiled is None:
        return None
    found = compiled.read(body, form, entries_max, fields_max, entry_bytes_max)
    return cast("Sequence[bytes] | None", found)


def stored(first_id: int, bodies: Sequence[bytes]) -> Sequence[bytes]:
    """The stored texts of entries with consecutive IDs."""
    if len(bodies) == 1:
        return (entries.encode(first_id, bodies[0]),)
    ms, number = first_id >> 64, first_id & _SEQUENCE_MAX
    if number + len(bodies) - 1 > _SEQUENCE_MAX:
        return [entries.encode(first_id + place, entry_body) for place, entry_body in enumerate(bodies)]
    if (made := _compiled(bodies)) is not None:
        return cast("Sequence[bytes]", made.encode(ms, number))
    # The first one stands for all: nothing but time depends on it.
    if len(bodies) >= _JOINED_ENTRIES_MIN and len(bodies[0]) <= _JOINED_BODY_BYTES_MAX:
        return StoredTexts(ms, number, bodies)
    head = b'{"id":"%d-' % ms
    return [b'%b%d"%b' % (head, place, entry_body) for place, entry_body in enumerate(bodies, number)]


def join(texts: Sequence[bytes], start: int, stop: int) -> bytes:
    """Join stored texts `[start, stop)` by `,`; at least one."""
    if isinstance(texts, StoredTexts):
        return texts.join(start, stop)
    if (made := _compiled(texts)) is not None:
        return cast("bytes", made.join(start, stop))
    return b",".join(texts[start:stop])


def size(texts: Sequence[bytes]) -> int:
    """The bytes of all of them."""
    made = _compiled(texts)
    return sum(map(len, texts)) if made is None else cast("int", made.size)


def _compiled(texts: Sequence[bytes]) -> Any:  # noqa: ANN401 - engine/_rows.c says what it has
    """The texts if they are of the compiled reader, else None."""
    return texts if compiled is not None and isinstance(texts, compiled.Texts) else None


class StoredTexts(Sequence[bytes]):
    """Stored texts with consecutive IDs of one millisecond, made when they are asked for.

    `join` makes one text of many without making each: 0.04 us an entry, where making each takes 0.2 us.
    """

    __slots__ = ("_bodies", "_head", "_number")

    def __init__(self, ms: int, number: int, bodies: Sequence[bytes]) -> None:
        self._head = b'{"id":"%d-' % ms
        self._number = number
        self._bodies = bodies

    def __len__(self) -> int:
        return len(self._bodies)

    @overload
    def __getitem__(self, place: int) -> bytes: ...

    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...

    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        head, numbers = self._head, range(self._number, self._number + len(self._bodies))
        if isinstance(place, int):
            return b'%b%d"%b' % (head, numbers[place], self._bodies[place])
        return [
            b'%b%d"%b' % (head, number, entry_body)
            for number, entry_body in zip(numbers[place], self._bodies[place], strict=True)
        ]

    def join(self, start: int, stop: int) -> bytes:
        pieces = [b"," + self._head] * (3 * (stop - start))
        pieces[0] = self._head
        pieces[1::3] = _number_texts(self._number + start, self._number + stop)
        pieces[2::3] = self._bodies[start:stop]
        return b"".join(pieces)


def _number_texts(start: int, stop: int) -> list[bytes]:
    if stop <= len(_SMALL_NUMBERS):
        return _SMALL_NUMBERS[start:stop]
    return [b'%d"' % number for number in range(start, stop)]
