"""A consumer whose link is lost: at each door, in each moment, and who comes next, the same one or another.

Counted is what was done in all: how often the entry was delivered, and that it was settled once.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from engine import Engine, EngineProtocol, entries, ids
from engine.commands import types
from engine.commands.weir_commands import EnsureGroup
from engine.log_figures import Fsync
from tests.app.policies import principal_with
from tests.app.ten_doors import LATE_S, Bench, opened
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock
from tests.engine.conversation import SlowDisk

GROUP: Final = "/v1/streams/s/groups/g"
_COMMANDS: Final = "/v1/commands"
ENTRY: Final = ids.make(1, 0)


class LongPoll:
    """The consumer `c` by requests, one behind the other on one connection."""

    # Who holds what was delivered and never written, and how often it was delivered. Here it is as if it had
    # not been read.
    unwritten: tuple[str | None, int] | None = None
    # Whether it settles for its own place alone, which the consumer's next link takes.
    has_a_place = False
    # Whether the server knows nothing but ASGI.
    asgi = False

    async def read(self, bench: Bench) -> None:
        """Ask for what it holds, and wait for what is new."""
        await self.open(bench)
        self.post("consumers/c/read", {"after": "0"})
        if '"1-0"' not in await self.until("]"):
            self.said = ""
            self.post("consumers/c/read", {"wait": 30_000})

    async def open(self, bench: Bench) -> None:
        self.said = ""
        port = await bench.port(asgi=self.asgi)
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)

    def post(self, path: str, body: object) -> None:
        text, url = json.dumps(body), path if path.startswith("/") else f"{GROUP}/{path}"
        head = f"POST {url} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self.writer.write(f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode())

    async def until(self, word: str) -> str:
        """All that has come, once this is in it."""
        async with asyncio.timeout(LATE_S):
            while word not in self.said:
                piece = await self.reader.read(1 << 16)
                assert piece, self.said
                self.said += piece.decode()
        return self.said

    async def got(self) -> None:
        """Wait until the entry has come."""
        await self.until('"1-0"')
        self.said = ""

    async def settle(self) -> None:
        """Say that it is done."""
        self.post("ack", {"ids": ["1-0"]})

    async def settled(self) -> None:
        """Wait for the answer."""
        await self.until('"results"')

    def lose(self) -> None:
        self.writer.transport.abort()


class OverAsgi(LongPoll):
    """The same, served by any other server."""

    asgi = True


class Commands(LongPoll):
    """By the command API."""

    async def read(self, bench: Bench) -> None:
        await self.open(bench)
        reading = ["XREADGROUP", "GROUP", "g", "c"]
        self.post(_COMMANDS, [*reading, "STREAMS", "s", "0"])
        if '"1-0"' not in await self.until("}"):
            self.said = ""
            self.post(_COMMANDS, [*reading, "BLOCK", "0", "STREAMS", "s", ">"])

    async def settle(self) -> None:
        self.post(_COMMANDS, ["XACK", "s", "g", "1-0"])

    async def settled(self) -> None:
        await self.until('"result"')


class Events(LongPoll):
    """By events; it settles by requests on another connection."""

    # Given back.
    unwritten = None, 0

    async def read(self, bench: Bench) -> None:
        await self.open(bench)
        self.events = LongPoll()
        await self.events.open(bench)
        head = (
            f"GET {GROUP}/consumers/c/stream HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        )
        self.events.writer.write(head.encode())

    async def got(self) -> None:
        await self.events.got()

    def lose(self) -> None:
        super().lose()
        self.events.lose()


class Words(LongPoll):
    """By Redis's words."""

    async def open(self, bench: Bench) -> None:
        self.said, self.wire = "", await bench.wire()
        self.reader, self.writer = self.wire.reader, self.wire.writer

    async def read(self, bench: Bench) -> None:
        await self.open(bench)
        self.wire.send("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", "0")
        if "1-0" not in await self.until("*"):
            self.said = ""
            self.wire.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">")

    async def got(self) -> None:
        await self.until("1-0")
        self.said = ""

    async def settle(self) -> None:
        self.wire.send("XACK", "s", "g", "1-0")

    async def settled(self) -> None:
        await self.until(":")


class Frames(LongPoll):
    """By frames of a socket."""

    unwritten = None, 0
    has_a_place = True

    async def read(self, bench: Bench) -> None:
        url = f"ws://127.0.0.1:{await bench.port()}/v1/ws"
        self.socket = await connect(url, subprotocols=[Subprotocol("weir.v1")], compression=None)
        await self.say("consume", stream="s", group="g", consumer="c", credit=9)
        await self.until('"ref":"consume"')

    async def say(self, op: str, **members: object) -> None:
        await self.socket.send(json.dumps({"op": op, "ref": op, "sub": "w", **members}))

    async def until(self, word: str) -> str:
        async with asyncio.timeout(LATE_S):
            while word not in (said := str(await self.socket.recv())):
                pass
        return said

    async def got(self) -> None:
        await self.until('"entries"')

    async def settle(self) -> None:
        await self.say("ack", ids=["1-0"])

    async def settled(self) -> None:
        await self.until('"ref":"ack"')

    def lose(self) -> None:
        self.socket.transport.abort()


LINKS: Final = {
    "long-poll": LongPoll,
    "asgi": OverAsgi,
    "command": Commands,
    "sse": Events,
    "websocket": Frames,
    "RESP": Words,
}
MOMENTS: Final = ("it waits", "before it was written", "in flight", "before the answer to what settles it")


def _held(door: str, moment: str) -> tuple[str | None, int] | None:
    """Who holds the entry once the link is lost, and how often it was delivered; None for not pending."""
    if moment == "in flight":
        return "c", 1
    return LINKS[door].unwritten if "written" in moment else None


class House:
    """A stream with a group, and what was done there."""

    def __init__(self, bench: Bench, disk: SlowDisk) -> None:
        self.bench, self.engine, self.disk = bench, bench.engine, disk

    def add(self) -> "asyncio.Task[object]":
        """Publish the entry; it is delivered in the same step."""
        body = entries.body([("n", "1")])
        return asyncio.ensure_future(
            reply_to(self.engine, types.XAdd(stream="s", bodies=[body], ids=[ENTRY]))
        )

    async def pending(self) -> list[tuple[str | None, int]]:
        """Who holds what, and how often that was delivered."""
        listed: Any = await reply_to(
            self.engine, types.XPendingRange(stream="s", group="g", start=0, end=ids.ID_MAX, count=9)
        )
        return [(one.consumer, one.delivery_count) for one in listed.entries]

    async def read_by_group(self) -> int:
        """How many entries the group has been given."""
        groups: Any = await reply_to(self.engine, types.XInfoGroups(stream="s"))
        return int(groups[0].entries_read or 0)

    async def until_gone(self) -> None:
        """Wait until the gateway has seen that the link is lost."""
        assert await self.bench.come(lambda: not self.bench.connections)
        await asyncio.sleep(0.01)

    async def lose(self, link: LongPoll, moment: str) -> None:
        """Lose the link in this moment, while the entry comes."""
        if moment == "it waits":
            link.lose()
            await self.until_gone()
            await self.add()
        elif moment == "before it was written":
            self.disk.hold()
            adding = self.add()
            await asyncio.sleep(0.01)
            link.lose()
            await self.until_gone()
            self.disk.let_go()
            await adding
        else:
            await self.add()
            await link.got()
            if moment != "in flight":
                await link.settle()
            link.lose()
        await self.until_gone()


@asynccontextmanager
async def _on_disk(disk: SlowDisk, fsync: Fsync, clock: HandClock) -> AsyncIterator[EngineProtocol]:
    engine = Engine.open(disk, clock=clock, fsync=fsync)
    await engine.start()
    try:
        yield engine
    finally:
        disk.let_go()
        await engine.close()


@pytest.mark.parametrize("then", ["the same", "another"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("door", LINKS)
async def test_a_lost_link_loses_no_entry(tmp_path: Path, door: str, moment: str, then: str) -> None:
    """And settles none that the consumer has not settled."""
    disk, caller = SlowDisk(), principal_with("*:*")
    opening = partial(_on_disk, disk, "always" if "written" in moment else "no")
    async with opened(tmp_path, principal=caller, opening=opening) as bench:
        house, link = House(bench, disk), LINKS[door]()
        await reply_to(bench.engine, EnsureGroup(stream="s", group="g", start=0, mkstream=True))
        await link.read(bench)
        assert await bench.come(lambda: bench.engine.figures().waiting == 1)
        await house.lose(link, moment)
        held, is_settled = _held(door, moment), "settles" in moment
        assert await house.pending() == ([] if held is None else [held])
        assert await house.read_by_group() == int(held is not None or is_settled)
        await NEXT[then](house, door, 0 if held is None else held[1], is_settled=is_settled)
        assert (await house.pending(), await house.read_by_group()) == ([], 1)
        assert await reply_to(bench.engine, types.XLen(stream="s")) == 1


async def _the_same(house: House, door: str, deliveries: int, *, is_settled: bool) -> None:
    """The consumer comes back, is given what it holds once more, and settles it."""
    link = LINKS[door]()
    await link.read(house.bench)
    if is_settled:
        assert await house.bench.come(lambda: house.engine.figures().waiting == 1)
    else:
        await link.got()
        assert await house.pending() == [("c", deliveries + 1)]
        await link.settle()
        await link.settled()
    link.lose()
    await house.until_gone()


async def _another(house: House, door: str, deliveries: int, *, is_settled: bool) -> None:
    """Another consumer takes it; the first one comes back, gets nothing, and settles it late: for both, but
    over a socket, where an acknowledgement names its consumer.
    """
    await reply_to(house.engine, types.XReadGroup(streams=[("s", types.Cursor.NEW)], group="g", consumer="d"))
    claim = types.Claim(ids=[ENTRY], min_idle_ms=0)
    await reply_to(house.engine, types.XClaim(stream="s", group="g", consumer="d", claim=claim))
    taken = await house.pending()
    assert [consumer for consumer, _ in taken] == ([] if is_settled else ["d"])
    assert is_settled or taken[0][1] > deliveries
    link = LINKS[door]()
    await link.read(house.bench)
    assert await house.bench.come(lambda: house.engine.figures().waiting == 1)
    late = link if isinstance(link, Events | Frames) else LINKS[door]()
    if late is not link:
        await late.open(house.bench)
    await late.settle()
    await late.settled()
    link.lose()
    late.lose()
    await house.until_gone()
    is_held = isinstance(late, Frames) and not is_settled
    assert await reply_to(house.engine, types.XAck(stream="s", group="g", ids=[ENTRY])) == is_held


NEXT: Final[dict[str, Callable[..., Any]]] = {"the same": _the_same, "another": _another}


@pytest.mark.parametrize("door", LINKS)
async def test_a_link_that_seems_to_be_open_settles_what_it_holds_at_most(tmp_path: Path, door: str) -> None:
    """The consumer has come back by another one, and is given what it holds once more. A socket has lost its
    place by that, and what it says late is refused; the other ways say nothing of a place.
    """
    async with opened(
        tmp_path, principal=principal_with("*:*"), opening=partial(_on_disk, SlowDisk(), "no")
    ) as bench:
        house, first, second = House(bench, SlowDisk()), LINKS[door](), LINKS[door]()
        await reply_to(bench.engine, EnsureGroup(stream="s", group="g", start=0, mkstream=True))
        await first.read(bench)
        await house.add()
        await first.got()
        await second.read(bench)
        await second.got()
        assert await house.pending() == [("c", 2)]
        await first.settle()
        await first.settled()
        assert await house.pending() == ([("c", 2)] if first.has_a_place else [])
        await second.settle()
        await second.settled()
        assert (await house.pending(), await house.read_by_group()) == ([], 1)
        first.lose()
        second.lose()
        await house.until_gone()


# ---- an answer that waits for the disk


_ONE: Final = ("XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "STREAMS", "s", ">")
_TWO: Final = (_ONE, ("XADD", "other", "*", "n", "1"), _ONE)
_IN_HTTP: Final[Mapping[str, tuple[str, object]]] = {
    "read": ("consumers/c/read", {"count": 1}),
    "read of several": ("/v1/read", {"streams": {"s": ">"}, "group": "g", "consumer": "c", "count": 1}),
    "command": (_COMMANDS, _ONE),
    "pipeline": (f"{_COMMANDS}/pipeline", _TWO),
    "multi-exec": (f"{_COMMANDS}/multi-exec", _TWO),
}
_WITH_MORE: Final = ("pipeline", "multi-exec", "RESP pipeline", "RESP MULTI")
_IN_WORDS: Final[Mapping[str, Sequence[Sequence[str]]]] = {
    "RESP": [_ONE],
    "RESP pipeline": _TWO,
    "RESP MULTI": [("MULTI",), *_TWO, ("EXEC",)],
}


@pytest.mark.parametrize(
    ("door", "asked"),
    [*product(("long-poll", "asgi"), _IN_HTTP), *product(("RESP",), _IN_WORDS)],
)
async def test_what_waits_for_the_disk_when_its_client_leaves_is_undone(
    tmp_path: Path, door: str, asked: str
) -> None:
    """Others get it as if it had not been read; what else was done with it stays done."""
    disk, link = SlowDisk(), LINKS[door]()
    opening = partial(_on_disk, disk, "always")
    async with opened(tmp_path, principal=principal_with("*:*"), opening=opening) as bench:
        house, own = House(bench, disk), [ENTRY, ids.make(2, 0)]
        await reply_to(bench.engine, EnsureGroup(stream="s", group="g", start=0, mkstream=True))
        await reply_to(bench.engine, types.XAdd(stream="s", bodies=[entries.body([("n", "1")])] * 2, ids=own))
        await link.open(bench)
        disk.hold()
        if isinstance(link, Words):
            for words in _IN_WORDS[asked]:
                link.wire.send(*words)
        else:
            link.post(*_IN_HTTP[asked])
        # Every command would wait for the disk.
        engine: Any = bench.engine
        group = engine._keyspace.keys["s"].groups["g"]  # noqa: SLF001
        assert await bench.come(lambda: len(group.pending) > 0)
        if isinstance(link, Words):
            # It is not listened to while its replies wait: another client ends it.
            (number,), other = bench.resp.port.sessions, await bench.wire()
            assert await other.call("CLIENT", "KILL", "ID", number) == 1
            other.close()
        link.lose()
        await house.until_gone()
        disk.let_go()
        assert await bench.come(lambda: not len(group.pending))
        read = types.XReadGroup(streams=[("s", types.Cursor.NEW)], group="g", consumer="d")
        found: Any = await reply_to(bench.engine, read)
        assert [one.id for one in found.streams[0].entries] == own
        assert await house.pending() == [("d", 1)] * 2
        assert await reply_to(bench.engine, types.XLen(stream="other")) == (asked in _WITH_MORE)
