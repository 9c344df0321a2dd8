"""Ports of which two are asked the same: a connection to each, and what it replies.

Knows: what of a port and of a connection is remembered. Must never know: what is asked.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from app.doors.resp.connection import RespConnection
from app.doors.resp.seen_commands import SeenCommands
from tests.app.resp.conftest import TestedPort, Wire

Word = str | bytes | int


class Side(NamedTuple):
    """A port, and a connection to it."""

    port: TestedPort
    wire: Wire
    connection: RespConnection

    @property
    def has_lane(self) -> bool:
        """Whether the next command may take the lane."""
        return self.connection._lane is not None  # noqa: SLF001

    @property
    def seen(self) -> SeenCommands:
        """What the port remembers."""
        return self.port.server.port.seen_commands

    async def said(self, words: Sequence[Word]) -> object:
        """The reply to a command, or that the connection was closed."""
        try:
            return await self.wire.call(*words)
        except (asyncio.IncompleteReadError, ConnectionError):
            return "closed"


async def side_of(port: TestedPort) -> Side:
    """A connection to this port."""
    wire = await port.connect()
    number = await wire.call("CLIENT", "ID")
    assert isinstance(number, int)
    connection: Any = port.server.port.connections[number]
    return Side(port, wire, connection)
