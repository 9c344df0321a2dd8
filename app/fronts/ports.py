"""All fronts, as the engine's process serves them.

Knows: which fronts are connected, what is sent to all of them. Must never know: processes.
"""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from app import logs
from app.auth.principal import Packed, pack_principal
from app.auth.revocations import Revocation
from app.auth.tokens import Token
from app.fronts.calls import Handler
from app.fronts.codec import codec_of
from app.fronts.engine_port import EnginePort
from app.fronts.forwarding import Operations
from app.http.operations.operation import Operation
from app.life import Life
from app.metrics.report import LastReports, Report
from app.operating import Phase
from engine import EngineError

# A front that does not answer in this time has its connection ended: it may not go on as if it had heard.
_ANSWER_S_MAX: Final = 5.0
_unpack_report = codec_of(Report).unpack


class FrontPorts:
    """The fronts of one gateway. Call `open` whenever its engine may be used."""

    def __init__(self, life: Life, operations: Mapping[str, Operation]) -> None:
        self._gateway = gateway = life.gateway
        self._ports: set[EnginePort] = set()
        # Connections that came while there was no engine.
        self._early: list[socket.socket] = []
        self._handlers: dict[str, Handler] = {
            "run": Operations(gateway, operations).run,
            "redeem": self._redeem,
        }
        self._tasks: set[asyncio.Task[Any]] = set()
        self._last_reports = LastReports()
        gateway.operator.processes.reports = self._reports
        life.on_restart.append(self.close)
        life.on_ready.append(self._open)
        if gateway.access.has_tokens:
            gateway.access.tokens.on_created = self._created
            gateway.access.tokens.on_revoked = self._revoked

    def add(self, connection: socket.socket) -> None:
        """Serve a front on this connection, as soon as the engine may be used."""
        self._early.append(connection)
        if self._gateway.phase is Phase.READY:
            self._open()

    def close(self) -> None:
        """End all connections: the engine is gone. What it has answered still goes out."""
        for port in list(self._ports):
            port.link.end()

    def _open(self) -> None:
        early, self._early = self._early, []
        for connection in early:
            task = asyncio.ensure_future(self._connect(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, connection: socket.socket) -> None:
        gateway = self._gateway
        port = EnginePort(
            gateway.engine, gateway.leases, self._handlers, lambda: gateway.operator.health.failing
        )
        port.on_lost = self._ports.discard
        self._ports.add(port)
        await asyncio.get_running_loop().create_connection(lambda: port.link, sock=connection)
        port.welcome()

    async def _redeem(self, ticket: str, origin: str) -> Packed | None:
        principal = self._gateway.access.tickets.redeem(ticket, origin)
        return None if principal is None else pack_principal(principal)

    # --- what all fronts hear of ----------------------------------------------------------------------------

    async def _created(self, token: Token) -> None:
        await self._call_all("accept", token.model_dump_json(exclude_none=True).encode())

    async def _revoked(self, revocation: Revocation) -> int:
        return sum(await self._call_all("refuse", revocation.model_dump_json(exclude_none=True).encode()))

    async def _reports(self) -> Sequence[Report]:
        packed = await self._call_all("report")
        return self._last_reports.complete([_unpack_report(report) for report in packed])

    async def _call_all(self, name: str, *arguments: object) -> list[Any]:
        """What the fronts answer; those that do not are left out, and have to begin anew."""
        asked = [self._call(port, name, *arguments) for port in list(self._ports)]
        return [answer for answer in await asyncio.gather(*asked) if answer is not None]

    @staticmethod
    async def _call(port: EnginePort, name: str, *arguments: object) -> Any:  # noqa: ANN401 - what is carried
        try:
            async with asyncio.timeout(_ANSWER_S_MAX):
                return await port.calls.call(name, *arguments)
        except (EngineError, TimeoutError) as error:
            if not port.link.is_lost:
                remedy = "its connection is ended, and it begins anew; report this line"
                logs.get().error("a front does not answer", call=name, reason=repr(error), remedy=remedy)
                port.close()
            return None
