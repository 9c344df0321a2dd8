"""A page of a stream out of an archive: in the order of IDs, from all files that have its entries.

Knows: how files, row groups and runs of entries are merged; limits of a page. Must never know: how they are
read, what asks.

Files of a stream may overlap, and so may groups of a file that others wrote. What may hold the next entry is
opened, and nothing else:

    files, by first ID ─► groups, by their footer ─► runs, encoded ─► slices, each up to where the next begins

Read backwards, all of it is mirrored: an *edge* is then the ID negated, so that less comes first.
"""

import heapq
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from engine import entries
from history.archive import Archive, Snapshot, StreamFiles
from history.budget import Share
from history.cache import FileCache, Next
from history.groups import Run
from pyspark_weir.table.files import DataFile
from pyspark_weir.table.ranges import StreamKey

# At one edge, what is not opened yet comes first: it may hold what comes before.
_UNOPENED: Final = 0
_OPENED: Final = 1
# Of a page's text: cut out of runs, joined, and as an answer.
_TEXT_FACTOR: Final = 3


class Wanted(NamedTuple):
    """Entries with IDs from `low` to `high`: one at least, and at most `number_max` in `bytes_max`."""

    key: StreamKey
    low: int
    high: int
    number_max: int
    bytes_max: int
    reverse: bool = False


class Found(NamedTuple):
    """Entries, joined by commas. `more`: a limit ended the page."""

    text: bytes = b""
    number: int = 0
    first: int = 0
    last: int = 0
    more: bool = False


class Slice(NamedTuple):
    """Entries of a run from `first` to before `end`."""

    run: Run
    first: int
    end: int


class _Group(NamedTuple):
    file: DataFile
    number: int


_Item = tuple[int, int, int, DataFile | _Group | Slice]


async def read_page(
    archive: Archive,
    cache: FileCache,
    snapshot: Snapshot,
    wanted: Wanted,
    page: Share,
    *,
    goes_on: bool = False,
) -> Found:
    """The entries that are wanted, as far as limits allow, in the share of a page. Where the reader `goes_on`
    behind another page, what it needs next is read ahead. Raises ArchiveDamagedError.
    """
    parts: list[bytes] = []
    count = size = first = last = 0
    merge = _Merge(archive, cache, snapshot, wanted, page)
    async for run, begin, end in merge.slices():
        if count:
            # A foreign OPTIMIZE may have doubled entries.
            begin, end = _beyond(run, begin, end, last, reverse=wanted.reverse)  # noqa: PLW2901
            if begin >= end:
                continue
        begin, end, is_cut = _fit(run, begin, end, wanted, count, size)  # noqa: PLW2901
        if begin < end:
            await page.take(_TEXT_FACTOR * run.length(begin, end))
            text = run.slice(begin, end)
            parts.append(b",".join(reversed(entries.texts(text))) if wanted.reverse else text)
            edges = run.id(begin), run.id(end - 1)
            first = first if count else edges[wanted.reverse]
            last = edges[not wanted.reverse]
            count, size = count + end - begin, size + len(text) + 1
        if is_cut or count == wanted.number_max:
            if goes_on and (next_one := merge.next_unopened()) is not None:
                cache.read_ahead(next_one, snapshot.deleted)
            return Found(b",".join(parts), count, first, last, more=True)
    return Found(b",".join(parts), count, first, last)


def _beyond(run: Run, begin: int, end: int, last: int, *, reverse: bool) -> tuple[int, int]:
    if reverse:
        return begin, min(end, run.within(0, last - 1)[1])
    return max(begin, run.within(0, last)[1]), end


def _fit(run: Run, begin: int, end: int, wanted: Wanted, count: int, size: int) -> tuple[int, int, bool]:
    """As many of a slice as a page has room for, which has `count` in `size` bytes so far."""
    room = min(end - begin, wanted.number_max - count)
    offsets = run.offsets
    # One entry goes in, however long it is.
    least = 0 if count else 1
    if wanted.reverse:
        lowest = int(offsets.searchsorted(offsets[end] - (wanted.bytes_max - size), "left"))
        fitting = max(end - lowest, least)
        kept = min(room, fitting)
        return end - kept, end, fitting < room
    highest = int(offsets.searchsorted(offsets[begin] + (wanted.bytes_max - size), "right")) - 1
    fitting = max(highest - begin, least)
    return begin, begin + min(room, fitting), fitting < room


class _Merge:
    """All entries in a range, in order: each slice ends where another may go on."""

    def __init__(
        self, archive: Archive, cache: FileCache, snapshot: Snapshot, wanted: Wanted, page: Share
    ) -> None:
        self._page = page
        self._archive = archive
        self._cache = cache
        self._snapshot = snapshot
        self._wanted = wanted
        # What may come next, by edge; files further on are only looked at when they are next.
        self._heap: list[_Item] = []
        self._files: StreamFiles
        # The next one is last.
        self._places: list[int] = []
        self._pushed = 0
        # Of the groups that were opened.
        self._size_max = 0

    def next_unopened(self) -> Next | None:
        """The group that is opened next."""
        item = min((one for one in self._heap if one[1] == _UNOPENED), default=None)
        found = item[-1] if item is not None else None
        if item is None and self._places:
            found = self._files.file(self._places[-1])
        stream, reverse = self._wanted.key.stream, self._wanted.reverse
        if isinstance(found, _Group):
            return Next(found.file, found.number, stream, reverse, self._size_max)
        return Next(found, None, stream, reverse, self._size_max) if isinstance(found, DataFile) else None

    async def slices(self) -> AsyncIterator[Slice]:
        """The slices. Raises ArchiveDamagedError."""
        wanted, reverse = self._wanted, self._wanted.reverse
        if wanted.low > wanted.high:
            return
        self._files = await self._archive.files(self._snapshot, wanted.key)
        self._places = self._files.within(wanted.low, wanted.high, reverse=reverse)[::-1]
        while self._next_edge() is not None:
            item = heapq.heappop(self._heap)[-1]
            if isinstance(item, Slice):
                taken, rest = self._cut(item)
                yield taken
                self._push_slice(rest)
            else:
                await self._open(item)

    async def _open(self, item: "DataFile | _Group") -> None:
        key, low, high = self._wanted.key, self._wanted.low, self._wanted.high
        if isinstance(item, DataFile):
            for edges in (await self._cache.index(item)).groups(key.stream, low, high):
                edge = -edges.high if self._wanted.reverse else edges.low
                self._push(edge, _UNOPENED, _Group(item, edges.number))
            return
        group = await self._cache.group(item.file, item.number, self._snapshot.deleted, self._page)
        self._size_max = max(self._size_max, group.size)
        run = group.runs.get(key)
        if run is not None:
            self._push_slice(Slice(run, *run.within(low, high)))

    def _cut(self, item: Slice) -> tuple[Slice, Slice]:
        """What comes before all else, one entry at least, and the rest."""
        (run, begin, end), edge = item, self._next_edge()
        if edge is None:
            return item, Slice(run, begin, begin)
        if self._wanted.reverse:
            cut = min(max(begin, run.within(-edge, self._wanted.high)[0]), end - 1)
            return Slice(run, cut, end), Slice(run, begin, cut)
        cut = max(min(end, run.within(self._wanted.low, edge)[1]), begin + 1)
        return Slice(run, begin, cut), Slice(run, cut, end)

    def _next_edge(self) -> int | None:
        reverse = self._wanted.reverse
        while self._places:
            edge = self._files.edge(self._places[-1], reverse=reverse)
            if self._heap and self._heap[0][0] < edge:
                break
            self._push(edge, _UNOPENED, self._files.file(self._places.pop()))
        return self._heap[0][0] if self._heap else None

    def _push_slice(self, item: Slice) -> None:
        run, begin, end = item
        if begin < end:
            self._push(-run.id(end - 1) if self._wanted.reverse else run.id(begin), _OPENED, item)

    def _push(self, edge: int, kind: int, item: "DataFile | _Group | Slice") -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (edge, kind, self._pushed, item))
