"""The other gateways of the same backend: a consumer has one reader at all of them, and they share tickets
and changes of tokens.

Knows: what gateways say to each other about a consumer, how a ticket is kept for the others.
Must never know: how a message travels, the backend's commands, routes.

    [TAKES, gateway, number, stream, group, name]   a reader of this gateway takes the consumer over
    [LEFT, gateway, number]                         to that gateway: no reader here has it any more

All gateways hear all messages in one order, so of two readers that come at once the later message wins. A
gateway that hangs holds a new reader up for `LEFT_S_MAX`; one that has died is not waited for.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Final

import msgspec

from app.auth.principal import Principal, pack_principal, unpack_principal
from app.auth.tickets import LIFETIME_S, Tickets
from app.live.leases import ConsumerKey, ConsumerLease, ConsumerLeases
from engine import EngineError

if TYPE_CHECKING:
    from engine.cluster import Gateways

LEFT_S_MAX: Final = 2.0
_encode: Final = msgspec.msgpack.encode
_TAKES: Final = 0
_LEFT: Final = 1

# Sends a message to all gateways, and returns how many listen. Raises EngineError.
Say = Callable[[bytes], Awaitable[int]]


class _Takeover:
    """A lease that waits for the other gateways' answers. `done` once no reader is left elsewhere."""

    def __init__(self, before: ConsumerLease | None) -> None:
        self.done: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self.before: Final = before
        self._answers = 0
        self._expected: int | None = None

    def expect(self, answers: int) -> None:
        self._expected = answers
        self._check()

    def answer(self) -> None:
        self._answers += 1
        self._check()

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _check(self) -> None:
        if self._expected is not None and self._answers >= self._expected:
            self.end()


class SharedLeases(ConsumerLeases):
    """All consumer leases of a gateway that has others beside it. `receive` gets what `say` has sent, here
    and there.
    """

    def __init__(self, say: Say) -> None:
        super().__init__()
        self._say = say
        self._gateway = secrets.token_hex(8)
        self._numbers = count()
        self._takeovers: dict[int, _Takeover] = {}
        # Takeovers whose own message has not come back: one that comes before it is of an earlier reader.
        self._unheard: dict[ConsumerKey, tuple[int, _Takeover]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def _elsewhere(self, key: ConsumerKey, before: ConsumerLease | None) -> "asyncio.Future[None]":
        number, takeover = next(self._numbers), _Takeover(before)
        self._takeovers[number] = takeover
        self._unheard[key] = number, takeover
        self._spawn(self._take_over(key, number, takeover))
        return takeover.done

    async def _take_over(self, key: ConsumerKey, number: int, takeover: _Takeover) -> None:
        try:
            listening = await self._say(_encode((_TAKES, self._gateway, number, *key)))
            takeover.expect(listening - 1)
            await asyncio.wait((takeover.done,), timeout=LEFT_S_MAX)
        except EngineError:
            # Without the backend no reader reads anything.
            self._hear(key, number)
        finally:
            takeover.end()
            del self._takeovers[number]

    def receive(self, message: bytes) -> None:
        """Handle a message of any gateway, this one included."""
        kind, gateway, number, *rest = msgspec.msgpack.decode(message)
        if kind == _LEFT:
            takeover = self._takeovers.get(number) if gateway == self._gateway else None
            if takeover is not None:
                takeover.answer()
        elif gateway == self._gateway:
            self._hear(ConsumerKey(*rest), number)
        else:
            self._give_up(ConsumerKey(*rest), partial(self._answer, gateway, number))

    def _hear(self, key: ConsumerKey, number: int) -> None:
        if self._unheard.get(key, (None,))[0] == number:
            del self._unheard[key]

    def _give_up(self, key: ConsumerKey, answer: Callable[[object], None]) -> None:
        """Another gateway has taken the consumer over: answer when no reader is left here."""
        lease = self._leases.get(key.stream, {}).get(key)
        unheard = self._unheard.get(key)
        if unheard is not None:
            # The reader here came later, and waits itself until this message's reader has ended.
            lease = unheard[1].before
        elif lease is not None:
            lease.replace()
        if lease is None or lease.over.done():
            answer(None)
        else:
            lease.over.add_done_callback(answer)

    def _answer(self, gateway: str, number: int, _: object) -> None:
        self._spawn(self._send(_encode((_LEFT, gateway, number))))

    async def _send(self, message: bytes) -> None:
        try:
            await self._say(message)
        except EngineError:
            # The other gateway waits no longer than its bound.
            return

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class OtherGateways:
    """What a gateway with these `tickets` shares over `gateways`, from `join` on."""

    def __init__(self, gateways: "Gateways", tickets: Tickets) -> None:
        self._gateways = gateways
        self._tickets = tickets
        self.leases: Final = SharedLeases(gateways.say)
        # Calls back when another gateway may have changed tokens, and every few seconds.
        self.watch_tokens: Final = gateways.watch_metadata

    async def join(self) -> None:
        """Receive the messages of the others; returns when the backend has answered."""
        await self._gateways.join(self.leases.receive)

    async def keep(self, ticket: str, principal: Principal, origin: str) -> None:
        """Have a ticket redeemed by any of them. Raises EngineError."""
        packed = msgspec.msgpack.encode([origin, pack_principal(principal)])
        await self._gateways.keep(_name(ticket), packed, round(LIFETIME_S * 1000))

    async def redeem(self, ticket: str, origin: str) -> Principal | None:
        """Whose ticket it is, as `Tickets.redeem`. Raises EngineError."""
        # One that was made here is used up here as well.
        self._tickets.redeem(ticket, origin)
        kept = await self._gateways.take_value(_name(ticket))
        if kept is None:
            return None
        wanted, packed = msgspec.msgpack.decode(kept)
        return unpack_principal(packed) if wanted == origin else None


def _name(ticket: str) -> str:
    """A name from which the ticket cannot be found."""
    return f"ticket/{sha256(ticket.encode()).hexdigest()}"
