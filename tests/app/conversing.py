"""A session and what it talks to, without a socket: a keyspace whose answers come when a test says so.

Knows: frames, effects, the engine's pure commands. Must never know: what is being tested.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from app.auth import ANONYMOUS, Principal
from app.doors.websocket.effects import (
    AcquireLease,
    Authenticate,
    Close,
    Effect,
    FetchPage,
    NoteRefusedEnd,
    ReadGroup,
    Rest,
    RunCommand,
    SendFrame,
    SessionLimits,
    Submit,
    Subscribe,
    Unsubscribe,
)
from app.doors.websocket.session import Session
from app.errors import RefusalError
from app.http.cursors import Position
from app.limits import EntryLimits
from app.live.feeds import FeedPage
from engine import EngineError, entries, ids
from engine.commands import Cursor, XAdd, XRange
from engine.commands.execution import Blocked, execute, execute_all
from engine.keyspace import Keyspace
from engine.replies import Entries, GroupRead

Json = dict[str, Any]
LIMITS: Final = SessionLimits(
    subscriptions_max=4,
    streams_max=6,
    ids_max=100,
    lookups_max=50,
    batch_max=100,
    publications=EntryLimits(entries_max=100, entry_bytes_max=1_000, fields_max=10, depth_max=16),
)


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


class SocketWorld:
    """A session, and what it talks to: a keyspace, whose answers come when the test says so."""

    def __init__(self, principal: Principal = ANONYMOUS) -> None:
        self.keyspace = Keyspace()
        self.now_ms = 1_000
        self.session = Session(LIMITS, principal, "r-1", depth_max=16)
        # Whose a token is, or why it is refused; any other is anybody's.
        self.tokens: dict[str, Principal | RefusalError] = {}
        self.sent: list[Json] = []
        self.closed: Close | None = None
        self.under_way: list[Effect] = []
        self.cursors: dict[tuple[int, str], int] = {}
        self.unwritten: list[SendFrame] = []

    # ---- what a test does

    def say(self, op: str, **members: Any) -> list[Json]:
        """Send a frame, let everything come back, and tell what was sent."""
        before = len(self.sent)
        self.tell(op, **members)
        self.settle()
        return self.sent[before:]

    def tell(self, op: str, **members: Any) -> None:
        self.do(self.session.receive(json.dumps({"op": op, **members}).encode()))

    def add(self, stream: str, count: int = 1) -> None:
        """Publish past the session."""
        bodies = [entries.body([("n", str(number))]) for number in range(count)]
        self.run(XAdd(stream=stream, bodies=bodies))
        self.wake()

    def run(self, command: Any) -> Any:
        self.now_ms += 1
        return execute(self.keyspace, command, self.now_ms).reply

    def do(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendFrame):
                self.sent.append(payload(effect.data))
                self.unwritten.append(effect)
            elif isinstance(effect, Close):
                self.closed = effect
            elif isinstance(effect, Unsubscribe):
                self.under_way = [one for one in self.under_way if not self.drops(one, effect.key)]
                self.end_reads(effect.key)
            elif not isinstance(effect, NoteRefusedEnd):
                self.under_way.append(effect)

    def drops(self, effect: Effect, key: int) -> bool:
        return isinstance(effect, FetchPage | Subscribe) and effect.key == key

    def end_reads(self, key: int) -> None:
        for effect in [one for one in self.under_way if isinstance(one, ReadGroup) and one.key == key]:
            self.under_way.remove(effect)
            self.do(self.session.consumers.on_delivery(key, GroupRead(())))

    def settle(self) -> None:
        """Let everything come back that does not wait."""
        while any(self.come_back(effect) for effect in list(self.under_way)):
            pass

    def wake(self) -> None:
        for key, stream in list(self.cursors):
            if self.behind(key, stream):
                self.do(self.session.tails.on_ready(key, stream))

    def behind(self, key: int, stream: str) -> bool:
        found = self.run(XRange(stream=stream, start=self.cursors[key, stream] + 1, end=ids.ID_MAX, count=1))
        return bool(found.count)

    def come_back(self, effect: Effect) -> bool:
        """Whether an answer was there; each way back is one event of the session."""
        if effect not in self.under_way:
            return False
        self.under_way.remove(effect)
        match effect:
            case Submit(token, commands):
                self.now_ms += 1
                replies, _ = execute_all(self.keyspace, commands, self.now_ms)
                self.do(self.session.on_replies(token, replies))
                self.wake()
            case Subscribe(key, streams, _):
                self.opened(key, streams)
            case AcquireLease(key, _):
                self.do(self.session.consumers.on_lease(key))
            case Rest(key):
                self.do(self.session.consumers.on_rested(key))
            case RunCommand(ref, command):
                self.do(self.session.on_command_result(ref, b'{"result":%b}' % command))
            case Authenticate(ref, token):
                self.do(self.session.on_principal(ref, self.tokens.get(token, ANONYMOUS)))
            case FetchPage():
                self.took(effect)
            case ReadGroup(key, command):
                reply = self.run(command)
                if isinstance(reply, Blocked):
                    self.under_way.append(effect)
                    return False
                if isinstance(reply, EngineError):
                    reply = RefusalError(reply.code, reply.detail)
                self.do(self.session.consumers.on_delivery(key, reply))
        return True

    def opened(self, key: int, streams: Any) -> None:
        places = {}
        for stream, (after, _) in streams.items():
            stored = self.keyspace.find(stream)
            latest = stored.stream.last_id if stored is not None else 0
            self.cursors[key, stream] = latest if after is Cursor.LATEST else after
            places[stream] = (Position(self.cursors[key, stream], ""), not self.behind(key, stream))
        self.do(self.session.tails.on_subscribed(key, places))

    def took(self, effect: FetchPage) -> None:
        key, stream = effect.key, effect.stream
        after = self.cursors[key, stream]
        found = self.run(XRange(stream=stream, start=after + 1, end=ids.ID_MAX, count=effect.count_max))
        assert isinstance(found, Entries)
        item = FeedPage(stream, after, found, "") if found.count else None
        if item is not None:
            self.cursors[key, stream] = item.last_id
        self.do(
            self.session.tails.on_page(
                key, item, Position(self.cursors[key, stream], ""), caught_up=not self.behind(key, stream)
            )
        )

    # ---- what a test looks at

    def pushed(self, sub: str) -> list[str]:
        frames = [one for one in self.sent if one["op"] == "entries" and one["sub"] == sub]
        return [entry["id"] for frame in frames for entry in frame["entries"]]

    def texts(self, stream: str) -> list[str]:
        stored = self.keyspace.find(stream)
        if stored is None:
            return []
        found = stored.stream.range(0, ids.ID_MAX)
        return [entry["id"] for entry in json.loads(b"[%b]" % found.json())]


def ops(sent: Sequence[Json]) -> list[str]:
    return [one["op"] for one in sent]


def working(world: SocketWorld, entries: int = 3, **more: Any) -> None:
    world.add("s", entries)
    world.say("consume", sub="w", stream="s", group="g", consumer="c", create="0", **more)


def names_of(session: Session) -> list[str]:
    """The names of a conversation's subscriptions."""
    return list(session.table.by_name)


def key_of(session: Session, name: str) -> int:
    """The key under which a subscription's events come."""
    return session.table.by_name[name].key


def credit_of(session: Session, name: str) -> int | None:
    """What is left of a subscription's credit, None where it is unlimited."""
    return session.table.by_name[name].credit.left
