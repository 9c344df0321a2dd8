"""Bodies of the command API: JSON lists → words, outcomes → `{"result"}` and `{"error"}`.

Knows: the wire form of the "Redis over REST" SDKs. Must never know: what a command means, statuses, sockets.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import ClassVar, Final, TypeAlias

import msgspec

from app.errors import RefusalError, invalid
from app.http import strict_json
from app.limits import CommandLimits
from app.redis.request import CommandRequest, Visible
from app.redis.resp import Resp, arguments, load, to_json
from engine import EngineError, errors
from engine.ids import SEQUENCE_MAX
from engine.replies import Reply

# Bodies slightly beyond a limit are parsed, so that the refusal can name the limit.
_SLACK: Final = 2
# What a connection may have without asking is sent at once.
_PIECE_BYTES: Final = 64 << 10
# With more values than this a body is decoded command by command: some milliseconds at once.
_VALUES_AT_ONCE_MAX: Final = 200_000
_COMMANDS: Final = 'the body is a list of commands, [["XADD", …], …]'

_encode: Final = msgspec.json.Encoder().encode


class Encoding(msgspec.Struct, frozen=True):
    """Whether strings are base64: those of the arguments, those of the answer. A codec of replies."""

    # Around a result.
    frame_bytes: ClassVar = len(b'{"result":}')

    arguments: bool = False
    answer: bool = False

    def refusal(self, refusal: EngineError) -> bytes:
        """Write Redis's sentence."""
        return outcome(refusal, self)

    def immediate(self, answer: Resp) -> bytes:
        """Write the result of a command that needs no engine."""
        return outcome(answer, self)

    def reply(self, parsed: CommandRequest, reply: Reply | EngineError, visible: Visible) -> bytes:
        """Write the engine's reply. Raises EngineError."""
        return b'{"result":%b}' % parsed.written(reply, visible, base64=self.answer)

    def entry_id(self, entry_id: int) -> bytes:
        """Write the ID of an entry."""
        text = b"%d-%d" % (entry_id >> 64, entry_id & SEQUENCE_MAX)
        return outcome(text, self) if self.answer else b'{"result":"%b"}' % text


Words = Sequence[bytes]
CommandReply: TypeAlias = "Resp | EngineError"


def one(body: bytes, encoded: Encoding, limits: CommandLimits) -> Words:
    """Read the words of one command.

    Raises `malformed_json`; EngineError for an invalid argument, or for too many or too long ones.
    """
    _check_length(body, encoded, limits)
    return _words(_load(body, _SLACK * limits.words_max), encoded, limits.words_max)


def many(
    body: bytes, encoded: Encoding, commands_max: int, limits: CommandLimits
) -> list[Words | EngineError]:
    """Read the words of each command; an invalid command is returned as its refusal."""
    if strict_json.has_more_items(body, commands_max):
        # Before any list is built.
        raise _too_many(commands_max)
    if body.count(b",") > _VALUES_AT_ONCE_MAX or len(body) > limits.command_bytes_max:
        texts = strict_json.items_of(body, _COMMANDS)
        check_number(texts, commands_max)
        # All of their words are kept.
        strict_json.expect_room(body, copies=2, values=body.count(b","))
        return [_words_or_refusal(partial(_words_of_text, bytes(text), encoded, limits)) for text in texts]
    rows = _load(body, strict_json.VALUES_MAX)
    if not isinstance(rows, list):
        raise invalid("", _COMMANDS)
    check_number(rows, commands_max)
    return [_words_or_refusal(partial(_words, row, encoded, limits.words_max)) for row in rows]


def _words_of_text(text: bytes, encoded: Encoding, limits: CommandLimits) -> Words:
    """One command of many that have many words, or long ones: a decoder lets no other thread go on."""
    _check_length(text, encoded, limits)
    if strict_json.exceeds(text, _SLACK * limits.words_max):
        raise _too_many_words(limits.words_max)
    return _words(_load(text, strict_json.VALUES_MAX), encoded, limits.words_max)


def _check_length(text: bytes, encoded: Encoding, limits: CommandLimits) -> None:
    """Refuse a command that is too long however it is written, before it is read."""
    # As base64 its words are a third longer.
    most = limits.command_bytes_max * (2 if encoded.arguments else 1)
    if len(text) > most and strict_json.least_bytes(text) > most:
        raise _too_long(limits.command_bytes_max)


def check_number(rows: Sequence[object], commands_max: int) -> None:
    """Raise `too_many_entries` if there are more than `commands_max` commands."""
    if len(rows) > commands_max:
        raise _too_many(commands_max)


def _too_many(commands_max: int) -> RefusalError:
    return RefusalError("too_many_entries", f"one request has at most {commands_max} commands")


def _load(body: bytes, most: int) -> object:
    if strict_json.exceeds(body, most):
        raise RefusalError("body_too_large", f"the body has more than {most} values")
    # Its words are strings first, and bytes then.
    strict_json.expect_room(body, copies=1, strings=1, values=body.count(b","))
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
        raise _too_many_words(words_max)
    return arguments(row, base64=encoded.arguments)


def _too_many_words(words_max: int) -> EngineError:
    return errors.invalid(
        f"ERR too many arguments: a command has at most {words_max} words (ids_max, entry_fields_max, "
        "request_streams_max); use several commands"
    )


def _too_long(bytes_max: int) -> EngineError:
    detail = f"the words of a command have at most {bytes_max} bytes together (entry_bytes_max)"
    return EngineError("entry_too_large", f"ERR command too long: {detail}; use several commands", detail)


def _words_or_refusal(read: Callable[[], Words]) -> Words | EngineError:
    try:
        return read()
    except EngineError as refusal:
        return refusal


def outcome(reply: CommandReply, encoded: Encoding) -> bytes:
    """Write the result of one command."""
    return _encode(_outcome(reply, encoded))


def outcomes(written: Sequence[bytes]) -> bytes:
    """Write the results of several commands, in order."""
    return b"[%b]" % b",".join(written)


async def _next(rest: AsyncGenerator[list[bytes], None]) -> list[bytes] | None:
    return await anext(rest, None)


async def outcomes_in_pieces(
    begun: Sequence[bytes], rest: AsyncGenerator[list[bytes], None]
) -> AsyncGenerator[bytes, None]:
    """The same in pieces: what is `begun`, then the rest as it comes. Long ones are not copied together."""
    some: Sequence[bytes] | None = begun
    mark = b"["
    try:
        while some is not None:
            short, size = list[bytes](), 0
            for outcome in some:
                if size + len(outcome) > _PIECE_BYTES and short:
                    yield b"".join(short)
                    short, size = [], 0
                short.append(mark)
                mark = b","
                if len(outcome) > _PIECE_BYTES:
                    yield short.pop()
                    yield outcome
                else:
                    short.append(outcome)
                    size += len(outcome)
            if short:
                yield b"".join(short)
            # Given up before the next is made.
            some = await _next(rest)
    finally:
        await rest.aclose()
    yield b"]"


def _outcome(reply: CommandReply, encoded: Encoding) -> dict[str, object]:
    if isinstance(reply, EngineError):
        return {"error": reply.redis}
    return {"result": to_json(reply, base64=encoded.answer)}
