"""A stream that is trimmed while it is read, and while its archive is asked: this has what is missed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from app.archived.asking import Answered, Asked
from app.archived.client import HistoryClient
from app.archived.reaching import ReachingEngine
from engine import Call, Done, Engine, EngineError, How, Reader, ReadHandle, Replies, SystemClock, ask, ids
from engine.commands.base import Command
from engine.commands.durable_commands import DescribeDurable
from engine.commands.types import Cursor, Delete, Trim, XAdd, XInfoStream, XRange, XRead, XTrim
from engine.commands.weir_commands import DescribeEdges, EnsureStream, UpdateStream
from engine.replies import Entries, Reply, StreamInfo, StreamsRead
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
    """An engine that answers later, as one does that is asked over a network: `apart`, as several servers."""

    durability = delivery_durability = "memory"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.apart = False
        # Called before each turn, with its number.
        self.before: Callable[[int], None] = lambda _: None
        self.turns: list[Sequence[Command]] = []

    def send(self, call: Call, done: Done) -> Replies | None:
        """In a turn of the event loop of its own."""
        self._running = asyncio.ensure_future(self._run(call, done))
        return None

    async def _run(self, call: Call, done: Done) -> None:
        is_apart = self.apart and call.how is How.TOGETHER
        calls = [Call([one]) for one in call.commands] if is_apart else [call]
        replies: list[Reply | EngineError] = []
        for each in calls:
            self.turns.append(each.commands)
            self.before(len(self.turns))
            replies += await ask(self.engine, each)
        done(replies)


class Place:
    """A stream with all its entries, its archive with the same, and readers of both."""

    def __init__(self, engine: Engine, maker: Maker, generation: str, history: History) -> None:
        self.engine, self.maker, self.generation = engine, maker, generation
        self.distant, self.link = Distant(engine), Link(history)
        self.reaching = ReachingEngine(self.distant, self.link)

    async def read(self, commands: Sequence[Command], *, waits: bool = False) -> Replies:
        """The replies to a reader."""
        how = How.ALONE if len(commands) == 1 else How.TOGETHER
        call = Call(commands, how, waits=ReadHandle() if waits else None, reader=Reader("a"))
        return await ask(self.reaching, call)

    def change(self, *commands: Command) -> None:
        """As another client does."""
        self.engine.send(Call(commands, How.TOGETHER), lambda _: None)

    def change_before(self, number: int, *commands: Command) -> None:
        """Change it directly before the engine's turn of this number."""
        self.distant.before = lambda reached: self.change(*commands) if reached == number else None

    def delete_from_archive(self, *numbers: int) -> None:
        """The archive has had these."""
        key = StreamKey(GATEWAY, STREAM, self.generation)
        deletions.record(self.maker.root, {}, {key: [parse(f"{number}-0") for number in numbers]})


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """With nothing trimmed."""
    async with Engine.open(MemoryStorage(), clock=HandClock(1_000), fsync="no") as engine:
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


ALL: Final = XRange(stream=STREAM, start=0, end=ids.ID_MAX)
BEHIND_FIRST: Final = XRead(streams=[(STREAM, entry_id(1))])
EDGES: Final = DescribeEdges(stream=STREAM)
READS: Final[dict[str, Sequence[Command]]] = {
    "a range": [ALL],
    "a range beside the edges": [EDGES, ALL],
    "a page of Durable Streams": [DescribeDurable(stream=STREAM), replace(ALL, start=1)],
    "what comes after a cursor": [BEHIND_FIRST],
    "what comes after 0": [XRead(streams=[(STREAM, 0)])],
    "a range beside a look for a gap": [BEHIND_FIRST, replace(ALL, start=entry_id(1) + 1), EDGES],
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


# A read, whether it may wait, whether each command has a server of its own, and the turn before which the
# stream is trimmed: as many as there are, and one more.
CASES: Final = [
    *((name, False, False, turn) for name in READS for turn in (1, 2, 3)),
    *((name, True, False, turn) for name in list(READS)[3:5] for turn in (1, 2, 3)),
    *((name, False, True, turn) for name in list(READS)[2:6:3] for turn in range(1, 10)),
]


@pytest.mark.parametrize("has_trimmed", [False, True])
@pytest.mark.parametrize(("name", "waits", "apart", "turn"), CASES)
async def test_wherever_a_trim_falls_a_read_misses_nothing(
    place: Place, name: str, turn: int, *, waits: bool, apart: bool, has_trimmed: bool
) -> None:
    """Where nothing was trimmed before, and where the archive has nothing of what was: it is asked again."""
    place.distant.apart = apart
    if has_trimmed:
        place.delete_from_archive(1, 2)
        place.change(trim(3))
    place.change_before(turn, trim(FIRST_LEFT))
    found = found_in(await place.read(READS[name], waits=waits))
    begin = 2 if "cursor" in name or "gap" in name else 1
    assert found.first == entry_id(3 if has_trimmed else begin)
    assert found.more == found.archived
    if not apart:
        turns = 1 + (has_trimmed and turn > 1)
        assert (found.archived, len(place.distant.turns)) == (turn <= 1 + has_trimmed, turns)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_range_that_is_read_backwards_goes_on_in_the_archive(
    place: Place, number: int, *, apart: bool
) -> None:
    """What was trimmed meanwhile is another page."""
    place.distant.apart = apart
    place.change_before(number, trim(FIRST_LEFT))
    numbers, end, more = list[int](), ids.ID_MAX, True
    while more:
        found = found_in(await place.read([replace(ALL, end=end, reverse=True)]))
        numbers += [entry >> 64 for entry, _ in found.pairs()]
        end, more = found.last - 1, found.more
    assert numbers == [*range(ENTRIES, 0, -1)]


@pytest.mark.parametrize("after", [0, ENTRIES])
async def test_what_is_trimmed_while_a_read_waits_comes_from_the_archive(place: Place, after: int) -> None:
    """To who waits at the end, and from 0 on for the first entry, which learns of no gap."""
    stream, new = (STREAM if after else "new"), [entry_id(after + 1), entry_id(after + 2)]
    await reply_to(place.engine, EnsureStream(stream=stream))
    info = await reply_to(place.engine, XInfoStream(stream=stream))
    assert isinstance(info, StreamInfo)
    place.maker.batch({stream: [ids.format(one) for one in new]}, generation=info.generation)
    reads = [XRead(streams=[("other", Cursor.LATEST), (stream, entry_id(after))], block_ms=60_000)]
    is_waiting = asyncio.Event()
    place.distant.before = lambda reached: is_waiting.set() if reached == 2 else None
    reading = asyncio.ensure_future(place.read(reads, waits=True))
    await is_waiting.wait()
    place.change(
        XAdd(stream="other", bodies=[b',"fields":{"n":"1"}}'], ids=[entry_id(1)]),
        XAdd(stream=stream, bodies=[b',"fields":{"n":"1"}}'] * 2, ids=new),
        UpdateStream(stream=stream, archived_up_to=new[1]),
        XTrim(stream=stream, trim=Trim(minid=new[1])),
    )
    (read,) = await reading
    assert isinstance(read, StreamsRead)
    other, found = read.streams
    assert (other.stream, other.entries.count) == ("other", 1)
    assert (found.entries.first, found.entries.archived, found.gap) == (new[0], True, None)


@pytest.mark.parametrize("has_read", [False, True])
async def test_a_stream_that_is_made_anew_is_read_from_its_beginning(place: Place, *, has_read: bool) -> None:
    """What the archive has said was of another one: before, or while the stream is read."""
    place.change(trim(3))
    new = XAdd(stream=STREAM, bodies=[b',"fields":{"n":"1"}}'] * 2, ids=[entry_id(1), entry_id(2)])
    place.change_before(2, Delete(streams=[STREAM]), new)
    if has_read:
        assert found_in(await place.read([ALL])).archived
    else:
        place.delete_from_archive(1, 2)
    found = found_in(await place.read([ALL]))
    assert (found.first, found.last, found.more) == (entry_id(1), entry_id(2), False)


async def test_a_stream_that_was_never_trimmed_does_not_ask_its_archive(place: Place) -> None:
    """From its beginning, and backwards to it."""
    for reverse in (False, True):
        found = found_in(await place.read([replace(ALL, reverse=reverse)]))
        assert (found.count, found.more, found.archived) == (ENTRIES, False, False)
    assert place.link.fetched == 0


async def test_who_reads_on_in_the_archive_has_no_page_of_the_stream_read_for_nothing(place: Place) -> None:
    """Until the archive ends; then the stream is read once more."""
    place.change(trim(FIRST_LEFT))
    numbers, after, more, counts = list[int](), 0, True, list[list[int | None]]()
    while more:
        begun = len(place.distant.turns)
        found = found_in(await place.read([replace(ALL, start=after + 1, count=2)]))
        numbers += [entry >> 64 for entry, _ in found.pairs()]
        after, more = found.last, found.more
        ranges = [one for turn in place.distant.turns[begun:] for one in turn if isinstance(one, XRange)]
        counts.append([one.count for one in ranges])
    assert numbers == [*range(1, ENTRIES + 1)]
    assert counts == [[2], [1], [2], [2], [2]]
