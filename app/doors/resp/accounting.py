"""What is kept of each command of a client: against its rate, in metrics, in the logs, in traces.

Knows: what counts as what, under which names. Must never know: sockets, how a command runs.

    arrives ─► take: one request, bytes of its words ─► runs ─► note: counters, request log, audit, trace
                                                             └► charge: bytes of its reply
"""

from datetime import UTC, datetime
from typing import Final

from app import logs
from app.auth.rate_limiter import Meter
from app.doors.resp.client import RespClient
from app.errors import CODES, RefusalError
from app.gateway import Gateway
from app.limits import entries_in
from app.redis import CommandRequest, wire
from app.redis.runs import RunResult
from engine import EngineError
from engine.commands import XReadGroup
from engine.replies import GroupRead

# The operations of this port, as `weir_requests_total` names them, begin with it.
ROUTE: Final = "redis"
_LOADING: Final = "LOADING Redis is loading the dataset in memory"


class PortLog:
    """What all clients of a port have in common: lines of requests, and errors by their first words."""

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        self.lines = logs.RequestLog(settings.log_requests, settings.log_level, settings.log_format)
        self.errors: dict[str, int] = {}


class Account:
    """Of one client."""

    def __init__(self, gateway: Gateway, client: RespClient, log: PortLog) -> None:
        self._gateway = gateway
        self._client = client
        self._log = log

    @property
    def request_id(self) -> str:
        """How the client is named in logs."""
        return f"resp-{self._client.id}"

    def _meter(self) -> Meter | None:
        limiter, principal = self._gateway.rate_limiter, self._client.principal
        return None if limiter is None or principal is None else limiter.meter(principal, self._client.host)

    def take(self, commands: int, size: int) -> None:
        """Take commands, and the bytes of their words, from what the rate allows. Raises EngineError."""
        meter = self._meter()
        if meter is not None:
            try:
                meter.take(commands, size)
            except RefusalError as refusal:
                raise in_words_of_redis(refusal) from None

    def charge(self, size: int) -> None:
        """Take the bytes of a reply: what comes next waits until they are paid."""
        meter = self._meter()
        if meter is not None:
            meter.charge(size)

    def refuse(self, refusal: EngineError, name: str = "", number: int = 1) -> bytes:
        """Note that commands were refused, and write what they answer."""
        written = wire.refusal(refusal) * number
        if refusal.code == "rate_limited":
            # It costs nothing: what is charged for the reply is given back.
            self.charge(-len(written))
        self.count(name, refusal, number, sent_bytes=len(written))
        return written

    def note(self, outcome: RunResult, refusal: EngineError | None, sent_bytes: int) -> None:
        """Note how a command on streams has ended."""
        if not isinstance(outcome, tuple):
            self.count("" if refusal else "xadd", refusal, sent_bytes=sent_bytes)
            return
        parsed, reply = outcome
        self.note_audited(parsed, refusal)
        self.count(parsed.name, refusal, sent_bytes=sent_bytes)
        if refusal is not None or reply is None or isinstance(reply, EngineError):
            return
        # Most replies bring none.
        if count := entries_in(reply):
            self._gateway.counters.delivered["resp"] += count
            if isinstance(parsed.command, XReadGroup) and isinstance(reply, GroupRead):
                self._gateway.trace_read(parsed.command.group, parsed.command.consumer, reply)

    def count(
        self, name: str, refusal: EngineError | None = None, number: int = 1, *, sent_bytes: int
    ) -> None:
        """Count commands of this name that have ended together, and log them if that is wanted."""
        counters, status = self._gateway.counters, 200
        if refusal is not None:
            status = CODES[refusal.code].status
            counters.rejected[refusal.code] += number
            word = refusal.redis.partition(" ")[0]
            self._log.errors[word] = self._log.errors.get(word, 0) + number
        counters.requests[f"{ROUTE} {name}" if name else ROUTE][status] += number
        if status >= self._log.lines.least_status:
            self._write_line(name, status, sent_bytes)

    def _write_line(self, name: str, status: int, sent_bytes: int) -> None:
        clock = self._gateway.clock
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

    def note_audited(self, parsed: CommandRequest, refusal: EngineError | None) -> None:
        """Have the audit log say what was done to streams, groups or the gateway, or was refused."""
        audited = parsed.audited if self._gateway.audit.is_on else None
        if audited is not None:
            self._audit({"action": audited[0], "operation": parsed.name, **audited[1]}, refusal)

    def note_session_command(self, operation: str, arguments: str, refusal: EngineError | None) -> None:
        """Have the audit log say what was done to the port and its clients."""
        if self._gateway.audit.is_on:
            self._audit({"action": "admin", "operation": operation, "arguments": arguments}, refusal)

    def _audit(self, facts: dict[str, object], refusal: EngineError | None) -> None:
        code, client = "" if refusal is None else refusal.code, self._client
        status = CODES[code].status if code else 200
        self._gateway.audit.note(
            self.request_id, client.caller, facts, prefix=client.prefix, status=status, code=code
        )


def in_words_of_redis(refusal: RefusalError) -> EngineError:
    """The gateway's refusal; while the log is read, clients of Redis wait at the word LOADING."""
    if refusal.code in {"starting", "restarting"}:
        return EngineError(refusal.code, _LOADING, refusal.detail)
    return EngineError(refusal.code, f"ERR {refusal.detail}", refusal.detail)
