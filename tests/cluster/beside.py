"""Weir's own commands twice: as scripts of a server, and in the engine of this process. The replies are one.

Knows: how a script is sent, how entries are stored there, whose clock gives the IDs.
Must never know: the gateway, connections of the gateway.
"""

from collections.abc import Callable
from typing import Any

from engine import ids
from engine.cluster import scripts
from engine.cluster.scripts import ScriptCall, WriteOrigin
from engine.cluster.stored import text_of
from engine.commands.base import Command
from engine.commands.execution import execute
from engine.errors import EngineError
from engine.keyspace import Keyspace
from engine.replies import Added, Published
from tests.cluster.servers import BackendServer

Make = Callable[[Any, WriteOrigin], ScriptCall]
GENERATION = "00112233aabbccdd"
# An ID that near to the server's clock was given by it just now.
BY_CLOCK_MS = 1_000


class Beside:
    """One server and one keyspace, both empty at first."""

    def __init__(self, server: BackendServer) -> None:
        self.server = server
        self.keyspace = Keyspace()
        self.now_ms = 0
        self.origin = WriteOrigin(GENERATION)

    def there(self, make: Make, command: Command) -> Any:
        """The reply of the script, or the refusal."""
        try:
            call = make(command, self.origin)
            return call.decode(self.raw(call))
        except EngineError as refusal:
            return refusal

    def raw(self, call: ScriptCall) -> Any:
        """What the server replies."""
        return self.server.call(*call.script.words_with_text(call.words))

    def here(self, command: Command) -> Any:
        """The reply of the engine in this process, or the refusal."""
        return execute(self.keyspace, command, self.now_ms).reply

    def both(self, make: Make, command: Command) -> Any:
        """The reply, the same on both sides: IDs by clock are of the server's."""
        there = self.there(make, command)
        now_ms = self._server_ms()
        given_ms = _time_of(there) or now_ms
        self.now_ms = given_ms if abs(given_ms - now_ms) < BY_CLOCK_MS else now_ms
        here = self.here(command)
        assert _plain(there) == _plain(here), command
        return there

    def _server_ms(self) -> int:
        seconds, micros = self.server.call("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def add(self, command: Command) -> Any:
        """XADD on both sides, and then the same entries."""
        reply = self.both(scripts.add, command)
        for stream in command.named_streams() or ():
            self.same_entries(stream)
        return reply

    def same_entries(self, stream: str) -> None:
        """Both have the same entries."""
        rows = self.server.call("XRANGE", stream, "-", "+")
        key = self.keyspace.find(stream)
        here = [] if key is None else list(key.stream.range(0, ids.ID_MAX).parts)
        assert b",".join([text_of(*row) for row in rows]) == b",".join(here)


def _time_of(reply: Any) -> int | None:
    """When a reply's first entry was added."""
    if isinstance(reply, Added) and not reply.duplicate:
        return ids.ms_of(reply.ids[0])
    if isinstance(reply, Published) and not reply.duplicate:
        return max(ids.ms_of(added.ids[0]) for _, added in reply.streams)
    return None


def _plain(reply: Any) -> Any:
    if isinstance(reply, EngineError):
        return reply.code, reply.redis, reply.detail, reply.members
    if isinstance(reply, Added):
        return list(reply.ids), reply.duplicate, reply.trimmed, reply.pending_affected
    if isinstance(reply, Published):
        return reply.duplicate, [(name, _plain(added)) for name, added in reply.streams]
    return reply
