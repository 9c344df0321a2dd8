"""Reads that wait over a server: woken by notifications, and not dependent on any single one."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from engine import ids
from engine.cluster import group_scripts
from engine.cluster.group_waits import GroupWaits
from engine.cluster.scripts import ScriptCall
from engine.cluster.wakeups import EVENTS, Wakeups, Watch, notifies
from engine.cluster.wire import Address, ServerAccess, ServerConnection, ServerError
from engine.commands.base import StreamCommand
from engine.commands.types import Cursor, XReadGroup
from engine.commands.weir_commands import GiveBack, Undo
from engine.errors import EngineError
from engine.replies import GroupRead
from tests.cluster.servers import BackendServer
from tests.waiting import until_async

NEVER_S = 3_600.0
# Far more than a wake takes.
SOON_S = 5.0


class Client:
    """One gateway's connections to one server."""

    def __init__(self, server: BackendServer, poll_s: float = NEVER_S) -> None:
        self.address = Address("127.0.0.1", server.port)
        self.commands = self._open()
        self.listeners: list[ServerConnection] = []
        self.wakeups = Wakeups(self._open_listener, lambda _: self.address, poll_s, "front")
        self.waits = GroupWaits(self.wakeups, self.run, self.take_back)
        # Reads whose replies are held back.
        self.held: list[Callable[[], None]] | None = None

    def _open(self, **options: Any) -> ServerConnection:
        connection = ServerConnection(self.address, ServerAccess(), SOON_S, **options)
        connection.start()
        return connection

    def _open_listener(self, place: Any, on_up: Any, on_push: Any) -> ServerConnection:
        assert place == self.address
        self.listeners.append(self._open(on_up=on_up, on_push=on_push))
        return self.listeners[-1]

    async def call(self, *words: Any) -> Any:
        """The reply of one command."""
        replied: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.commands.send(words, replied.set_result)
        reply = await replied
        assert not isinstance(reply, Exception), reply
        return reply

    def send(self, call: ScriptCall, done: Callable[[Any], None]) -> None:
        """Run a script."""

        def decode(reply: Any) -> None:
            assert not isinstance(reply, ServerError), reply
            try:
                result = call.decode(reply)
            except EngineError as refusal:
                result = refusal
            if self.held is None:
                done(result)
            else:
                self.held.append(lambda: done(result))

        self.commands.send(call.script.words_with_text(call.words), decode)

    def run(self, command: XReadGroup, done: Callable[[Any], None]) -> None:
        """A group read that does not wait."""
        self.send(group_scripts.read_group(command), done)

    def take_back(self, command: StreamCommand) -> None:
        """Take back what a read brought."""
        assert isinstance(command, Undo | GiveBack)
        lane = (command.stream, command.group)
        call = group_scripts.undo(command) if isinstance(command, Undo) else group_scripts.give_back(command)
        self.send(call, lambda _: self.waits.wake([lane]))

    async def close(self) -> None:
        await self.wakeups.close()
        await self.commands.close()


@asynccontextmanager
async def client_of(server: BackendServer, poll_s: float = NEVER_S) -> AsyncIterator[Client]:
    """A client that is closed in the end."""
    client = Client(server, poll_s)
    try:
        yield client
    finally:
        await client.close()


class Tail:
    """Reads a stream from its beginning, each time it is woken."""

    def __init__(self, client: Client, stream: str) -> None:
        self.seen: list[bytes] = []
        self._client = client
        self._stream = stream
        self._woken = asyncio.Event()
        self._watch = client.wakeups.watch(stream, self._woken.set)
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            after = self.seen[-1] if self.seen else b"0-0"
            reply = await self._client.call("XREAD", "STREAMS", self._stream, after)
            self.seen += [row[0] for row in (reply or {}).get(self._stream.encode(), ())]

    def close(self) -> None:
        self._watch.close()
        self._task.cancel()


async def test_a_tail_is_woken_by_each_entry(server: BackendServer) -> None:
    """Also by one that came before its subscription stood; nothing is polled."""
    async with client_of(server) as client:
        await client.call("XADD", "s", "1-0", "a", "1")
        tails = [Tail(client, "s"), Tail(client, "s")]
        await until_async(lambda: all(tail.seen == [b"1-0"] for tail in tails))
        tails.append(Tail(client, "s"))
        await until_async(lambda: tails[2].seen == [b"1-0"])
        await client.call("XADD", "s", "2-0", "a", "1")
        await until_async(lambda: all(tail.seen == [b"1-0", b"2-0"] for tail in tails))
        assert len(client.listeners) == 1
        for tail in tails:
            tail.close()
        assert len(client.wakeups) == 0
        await until_async(lambda: server.call("PUBSUB", "NUMSUB", "__keyspace@0__:s")[1] == 0)


async def test_no_tail_misses_an_entry_though_subscriptions_are_killed(server: BackendServer) -> None:
    """Every 100 ms, while entries come; what was missed is read on the next connection."""
    async with client_of(server) as client:
        tails = [Tail(client, f"s{number}") for number in range(20)]
        killed = 0
        for number in range(1, 201):
            await asyncio.gather(
                *(client.call("XADD", f"s{place}", f"{number}-0", "a", "1") for place in range(20))
            )
            if number % 10 == 0:
                killed += await client.call("CLIENT", "KILL", "TYPE", "pubsub")
                await asyncio.sleep(0.1)
        wanted = [b"%d-0" % number for number in range(1, 201)]
        await until_async(lambda: all(tail.seen == wanted for tail in tails))
        assert killed > 5
        for tail in tails:
            tail.close()


async def test_polling_makes_up_for_notifications_that_do_not_come(server: BackendServer) -> None:
    """As of a server that lost the setting."""
    async with client_of(server, poll_s=0.2) as client:
        tail = Tail(client, "s")
        await client.call("XADD", "s", "1-0", "a", "1")
        await until_async(lambda: tail.seen == [b"1-0"])
        await until_async(lambda: b"K" in server.call("CONFIG", "GET", "notify-keyspace-events")[1])
        await client.call("CONFIG", "SET", "notify-keyspace-events", "")
        await client.call("XADD", "s", "2-0", "a", "1")
        await until_async(lambda: len(tail.seen) == 2)
        tail.close()


@pytest.mark.parametrize("streams", [1, 21])
async def test_each_stream_is_polled_once_in_a_period(server: BackendServer, streams: int) -> None:
    """Few of them not more often than many."""
    period_s = 0.5

    def note(times: list[float]) -> None:
        times.append(time.monotonic())

    async with client_of(server, poll_s=period_s) as client:
        woken: dict[str, list[float]] = {f"s{number}": [] for number in range(streams)}
        for stream, times in woken.items():
            client.wakeups.watch(stream, partial(note, times))
        # The first wake may be that of the subscription, or that of the setting.
        await until_async(lambda: all(len(times) > 5 for times in woken.values()))
        for times in woken.values():
            assert times[5] - times[2] > 2 * period_s


@pytest.mark.parametrize("streams", [1, 2, 40])
async def test_a_stream_whose_wait_begins_again_keeps_its_turn(streams: int) -> None:
    """All others are polled once between two of its polls; those that are watched no longer take no turn."""

    def no_connection(*_: Any) -> ServerConnection:
        raise AssertionError("no stream has a primary")

    wakeups = Wakeups(no_connection, lambda _: None, 0.05, "front")
    woken: list[str] = []
    watches: dict[str, Watch] = {}

    def wait_again(stream: str) -> None:
        woken.append(stream)
        watches[stream].close()
        watches[stream] = wakeups.watch(stream, partial(wait_again, stream))

    names = [f"s{number}" for number in range(streams)]
    for name in names:
        watches[name] = wakeups.watch(name, partial(woken.append, name))
        wakeups.watch(f"left-{name}", partial(woken.append, "left")).close()
    watches["s0"].close()
    watches["s0"] = wakeups.watch("s0", partial(wait_again, "s0"))
    await until_async(lambda: len(woken) >= 5 * streams)
    assert woken[: 5 * streams] == names * 5
    await wakeups.close()


async def test_a_server_that_does_not_allow_its_setting_is_named(server: BackendServer) -> None:
    """Reads are polled then."""
    server.call("CONFIG", "SET", "notify-keyspace-events", "")
    server.call("ACL", "SETUSER", "default", "-config")
    try:
        async with client_of(server) as client:
            watch = client.wakeups.watch("s", lambda: None)
            await until_async(lambda: client.wakeups.missing_events is not None)
            assert "NOPERM" in (client.wakeups.missing_events or "")
            watch.close()
    finally:
        server.call("ACL", "SETUSER", "default", "+config")


async def test_a_server_that_allows_no_subscription_is_not_asked_again_and_again(
    own_server: BackendServer,
) -> None:
    """Reads are polled."""
    own_server.call("CONFIG", "SET", "notify-keyspace-events", EVENTS)
    own_server.call("ACL", "SETUSER", "default", "resetchannels")
    woken: list[None] = []
    async with client_of(own_server, poll_s=0.2) as client:
        watch = client.wakeups.watch("s", lambda: woken.append(None))
        before = connections_made(own_server)
        await asyncio.sleep(3)
        assert connections_made(own_server) - before <= 4
        assert woken
        watch.close()


def connections_made(server: BackendServer) -> int:
    lines = server.call("INFO", "stats").decode().splitlines()
    return int(next(line for line in lines if line.startswith("total_connections_received")).split(":")[1])


async def test_one_primary_does_not_hide_what_another_lacks(
    server: BackendServer, own_server: BackendServer
) -> None:
    """Each has settings of its own."""
    places = {"a": server.address, "b": own_server.address}

    def opened(place: Any, on_up: Any, on_push: Any) -> ServerConnection:
        connection = ServerConnection(place, ServerAccess(), SOON_S, on_up=on_up, on_push=on_push)
        connection.start()
        return connection

    server.call("CONFIG", "SET", "notify-keyspace-events", "")
    server.call("ACL", "SETUSER", "default", "-config")
    wakeups = Wakeups(opened, places.get, NEVER_S, "front")
    woken: list[str] = []
    try:
        watch = wakeups.watch("a", lambda: woken.append("a"))
        await until_async(lambda: wakeups.missing_events is not None)
        # By its subscription, and once the server has the setting.
        wakeups.watch("b", lambda: woken.append("b"))
        await until_async(lambda: woken.count("b") > 1)
        assert "NOPERM" in (wakeups.missing_events or "")
        # What is listened to no longer lacks nothing.
        watch.close()
        wakeups.rearrange()
        assert wakeups.missing_events is None
    finally:
        server.call("ACL", "SETUSER", "default", "+config")
        await wakeups.close()


@pytest.mark.parametrize(
    ("events", "enough"),
    [("KA", True), ("AKE", True), ("Ktgx", True), ("Ktg", False), ("A", False), ("Etgx", False), ("", False)],
)
def test_which_events_are_enough(events: str, *, enough: bool) -> None:
    """Streams, keys as such, and expiry, by key."""
    assert notifies(events) is enough


async def test_streams_that_move_are_read_again(server: BackendServer) -> None:
    """Where they are now, over a connection to that primary."""
    async with client_of(server) as client:
        tail = Tail(client, "s")
        await client.call("XADD", "s", "1-0", "a", "1")
        await until_async(lambda: tail.seen == [b"1-0"])
        client.address = Address("localhost", client.address.port)
        client.wakeups.rearrange()
        client.wakeups.rearrange()
        assert len(client.listeners) == 2
        await client.call("XADD", "s", "2-0", "a", "1")
        await until_async(lambda: len(tail.seen) == 2)
        await until_async(lambda: server.call("PUBSUB", "NUMSUB", "__keyspace@0__:s")[1] == 1)
        tail.close()


# --- groups


def command(consumer: str, *streams: str, **options: Any) -> XReadGroup:
    cursors = [(stream, Cursor.NEW) for stream in streams or ("s",)]
    return XReadGroup(
        group="g", consumer=consumer, streams=cursors, **{"block_ms": 60_000, "count": 1, **options}
    )


async def with_group(client: Client) -> None:
    await client.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")


async def test_waiters_of_a_group_are_served_in_order_of_arrival(server: BackendServer) -> None:
    """One entry each; the last one waits on."""
    async with client_of(server) as client:
        await with_group(client)
        served: list[tuple[str, list[int]]] = []
        for name in "abc":
            client.waits.begin_read(
                command(name),
                lambda found, name=name: served.append((name, _ids(found))),  # type: ignore[misc]
            )
        await asyncio.sleep(0)
        await client.call("XADD", "s", "1-0", "a", "1")
        await client.call("XADD", "s", "2-0", "a", "1")
        await until_async(lambda: len(served) == 2)
        assert served == [("a", [ids.make(1, 0)]), ("b", [ids.make(2, 0)])]
        assert (len(client.waits), client.waits.waiting("s")) == (1, {("g", "c")})
        client.waits.end()
        assert [name for name, _ in served] == ["a", "b", "c"]
        await until_async(lambda: len(client.wakeups) == 0)


def _ids(found: GroupRead | EngineError) -> list[int]:
    return [row.id for one in found.streams for row in one.entries] if isinstance(found, GroupRead) else []


async def test_what_a_client_that_has_gone_would_get_goes_to_the_next(server: BackendServer) -> None:
    """Its read is on its way when it leaves: it is as if it had never read."""
    async with client_of(server) as client:
        await with_group(client)
        served: list[Any] = []
        gone = client.waits.begin_read(command("gone", claim_min_idle_ms=(1 << 53) - 1), served.append)
        await until_async(lambda: client.waits.waiting("s") == {("g", "gone")})
        await asyncio.sleep(0.05)
        client.held = []
        await client.call("XADD", "s", "1-0", "a", "1")
        await until_async(lambda: bool(client.held))
        client.waits.begin_read(command("next", claim_min_idle_ms=(1 << 53) - 1), served.append)
        gone.cancel()
        held, client.held = client.held, None
        for reply in held:
            reply()
        await until_async(lambda: bool(served))
        (row,) = served[0].streams[0].entries
        assert (row.id, row.delivery_count) == (ids.make(1, 0), 1)
        pending = await client.call("XPENDING", "s", "g", "-", "+", 10)
        assert [one[1] for one in pending] == [b"next"]


async def test_a_wait_ends_with_its_time(server: BackendServer) -> None:
    """With nothing; a refusal ends it before."""
    async with client_of(server) as client:
        await with_group(client)
        served: list[Any] = []
        client.waits.begin_read(command("a", block_ms=20), served.append)
        await until_async(lambda: bool(served))
        assert served == [GroupRead([])]
        client.waits.begin_read(command("b"), served.append)
        await asyncio.sleep(0.02)
        await client.call("XGROUP", "DESTROY", "s", "g")
        await until_async(lambda: len(served) == 2)
        assert served[1].code == "no_group"
        assert len(client.waits) == 0


async def test_an_entry_that_becomes_idle_is_claimed(server: BackendServer) -> None:
    """There is no notification of that."""
    async with client_of(server) as client:
        await with_group(client)
        await client.call("XADD", "s", "1-0", "a", "1")
        await client.call("XREADGROUP", "GROUP", "g", "dead", "STREAMS", "s", ">")
        served: list[Any] = []
        client.waits.begin_read(command("a", claim_min_idle_ms=150), served.append)
        await until_async(lambda: bool(served))
        assert served[0].streams[0].entries[0].delivery_count == 2
