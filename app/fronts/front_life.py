"""The life of a front's engine: it is there while the front is connected to the engine's process.

Knows: how the gateway of a front gets its engine, its leases and what it shares, and loses them.
Must never know: processes, sockets of clients.

A front whose connection ends answers 503 and ends its readers, as a gateway whose engine restarts. It asks
its supervisor for another connection until there is an engine again.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from app import logs
from app.auth import Principal, TokenPolicy
from app.auth.principal import unpack_principal
from app.auth.revocation_file import RevocationFile, RevocationFileError
from app.auth.revocations import Revocation
from app.auth.tokens import Token
from app.fronts.calls import Calls
from app.fronts.codec import codec_of
from app.fronts.control import LINK, Control
from app.fronts.forwarding import pack_request, unpack_response
from app.fronts.link import Message, ProcessLink
from app.fronts.messages import OF_LEASES, MessageKind
from app.fronts.remote_engine import RemoteEngine, RemoteLeases
from app.http.requests import Request
from app.http.responses import Response
from app.life import Life
from app.metrics.loop_lag import LoopLag
from app.metrics.report import Report
from app.operating import Phase
from engine import errors

# An engine's process that has just ended is not known to be gone yet.
_AGAIN_S: Final = 0.05
_pack_report = codec_of(Report).pack

# A front that cannot read the revocations reads them again after this time.
_READ_AGAIN_S: Final = 5.0


class FrontLife:
    """The engine of a front's gateway: `open`, `keep` until `stop`, `close`, as `EngineLife` has it."""

    def __init__(self, life: Life, control: Control) -> None:
        self.stopping = asyncio.Event()
        self._life = life
        self._gateway = gateway = life.gateway
        self._control = control
        self._connection: FrontConnection | None = None
        self._opened = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lag = LoopLag(gateway.reports.counters.loop_lag)
        control.on_link = self._connect
        life.on_ready.append(self._opened.set)
        gateway.operator.processes.forward = self._forward
        gateway.access.redeem_elsewhere = self._redeem

    async def open(self) -> None:
        """Let the gateway serve, once there is an engine."""
        self._lag.start()
        self._control.start()
        self._control.say(LINK)
        await self.opened()

    async def opened(self) -> None:
        """Return when the gateway serves, or is to stop."""
        opened = asyncio.ensure_future(self._opened.wait())
        stopping = asyncio.ensure_future(self.stopping.wait())
        await asyncio.wait((opened, stopping), return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()
        stopping.cancel()

    async def keep(self) -> None:
        """Go on until `stop`."""
        await self.stopping.wait()

    def stop(self) -> None:
        """Begin nothing new, and end reads that wait."""
        self.stopping.set()
        self._life.drain()

    async def close(self) -> None:
        """End the connection."""
        self._lag.stop()
        if self._gateway.reports.tracer is not None:
            await asyncio.to_thread(self._gateway.reports.tracer.close)
        if self._connection is not None:
            self._connection.link.close()

    @staticmethod
    def give_up(exit_code: int) -> NoReturn:
        """End the process at once."""
        logs.get().critical("a front does not stop", remedy="it ends here as if it were killed")
        os._exit(exit_code)

    # --- connections ----------------------------------------------------------------------------------------

    def _connect(self, to_engine: socket.socket) -> None:
        connection = FrontConnection(self._life, self._lose)
        task = asyncio.ensure_future(
            asyncio.get_running_loop().create_connection(lambda: connection.link, sock=to_engine)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._connection = connection

    def _lose(self) -> None:
        if self._gateway.phase is Phase.READY:
            self._life.enter(Phase.RESTARTING)
        self._life.drop()
        if not self.stopping.is_set():
            asyncio.get_running_loop().call_later(_AGAIN_S, self._control.say, LINK)

    # --- what the engine's process does for the front -------------------------------------------------------

    async def _call(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - what is carried
        if self._connection is None:
            raise errors.restarting()
        return await self._connection.calls.call(name, *arguments)

    async def _forward(self, label: str, request: Request) -> Response:
        return unpack_response(await self._call("run", label, await pack_request(request)))

    async def _redeem(self, ticket: str, origin: str) -> Principal | None:
        principal = await self._call("redeem", ticket, origin)
        return None if principal is None else unpack_principal(principal)


class FrontConnection:
    """One connection to the engine's process, and what lives as long as it."""

    def __init__(self, life: Life, on_lost: Callable[[], None]) -> None:
        self._life = life
        self._gateway = life.gateway
        self._on_lost = on_lost
        self.link: Final = ProcessLink(self._receive, self._lose)
        self._leases = RemoteLeases(self.link)
        self.calls: Final = Calls(
            self.link, {"accept": self._accept, "refuse": self._refuse, "report": self._report}
        )
        self._engine: RemoteEngine | None = None
        self._opening: asyncio.Future[None] | None = None

    async def _open(self, engine: RemoteEngine) -> None:
        """Serve. What was revoked is in the file too: a log that is older does not have all of it."""
        policy = self._gateway.access.policy
        try:
            if isinstance(policy, TokenPolicy):
                file = await asyncio.to_thread(RevocationFile, self._gateway.settings.data)
                policy.revoke(file.kept)
        except RevocationFileError as error:
            remedy = "repair the file: the front serves nothing until it can be read"
            logs.get().critical("revocations cannot be read", reason=str(error), remedy=remedy)
            await asyncio.sleep(_READ_AGAIN_S)
            self.link.close()
            return
        if not self.link.is_lost:
            self._life.open(engine)

    def _receive(self, message: Message) -> None:
        kind = message[0]
        if kind == MessageKind.WELCOME:
            report, failing = message[2]
            self._engine = RemoteEngine(self.link, report)
            self._engine.on_failing = self._note_failing
            self._note_failing(failing)
            self._gateway.leases = self._leases
            self._opening = asyncio.ensure_future(self._open(self._engine))
            self._opening.add_done_callback(_report)
        elif kind in OF_LEASES:
            self._leases.receive(message)
        elif not self.calls.receive(message):
            assert self._engine is not None, "replies come behind the welcome"
            self._engine.receive(message)

    def _note_failing(self, failing: Sequence[str]) -> None:
        self._gateway.operator.health.elsewhere = failing

    def _lose(self) -> None:
        self._gateway.operator.health.elsewhere = ()
        self.calls.lose()
        self._leases.lose()
        if self._engine is not None:
            self._engine.lose()
        self._on_lost()

    async def _accept(self, token: bytes) -> None:
        self._gateway.access.tokens.accept(Token.model_validate_json(token))

    async def _refuse(self, revocation: bytes) -> int:
        return self._gateway.access.tokens.refuse(Revocation.model_validate_json(revocation))

    async def _report(self) -> Any:  # noqa: ANN401 - what is carried
        return _pack_report(self._gateway.operator.report())


def _report(opening: asyncio.Future[None]) -> None:
    if not opening.cancelled() and (error := opening.exception()) is not None:
        context = {"message": "a front does not serve", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
