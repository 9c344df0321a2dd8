"""What is kept of each command of a client: against its rate, in metrics, in the logs, in traces.

Knows: what counts as what, under which names. Must never know: sockets, how a command runs.

    arrives ─► take: one request, bytes of its words ─► runs ─► note: counters, request log, audit, trace
                                                             └► charge: bytes of its reply
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, Protocol

from app import logs
from app.auth import UNAUTHENTICATED, Principal
from app.doors.resp.client import RespClient
from app.errors import CODES, RefusalError
from app.gateway import Gateway
from app.live.budgets import Reservation
from app.redis import wire
from app.redis.runs import RunResult
from app.redis.steps import in_words_of_redis
from app.tenants import Tenant
from app.work import Work
from engine import EngineError
from engine.commands import XReadGroup

# The operations of this port, as `weir_requests_total` names them, begin with it.
ROUTE: Final = "redis"


class PortLog:
    """What all clients of a port have in common: lines of requests, and errors by their first words."""

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        self.lines = logs.RequestLog(settings.log_requests, settings.log_level, settings.log_format)
        self.errors: dict[str, int] = {}


class Output(Protocol):
    """What holds the bytes of a client's replies: its connection."""

    output: Reservation | None

    def reserve_output(self, size: int) -> None:
        """Hold this many bytes for a reply, before it is made. Raises EngineError `overloaded`."""


class Account(Work):
    """The work of one client."""

    __slots__ = ("_client", "_log", "_metered", "_output")

    def __init__(self, gateway: Gateway, client: RespClient, log: PortLog, output: Output) -> None:
        super().__init__(gateway, "resp")
        self._client = client
        self._log = log
        self._output = output
        # Whose rate it has found out.
        self._metered: Principal | None = None

    @property
    def principal(self) -> Principal:
        """Who asks; no caller is known before AUTH, where that is needed."""
        return self._client.principal or UNAUTHENTICATED

    @property
    def host(self) -> str:
        """From which network address."""
        return self._client.host

    @property
    def request_id(self) -> str:
        """How the client is named in logs."""
        return f"resp-{self._client.id}"

    @property
    def tenant(self) -> Tenant:
        """What the client has of the engine. Raises EngineError while there is none."""
        try:
            self._tenant = self.gateway.tenant(self._client.prefix)
        except RefusalError as refusal:
            raise in_words_of_redis(refusal) from None
        return self._tenant

    def reserve(self, size: int) -> None:
        """Hold this many bytes for a reply, before it is made. Raises EngineError `overloaded`."""
        self._output.reserve_output(size)

    @property
    def held(self) -> Reservation | None:
        """What is held for the reply that is being made."""
        return self._output.output

    async def take_turn(self) -> None:
        """Let others go first."""
        await self.gateway.limits.turns.wait(self._client.caller)

    def take_commands(self, requests: int, size: int) -> None:
        """Take commands, and the bytes of their words, from what the rate allows. Raises EngineError."""
        if self._client.principal is not self._metered:
            self._know()
        if self.meter is None:
            return
        try:
            self.meter.take_requests(requests, size)
        except RefusalError as refusal:
            raise in_words_of_redis(refusal) from None

    def charge(self, size: int) -> None:
        """Take the bytes of a reply: what comes next waits until they are paid."""
        if self._client.principal is not self._metered:
            self._know()
        if self.meter is not None:
            self.meter.charge(size)

    def _know(self) -> None:
        """Find out the rate of the caller, who has logged in."""
        self._metered, self.meter = self._client.principal, None
        if self._metered is not None:
            self.begin_metering()

    def take_back(self, outcomes: Iterable[RunResult]) -> None:
        """Undo what was delivered to a client that has left: the last delivery first."""
        for outcome in reversed([*outcomes]):
            if isinstance(outcome, tuple) and isinstance(outcome[0].command, XReadGroup):
                assert self._tenant is not None, "it has run a command"
                self._tenant.take_back(outcome[0].command, outcome[1])

    def refuse(self, refusal: EngineError, name: str = "", number: int = 1) -> bytes:
        """Note that commands were refused, and write what they answer."""
        written = wire.refusal(refusal) * number
        if refusal.code == "rate_limited":
            # It costs nothing: what is charged for the reply is given back.
            self.charge(-len(written))
        self.note_end(name, refusal, number, sent_bytes=len(written))
        return written

    def note_end(
        self, name: str, refusal: EngineError | None = None, number: int = 1, *, sent_bytes: int
    ) -> None:
        """Count commands of this name that have ended together, and log them if that is wanted."""
        status = 200
        if refusal is not None:
            super().note_end(name, refusal, number, sent_bytes=sent_bytes)
            status = CODES[refusal.code].status
            word = refusal.redis.partition(" ")[0]
            self._log.errors[word] = self._log.errors.get(word, 0) + number
        self.gateway.reports.counters.requests[f"{ROUTE} {name}" if name else ROUTE][status] += number
        if status >= self._log.lines.least_status:
            self._write_line(name, status, sent_bytes)

    def _write_line(self, name: str, status: int, sent_bytes: int) -> None:
        clock = self.gateway.clock
        moment = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
        self._log.lines.note(
            logs.RequestLine(
                request_id=self.request_id,
                method=name.upper() or "-",
                path=ROUTE,
                status=status,
                ms=round((clock.monotonic() - self._client.last_used_s) * 1000, 2),
                bytes=sent_bytes,
                timestamp=moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z",
            )
        )

    def note_session_command(self, operation: str, arguments: str, refusal: EngineError | None) -> None:
        """Have the audit log say what was done to the port and its clients."""
        if self.gateway.access.audit.is_on:
            code = "" if refusal is None else refusal.code
            facts = {"action": "admin", "operation": operation, "arguments": arguments}
            self.audit(facts, status=CODES[code].status if code else 200, code=code)
