"""Who reads one page after the other finds the next row group read already; others do not pay for it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from app.archived.asking import Answered, Asked
from app.errors import RefusalError
from engine import SystemClock, ids
from history.service import History
from tests.spark.archive_tables import GATEWAY, GENERATION, Maker

STREAM: Final = "orders"
# Entries of a row group, as the archive job writes them.
GROUP: Final = 10_000


@asynccontextmanager
async def service(maker: Maker, cache_bytes: int = 1 << 28) -> AsyncIterator[History]:
    """The service of an archive, without its socket."""
    history = History(maker.root, SystemClock(), lambda: "", cache_bytes)
    yield history
    history.archive.close()
    history.cache.close()


async def page(history: History, after: int, count: int, *, before: int | None = None) -> Answered:
    """What comes after an ID, or backwards from before one."""
    low, high = (1, before - 1) if before is not None else (after + 1, ids.ID_MAX)
    reverse = before is not None
    asked = Asked(GATEWAY, STREAM, GENERATION, low, high, count, 1 << 30, reverse, None if reverse else after)
    return await history.page(asked)


def one_file(maker: Maker) -> int:
    """Three groups in one file; how many entries a group has."""
    maker.batch({STREAM: [f"{number}-0" for number in range(1, 3 * GROUP + 1)]})
    return GROUP


def files(maker: Maker) -> int:
    """Three files of one group each."""
    for first in range(1, 16, 5):
        maker.batch({STREAM: [f"{number}-0" for number in range(first, first + 5)]})
    return 5


@pytest.mark.parametrize("made", [one_file, files])
@pytest.mark.parametrize("reverse", [False, True])
async def test_the_second_page_in_a_row_has_the_next_group_read(
    tmp_path: Path, made: Callable[[Maker], int], *, reverse: bool
) -> None:
    """One group ahead and no further, forwards and backwards."""
    maker = Maker(tmp_path / "archive")
    group = made(maker)
    count = group // 5 * 2
    async with service(maker) as history:
        groups = history.cache.groups

        async def go_on(last: int) -> int:
            found = await page(history, last, count, before=last if reverse else None)
            assert found.number == count
            return found.last

        last = await go_on(ids.ID_MAX if reverse else 0)
        await history.cache.settle()
        assert (groups.misses, groups.ahead) == (1, 0)
        last = await go_on(last)
        await history.cache.settle()
        assert (groups.misses, groups.ahead) == (2, 1)
        # It reads into the second group, and has the third one read.
        last = await go_on(last)
        await history.cache.settle()
        assert (groups.misses, groups.ahead) == (3, 2)
        for _ in range(2):
            last = await go_on(last)
        await history.cache.settle()
        assert (groups.misses, groups.ahead) == (3, 2)


async def test_pages_anywhere_have_nothing_read_ahead(tmp_path: Path) -> None:
    """Nor does the same page, again and again."""
    maker = Maker(tmp_path / "archive")
    files(maker)
    async with service(maker) as history:
        for after in (0, 0, 6 << 64, 1 << 64, 0):
            assert (await page(history, after, 2)).more
        assert history.cache.groups.ahead == 0


async def test_a_cache_that_is_small_is_not_filled_ahead(tmp_path: Path) -> None:
    """What is read ahead would drive out what is being read."""
    maker = Maker(tmp_path / "archive")
    files(maker)
    async with service(maker) as probe:
        await page(probe, 0, 2)
        size = probe.cache.groups.bytes
    async with service(maker, 7 * size) as history:
        first = await page(history, 0, 2)
        await page(history, first.last, 2)
        assert history.cache.groups.ahead == 0


async def test_a_group_that_cannot_be_read_ahead_fails_when_it_is_needed(tmp_path: Path) -> None:
    """And not before: the pages before it are answered."""
    maker = Maker(tmp_path / "archive")
    maker.batch({STREAM: [f"{number}-0" for number in range(1, 6)]})
    [gone] = maker.batch({STREAM: [f"{number}-0" for number in range(6, 11)]})
    gone.unlink()
    async with service(maker) as history:
        last = 0
        for _ in range(2):
            last = (await page(history, last, 2)).last
        await history.cache.settle()
        assert last == 4 << 64
        with pytest.raises(RefusalError, match=gone.name):
            await page(history, last, 2)
