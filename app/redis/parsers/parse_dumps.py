"""Parses DUMP and RESTORE.

Knows: their words, the order of Redis's refusals, which names a dump may have.
Must never know: what is in a dump beside names.
"""

from typing import Final

from app import names
from app.redis.parsers.words import Words, integer, stream_name
from app.redis.request import CommandRequest, for_engine, refused_behind_key
from app.redis.resp import Resp
from engine import EngineError, dump, errors
from engine.commands import Dump, Restore
from engine.replies import Dumped, Reply

_FREQUENCY_MAX: Final = 255


def dump_stream(words: Words) -> CommandRequest:
    """DUMP key."""

    def shape(reply: Reply) -> Resp:
        return reply.text.encode() if isinstance(reply, Dumped) else None

    return for_engine(Dump(stream=stream_name(words.take())), shape)


def restore(words: Words) -> CommandRequest:
    """RESTORE key ttl payload [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]. What is said of the use
    of a key is checked, and not kept.
    """
    stream, ttl, payload = stream_name(words.take()), words.take(), words.take()
    replace, absolute = _options(words)
    try:
        ms, described = _lifetime(ttl), _described(payload)
    except EngineError as refusal:
        if replace:
            raise
        return refused_behind_key(stream, errors.busy_key(), refusal)
    size = len(payload)
    return for_engine(
        Restore(stream=stream, dump=described, size=size, ms=ms, relative=not absolute, replace=replace)
    )


def _options(words: Words) -> tuple[bool, bool]:
    """Whether REPLACE and ABSTTL are there."""
    replace = absolute = idle = frequency = False
    while words.left:
        if words.took(b"REPLACE"):
            replace = True
        elif words.took(b"ABSTTL"):
            absolute = True
        elif not frequency and words.took(b"IDLETIME", values=1):
            idle = True
            if integer(words.take()) < 0:
                raise errors.invalid("ERR Invalid IDLETIME value, must be >= 0")
        elif not idle and words.took(b"FREQ", values=1):
            frequency = True
            if not 0 <= integer(words.take()) <= _FREQUENCY_MAX:
                raise errors.invalid("ERR Invalid FREQ value, must be >= 0 and <= 255")
        else:
            raise errors.syntax_error()
    return replace, absolute


def _lifetime(word: bytes) -> int:
    ttl = integer(word)
    if ttl < 0:
        raise errors.invalid("ERR Invalid TTL value, must be >= 0")
    return ttl


def _described(payload: bytes) -> dump.StreamDump:
    if len(payload) > dump.DUMP_BYTES_MAX:
        raise errors.too_large_to_restore()
    try:
        described = dump.decode(payload)
    except dump.WrongChecksumError:
        raise errors.wrong_payload() from None
    except ValueError:
        raise errors.bad_data_format() from None
    if dump.dump_cost(described) > dump.DUMP_COST_MAX:
        # Before each name is looked at: there may be tens of thousands.
        raise errors.too_large_to_restore()
    try:
        for name, group in described.groups.items():
            names.check_text(name)
            for consumer in group.consumers:
                names.check_text(consumer)
    except EngineError:
        raise errors.bad_data_format() from None
    return described
