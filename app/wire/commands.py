"""The command door's bodies: JSON lists → words, outcomes → `{"result"}` and `{"error"}`.

Knows: the wire form of the "Redis over REST" SDKs. Must never know: what a command means, statuses, sockets.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from app import redis
from app.errors import Refusal, invalid
from app.redis import Resp
from app.wire.strict import malformed
from engine import EngineError

_encode: Final = msgspec.json.Encoder().encode


class Encoding(msgspec.Struct, frozen=True):
    """Whether strings are base64: those of the arguments, those of the reply."""

    arguments: bool = False
    reply: bool = False


def encoding(upstash: bytes | None, weir: bytes | None) -> Encoding:
    """What the headers Upstash-Encoding and Weir-Encoding ask for, None for one that is not there."""
    for name, value in (("Upstash-Encoding", upstash), ("Weir-Encoding", weir)):
        if value is not None and value.lower() != b"base64":
            raise invalid(name, "the only encoding is base64")
    return Encoding(arguments=bool(weir), reply=bool(weir or upstash))


Words = Sequence[bytes]
Outcome: TypeAlias = "Resp | EngineError"


def one(body: bytes, encoded: Encoding) -> Words:
    """The words of one command. Raises `malformed_json`, EngineError for an argument that is none."""
    return _words(_load(body), encoded)


def many(body: bytes, encoded: Encoding, commands_max: int) -> list[Words | EngineError]:
    """The words of each command; one with impossible arguments stands as its refusal."""
    rows = _load(body)
    if not isinstance(rows, list):
        raise invalid("", 'the body is a list of commands, [["XADD", …], …]')
    if len(rows) > commands_max:
        raise Refusal("too_many_entries", f"one request has at most {commands_max} commands")
    return [_words_or_refusal(row, encoded) for row in rows]


def _load(body: bytes) -> object:
    try:
        return redis.load(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise malformed(str(error)) from None
    except RecursionError:
        raise malformed("it is nested too deep") from None


def _words(row: object, encoded: Encoding) -> Words:
    if not isinstance(row, list):
        raise invalid("", 'a command is a list of words, ["XADD", …]')
    return redis.arguments(row, base64=encoded.arguments)


def _words_or_refusal(row: object, encoded: Encoding) -> Words | EngineError:
    try:
        return _words(row, encoded)
    except EngineError as refusal:
        return refusal


def outcome(found: Outcome, encoded: Encoding) -> bytes:
    """One command's answer."""
    return _encode(_outcome(found, encoded))


def result(written: bytes) -> bytes:
    """The answer of a command whose result is JSON text already."""
    return b'{"result":%b}' % written


def outcomes(found: Sequence[bytes]) -> bytes:
    """The answers of several, each as `outcome` gives it, in order."""
    return b"[%b]" % b",".join(found)


def _outcome(found: Outcome, encoded: Encoding) -> dict[str, object]:
    if isinstance(found, EngineError):
        return {"error": found.redis}
    return {"result": redis.to_json(found, base64=encoded.reply)}
