"""JSON of a few megabytes in the shapes that take most memory, or longest in one piece, to be read.

Knows: JSON, how strings and numbers are held. Must never know: what reads them.
"""

from collections.abc import Callable, Mapping
from typing import Final

Shape = Callable[[int], bytes]


def _many(unit: bytes, before: bytes = b"[", behind: bytes = b"]") -> Shape:
    """A list, or an object, of as many equal parts as fit."""

    def make(size: int) -> bytes:
        count = max(1, (size - len(before) - len(behind) + 1) // (len(unit) + 1))
        return before + b",".join([unit] * count) + behind

    return make


def _long(unit: bytes, before: bytes = b'"', behind: bytes = b'"') -> Shape:
    """One value of as many equal parts as fit."""
    return lambda size: before + unit * ((size - len(before) - len(behind)) // len(unit)) + behind


def _deep(opening: bytes, inside: bytes, closing: bytes) -> Shape:
    def make(size: int) -> bytes:
        depth = (size - len(inside)) // (len(opening) + len(closing))
        return opening * depth + inside + closing * depth

    return make


def _named(name: bytes, value: bytes = b"1") -> Shape:
    """An object of many names, each of them another one."""

    def make(size: int) -> bytes:
        count = size // (len(name) + len(value) + 12)
        return b"{%b}" % b",".join(b'"%b%07d":%b' % (name, at, value) for at in range(count))

    return make


_FIELDS: Final = b",".join(b'"f%d":"%d"' % (at, at) for at in range(50))
_KILOBYTE: Final = b"x" * 1_000
_FACE: Final = "\U0001f600".encode()
SHAPES: Final[Mapping[str, Shape]] = {
    "empty lists": _many(b"[]"),
    "empty objects": _many(b"{}"),
    "ones": _many(b"1"),
    "fractions": _many(b"1.5"),
    "nothings": _many(b"null"),
    "strings of nothing": _many(b'""'),
    "strings of one byte": _many(b'"a"'),
    "strings of one wide character": _many(b'"%b"' % _FACE),
    "strings of a kilobyte": _many(b'"%b"' % _KILOBYTE),
    "wide strings of a kilobyte": _many(b'"%b%b"' % (_KILOBYTE, _FACE)),
    "IDs": _many(b'"1-0"'),
    "lists in lists, to the end": _deep(b"[", b"", b"]"),
    "objects in objects, to the end": _deep(b'{"a":', b"1", b"}"),
    "lists of 30 levels": _many(b"[" * 28 + b"]" * 28),
    "control characters": _long(rb"\u0001"),
    "escaped quotation marks": _long(rb"\""),
    "escaped backslashes": _long(rb"\\"),
    "escaped pairs of surrogates": _long(rb"\ud83d\ude00"),
    "strings of an escape": _many(rb'"\u0001"'),
    "a long number": _long(b"1", b"", b""),
    "a long fraction": _long(b"0", b"0.", b"1"),
    "a long zero with an exponent": _long(b"0", b"0.", b"e1"),
    "a long string": _long(b"x"),
    "a long string, wide at its end": _long(b"x", behind=_FACE + b'"'),
    "a long string of wide characters": _long(_FACE),
    "a long string in Latin-1": _long("é".encode()),
    "a long string beyond Latin-1": _long(b"x", behind="€".encode() + b'"'),
    "a long name": _long(b"x", b'{"', b'":1}'),
    "many names": _named(b"n"),
    "many wide names": _named(_FACE, b'"1"'),
    "many names with an escape": _named(rb"\u0061"),
    "a name over and over": _many(b'"a":1', b"{", b"}"),
    "names of nothing": _many(b'"":""', b"{", b"}"),
    "envelopes": _many(b'{"fields":{"a":"1"}}'),
    "envelopes of many fields": _many(b'{"fields":{%b}}' % _FIELDS),
    "batches": _many(b'{"entries":[{"fields":{"a":"1"}}]}'),
    "objects of many fields": _many(b"{%b}" % _FIELDS),
    "commands": _many(b'["XADD","s","*","a","1"]'),
    "blanks": _long(b" ", b"[", b"]"),
    "what has no end": _long(b"1,", b"[", b""),
    "what is no text": _long(b"x", behind=b'\xff"'),
}
# No batch has more entries.
_ENTRIES_MAX: Final = 10_000


def _entry(value: bytes) -> bytes:
    return b'{"fields":{"a":%b}}' % value


# Entries, of which batches are accepted: these are read to the end, and stored.
ENTRIES: Final[Mapping[str, bytes]] = {
    "large entries": _entry(_long(b"x")(900_000)),
    "large entries of control characters": _entry(_long(rb"\u0001")(900_000)),
    "large entries of escaped quotation marks": _entry(_long(rb"\"")(900_000)),
    "large entries of wide characters": _entry(_long(_FACE)(900_000)),
    "large entries, wide at their end": _entry(_long(b"x", behind=_FACE + b'"')(900_000)),
    "large entries with an escape": _entry(_long(b"x", behind=rb'\u00e9"')(900_000)),
    "entries of a kilobyte": _entry(_long(b"x")(1_000)),
    "entries of a kilobyte of escapes": _entry(_long(rb"\u0001")(1_000)),
    "entries of a kilobyte, wide at their end": _entry(_long(b"x", behind=_FACE + b'"')(1_000)),
    "entries of many fields": b'{"fields":{%b}}' % _FIELDS,
    "entries of many numbers": b'{"fields":{%b}}'
    % _FIELDS.replace(b':"', b":").replace(b'",', b",").replace(b'9"', b"9"),
    "entries of many pairs": b'{"fields":[%b]}' % b",".join([b'["a","1"]'] * 80),
    "entries of long numbers": _entry(b"0." + b"1" * 1_000),
}


def list_of(entry: bytes, size: int) -> bytes:
    """As many of them as a list of this size has."""
    count = max(1, min(_ENTRIES_MAX, (size - 1) // (len(entry) + 1)))
    return b"[%b]" % b",".join([entry] * count)


def lines_of(entry: bytes, size: int) -> bytes:
    """The same, one a line."""
    return (entry + b"\n") * max(1, min(_ENTRIES_MAX, size // (len(entry) + 1)))
