"""Parses EXPIRE and its kind, PERSIST, TTL and its kind.

Knows: their words, units and error texts.
Must never know: what time it is, how a stream expires.
"""

from collections.abc import Callable
from typing import Final

from app.redis import replies
from app.redis.parsers.words import INTEGER_MAX, INTEGER_MIN, Words, echo, integer, stream_name
from app.redis.request import CommandRequest, for_engine
from app.redis.resp import Resp
from engine import errors
from engine.commands import Expire, ExpireCondition, Persist, TimeToLive
from engine.replies import Reply

_SECOND_MS: Final = 1_000
_HALF_SECOND_MS: Final = 500
_CONDITIONS: Final = {
    b"NX": ExpireCondition.NX, b"XX": ExpireCondition.XX, b"GT": ExpireCondition.GT, b"LT": ExpireCondition.LT
}  # fmt: skip

_Parser = Callable[[Words], CommandRequest]


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
