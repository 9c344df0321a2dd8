"""Everything behind a socket, as it runs: engine, feeds, pump, session, and a wire that a test holds.

Knows: an event loop that a test runs step by step, frames, how much of what was written has left.
Must never know: what is tested.
"""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing
from typing import Any, Final, Literal, TypeVar

import hypothesis.strategies as st
import pytest

from app.auth import ANONYMOUS
from app.doors.websocket.connection import Connection
from app.doors.websocket.frames import HelloFrame, HelloLimits
from app.doors.websocket.session import Session
from app.doors.websocket.subscription_table import SessionLimits
from app.fronts.remote_engine import RemoteEngine
from app.http.plan import HeadPlan
from app.http.requests import Request
from app.http.responses import Exchange
from app.live.leases import ConsumerKey, ConsumerLease, ConsumerLeases
from app.main import App, create_app
from app.settings import Settings
from engine import Engine, Fsync, entries, errors, ids
from engine.commands.base import Command
from engine.commands.types import Trim, XAdd, XTrim
from engine.replies import Reply
from tests.app.conversing import Wire
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock, let_threads_run, settle

T = TypeVar("T")
Json = dict[str, Any]

_PATIENCE_S: Final = 60.0
_SEQUENCE_MAX: Final = (1 << ids.SEQUENCE_BITS) - 1
HELLO: Final = HelloFrame(
    version=1,
    limits=HelloLimits(
        frame_bytes_max=1 << 16,
        entry_bytes_max=1 << 12,
        batch_entries_max=100,
        subscriptions_max=8,
        streams_max=16,
        ids_max=100,
        lookups_max=50,
        credit_max=1_000_000,
    ),
    heartbeat_ms=15_000,
)


class PushPeer:
    """A conversation over a wire."""

    def __init__(self, house: "PushWorld", kind: type[Session], address: str) -> None:
        scope = {"headers": [], "client": (address, 4_711)}
        exchange = Exchange(HeadPlan("GET", b"/", b"", {}), "r-1")
        request = Request(house.app.gateway, scope, asyncio.Event().wait, exchange)  # type: ignore[arg-type]
        request.principal = ANONYMOUS
        settings = house.app.gateway.settings
        limits = SessionLimits(
            subscriptions_max=8,
            streams_max=16,
            ids_max=100,
            lookups_max=50,
            batch_max=settings.count_max,
            publications=house.app.gateway.limits.publications,
        )
        self.wire = Wire()
        share = house.app.gateway.limits.connections.enter(request.caller)
        self.push = Connection(house.hub, self.wire, request, share, limits, kind)
        self.session = self.push.session
        self.push.begin(HELLO)

    @property
    def frames(self) -> list[Json]:
        return self.wire.frames

    def say(self, op: str, **members: Any) -> None:
        """Send a frame."""
        self.push.received(json.dumps({"op": op, **members}).encode())

    def stall(self) -> None:
        """Take nothing for the time being."""
        self.wire.stalled = True

    def release(self) -> None:
        """Take all that waits."""
        self.wire.stalled = False
        self.wire.take(1 << 30)
        self.push.resumed()

    def lose(self, frames: int = 0) -> None:
        """The connection breaks after this number of waiting frames."""
        self.wire.take(frames)
        sent_bytes = self.wire.sent_bytes
        self.wire.close_with(1006, "lost")
        self.push.lost(sent_bytes)


class PushWorld:
    """A gateway on an event loop of its own, under clocks that the test moves. `close` it."""

    def __init__(self, settings: Settings, fsync: Fsync = "everysec") -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = HandClock()
        self.clock.drive(self.loop)
        self.errors: list[Json] = []
        self.loop.set_exception_handler(lambda _, result: self.errors.append(result))
        self.peers: list[PushPeer] = []
        self.run(self._begin(settings, fsync))

    async def _begin(self, settings: Settings, fsync: Fsync) -> None:
        self.engine = Engine.open(None, clock=self.clock, fsync=fsync)
        await self.engine.start()
        self.app: App = create_app(settings, self.clock)
        self.app.life.open(await self.served())
        self.hub = self.app.sockets.hub

    async def served(self) -> Engine | RemoteEngine:
        """The engine as the gateway has it."""
        return self.engine

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def step(self) -> None:
        """One turn of the loop."""
        self.run(asyncio.sleep(0))

    def settle(self) -> None:
        """Let everything happen that can happen now; pages gather for a moment."""
        for _ in range(3):
            self.run(settle())
            self.clock.pass_ms(0, 6)
        self.run(settle())

    def until(self, holds: Callable[[], bool]) -> None:
        """Let things happen until it holds; the disk is a thread, which has a time of its own."""
        deadline = time.monotonic() + _PATIENCE_S
        self.settle()
        while not holds():
            assert time.monotonic() < deadline, "it never held"
            self.run(let_threads_run())
            self.settle()

    def connect(self, kind: type[Session] = Session, address: str = "192.0.2.1") -> PushPeer:
        """A new conversation, by a session of this kind, of the caller at this address."""

        async def connected() -> PushPeer:
            return PushPeer(self, kind, address)

        self.peers.append(self.run(connected()))
        return self.peers[-1]

    def do(self, act: Any, *arguments: Any, **named: Any) -> None:
        """Call something that needs the loop to be running."""

        async def done() -> None:
            act(*arguments, **named)

        self.run(done())

    def execute(self, command: Command) -> Reply:
        return self.run(reply_to(self.engine, command))

    def close(self) -> None:
        self.run(self._end())
        self.loop.close()

    async def _end(self) -> None:
        for peer in self.peers:
            if not peer.push.closed.done():
                peer.lose()
        await settle()
        # It may have stopped.
        opened = self.app.gateway.opened
        assert opened is not None, "it was opened"
        tenants = opened.tenants
        waiting, following = self.engine.figures().waiting, len(tenants.plain.feeds)
        self.engine.check()
        tenants.plain.feeds.close()
        await self.engine.close()
        await settle()
        assert (waiting, following) == (0, 0), "nothing stays behind"
        assert self.errors == [], "no callback has failed"


class Stored:
    """What was ever published to a stream, and what of it is left: the test's own account."""

    def __init__(self, house: PushWorld, stream: str) -> None:
        self._house = house
        self.stream = stream
        self.all: list[int] = []
        self.kept_from = 0

    @property
    def live(self) -> list[int]:
        return self.all[self.kept_from :]

    @property
    def last(self) -> int:
        return self.all[-1] if self.all else 0

    def add(self, steps: Sequence[int]) -> None:
        """Publish entries in one turn, each so far behind the one before; 1 is its neighbour."""
        new: list[int] = []
        for step in steps:
            new.append((new[-1] if new else self.last) + step)
        bodies = [entries.body([("n", str(entry_id))]) for entry_id in new]
        self._house.execute(XAdd(stream=self.stream, bodies=bodies, ids=new))
        self.all += new

    def trim(self, kept: int) -> None:
        """Keep the newest."""
        self._house.execute(XTrim(stream=self.stream, trim=Trim(maxlen=kept)))
        self.kept_from = max(self.kept_from, len(self.all) - kept)


# How far an entry is behind the one before: mostly its neighbour, or where the sequence is about to overflow.
STEPS: Final = st.sampled_from([1, 1, 1, 2, 1 << 64, _SEQUENCE_MAX])


class RefusingLeases(ConsumerLeases):
    """Those of a front whose engine's process cannot lease a consumer."""

    def acquire(self, consumer: ConsumerKey, replaced: Callable[[], None]) -> ConsumerLease:
        lease = ConsumerLease(consumer, replaced)
        lease.alone.set_result(errors.internal())
        return lease


def world_of(
    settings: Settings, *, scope: Literal["function", "module"] = "function", fsync: Fsync = "everysec"
) -> Any:
    """A fixture: a gateway with these settings for each test, or for all tests of the scope."""

    @pytest.fixture(scope=scope)
    def world() -> Iterator[PushWorld]:
        with closing(PushWorld(settings, fsync)) as world:
            yield world

    return world
