"""Places in a stream as clients have them: offsets, and the cursors that keep caches apart.

Knows: how both are written. Must never know: streams, HTTP.

An offset is the ID of the last entry before it, so that the server keeps nothing about readers:

    0000019abcdef012_0000000000000003      milliseconds and sequence in 16 hexadecimal digits: sorts as bytes
    -1                                     the beginning
    now                                    the end
"""

import re
import secrets
from enum import Enum
from typing import Final

from engine import ids

_OFFSET: Final = re.compile("([0-9a-f]{16})_([0-9a-f]{16})")
_CURSOR: Final = re.compile("[0-9]{1,15}")
# A cursor is the number of an interval since 2024-10-09: clients that ask at the same time ask for one URL.
_INTERVAL_S: Final = 20
_EPOCH_S: Final = 1_728_432_000
# By how many intervals a cursor goes on that a client has already: up to an hour.
_JITTER_MAX: Final = 180


class Word(Enum):
    """Offsets by name."""

    BEGINNING = "-1"
    NOW = "now"


def parse(text: str) -> int | Word | None:
    """The ID of the last entry before an offset; None for what is no offset."""
    if text in ("-1", "now"):
        return Word(text)
    match = _OFFSET.fullmatch(text)
    return None if match is None else ids.make(int(match[1], 16), int(match[2], 16))


def write(entry_id: int) -> bytes:
    """The offset behind this entry."""
    return b"%016x_%016x" % (ids.ms_of(entry_id), ids.sequence_of(entry_id))


def cursor(given: str, now_ms: int) -> bytes:
    """The cursor of an answer to a client with this one: always above it, or a cache would answer with what
    it has.
    """
    interval = (now_ms // 1000 - _EPOCH_S) // _INTERVAL_S
    if not _CURSOR.fullmatch(given) or int(given) < interval:
        return b"%d" % interval
    return b"%d" % (int(given) + 1 + secrets.randbelow(_JITTER_MAX))
