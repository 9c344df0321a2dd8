"""Parses XREAD and XREADGROUP.

Knows: their words and error texts (docs/semantics.md, "Reads"). XREADGROUP looks at each ID after it has
found the group on its stream, stream after stream: a wrong one is refused behind that look.
Must never know: what is in a stream, how long a read may wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from app.redis.parsers.words import (
    INTEGER_MAX,
    Words,
    consumer_name,
    entry_id,
    group_name,
    integer,
    integer_from,
    stream_names,
    timeout_ms,
)
from app.redis.request import CommandRequest, for_engine, refused_behind_group
from engine import EngineError, errors, ids
from engine.commands.types import Cursor, XRead, XReadGroup

_READ_UNBALANCED: Final = (
    "ERR Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must be specified."
)
_GROUP_UNBALANCED: Final = (
    "ERR Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be specified."
)
_GROUP_ONLY: Final = "ERR The {} option is only supported by XREADGROUP. You called XREAD instead."
_NEW_IN_READ: Final = (
    "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option."
)
_NOT_POSITIVE: Final = "ERR {} must be a positive integer"
_MEANINGLESS: Final = (
    "ERR The {0} ID is meaningless in the context of XREADGROUP: you want to read the history of this "
    "consumer by specifying a proper ID, or use the > ID to get new messages. The {0} ID would just return "
    "an empty result set."
)


@dataclass(slots=True)
class _Options:
    """The options before STREAMS, and the keys and IDs after it."""

    grouped: bool
    group: bytes | None = None
    consumer: bytes = b""
    count: int | None = None
    count_total: int | None = None
    bytes_total: int | None = None
    block_ms: int | None = None
    claim_min_idle_ms: int | None = None
    noack: bool = False

    def took(self, words: Words) -> bool:
        """Whether the next words were an option of either command."""
        if words.took(b"BLOCK", values=1):
            self.block_ms = timeout_ms(words.take())
        elif words.took(b"COUNT", values=1):
            count = integer(words.take())
            self.count = count if count > 0 else None
        elif words.took(b"MAXCOUNT", values=1):
            self.count_total = integer_from(words.take(), 1, INTEGER_MAX, _NOT_POSITIVE.format("MAXCOUNT"))
        elif words.took(b"MAXSIZE", values=1):
            self.bytes_total = integer_from(words.take(), 1, INTEGER_MAX, _NOT_POSITIVE.format("MAXSIZE"))
        elif words.took(b"GROUP", values=2):
            self._grouped("GROUP")
            self.group, self.consumer = words.take(), words.take()
        elif words.took(b"NOACK"):
            self._grouped("NOACK")
            self.noack = True
        elif words.took(b"CLAIM", values=1):
            self._grouped("CLAIM")
            self.claim_min_idle_ms = integer(
                words.take(), "ERR min-idle-time is not an integer or out of range"
            )
            if self.claim_min_idle_ms < 0:
                raise errors.invalid("ERR min-idle-time must be a positive integer")
        else:
            return False
        return True

    def _grouped(self, option: str) -> None:
        if not self.grouped:
            raise errors.invalid(_GROUP_ONLY.format(option))


def xread(words: Words) -> CommandRequest:
    """XREAD [COUNT n] [MAXCOUNT n] [MAXSIZE bytes] [BLOCK ms] STREAMS key … id …."""
    options = _Options(grouped=False)
    keys = _keys(words, options)
    streams = list(zip(keys, map(_read_cursor, words.rest()), strict=True))
    return for_engine(
        XRead(
            streams=streams,
            count=options.count,
            count_total=options.count_total,
            bytes_total=options.bytes_total,
            block_ms=options.block_ms,
        )
    )


def xreadgroup(words: Words) -> CommandRequest:
    """XREADGROUP GROUP group consumer [COUNT n] [MAXCOUNT n] [MAXSIZE bytes] [BLOCK ms] [CLAIM min-idle]
    [NOACK] STREAMS key … id ….
    """
    options = _Options(grouped=True)
    keys = _keys(words, options)
    assert options.group is not None, "checked with the keys"
    group, consumer = group_name(options.group), consumer_name(options.consumer)
    streams: list[tuple[str, int | Cursor]] = []
    for key, word in zip(keys, words.rest(), strict=True):
        try:
            streams.append((key, _group_cursor(word)))
        except EngineError as refusal:
            found = refused_behind_group(
                keys[: len(streams) + 1],
                group,
                refusal,
                missing=lambda stream, _: errors.no_group_in_read(stream, group),
            )
            # A caller that may not read one of the other streams learns nothing about these.
            return msgspec.structs.replace(found, streams=tuple(dict.fromkeys(keys)))
    return for_engine(
        XReadGroup(
            group=group,
            consumer=consumer,
            streams=streams,
            count=options.count,
            count_total=options.count_total,
            bytes_total=options.bytes_total,
            block_ms=options.block_ms,
            noack=options.noack,
            claim_min_idle_ms=options.claim_min_idle_ms,
        )
    )


def _keys(words: Words, options: _Options) -> Sequence[str]:
    while not words.took(b"STREAMS", values=1):
        if not words.left or not options.took(words):
            raise errors.syntax_error()
    if words.left % 2:
        raise errors.invalid(_GROUP_UNBALANCED if options.grouped else _READ_UNBALANCED)
    if options.count_total is not None and (options.count or 0) > options.count_total:
        raise errors.invalid("ERR MAXCOUNT must be greater than or equal to COUNT")
    if options.grouped and options.group is None:
        raise errors.invalid("ERR Missing GROUP option for XREADGROUP")
    return stream_names(words.take_many(words.left // 2))


def _read_cursor(word: bytes) -> int | Cursor:
    if word == b"$":
        return Cursor.LATEST
    if word == b"+":
        return Cursor.LAST_ENTRY
    if word == b">":
        raise errors.invalid(_NEW_IN_READ)
    return entry_id(word)


def _group_cursor(word: bytes) -> int | Cursor:
    if word in {b"$", b"+"}:
        raise errors.invalid(_MEANINGLESS.format(word.decode("ascii")))
    # Redis represents `>` by the largest ID and cannot distinguish the two.
    if word == b">" or (after := entry_id(word)) == ids.ID_MAX:
        return Cursor.NEW
    return after
