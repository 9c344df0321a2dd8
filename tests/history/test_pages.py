"""A page of an archive is what the stream had: in order, each entry once, whatever files hold it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import SystemClock, entries, ids
from history.archive import Archive, number
from history.cache import FileCache
from history.groups import Deleted, encode_group
from history.reader import Found, Wanted, read_page
from pyspark_weir.ids import parse
from pyspark_weir.table import deletions
from pyspark_weir.table.compaction import CompactionRules, compact
from pyspark_weir.table.ranges import StreamKey
from pyspark_weir.table.schema import GIVEN
from tests.spark.archive_tables import GATEWAY, GENERATION, Maker

KEY: Final = StreamKey(GATEWAY, "orders", GENERATION)
ANOTHER: Final = "ffeeddccbbaa9988"
EVERYTHING: Final = 1 << 30


class Reading:
    """An archive, and what reads it."""

    def __init__(self, maker: Maker) -> None:
        self.maker = maker
        self.archive = Archive(maker.root, SystemClock())
        self.cache = FileCache(maker.root)

    async def page(
        self,
        key: StreamKey = KEY,
        low: int = 0,
        high: int = ids.ID_MAX,
        count: int = EVERYTHING,
        bytes_max: int = EVERYTHING,
        *,
        reverse: bool = False,
    ) -> Found:
        """Of the latest version."""
        snapshot = await self.archive.refresh()
        wanted = Wanted(key, low, high, count, bytes_max, reverse)
        with self.cache.budget.page() as page:
            return await read_page(self.archive, self.cache, snapshot, wanted, page)

    async def walk(self, count: int, *, reverse: bool = False) -> list[str]:
        """All entries, page by page."""
        found: list[str] = []
        low, high = 0, ids.ID_MAX
        while True:
            page = await self.page(KEY, low, high, count, reverse=reverse)
            found += ids_in(page)
            if not page.more:
                return found
            assert page.number == count
            low, high = (low, page.last - 1) if reverse else (page.last + 1, high)


@pytest.fixture
async def reading(tmp_path: Path) -> AsyncIterator[Reading]:
    """Of an empty archive."""
    made = Reading(Maker(tmp_path / "archive"))
    yield made
    made.archive.close()
    made.cache.close()


def ids_in(page: Found) -> list[str]:
    """The IDs of a page, as text."""
    return [one["id"] for one in msgspec.json.decode(b"[%b]" % page.text)]


def spread(first: int, end: int, *, step: int = 40_000_000) -> list[str]:
    """IDs over several days."""
    return [f"{1795252515378 + number * step}-{number % 3}" for number in range(first, end)]


async def test_entries_are_those_of_the_stream_with_repeated_names_and_bytes(reading: Reading) -> None:
    """As the gateway has them."""
    reading.maker.batch({"orders": ["1-0"], "others": ["1-0", "1-1"]})
    page = await reading.page()
    fields = '{"n":"/w==","":""},"encoding":"base64","pairs":[["n","MQ=="],["n","/w=="],["",""]]'
    assert page.text.decode() == f'{{"id":"1-0","fields":{fields}}}'
    assert (page.number, page.first, page.last, page.more) == (1, 1 << 64, 1 << 64, False)


@pytest.mark.parametrize("count", [1, 2, 7, 1_000])
@pytest.mark.parametrize("reverse", [False, True])
async def test_a_walk_meets_each_entry_once_and_in_order(
    reading: Reading, count: int, *, reverse: bool
) -> None:
    """Over batches, days and other streams."""
    for first in range(0, 60, 20):
        own = spread(first, first + 20)
        reading.maker.batch({"a": own, "orders": own, "z": own[3:5]})
    expected = spread(0, 60)
    assert await reading.walk(count, reverse=reverse) == (expected[::-1] if reverse else expected)


async def test_files_that_overlap_are_merged(reading: Reading) -> None:
    """As tasks may write them, and a compaction may leave them."""
    expected = spread(0, 300, step=1_000)
    reading.maker.batch({"orders": expected}, parts=7)
    assert await reading.walk(11) == expected
    assert await reading.walk(11, reverse=True) == expected[::-1]
    middle = [number(parse(expected[place])) for place in (40, 260)]
    page = await reading.page(KEY, middle[0], middle[1])
    assert ids_in(page) == expected[40:261]


async def test_a_page_ends_before_its_bytes_and_has_one_entry(reading: Reading) -> None:
    """In both directions."""
    reading.maker.batch({"orders": [f"{number}-0" for number in range(1, 10)]})
    one = len((await reading.page(count=1)).text)
    for reverse, expected in ((False, ["1-0", "2-0"]), (True, ["9-0", "8-0"])):
        page = await reading.page(bytes_max=2 * one + 2, reverse=reverse)
        assert (ids_in(page), page.more) == (expected, True)
        page = await reading.page(bytes_max=1, reverse=reverse)
        assert (ids_in(page), page.more) == (expected[:1], True)


async def test_generations_are_kept_apart(reading: Reading) -> None:
    """Also where their IDs interleave in one file."""
    reading.maker.batch({"orders": ["1-0", "3-0"]})
    reading.maker.batch({"orders": ["2-0", "4-0"]}, generation=ANOTHER)
    assert list(compact(reading.maker.table, CompactionRules(1 << 20)))
    assert ids_in(await reading.page()) == ["1-0", "3-0"]
    assert ids_in(await reading.page(KEY._replace(generation=ANOTHER))) == ["2-0", "4-0"]
    assert await reading.page(KEY._replace(generation="")) == Found()


async def test_deleted_entries_are_left_out_as_soon_as_they_are_recorded(reading: Reading) -> None:
    """A group that was cached before is encoded again."""
    reading.maker.batch({"orders": [f"{number}-0" for number in range(1, 6)]})
    assert len(ids_in(await reading.page())) == 5
    gone = [parse("2-0"), parse("5-0")]
    deletions.record(reading.maker.root, {KEY: gone[-1]}, {KEY: gone})
    assert ids_in(await reading.page()) == ["1-0", "3-0", "4-0"]
    everything = [parse(f"{number}-0") for number in range(1, 6)]
    deletions.record(reading.maker.root, {}, {KEY: everything})
    assert await reading.page() == Found()


async def test_a_group_is_encoded_once_for_all_who_read_it(reading: Reading) -> None:
    """One after the other too."""
    reading.maker.batch({"orders": [f"{number}-0" for number in range(1, 6)]})
    for first in range(1, 6):
        await reading.page(KEY, first << 64, count=1)
    assert reading.cache.groups.misses == 1


async def test_the_ranges_say_what_is_missing(reading: Reading) -> None:
    """What was lost before it was archived cuts them."""
    reading.maker.batch({"orders": ["1-0", "2-0"]}, upto="2-5")
    snapshot = await reading.archive.refresh()
    assert snapshot.span(KEY, 0) == (0, number(parse("2-5")))
    assert snapshot.span(KEY, number(parse("2-5"))) is None
    assert snapshot.span(KEY._replace(generation=ANOTHER), 0) is None


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
values = st.one_of(
    texts.map(str.encode), st.sampled_from([b"\xff", b'"', b"\\", b"\n\x00\x7f", "\u2028é".encode()])
)


@given(
    st.lists(st.lists(st.tuples(texts, values), min_size=1, max_size=4), min_size=1, max_size=6),
    st.booleans(),
)
def test_each_entry_is_written_as_the_engine_writes_it(
    rows: list[list[tuple[str, bytes]]],
    alike: bool,  # noqa: FBT001 - hypothesis gives it by its place
) -> None:
    """Whether all have the same names, which is quicker, or not."""
    if alike:
        names = [name for name, _ in rows[0]]
        rows = [
            list(zip(names, [value for _, value in row] + [b""] * len(names), strict=False)) for row in rows
        ]
    given_rows = [
        {**dict(zip(KEY._fields, KEY, strict=True)), "id": f"{number}-0", "id_key": f"{number << 64:032x}"}
        | {"fields": [{"name": name, "value": value} for name, value in row]}
        for number, row in enumerate(rows, 1)
    ]
    schema = pa.schema([*GIVEN, pa.field("id_key", pa.string())])
    group = encode_group(pa.Table.from_pylist(given_rows, schema=schema), Deleted(None, {}))
    run = group.runs[KEY]
    expected = [entries.encode(number << 64, entries.body(row)) for number, row in enumerate(rows, 1)]
    assert [run.slice(place, place + 1) for place in range(len(rows))] == expected
    assert run.slice(0, len(rows)) == b",".join(expected)
