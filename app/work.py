"""One caller's work, by whichever way in it came: what holds for all of it, and is written once.

    take: requests, bytes in ─► authorise ─► reserve: bytes of the reply ─► the engine
                                                  └─► note_reply, note_end, audit ─► charge: bytes out

Knows: who asks, the caller's rate, what is held for its replies, metrics, the audit log, traces.
Must never know: how a request is read, how a reply is encoded, sockets, media types.
"""

from collections.abc import Callable, Sequence

from app.auth import Principal
from app.auth.audit import Facts
from app.auth.rate_limiter import Meter, caller_of
from app.gateway import Gateway
from app.limits import entries_in, text_bytes
from app.live.budgets import FREE_BYTES, Reservation
from app.metrics.counters import Door
from app.tenants import Tenant
from engine import Call, CommandEngine, EngineError, How, Reader, ask_one
from engine.commands.base import Command
from engine.commands.types import XReadGroup
from engine.replies import Dropped, GroupRead, Reply

# Holds bytes for replies before they are made. Raises EngineError `overloaded`.
Reserve = Callable[[int], None]


class Work:
    """What one request, or one connection of commands, asks for. Ways in derive from it."""

    __slots__ = ("_put_off_bytes", "_tenant", "door", "gateway", "meter")

    def __init__(self, gateway: Gateway, door: Door) -> None:
        self.gateway = gateway
        # By which API its entries leave, for the metrics.
        self.door: Door = door
        # Counts for its caller; None without a limit.
        self.meter: Meter | None = None
        self._tenant: Tenant | None = None
        # What is to be reserved if its replies are not there at once.
        self._put_off_bytes = 0

    # ---- who asks

    @property
    def principal(self) -> Principal:
        """Who asks."""
        raise NotImplementedError

    @property
    def host(self) -> str:
        """From which network address."""
        raise NotImplementedError

    @property
    def request_id(self) -> str:
        """What it is called in logs."""
        raise NotImplementedError

    @property
    def caller(self) -> str:
        """Whose it is, for what counts by caller: the principal's name, or else the network address."""
        return caller_of(self.principal, self.host)

    @property
    def tenant(self) -> Tenant:
        """What its caller has of the engine: the same from the first use to the answer.

        Raises `starting`, `draining`.
        """
        tenant, prefix = self._tenant, self.principal.prefix
        if tenant is None or tenant.prefix != prefix:
            tenant = self._tenant = self.gateway.tenant(prefix)
        return tenant

    @property
    def engine(self) -> CommandEngine:
        """The engine, with the caller's names of streams. Raises `starting`, `draining`."""
        return self.tenant.engine

    # ---- the caller's rate

    def begin_metering(self) -> None:
        """Find out which rate its caller has. Without one, nothing is counted."""
        limiter = self.gateway.limits.rates
        if limiter is not None:
            self.meter = limiter.meter(self.principal, self.host)

    def take_requests(self, requests: int, size: int) -> None:
        """Count requests, and bytes that came, against the caller's rate. Raises `rate_limited`."""
        if self.meter is not None:
            self.meter.take_requests(requests, size)

    def give_back(self) -> None:
        """Undo the count: what serves it instead counts it again."""
        if self.meter is not None:
            self.meter.give_back()

    def charge(self, size: int) -> None:
        """Count the bytes of an answer: what comes next waits until they are paid."""
        if self.meter is not None:
            self.meter.charge(size)

    # ---- what it takes of memory

    def reserve(self, size: int) -> None:
        """Hold this many bytes for an answer, before it is made. Raises EngineError `overloaded`."""
        raise NotImplementedError

    @property
    def held(self) -> Reservation | None:
        """What is held for the answer that is being made."""
        raise NotImplementedError

    def answer_bound(self, commands: Sequence[Command]) -> int:
        """What to hold for the answer of these commands."""
        return self.gateway.limits.budgets.before_run(self.gateway.limits.commands.answer_bound(commands))

    def reserve_for(self, *commands: Command) -> None:
        """Hold what these commands may answer, before one of them runs. Raises EngineError `overloaded`."""
        bound = self.answer_bound(commands)
        if bound > FREE_BYTES:
            self.reserve(bound)

    def note_run(self, replies: Sequence[Reply | EngineError]) -> None:
        """Hold what the replies take, while they wait for the log, and not what they might have taken."""
        held = self.held
        if held is not None:
            held.shrink(sum(map(text_bytes, replies)))

    def note_arrived(self, *replies: Reply | EngineError) -> None:
        """Hold what the replies take, where that is more than was expected."""
        held = self.held
        if held is not None:
            held.extend(sum(map(text_bytes, replies)))

    def call(self, commands: Sequence[Command], how: How = How.ALONE, *, synced: bool = False) -> Call:
        """What the engine is asked: within the caller's quotas, and with what is held for the replies."""
        caller = self.caller
        return Call(
            commands,
            how,
            synced=synced,
            quotas=self.principal.quotas,
            origin=self.request_id,
            on_run=self.note_run,
            # Reads over HTTP go on in the archive.
            reader=Reader(caller) if self.door == "rest" else None,
            caller=caller,
        )

    @property
    def reader(self) -> Reader | None:
        """Whose reads go on in the archive: those over HTTP do."""
        return Reader(self.caller) if self.door == "rest" else None

    async def take_turn(self) -> None:
        """Before long work, or a piece of it: let others go first, those of other callers above all."""
        await self.gateway.limits.turns.wait(self.caller)

    async def reply_to(self, command: Command, *, synced: bool = False) -> Reply:
        """The reply to one command, of which nothing is counted yet. Raises EngineError."""
        return await self.run_now(command, synced=synced)

    async def run_now(self, command: Command, *, synced: bool = False) -> Reply:
        """The reply to a command that does not wait. Raises EngineError."""
        self.reserve_for(command)
        reply = await ask_one(self.engine, self.call((command,), synced=synced))
        self.note_arrived(reply)
        return reply

    # ---- what is kept of it

    def note_given(self, command: Command | None, reply: Reply | EngineError | None) -> None:
        """What a group has given may have to be taken back."""

    def undo_read(self, command: XReadGroup, reply: Reply | EngineError | None) -> None:
        """Take back what a group has given: it does not leave."""
        # The one that has delivered it: a gateway that stops gives no other.
        assert self._tenant is not None, "it has delivered something"
        self._tenant.take_back(command, reply)

    def note_reply(self, command: Command | None, reply: Reply) -> None:
        """Count the entries that leave with a reply, and trace what a group is given."""
        # Most replies bring none.
        if count := entries_in(reply):
            self.gateway.reports.counters.deliver(self.door, count)
            if isinstance(command, XReadGroup) and isinstance(reply, GroupRead):
                self.gateway.reports.trace_read(command, reply)

    def note_end(
        self, name: str, refusal: EngineError | None = None, number: int = 1, *, sent_bytes: int
    ) -> None:
        """Count commands of this name, among others of the same request, that have ended together."""
        if refusal is not None:
            self.gateway.reports.counters.refuse(refusal.code, number)

    def audit(self, facts: Facts, *, status: int, code: str) -> None:
        """Have the audit log say what was done: with this status, and this code where it was refused. Callers
        without a token are known by their addresses.
        """
        prefix = self.principal.prefix
        self.gateway.access.audit.note(
            self.request_id, self.caller, facts, prefix=prefix, status=status, code=code
        )


def dropped(reply: Reply | EngineError | None) -> Facts:
    """What the audit log says of schedules that have gone with streams, by the reply of what ended these."""
    return {"schedules_dropped": reply.schedules} if isinstance(reply, Dropped) else {}
