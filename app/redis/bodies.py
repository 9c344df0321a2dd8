"""The command door's bodies: JSON lists → words, outcomes → `{"result"}` and `{"error"}`.

Knows: the wire form of the "Redis over REST" SDKs. Must never know: what a command means, statuses, sockets.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from app.errors import RefusalError, invalid
from app.http import strict_json
from app.redis.resp import Resp, arguments, load, to_json
from engine import EngineError, errors

# What is a little beyond a limit is read, and refused in the words of what it is.
_SLACK: Final = 2

_encode: Final = msgspec.json.Encoder().encode


class Encoding(msgspec.Struct, frozen=True):
    """Whether strings are base64: those of the arguments, those of the reply."""

    arguments: bool = False
    reply: bool = False


Words = Sequence[bytes]
Outcome: TypeAlias = "Resp | EngineError"


def one(body: bytes, encoded: Encoding, words_max: int) -> Words:
    """The words of one command. Raises `malformed_json`, EngineError for an argument that is none, and for
    too many of them.
    """
    return _words(_load(body, _SLACK * words_max), encoded, words_max)


def many(body: bytes, encoded: Encoding, commands_max: int, words_max: int) -> list[Words | EngineError]:
    """The words of each command; one with impossible arguments stands as its refusal."""
    if strict_json.exceeds(body, _SLACK * commands_max, b"[{"):
        # Before a list is made of each.
        raise _too_many(commands_max)
    rows = _load(body, strict_json.VALUES_MAX)
    if not isinstance(rows, list):
        raise invalid("", 'the body is a list of commands, [["XADD", …], …]')
    check_number(rows, commands_max)
    return [_words_or_refusal(row, encoded, words_max) for row in rows]


def check_number(rows: Sequence[object], commands_max: int) -> None:
    """Raise `too_many_entries` where there are more commands than that."""
    if len(rows) > commands_max:
        raise _too_many(commands_max)


def _too_many(commands_max: int) -> RefusalError:
    return RefusalError("too_many_entries", f"one request has at most {commands_max} commands")


def _load(body: bytes, most: int) -> object:
    if strict_json.exceeds(body, most):
        raise RefusalError("body_too_large", f"the body has more than {most} values")
    try:
        return load(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise strict_json.malformed(str(error)) from None
    except RecursionError:
        raise strict_json.malformed("it is nested too deep") from None


def _words(row: object, encoded: Encoding, words_max: int) -> Words:
    if not isinstance(row, list):
        raise invalid("", 'a command is a list of words, ["XADD", …]')
    if len(row) > words_max:
        raise errors.invalid(
            f"ERR too many arguments: a command has at most {words_max} words (ids_max, entry_fields_max, "
            "request_streams_max); use several commands"
        )
    return arguments(row, base64=encoded.arguments)


def _words_or_refusal(row: object, encoded: Encoding, words_max: int) -> Words | EngineError:
    try:
        return _words(row, encoded, words_max)
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
    return {"result": to_json(found, base64=encoded.reply)}
