"""Parses RENAME, RENAMENX and COPY.

Knows: their words and error texts; that there is one database.
Must never know: what a new name means for a stream.
"""

from typing import Final

from app.redis import replies
from app.redis.parsers.words import Words, integer, stream_name
from app.redis.request import CommandRequest, for_engine
from app.redis.resp import Resp
from engine import errors
from engine.commands import Copy, Rename
from engine.replies import Reply

# Redis reads the number of a database as a C int.
_INT_MAX: Final = (1 << 31) - 1
_NO_C_INT: Final = f"ERR value is out of range, value must between {-_INT_MAX - 1} and {_INT_MAX}"


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
