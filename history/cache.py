"""What was read of files, up to a number of bytes: footers, and row groups as they are answered.

Knows: that a file never changes, that readers who want the same at one time share one read, and what a read
takes. Must never know: which of it a page needs.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Container, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final, Generic, NamedTuple, TypeVar, TypeVarTuple

import pyarrow as pa

from history.budget import Budget, Share
from history.groups import COLUMNS, Deleted, Group, encode_group
from pyspark_weir.errors import ArchiveDamagedError
from pyspark_weir.table.files import ROW_GROUP_BYTES_MAX, DataFile
from pyspark_weir.table.log import STORAGE_ERRORS
from pyspark_weir.table.parquet import Footer, read_footer, read_group, reading
from pyspark_weir.table.root import ArchiveRoot

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

GROUPS_BYTES_MAX: Final = 256 << 20
# Footers take no more than this part of all.
_FOOTERS_PART: Final = 4
# Of a group's bytes, while it is read and encoded: its rows, what they are made of, and twice its text.
# Measured: 3.9 to 5.2 times its rows; 16 times where all of it is control characters.
_READ_FACTOR: Final = 5
# Large rows are expected again, by this much less with each read of smaller ones.
_FORGET_FACTOR: Final = 4
# One reads while another encodes, which takes the interpreter's lock.
_THREADS: Final = 2
# There they wait for the network.
_THREADS_OF_A_BUCKET: Final = 8
# A group that is read ahead takes no more than this part of the cache: its reader may not come for it.
_AHEAD_PART: Final = 8
_ID_MAX: Final = (1 << 128) - 1


class Edges(NamedTuple):
    """Which IDs a row group may hold, of a stream that it may hold too."""

    number: int
    low: int
    high: int


class Next(NamedTuple):
    """A row group that a reader of a stream needs next, the first one of the file where it has no number:
    about as large as `size` says.
    """

    file: DataFile
    number: int | None
    stream: str
    reverse: bool
    size: int


class GroupIndex(NamedTuple):
    """A file's footer, and what its groups may hold."""

    footer: Footer
    edges: tuple[Edges, ...]
    # The least and the greatest stream of each group; None where statistics may be cut.
    streams: tuple[tuple[str, str] | None, ...]

    def groups(self, stream: str, low: int, high: int) -> list[Edges]:
        """The groups that may hold IDs from `low` to `high` of a stream."""
        return [
            edges
            for edges, names in zip(self.edges, self.streams, strict=True)
            if edges.high >= low and edges.low <= high and (names is None or names[0] <= stream <= names[1])
        ]


class Shared(Generic[T]):
    """Values by key. Who asks for one that is being made waits for it. `size_of` a value is in bytes."""

    def __init__(self, size_of: Callable[[T], int]) -> None:
        self.bytes = self.hits = self.misses = self.ahead = 0
        self._size_of = size_of
        self._values: OrderedDict[Hashable, T] = OrderedDict()
        self._made: dict[Hashable, asyncio.Future[T]] = {}
        self._is_wanted: Callable[[Any], bool] = lambda _: True

    def get(self, key: Hashable) -> T | None:
        """A value that is here."""
        found = self._values.get(key)
        if found is not None:
            self._values.move_to_end(key)
            self.hits += 1
        return found

    def has(self, key: Hashable) -> bool:
        """Whether a value is here, or is being made."""
        return key in self._values or key in self._made

    async def make(self, key: Hashable, how: Callable[[], Awaitable[T]]) -> T:
        """Make a value, and keep it. Raises what `how` raises."""
        making = self._made.get(key)
        if making is None:
            self.misses += 1
            making = self._made[key] = asyncio.ensure_future(how())
            making.add_done_callback(lambda made: self._keep(key, made))
        return await asyncio.shield(making)

    def retain(self, is_wanted: Callable[[Any], bool]) -> None:
        """Keep values with such keys alone, from now on."""
        self._is_wanted = is_wanted
        for key in [key for key in self._values if not is_wanted(key)]:
            self._drop(key)

    def _keep(self, key: Hashable, made: asyncio.Future[T]) -> None:
        del self._made[key]
        if made.cancelled() or made.exception() is not None or not self._is_wanted(key):
            return
        self._drop(key)
        value = self._values[key] = made.result()
        self.bytes += self._size_of(value)

    def shrink(self, bytes_max: int, pinned: Container[Hashable] = ()) -> int:
        """Keep at most `bytes_max`, of those used last, and what is `pinned`; returns the bytes kept."""
        if self.bytes > bytes_max:
            for key in [key for key in self._values if key not in pinned]:
                self._drop(key)
                if self.bytes <= bytes_max:
                    break
        return self.bytes

    def _drop(self, key: Hashable) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self.bytes -= self._size_of(value)


class FileCache:
    """What was read of an archive's files, within a bound for all that the service takes."""

    def __init__(self, root: ArchiveRoot, bytes_max: int = GROUPS_BYTES_MAX) -> None:
        self._root = root
        self.budget = Budget(bytes_max)
        self.budget.shrink = self._shrink
        threads = _THREADS if root.is_local else _THREADS_OF_A_BUCKET
        self._threads = ThreadPoolExecutor(threads, "history")
        # Threads are left for what readers wait for.
        self._ahead_max = threads // 2
        self._ahead: set[asyncio.Task[None]] = set()
        # A footer says less where many values are the same: what rows took that were read lately.
        self._row_bytes = ROW_GROUP_BYTES_MAX
        self.groups: Shared[Group] = Shared(lambda group: group.size)
        self._indexes: Shared[GroupIndex] = Shared(lambda index: 2 * len(index.footer.raw))

    def close(self) -> None:
        """Read no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def retain(self, paths: frozenset[str]) -> None:
        """Forget all other files: what was erased is in some of them, and none of them is read again."""
        self.groups.retain(lambda key: key[0] in paths)
        self._indexes.retain(lambda key: key in paths)

    def _shrink(self, bytes_max: int) -> int:
        footers = self._indexes.shrink(self.budget.bytes_max // _FOOTERS_PART)
        return footers + self.groups.shrink(bytes_max - footers, self.budget.pins)

    async def index(self, file: DataFile) -> GroupIndex:
        """What a file's groups may hold. Raises ArchiveDamagedError."""
        found = self._indexes.get(file.path)
        return found or await self._indexes.make(file.path, lambda: self._run(_index, self._root, file))

    def _run(self, work: Callable[[*Ts], T], *arguments: *Ts) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def group(self, file: DataFile, number: int, deleted: Deleted, page: Share | None = None) -> Group:
        """A row group without what is deleted, which a page needs to its end. Raises ArchiveDamagedError."""
        key = (file.path, number)
        if page is not None:
            page.pin(key)
        found = self.groups.get(key)
        if found is not None and deleted.are_left_out_of(found):
            return found
        footer = (await self.index(file)).footer
        if page is not None:
            page.want(key)
        return await self.groups.make(key, lambda: self._read(key, footer, deleted))

    async def _read(self, key: tuple[str, int], footer: Footer, deleted: Deleted) -> Group:
        path, number = key
        known = footer.metadata.row_group(number)
        with self.budget.read(key) as share:
            likely = min(known.num_rows * self._row_bytes, ROW_GROUP_BYTES_MAX)
            await share.take(_READ_FACTOR * max(known.total_byte_size, likely))

            def grow(size: int) -> None:
                self._row_bytes = max(size // max(1, known.num_rows), self._row_bytes // _FORGET_FACTOR)
                share.grow(_READ_FACTOR * size)

            def note(rows: pa.Table) -> None:
                loop.call_soon_threadsafe(grow, rows.nbytes)

            loop = asyncio.get_running_loop()
            return await self._run(_encoded, self._root, path, footer, number, deleted, note)

    async def settle(self) -> None:
        """Wait for what is being read ahead."""
        await asyncio.gather(*self._ahead)

    def read_ahead(self, next_one: Next, deleted: Deleted) -> None:
        """Have a row group here soon, unless it is too large a part of the cache or as many are under way as
        threads may be used for it. Whether it can be read is of no matter until it is needed.
        """
        if len(self._ahead) >= self._ahead_max or next_one.size * _AHEAD_PART > self.budget.bytes_max:
            return
        if not self.budget.fits(_READ_FACTOR * next_one.size):
            return
        if next_one.number is not None and self.groups.has((next_one.file.path, next_one.number)):
            return
        task = asyncio.ensure_future(self._read_ahead(next_one, deleted))
        self._ahead.add(task)
        task.add_done_callback(self._ahead.discard)

    async def _read_ahead(self, next_one: Next, deleted: Deleted) -> None:
        file, number = next_one.file, next_one.number
        with suppress(ArchiveDamagedError, *STORAGE_ERRORS):
            if number is None:
                groups = (await self.index(file)).groups(next_one.stream, 0, _ID_MAX)
                if not groups:
                    return
                number = groups[-1 if next_one.reverse else 0].number
            if not self.groups.has((file.path, number)):
                self.groups.ahead += 1
                await self.group(file, number, deleted)


def _index(root: ArchiveRoot, file: DataFile) -> GroupIndex:
    footer = read_footer(root, file.path)
    with _damages(file.path, footer):
        return GroupIndex(footer, *_edges(footer.metadata, is_ours=file.is_ours))


def _encoded(
    root: ArchiveRoot,
    path: str,
    footer: Footer,
    number: int,
    deleted: Deleted,
    note: Callable[[pa.Table], None],
) -> Group:
    rows = read_group(root, path, footer, number, COLUMNS)
    note(rows)
    with _damages(path, footer):
        return encode_group(rows, deleted)


def _damages(path: str, footer: Footer) -> AbstractContextManager[None]:
    """What a file without checksums holds may be anything: what cannot be read is a damage then, and no
    fault of this program.
    """
    return nullcontext() if footer.is_checked else reading(path)


def _edges(
    metadata: Any,  # noqa: ANN401 - pyarrow has no types
    *,
    is_ours: bool,
) -> tuple[tuple[Edges, ...], tuple[tuple[str, str] | None, ...]]:
    places = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
    edges, streams = [], []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        of_ids = group.column(places["id_key"]).statistics
        of_streams = group.column(places["stream"]).statistics
        has_ids = of_ids is not None and of_ids.has_min_max
        low, high = (int(of_ids.min, 16), int(of_ids.max, 16)) if has_ids else (0, _ID_MAX)
        edges.append(Edges(number, low, high))
        # Other writers cut long names.
        is_exact = is_ours and of_streams is not None and of_streams.has_min_max
        streams.append((of_streams.min, of_streams.max) if is_exact else None)
    return tuple(edges), tuple(streams)
