"""A stream that is trimmed between the look at it and the read: its archive has what the read missed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from app.archived.asking import Answered, Asked
from app.archived.client import HistoryClient
from app.archived.reaching import ReachingEngine
from engine import Call, Done, Engine, EngineError, How, Reader, ReadHandle, Replies, SystemClock, ask, ids
from engine.commands.base import Command
from engine.commands.durable_commands import DescribeDurable
from engine.commands.types import Trim, XAdd, XInfoStream, XRange, XRead, XTrim
from engine.commands.weir_commands import DescribeEdges, UpdateStream
from engine.replies import Entries, StreamInfo, StreamsRead
from engine.storage.memory import MemoryStorage
from history.service import History
from pyspark_weir.ids import parse
from pyspark_weir.table import deletions
from pyspark_weir.table.ranges import StreamKey
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock
from tests.spark.archive_tables import GATEWAY, Maker

STREAM: Final = "orders"
ENTRIES: Final = 9
# What a trim leaves: the entries from here on.
FIRST_LEFT: Final = 5


def entry_id(number: int) -> int:
    """The ID of an entry."""
    return number << 64


def trim(first_left: int) -> XTrim:
    """What removes all entries before that one."""
    return XTrim(stream=STREAM, trim=Trim(minid=entry_id(first_left)))


class Link(HistoryClient):
    """The service, without HTTP."""

    def __init__(self, history: History) -> None:
        self.gateway = "g0"
        self.fetched = 0
        self._history = history

    async def fetch(self, asked: Asked, reader: Reader) -> Answered:
        """As over HTTP."""
        self.fetched += 1
        return await self._history.page(asked)


class Distant:
    """An engine that answers later, as one does that is asked over a network."""

    durability = delivery_durability = "memory"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # Called before each call runs, with its number.
        self.before: Callable[[int], None] = lambda _: None
        self.calls = 0

    def send(self, call: Call, done: Done) -> Replies | None:
        """In a turn of the event loop of its own."""
        asyncio.get_running_loop().call_soon(self._run, call, done)
        return None

    def _run(self, call: Call, done: Done) -> None:
        self.calls += 1
        self.before(self.calls)
        replies = self.engine.send(call, done)
        if replies is not None:
            done(replies)


class Place:
    """A stream with all its entries, its archive with the same, and readers of both."""

    def __init__(self, engine: Engine, maker: Maker, generation: str, history: History) -> None:
        self.engine = engine
        self.maker = maker
        self.generation = generation
        self.distant = Distant(engine)
        self.link = Link(history)
        self.reaching = ReachingEngine(self.distant, self.link)

    async def read(self, commands: Sequence[Command], *, waits: bool = False) -> Replies:
        """The replies to a reader."""
        how = How.ALONE if len(commands) == 1 else How.TOGETHER
        handle = ReadHandle() if waits else None
        return await ask(self.reaching, Call(commands, how, waits=handle, reader=Reader("a")))

    def trim_before(self, number: int, first_left: int) -> None:
        """Trim directly before the engine runs its call of this number."""

        def before(reached: int) -> None:
            if reached == number:
                self.engine.send(Call((trim(first_left),)), lambda _: None)

        self.distant.before = before


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """With nothing trimmed."""
    engine = Engine.open(MemoryStorage(), clock=HandClock(1_000), fsync="no")
    await engine.start()
    bodies = [b',"fields":{"n":"%d"}}' % number for number in range(ENTRIES)]
    all_ids = [entry_id(number) for number in range(1, ENTRIES + 1)]
    await reply_to(engine, XAdd(stream=STREAM, bodies=bodies, ids=all_ids))
    await reply_to(engine, UpdateStream(stream=STREAM, archived_up_to=all_ids[-1]))
    info = await reply_to(engine, XInfoStream(stream=STREAM))
    assert isinstance(info, StreamInfo)
    maker = Maker(tmp_path / "archive")
    maker.batch({STREAM: [ids.format(one) for one in all_ids]}, generation=info.generation)
    history = History(maker.root, SystemClock(), lambda: "", 1 << 20)
    yield Place(engine, maker, info.generation, history)
    history.archive.close()
    history.cache.close()
    await engine.close()


EDGES: Final = DescribeEdges(stream=STREAM)
READS: Final[dict[str, Sequence[Command]]] = {
    "a range": [XRange(stream=STREAM, start=0, end=ids.ID_MAX)],
    "a range beside the edges": [EDGES, XRange(stream=STREAM, start=0, end=ids.ID_MAX)],
    "a page of Durable Streams": [
        DescribeDurable(stream=STREAM),
        XRange(stream=STREAM, start=1, end=ids.ID_MAX),
    ],
    "what comes after a cursor": [XRead(streams=[(STREAM, entry_id(1))])],
    "what comes after 0": [XRead(streams=[(STREAM, 0)])],
    "a range beside a look for a gap": [
        XRead(streams=[(STREAM, entry_id(1))], count=1),
        XRange(stream=STREAM, start=entry_id(1) + 1, end=ids.ID_MAX),
        EDGES,
    ],
}


def found_in(replies: Replies) -> Entries:
    """The page."""
    for reply in reversed(list(replies)):
        assert not isinstance(reply, EngineError)
        if isinstance(reply, StreamsRead) and reply.streams:
            assert reply.streams[0].gap is None
            if reply.streams[0].entries.count:
                return reply.streams[0].entries
        elif isinstance(reply, Entries):
            return reply
    raise AssertionError(f"nothing was found: {replies}")


CASES: Final = [(name, False) for name in READS] + [
    (name, True) for name in ("what comes after a cursor", "what comes after 0")
]


@pytest.mark.parametrize(("name", "waits"), CASES)
async def test_a_read_that_was_overtaken_by_a_trim_begins_in_the_archive(
    place: Place, name: str, *, waits: bool
) -> None:
    """Directly between the look at the stream and the read of it."""
    place.trim_before(2, FIRST_LEFT)
    found = found_in(await place.read(READS[name], waits=waits))
    begins_behind = "cursor" in name or "gap" in name
    assert found.first == entry_id(2 if begins_behind else 1)
    assert (found.archived, found.more) == (True, True)


@pytest.mark.parametrize(("name", "waits"), CASES)
async def test_a_trim_behind_an_archive_that_had_nothing_is_noticed_too(
    place: Place, name: str, *, waits: bool
) -> None:
    """What was trimmed first is deleted from the archive; what is trimmed then, before the stream is read,
    is not.
    """
    key = StreamKey(GATEWAY, STREAM, place.generation)
    deletions.record(place.maker.root, {}, {key: [parse("1-0"), parse("2-0")]})
    await reply_to(place.engine, trim(3))
    # The look, what the archive may have, and the read.
    place.trim_before(3, FIRST_LEFT)
    found = found_in(await place.read(READS[name], waits=waits))
    assert found.first == entry_id(3)
    assert (found.archived, found.more) == (True, True)


async def test_a_range_that_is_read_backwards_has_more_before_it(place: Place) -> None:
    """What was trimmed meanwhile is another page."""
    commands = [XRange(stream=STREAM, start=0, end=ids.ID_MAX, reverse=True)]
    place.trim_before(2, FIRST_LEFT)
    found = found_in(await place.read(commands))
    assert (found.first, found.last, found.more) == (entry_id(ENTRIES), entry_id(FIRST_LEFT), True)
    before = [XRange(stream=STREAM, start=0, end=found.last - 1, reverse=True)]
    rest = found_in(await place.read(before))
    assert (rest.first, rest.last, rest.more) == (entry_id(FIRST_LEFT - 1), entry_id(1), False)


async def test_a_stream_that_was_never_trimmed_does_not_ask_its_archive(place: Place) -> None:
    """From its beginning, and backwards to it."""
    for reverse in (False, True):
        commands = [XRange(stream=STREAM, start=0, end=ids.ID_MAX, reverse=reverse)]
        found = found_in(await place.read(commands))
        assert (found.count, found.more, found.archived) == (ENTRIES, False, False)
    assert place.link.fetched == 0
