"""The messages between the processes: lists that begin with their kind and a number.

Knows: the kinds, and how calls of the engine, their replies and refusals stand in them.
Must never know: sockets, who sends what when.

The numbers of a front's requests are its own. Both ends run the same code: nothing here has versions.
"""

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, Union

from app.auth.grants import quota_of
from app.fronts.codec import codec_of
from engine import Call, EngineError, How, Quota, ReadHandle, Refused, Replies
from engine.commands.execution import RUN
from engine.replies import Reply

# Patterns of grants that are in use, each compiled once.
_QUOTAS_MAX: Final = 4_096


class MessageKind(IntEnum):
    """The kinds of messages, with what follows the number."""

    # From a front to the engine's process.
    SEND = 2  # a call of the engine
    END = 6  # the wait of the call of this number, as its time would
    CANCEL = 7  # the same, as if it had never been
    LEASE = 8  # stream, group and name of the consumer
    LEFT = 9  # the reader with the lease of this number has left
    # From the engine's process to a front.
    REPLIES = 16  # those to the call of this number
    WELCOME = 18  # report of the engine, what is failing: the engine may be used
    FIGURES = 19  # report of the engine, what is failing
    ALONE = 20  # the reader with the lease of this number is the only one of its consumer
    REPLACED = 21  # another reader takes over from the one with the lease of this number
    NOT_LEASED = 22  # why the reader with the lease of this number may not read
    # Both ways; each end has numbers of its own.
    CALL = 32  # name, arguments
    RESULT = 33  # result, refusal


OF_LEASES: Final = frozenset({MessageKind.ALONE, MessageKind.REPLACED, MessageKind.NOT_LEASED})
# Those that callers send, by name: the order in which they were entered is not the same in each process.
COMMANDS: Final = tuple(sorted((kind for kind in RUN if not kind.is_internal), key=attrgetter("__name__")))

_pack_command, _unpack_command = codec_of(Union[COMMANDS])  # noqa: UP007 - as many as there are
_pack_reply, _unpack_reply = codec_of(Reply)


def pack_call(call: Call) -> list[Any]:
    """A call as it is carried; quotas by their patterns."""
    return [
        [_pack_command(command) for command in call.commands],
        call.how.value,
        call.waits is not None,
        call.synced,
        [(quota.pattern, quota.streams_max, quota.bytes_max) for quota in call.quotas],
        call.going_on,
        call.origin,
        call.caller,
    ]


def unpack_call(packed: Sequence[Any]) -> Call:
    """A call that was carried; one that waits has a handle of its own here."""
    commands, how, waits, synced, quotas, going_on, origin, caller = packed
    return Call(
        [_unpack_command(command) for command in commands],
        How(how),
        ReadHandle() if waits else None,
        synced,
        [_quota(*quota) for quota in quotas],
        going_on,
        origin,
        caller=caller,
    )


def pack_replies(replies: Replies) -> Any:  # noqa: ANN401 - what is carried
    """Replies as they are carried; refusals are the only ones that are mappings, also one of the whole."""
    if isinstance(replies, Refused):
        return pack_refusal(replies.error)
    return [
        pack_refusal(reply) if isinstance(reply, EngineError) else _pack_reply(reply) for reply in replies
    ]


def unpack_replies(packed: Any) -> Replies:  # noqa: ANN401 - what was carried
    """Replies that were carried."""
    if type(packed) is dict:
        return Refused(unpack_refusal(packed))
    return [unpack_refusal(reply) if type(reply) is dict else _unpack_reply(reply) for reply in packed]


def pack_refusal(error: EngineError) -> dict[str, Any]:
    """A refusal as it is carried."""
    return {"code": error.code, "redis": error.redis, "detail": error.detail, "members": error.members}


def unpack_refusal(packed: dict[str, Any]) -> EngineError:
    """A refusal that was carried."""
    return EngineError(packed["code"], packed["redis"], packed["detail"], **packed["members"])


@lru_cache(_QUOTAS_MAX)
def _quota(pattern: str, streams_max: int | None, bytes_max: int | None) -> Quota:
    return quota_of(pattern, streams_max, bytes_max)
