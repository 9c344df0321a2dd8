"""Projection: entries with some of their fields only.

Knows: the stored form of an entry. Must never know: streams, pages, statuses.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from app.errors import invalid

FIELDS_MAX: Final = 1_024


class _Stored(msgspec.Struct, omit_defaults=True):
    id: str
    fields: dict[str, str]
    encoding: str = ""
    pairs: list[tuple[str, str]] = msgspec.field(default_factory=list)
    meta: dict[str, str] = msgspec.field(default_factory=dict)


# For 1,000 entries orjson takes 6 times as long as msgspec (CPU time, `python -m bench.decoding`):
# docs/decisions/msgspec-for-entries-and-frames.md.
_decode: Final = msgspec.json.Decoder(list[_Stored]).decode
_encode: Final = msgspec.json.Encoder().encode


def parse(text: str) -> Sequence[str]:
    """`fields=a,b` → the names."""
    names = list(dict.fromkeys(text.split(",")))
    if "" in names:
        raise invalid("fields", "it is the names of fields between commas")
    if len(names) > FIELDS_MAX:
        raise invalid("fields", f"at most {FIELDS_MAX} fields can be named")
    return names


def project(joined: bytes, names: Sequence[str]) -> bytes:
    """Entries joined by commas, each with those of the named fields that it has, in the order it has them."""
    wanted = frozenset(names)
    found = _decode(b"[%b]" % joined)
    for entry in found:
        entry.fields = {name: value for name, value in entry.fields.items() if name in wanted}
        entry.pairs = [(name, value) for name, value in entry.pairs if name in wanted]
        if len(entry.pairs) == len(entry.fields):
            # No name occurs twice any more.
            entry.pairs = []
    return _encode(found)[1:-1]
