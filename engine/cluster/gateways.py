"""What the gateways over one backend have of each other: messages, values for one of them, a wake for tokens.

Knows: the keys of these, how a message travels. Must never know: what a message says, what a value is.

    say ──XADD weir/gateways──► a keyspace notification ──► every gateway reads on from where it was

Messages are entries of a stream, so one whose notification is lost comes with the next look. No client can
name these keys: see `engine/name_rules.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from engine.cluster.misfits import Misfit, of_refusal
from engine.cluster.refusals import reason_of
from engine.cluster.routing import BackendRequest, Lane
from engine.cluster.wakeups import Wakeups
from engine.cluster.wire import call
from engine.cluster.words import METADATA_KEY
from engine.errors import EngineError

_MESSAGES: Final = "weir/gateways"
# A gateway that is away for longer finds neither its readers nor their leases as they were.
_MESSAGES_KEPT: Final = 10_000
_READ_COUNT: Final = 1_000
_FIELD: Final = "m"
# A backend that does not answer is asked again after this time.
_AGAIN_S: Final = 1.0

Take = Callable[[bytes], None]
Run = Callable[[BackendRequest], Awaitable[Any]]


class Gateways:
    """This gateway's way to the others. `run` runs a request and raises EngineError."""

    def __init__(self, run: Run, wakeups: Wakeups) -> None:
        # Why this gateway cannot join; None while nothing is wrong.
        self.failure: str | None = None
        self._run = run
        self._wakeups = wakeups
        self._take: Take | None = None
        self._last_id = b"-"
        self._reading: asyncio.Task[None] | None = None
        self._again = False

    async def join(self, take: Take) -> None:
        """Call `take` with each message from now on, this gateway's own too, in one order everywhere. Returns
        when the backend has answered; `failure` says why it has not.
        """
        self._take = take
        await self._find_newest()
        self._wakeups.watch(_MESSAGES, self._look)

    async def say(self, message: bytes) -> int:
        """Send a message to all gateways. Returns how many listen, this one included. Raises EngineError."""
        add = ("XADD", _MESSAGES, "MAXLEN", "~", _MESSAGES_KEPT, "*", _FIELD, message)
        ask = ("PUBSUB", "NUMSUB", self._wakeups.channel_of(_MESSAGES))
        heard = _request(_MESSAGES, [add, ask], lambda results: int(results[1][1]), Lane.GROUP)
        count: int = await self._run(heard)
        return count

    async def keep(self, name: str, value: bytes, lifetime_ms: int) -> None:
        """Keep a value for the gateway that takes it. Raises EngineError."""
        key = _value_key(name)
        await self._run(
            _request(key, [("SET", key, value, "PX", lifetime_ms)], lambda results: results[0], Lane.WRITE)
        )

    async def take_value(self, name: str) -> bytes | None:
        """Take a value; it is there for one call, over all gateways. Raises EngineError."""
        key = _value_key(name)
        value: bytes | None = await self._run(
            _request(key, [("GETDEL", key)], lambda results: results[0], Lane.WRITE)
        )
        return value

    def watch_metadata(self, changed: Callable[[], None]) -> None:
        """Call `changed` when another gateway may have changed metadata, and every `poll_s`, about."""
        self._wakeups.watch(METADATA_KEY, changed)

    async def _find_newest(self) -> None:
        """Leave out what was said before."""
        newest = _request(
            _MESSAGES,
            [("XREVRANGE", _MESSAGES, "+", "-", "COUNT", 1)],
            lambda results: results[0][0][0] if results[0] else None,
            Lane.READ,
        )
        while True:
            try:
                last_id = await self._run(newest)
            except EngineError as error:
                reason = of_refusal(reason_of(error))
                text = f"{_MESSAGES}: {reason}"
                self.failure = Misfit(text) if isinstance(reason, Misfit) else text
                await asyncio.sleep(_AGAIN_S)
            else:
                self.failure = None
                self._last_id = b"-" if last_id is None else b"(" + last_id
                return

    def _look(self) -> None:
        self._again = True
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
            self._reading.add_done_callback(self._ended)

    def _ended(self, _: object) -> None:
        self._reading = None
        if self._again:
            # Asked for between the last read and this.
            self._look()

    async def _read(self) -> None:
        """Read until nothing is left. What a backend that is away has refused comes with the next look."""
        while self._again:
            self._again = False
            words = ("XRANGE", _MESSAGES, self._last_id, "+", "COUNT", _READ_COUNT)
            try:
                rows = await self._run(_request(_MESSAGES, [words], lambda results: results[0], Lane.READ))
            except EngineError:
                self._again = False
                return
            for entry_id, fields in rows:
                self._last_id, self._again = b"(" + entry_id, True
                call(self._hand_on, fields)

    def _hand_on(self, fields: Sequence[bytes]) -> None:
        assert self._take is not None, "a gateway has joined before it looks"
        _, message = fields
        self._take(message)


def _value_key(name: str) -> str:
    return f"weir/kept/{name}"


def _request(
    key: str, commands: Sequence[Sequence[Any]], decode: Callable[[Sequence[Any]], Any], lane: Lane
) -> BackendRequest:
    return BackendRequest(stream=key, commands=commands, decode=decode, lane=lane)
