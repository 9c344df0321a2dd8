"""The keys of a stream over Redis or Valkey: its slot, and the names of the keys that Weir keeps beside it.

Knows: Redis's hash slots and hash tags; the form of auxiliary keys.
Must never know: what an auxiliary key holds, which server has a slot.

    the stream     orders                the name itself, so that other programs of Redis see it
    its metadata   weir/{9cz}/m/orders   in the same slot, by the tag of that slot

No client can name an auxiliary key, or a stream so: see `engine/name_rules.py`.
"""

from binascii import crc_hqx
from functools import cache, lru_cache
from itertools import product
from string import ascii_lowercase, digits
from typing import Final

SLOTS: Final = 16_384
_TAGS_CACHED_MAX: Final = SLOTS
_LETTERS: Final = (digits + ascii_lowercase).encode()


def slot_of(key: bytes) -> int:
    """The slot of a key: of what stands in its first braces where that is not empty, else of all of it."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


@lru_cache(_TAGS_CACHED_MAX)
def tag_of(slot: int) -> bytes:
    """The tag of a slot, 4 letters, the same in every process: `slot_of(tag_of(slot)) == slot`."""
    # A checksum is linear: that of `ab` + `cd` is that of `ab\0\0` with that of `cd` added without carry.
    tails = _tails()
    for head in product(_LETTERS, repeat=2):
        tail = tails.get((crc_hqx(bytes((*head, 0, 0)), 0) % SLOTS) ^ slot)
        if tail is not None:
            return bytes(head) + tail
    raise AssertionError("each slot has a tag: a test looks at all of them")


@cache
def _tails() -> dict[int, bytes]:
    """Pairs of letters by their slot."""
    pairs = map(bytes, product(_LETTERS, repeat=2))
    return {crc_hqx(pair, 0) % SLOTS: pair for pair in pairs}


def auxiliary_key(stream: str, kind: str) -> bytes:
    """The key of a kind (one letter) that belongs to the stream."""
    name = stream.encode()
    return b"weir/{%b}/%b/%b" % (tag_of(slot_of(name)), kind.encode(), name)


def auxiliary_pattern(kind: str, streams: str = "*") -> str:
    """What SCAN finds the keys of a kind by, of all streams or of those that a pattern names."""
    return f"weir/{{????}}/{kind}/{streams}"


def stream_of(key: bytes) -> str | None:
    """The stream of an auxiliary key, None where it has no name that a client could give."""
    try:
        return key.split(b"/", 3)[3].decode()
    except (IndexError, UnicodeDecodeError):
        return None


def slot_key(slot: int, kind: str, name: str) -> bytes:
    """The key of a kind that belongs to a slot, and to something else than a stream: a front, a producer."""
    return b"weir/{%b}/%b/%b" % (tag_of(slot), kind.encode(), name.encode())
