"""The entry ID as the pipeline meets it: text on the wire, a pair to compare.

Knows: that an ID is two unsigned 64-bit numbers, milliseconds and sequence; a bigint holds half of each.
Must never know: streams, offsets, gateways.
"""

import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

from pyspark_weir.errors import PipelineError

HALF_MAX: Final = (1 << 64) - 1
# What Spark's bigint still holds.
BIGINT_MAX: Final = (1 << 63) - 1
# 9999-12-31T23:59:59.999Z; later ones have no timestamp.
TS_MS_MAX: Final = 253_402_300_799_999

# ASCII digits only: `int()` alone would take `1_0`, blanks, signs and the digits of other scripts.
_TEXT: Final = re.compile(r"([0-9]{1,64})(?:-([0-9]{1,64}))?", re.ASCII)


class EntryId(NamedTuple):
    """An ID; compares as the gateway orders entries."""

    ms: int
    seq: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"


ZERO: Final = EntryId(0, 0)
LAST: Final = EntryId(HALF_MAX, HALF_MAX)
# Before every entry, on the wire.
BEGINNING: Final = "0-0"


def parse(text: str, *, missing_seq: int = 0) -> EntryId:
    """The ID that `text` spells: `<ms>-<seq>`, or `<ms>` alone with `missing_seq`.

    Raises PipelineError WEIR_MALFORMED_ID for anything else, halves beyond 64 bits included.
    """
    match = _TEXT.fullmatch(text)
    if match is not None:
        ms, seq = int(match[1]), missing_seq if match[2] is None else int(match[2])
        if ms <= HALF_MAX and seq <= HALF_MAX:
            return EntryId(ms, seq)
    raise PipelineError(
        "WEIR_MALFORMED_ID", f"{text!r} is no entry ID: write milliseconds and sequence, as 1700000000000-0"
    )


def ms_of_time(text: str) -> int:
    """Milliseconds since 1970, written as such or as ISO 8601 has it; UTC where it names no zone.

    Raises ValueError.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000)


def canonical(text: str) -> str:
    """The one spelling of an ID, without leading zeros. Raises as `parse`."""
    return str(parse(text))


def is_after(one: str, other: str) -> bool:
    """Whether the ID `one` comes after `other`; both as text."""
    return parse(one) > parse(other)


def later(one: str, other: str) -> str:
    """The greater of two IDs in text form."""
    return one if is_after(one, other) else other


def earlier(one: str, other: str) -> str:
    """The smaller of two IDs in text form."""
    return other if is_after(one, other) else one


def next_id(one: EntryId) -> EntryId:
    """The smallest ID after `one`. Raises PipelineError WEIR_LAST_ID where there is none."""
    if one.seq < HALF_MAX:
        return EntryId(one.ms, one.seq + 1)
    if one.ms < HALF_MAX:
        return EntryId(one.ms + 1, 0)
    raise PipelineError("WEIR_LAST_ID", f"no ID comes after {one}: the stream is full")


def previous_id(one: EntryId) -> EntryId:
    """The greatest ID before `one`; 0-0, before every entry, stays."""
    if one.seq > 0:
        return EntryId(one.ms, one.seq - 1)
    return EntryId(one.ms - 1, HALF_MAX) if one.ms > 0 else ZERO
