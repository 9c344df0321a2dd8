"""Parses Weir's own commands: WEIR.CLOSE and WEIR.INFO.

Knows: their words, and the shapes of their replies.
Must never know: what an end means for a stream.
"""

import msgspec

from app.redis import replies
from app.redis.parsers import parse_entries
from app.redis.parsers.words import Words, stream_name, text
from app.redis.request import CommandRequest, for_engine
from engine import errors
from engine.commands.types import XAdd, XInfoStream
from engine.commands.weir_commands import Close


def close(words: Words) -> CommandRequest:
    """WEIR.CLOSE key [REASON reason] [SCHEDULES DROP] [XADD [options] <*|id> field value [field value …]]."""
    key, reason, drops = words.take(), "", False
    while words.left:
        if words.took(b"REASON", values=1):
            reason = text(words.take(), "the reason of an end")
        elif words.took(b"SCHEDULES", values=1):
            drops = words.took(b"DROP")
            if not drops:
                raise errors.syntax_error()
        elif words.took(b"XADD"):
            adding = parse_entries.xadd(Words([b"XADD", key, *words.rest()]))
            assert isinstance(adding.command, XAdd), "it is one of the engine's"
            command = Close(stream=stream_name(key), reason=reason, add=adding.command, drops_schedules=drops)
            # Who may close may not yet write.
            return msgspec.structs.replace(for_engine(command), actions=("write",))
        else:
            raise errors.syntax_error()
    return for_engine(Close(stream=stream_name(key), reason=reason, drops_schedules=drops))


def info(words: Words) -> CommandRequest:
    """WEIR.INFO key: what XINFO STREAM does not show."""
    return for_engine(XInfoStream(stream=stream_name(words.take())), replies.weir_info)
