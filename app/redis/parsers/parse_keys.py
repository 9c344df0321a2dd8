"""Parses commands on a key as a whole: RENAME, COPY, EXPIRE and its kind, OBJECT, MEMORY.

Knows: their words, units and error texts, the order of Redis's refusals; that there is one database.
Must never know: what a name means for a stream, what time it is, how memory is counted.
"""

from collections.abc import Callable
from typing import Final

from app.redis import replies
from app.redis.parsers.words import INTEGER_MAX, INTEGER_MIN, Words, echo, integer, stream_name
from app.redis.request import CommandRequest, for_engine
from app.redis.resp import Resp
from engine import errors
from engine.commands.types import Copy, DescribeUse, Expire, ExpireCondition, Persist, Rename, TimeToLive
from engine.replies import Reply, StreamUse

# Redis reads the number of a database as a C int.
_INT_MAX: Final = (1 << 31) - 1
_NO_C_INT: Final = f"ERR value is out of range, value must between {-_INT_MAX - 1} and {_INT_MAX}"
_SECOND_MS: Final = 1_000
_HALF_SECOND_MS: Final = 500
_CONDITIONS: Final = {
    b"NX": ExpireCondition.NX, b"XX": ExpireCondition.XX, b"GT": ExpireCondition.GT, b"LT": ExpireCondition.LT
}  # fmt: skip

_Parser = Callable[[Words], CommandRequest]
_NO_LFU: Final = (
    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when "
    "switching between policies at runtime LRU and LFU data will take some time to adjust."
)


def rename(words: Words) -> CommandRequest:
    """RENAME key newkey: OK, also for the name that it has."""

    def shape(_: Reply) -> Resp:
        return "OK"

    stream, target = map(stream_name, words.rest())
    return for_engine(Rename(stream=stream, target=target), shape)


def renamenx(words: Words) -> CommandRequest:
    """RENAMENX key newkey."""
    stream, target = map(stream_name, words.rest())
    return for_engine(Rename(stream=stream, target=target, replace=False), replies.count)


def copy(words: Words) -> CommandRequest:
    """COPY source destination [DB 0] [REPLACE]."""
    stream, target = stream_name(words.take()), stream_name(words.take())
    replace, database = False, 0
    while words.left:
        if words.took(b"REPLACE"):
            replace = True
        elif words.took(b"DB", values=1):
            database = integer(words.take())
            if not -_INT_MAX - 1 <= database <= _INT_MAX:
                raise errors.invalid(_NO_C_INT)
        else:
            raise errors.syntax_error()
    if database:
        raise errors.invalid("ERR DB index is out of range")
    return for_engine(Copy(stream=stream, target=target, replace=replace), replies.count)


def expire(named: str, *, unit_ms: int, relative: bool) -> _Parser:
    """Make the parser of `EXPIRE key seconds [NX|XX|GT|LT …]`, or of its kind. The options come first."""

    def parse(words: Words) -> CommandRequest:
        stream, time = stream_name(words.take()), words.take()
        condition = _condition(words)
        ms = integer(time)
        if unit_ms > 1:
            if not -(-INTEGER_MIN // unit_ms) <= ms <= INTEGER_MAX // unit_ms:
                raise errors.invalid_expire_time(named)
            ms *= unit_ms
        command = Expire(stream=stream, ms=ms, relative=relative, condition=condition, named=named)
        return for_engine(command, replies.count)

    return parse


def _condition(words: Words) -> ExpireCondition:
    """The conditions, in any order; a repeated one counts once."""
    found = ExpireCondition(0)
    while words.left:
        word = words.take()
        condition = _CONDITIONS.get(word.upper())
        if condition is None:
            raise errors.invalid(f"ERR Unsupported option {echo(word)}")
        found |= condition
    if ExpireCondition.NX in found and found != ExpireCondition.NX:
        raise errors.invalid("ERR NX and XX, GT or LT options at the same time are not compatible")
    if ExpireCondition.GT in found and ExpireCondition.LT in found:
        raise errors.invalid("ERR GT and LT options at the same time are not compatible")
    return found


def persist(words: Words) -> CommandRequest:
    """PERSIST key."""
    return for_engine(Persist(stream=stream_name(words.take())), replies.count)


def time_to_live(*, seconds: bool, absolute: bool) -> _Parser:
    """Make the parser of TTL, PTTL, EXPIRETIME and PEXPIRETIME. Seconds are rounded, half a second up."""

    def shape(reply: Reply) -> Resp:
        assert isinstance(reply, int), "a time is a number"
        return (reply + _HALF_SECOND_MS) // _SECOND_MS if seconds and reply >= 0 else reply

    def parse(words: Words) -> CommandRequest:
        return for_engine(TimeToLive(stream=stream_name(words.take()), absolute=absolute), shape)

    return parse


EXPIRE: Final = expire("expire", unit_ms=_SECOND_MS, relative=True)
EXPIREAT: Final = expire("expireat", unit_ms=_SECOND_MS, relative=False)
PEXPIRE: Final = expire("pexpire", unit_ms=1, relative=True)
PEXPIREAT: Final = expire("pexpireat", unit_ms=1, relative=False)
TTL: Final = time_to_live(seconds=True, absolute=False)
PTTL: Final = time_to_live(seconds=False, absolute=False)
EXPIRETIME: Final = time_to_live(seconds=True, absolute=True)
PEXPIRETIME: Final = time_to_live(seconds=False, absolute=True)


def _use(key: bytes, shape: Callable[[StreamUse], Resp]) -> CommandRequest:
    """A request that answers null for a missing stream."""

    def shape_found(reply: Reply) -> Resp:
        return shape(reply) if isinstance(reply, StreamUse) else None

    return for_engine(DescribeUse(stream=stream_name(key)), shape_found)


def object_encoding(words: Words) -> CommandRequest:
    """OBJECT ENCODING key."""
    _, key = words.rest()
    return _use(key, lambda _: b"stream")


def object_idletime(words: Words) -> CommandRequest:
    """OBJECT IDLETIME key: whole seconds."""
    _, key = words.rest()
    return _use(key, lambda use: use.idle_ms // 1000)


def object_refcount(words: Words) -> CommandRequest:
    """OBJECT REFCOUNT key: nothing is shared."""
    _, key = words.rest()
    return _use(key, lambda _: 1)


def object_freq(words: Words) -> CommandRequest:
    """OBJECT FREQ key: refused, as by a Redis that counts no accesses."""
    _, key = words.rest()

    def refuse(_: StreamUse) -> Resp:
        raise errors.invalid(_NO_LFU)

    return _use(key, refuse)


def memory_usage(words: Words) -> CommandRequest:
    """MEMORY USAGE key [SAMPLES count]: everything is counted, so there is nothing to sample."""
    words.take()
    key = words.take()
    while words.left:
        if not words.took(b"SAMPLES", values=1) or integer(words.take()) < 0:
            raise errors.syntax_error()
    return _use(key, lambda use: use.memory_bytes)
