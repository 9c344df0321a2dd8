"""Commands that clients send again: what was found of them is remembered.

Knows: which bytes are a command like one before, whose command that was, when that no longer says anything.
Must never know: how a command is parsed, what it does.

    words ─► find: the same words, caller and stamp ─► the request, as it was parsed, allowed and bounded
                  └► no: the usual way ─► keep

An XACK is like one before if it is of the same group: its IDs are read each time. Of ranges only those of a
whole stream are kept: pages have bounds of their own. It is a verdict, see `app.auth.stamp` and
docs/decisions/lanes.md.
"""

from typing import Final, NamedTuple

import msgspec

from app.auth import Principal
from app.doors.resp.requests import Words
from app.gateway import Gateway
from app.redis import CommandRequest, checked
from app.redis.parsers.words import entry_ids
from engine import EngineError
from engine.commands import XAck, XAutoClaim, XLen, XPending, XRange, XReadGroup

# What workers and those who watch them send again and again; of others most have words of their own.
_KINDS: Final = (XAck, XAutoClaim, XLen, XPending, XRange, XReadGroup)
# As clients spell them; of other commands no word is looked at, however long it is.
_NAMES: Final = frozenset(
    spelt
    for name in (b"xack", b"xautoclaim", b"xlen", b"xpending", b"xrange", b"xreadgroup", b"xrevrange")
    for spelt in (name, name.upper())
)
# Of all clients together: at most some megabytes.
_COMMANDS_MAX: Final = 4_096
_WORDS_MAX: Final = 16
_WORDS_BYTES_MAX: Final = 256
_BOUNDS: Final = frozenset({b"-", b"+"})
_XACK: Final = frozenset({b"XACK", b"xack"})
# Of an XACK: itself, the stream and the group.
_BEFORE_IDS: Final = 3


class Seen(NamedTuple):
    """A request, whose it was, and under which stamp."""

    request: CommandRequest
    principal: Principal
    stamp: int


class SeenCommands:
    """Those of all clients of a port."""

    def __init__(self, gateway: Gateway) -> None:
        self._stamp = gateway.stamp
        self._limits = gateway.limits.commands
        self._seen: dict[tuple[bytes, ...], Seen] = {}

    def find(self, words: Words, principal: Principal | None) -> CommandRequest | None:
        """The request that these words are, if they were this caller's before."""
        name = words[0]
        if name not in _NAMES:
            return None
        is_ack = name in _XACK
        seen = self._seen.get(tuple(words[:_BEFORE_IDS] if is_ack else words))
        if seen is None or seen.principal is not principal or seen.stamp != self._stamp.value:
            return None
        return self._with_ids(seen.request, words[_BEFORE_IDS:]) if is_ack else seen.request

    def _with_ids(self, request: CommandRequest, words: Words) -> CommandRequest | None:
        """The request to acknowledge these IDs; None if they need a closer look."""
        command = request.command
        assert isinstance(command, XAck), "its words begin as those of one"
        try:
            acks = XAck(stream=command.stream, group=command.group, ids=entry_ids(words))
            return checked(msgspec.structs.replace(request, command=acks), self._limits) if words else None
        except EngineError:
            return None

    def keep(self, words: Words, principal: Principal | None, request: CommandRequest) -> None:
        """Remember a request of this caller, if it is of a kind that is sent again, and short."""
        if principal is None or words[0] not in _NAMES or not isinstance(request.command, _KINDS):
            return
        if isinstance(request.command, XAck):
            words = words[:_BEFORE_IDS]
        elif isinstance(request.command, XRange) and not _BOUNDS.issuperset(words[2:4]):
            return
        if len(words) > _WORDS_MAX or sum(map(len, words)) > _WORDS_BYTES_MAX:
            return
        if len(self._seen) >= _COMMANDS_MAX:
            self._seen.clear()
        # If the token ends just now, the stamp is another one behind this, and nothing is remembered.
        stamp = self._stamp.value
        self._stamp.end_with(principal.expires_s)
        self._seen[tuple(words)] = Seen(request, principal, stamp)
