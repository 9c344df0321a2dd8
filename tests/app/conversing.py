"""A session on a host of its own: no server, and an engine that is a keyspace.

Knows: frames, what a session asks of its host, the engine's pure commands.
Must never know: what is being tested.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple

from app.auth import ANONYMOUS, Principal
from app.doors.websocket.frame_reader import Ref
from app.doors.websocket.session import Session
from app.doors.websocket.socket_link import NEVER_SENT
from app.doors.websocket.subscription_table import Replies, SessionLimits, Subscription
from app.errors import RefusalError
from app.limits import EntryLimits
from app.live.budgets import Pool
from app.live.leases import ConsumerLeases
from app.live.readers import Gate
from app.tenants import Tenant
from app.tenants.tenant import SettlingEngine
from engine import Call, Done, EngineError, How, entries, ids
from engine import Replies as EngineReplies
from engine.commands.base import Command
from engine.commands.execution import Blocked, execute, execute_all
from engine.commands.types import XAdd, XReadGroup
from engine.keyspace import Keyspace
from engine.replies import GroupRead
from tests.engine.clocks import HandClock, settle

Json = dict[str, Any]
LIMITS: Final = SessionLimits(
    subscriptions_max=4,
    streams_max=6,
    ids_max=100,
    lookups_max=50,
    batch_max=100,
    publications=EntryLimits(entries_max=100, entry_bytes_max=1_000, fields_max=10, depth_max=16),
)
# Little, so that a test fills it: what a wire holds before nothing should join it.
_FULL_BYTES: Final = 400
# Longer than a pump rests, or waits between two looks.
_A_WHILE_MS: Final = 2_000


def payload(data: bytes) -> Json:
    """The JSON of a frame on the wire: unmasked, whole, with the length that it has."""
    assert data[0] == 0x81
    length, at = data[1], 2
    if length >= 126:
        at = 4 if length == 126 else 10
        length = int.from_bytes(data[2:at], "big")
    assert len(data) == at + length
    frame: Json = json.loads(data[at:])
    return frame


class Wire:
    """The socket of a conversation, with a peer that takes what it likes when it likes."""

    def __init__(self) -> None:
        self.frames: list[Json] = []
        self.stalled = False
        self.closed: tuple[int, str] | None = None
        self.held = False
        self._waiting: list[bytes] = []
        self._written_bytes = 0

    @property
    def paused(self) -> bool:
        return bool(self._waiting) or self.closed is not None

    @property
    def full(self) -> bool:
        return self.closed is not None or sum(map(len, self._waiting)) > _FULL_BYTES

    @property
    def sent_bytes(self) -> int:
        return self._written_bytes - sum(map(len, self._waiting))

    def write_frame(self, data: bytes) -> int:
        if self.closed is not None:
            return NEVER_SENT
        self._written_bytes += len(data)
        self._waiting.append(data)
        if not self.stalled:
            self.take(len(self._waiting))
        return self._written_bytes

    def write_alone(self, data: bytes) -> bool:
        return not self.paused and self.write_frame(data) != NEVER_SENT

    def take(self, frames: int) -> None:
        """The peer takes this number of waiting frames."""
        taken, self._waiting = self._waiting[:frames], self._waiting[frames:]
        self.frames += map(payload, taken)

    def hold(self, *, held: bool) -> None:
        self.held = held

    def close_with(self, code: int, reason: str) -> None:
        if self.closed is None:
            self.closed = (code, reason)


class _Waiting(NamedTuple):
    """A read that waits."""

    call: Call
    done: Done


class KeyspaceEngine:
    """Runs commands on a keyspace; reads that wait are served behind the next command."""

    durability = delivery_durability = "os"

    def __init__(self) -> None:
        self.keyspace = Keyspace()
        self.now_ms = 1_000
        self.calls: list[Call] = []
        # Not in the step in which it is asked.
        self.answers_later = False
        # Why commands of these kinds are refused.
        self.refusals: dict[type[Command], EngineError] = {}
        self._waiting: list[_Waiting] = []

    def send(self, call: Call, done: Done) -> EngineReplies | None:
        self.calls.append(call)
        if call.waits is None:
            found = [self.refusals.get(type(command)) for command in call.commands]
            refusal = next((one for one in found if one is not None), None)
            asyncio.get_running_loop().call_soon(self.serve)
            replies = self._run(call) if refusal is None else call.refused(refusal)
            if not self.answers_later:
                return replies
            asyncio.get_running_loop().call_soon(done, replies)
            return None
        one = _Waiting(call, done)
        self._waiting.append(one)
        call.waits.wait(lambda: self._end(one, GroupRead(())), lambda: self._waiting.remove(one))
        asyncio.get_running_loop().call_soon(self.serve)
        return None

    def _run(self, call: Call) -> EngineReplies:
        self.now_ms += 1
        return execute_all(self.keyspace, call.commands, self.now_ms)[0]

    def _end(self, one: _Waiting, reply: Any) -> None:
        if one in self._waiting:
            self._waiting.remove(one)
            asyncio.get_running_loop().call_soon(one.done, [reply])

    def serve(self) -> None:
        """Answer the reads for which there is something."""
        for one in [*self._waiting]:
            (command,) = one.call.commands
            reply = self.refusals.get(type(command)) or self.execute(command)
            if not isinstance(reply, Blocked):
                self._end(one, reply)

    def execute(self, command: Command) -> Any:
        self.now_ms += 1
        return execute(self.keyspace, command, self.now_ms).reply

    def lose(self, error: EngineError, *, delivers: bool = False) -> None:
        """Refuse the reads for groups that wait; they may have delivered entries before."""
        for one in [*self._waiting]:
            (command,) = one.call.commands
            if isinstance(command, XReadGroup):
                if delivers:
                    self.execute(command)
                self._end(one, error)


_open: Final[list["EngineWorld"]] = []


def close_all() -> None:
    """End all worlds of a test."""
    while _open:
        _open.pop().end()


class EngineWorld:
    """An engine and what readers have of it, on an event loop that a test runs."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        _open.append(self)
        self.clock = HandClock()
        self.clock.drive(self.loop)
        self.engine = KeyspaceEngine()
        leases = ConsumerLeases()
        self.tenant = Tenant("", SettlingEngine(self.engine, leases), leases)

    def do(self, act: Callable[..., object], *arguments: Any, **named: Any) -> None:
        """Call something that needs the loop."""

        async def done() -> None:
            act(*arguments, **named)

        self.loop.run_until_complete(done())

    def add(self, stream: str, count: int = 1) -> None:
        """Publish past the readers."""
        bodies = [entries.body([("n", str(number))]) for number in range(count)]
        self.run(XAdd(stream=stream, bodies=bodies))

    def run(self, command: Command) -> Any:
        reply = self.engine.execute(command)
        self.do(self.engine.serve)
        return reply

    def settle(self) -> None:
        """Let everything come back that does not wait, and what rests go on."""
        for _ in range(4):
            self.pass_cycles()
            self.clock.pass_ms(0, _A_WHILE_MS // 4)
        self.pass_cycles()

    def pass_cycles(self) -> None:
        """The same, while no time passes."""
        asked = -1
        while asked != len(self.engine.calls):
            asked = len(self.engine.calls)
            self.loop.run_until_complete(settle())

    def step(self) -> None:
        """One turn of the loop."""
        self.loop.run_until_complete(asyncio.sleep(0))

    def end(self) -> None:
        """What follows streams ends."""
        self.do(self.tenant.feeds.close)
        self.loop.run_until_complete(settle())
        self.loop.close()

    @property
    def keyspace(self) -> Keyspace:
        return self.engine.keyspace

    def texts(self, stream: str) -> list[str]:
        stored = self.keyspace.find(stream)
        if stored is None:
            return []
        found = stored.stream.range(0, ids.ID_MAX)
        return [entry["id"] for entry in json.loads(b"[%b]" % found.json())]


class SocketWorld(EngineWorld):
    """A session and its host."""

    def __init__(self, principal: Principal = ANONYMOUS) -> None:
        super().__init__()
        self.gate = Gate()
        self.link = Wire()
        self.output = Pool("output", 1 << 30, self.clock.monotonic)
        self.caller = "anyone"
        # Whose a token is, or why it is refused; any other is anybody's.
        self.tokens: dict[str, Principal | RefusalError] = {}
        self.sent = self.link.frames
        # The entries of each frame that may go back.
        self.unwritten: list[tuple[Subscription, Sequence[int]]] = []
        self.synced: list[bool] = []
        self.failure: Exception | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.session = Session(self, LIMITS, principal, "r-1", depth_max=16)

    # ---- what a test does

    def say(self, op: str, **members: Any) -> list[Json]:
        """Send a frame, let everything come back, and tell what was sent."""
        before = len(self.sent)
        self.tell(op, **members)
        self.settle()
        return self.sent[before:]

    def tell(self, op: str, **members: Any) -> None:
        self.do(self.session.receive, json.dumps({"op": op, **members}).encode())

    # ---- what a test looks at

    @property
    def closed(self) -> tuple[int, str] | None:
        return self.link.closed

    def pushed(self, sub: str) -> list[str]:
        frames = [one for one in self.sent if one["op"] == "entries" and one["sub"] == sub]
        return [entry["id"] for frame in frames for entry in frame["entries"]]

    # ---- the host

    def send(self, data: bytes) -> None:
        self.link.write_frame(data)

    def deliver(self, data: bytes, work: Subscription, count: int, entry_ids: Sequence[int] = ()) -> None:
        self.send(data)
        if entry_ids:
            self.unwritten.append((work, entry_ids))

    def refuse(self, data: bytes, code: str) -> None:
        assert payload(data)["problem"]["code"] == code
        self.send(data)

    def flush(self) -> None:
        """Nothing is shared."""

    def submit(
        self,
        commands: Sequence[Command],
        done: Callable[[Replies], None],
        *,
        synced: bool = False,
        traceparent: bytes | None = None,
    ) -> None:
        self.synced.append(synced)
        how = How.ALONE if len(commands) == 1 else How.TOGETHER
        replies = self.tenant.engine.send(Call(commands, how), done)
        if replies is not None:
            # As where it waits for others of its cycle.
            self.loop.call_soon(done, replies)

    def authenticate(self, ref: Ref, token: str) -> None:
        self.loop.call_soon(self.session.on_principal, ref, self.tokens.get(token, ANONYMOUS))

    def run_command(self, ref: Ref, command: bytes) -> None:
        self.loop.call_soon(self.session.on_command_result, ref, b'{"result":%b}' % command)

    def open(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object]:
        self.spawn(work())
        return lambda: None

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def call_later(self, seconds: float, act: Callable[[], None]) -> None:
        self.loop.call_later(seconds, act)

    def note_refused_end(self, stream: str, code: str) -> None:
        """Nothing is audited."""

    def trace_read(self, command: XReadGroup, reply: GroupRead) -> None:
        """Nothing is traced."""

    def note_delivered(self, number: int) -> None:
        """Nothing is counted."""

    def close(self, code: int, reason: str) -> None:
        self.link.close_with(code, reason)

    def fail(self, error: Exception) -> None:
        self.failure = error


def ops(sent: Sequence[Json]) -> list[str]:
    return [one["op"] for one in sent]


def working(world: SocketWorld, entries: int = 3, **more: Any) -> None:
    world.add("s", entries)
    world.say("consume", sub="w", stream="s", group="g", consumer="c", create="0", **more)


def names_of(session: Session) -> list[str]:
    """The names of a conversation's subscriptions."""
    return list(session.table.by_name)


def named(session: Session, name: str) -> Subscription:
    """The subscription of this name."""
    return session.table.by_name[name]


def credit_of(session: Session, name: str) -> int | None:
    """What is left of a subscription's credit, None where it is unlimited."""
    return session.table.by_name[name].credit.left
