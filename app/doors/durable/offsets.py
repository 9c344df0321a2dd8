"""Places in a stream as clients have them: offsets, and the cursors that keep caches apart.

Knows: how both are written. Must never know: streams, HTTP.

An offset is the ID of the last entry before it and the generation of its stream, so that the server keeps
nothing about readers, and none reads on in a stream that was made anew:

    0000019abcdef012_0000000000000003_9f86d081884c7d65
                     milliseconds and sequence in 16 hexadecimal digits: within a stream it sorts as bytes
    0000019abcdef012_0000000000000003
                     of a client that has it from an earlier version: it is of the stream that there is
    -1               the beginning
    now              the end
"""

import re
import secrets
from enum import Enum
from typing import Final, NamedTuple

from app.http.cursors import GENERATION_PATTERN
from engine import ids

_OFFSET: Final = re.compile(f"([0-9a-f]{{16}})_([0-9a-f]{{16}})(?:_({GENERATION_PATTERN}))?")
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


class Offset(NamedTuple):
    """The ID of the last entry before an offset, and the generation, empty for one that does not name it."""

    after: int
    generation: str = ""


BEGINNING: Final = Offset(0)


def parse(text: str) -> Offset | Word | None:
    """What an offset stands for; None for what is no offset."""
    if text in ("-1", "now"):
        return Word(text)
    match = _OFFSET.fullmatch(text)
    if match is None:
        return None
    ms, sequence, generation = match.groups("")
    return Offset(ids.make(int(ms, 16), int(sequence, 16)), generation)


def write(entry_id: int, generation: str) -> bytes:
    """The offset behind this entry of a stream."""
    return b"%016x_%016x_%b" % (ids.ms_of(entry_id), ids.sequence_of(entry_id), generation.encode())


def cursor(given: str, now_ms: int) -> bytes:
    """The cursor of an answer to a client with this one: always above it, or a cache would answer with what
    it has.
    """
    interval = (now_ms // 1000 - _EPOCH_S) // _INTERVAL_S
    if not _CURSOR.fullmatch(given) or int(given) < interval:
        return b"%d" % interval
    return b"%d" % (int(given) + 1 + secrets.randbelow(_JITTER_MAX))
