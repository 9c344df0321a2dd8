"""An archive as it is read: at one version for each page, and at a fresh one every few seconds.

Knows: ranges, files and deletions of a version; when to look for a later one. Must never know: what is in a
file's row groups, who reads.

Everything that opens the table runs in one thread: a handle of it is for one thread at a time.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from engine import Clock
from history.groups import Deleted, key_of
from pyspark_weir import ids
from pyspark_weir.ids import EntryId
from pyspark_weir.table import deletions
from pyspark_weir.table.files import DataFile
from pyspark_weir.table.ranges import StreamKey
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import Keys
from pyspark_weir.table.table import ArchiveTable, EntryFilter, data_file

REFRESH_S: Final = 5.0
# Between looks because of what the last look has not found either.
_HURRY_S: Final = 0.5
# Lists of files that a version keeps, of as many streams.
_STREAMS_MAX: Final = 1_000


def number(one: EntryId) -> int:
    """An ID as the engine has it."""
    return one.ms << 64 | one.seq


class Span(NamedTuple):
    """The archive holds what a stream had in `(after, upto]`."""

    after: int
    upto: int


class StreamFiles(NamedTuple):
    """The files that may hold entries of a stream, as rows of `ArchiveTable.adds`, and their bounds: a page
    needs few of many.
    """

    adds: pa.Table
    lows: Keys
    highs: Keys

    @classmethod
    def of(cls, adds: pa.Table) -> "StreamFiles":
        """Files in any order."""
        return cls(adds, *(np.array(adds[f"{side}.id_key"].to_numpy(), "S32") for side in ("min", "max")))

    def within(self, low: int, high: int, *, reverse: bool) -> list[int]:
        """The places of those that may hold IDs from `low` to `high`: by their first ID, in reverse by their
        last one from the end.
        """
        found = np.flatnonzero((self.highs >= key_of(low)) & (self.lows <= key_of(high)))
        order = np.argsort((self.highs if reverse else self.lows)[found], kind="stable")
        places: list[int] = found[order[::-1] if reverse else order].tolist()
        return places

    def edge(self, place: int, *, reverse: bool) -> int:
        """The first ID of one; in reverse the last one, negated."""
        return -int(self.highs[place], 16) if reverse else int(self.lows[place], 16)

    def file(self, place: int) -> DataFile:
        """One of them."""
        (row,) = self.adds.slice(place, 1).to_pylist()
        return data_file(row)


class Snapshot:
    """An archive at one version; `seen_at` by the monotonic clock, in seconds."""

    def __init__(self, table: ArchiveTable, deleted: Deleted, seen_at: float) -> None:
        self.version = table.version
        self.table_id = table.table_id
        self.deleted = deleted
        self.seen_at = seen_at
        self.paths = table.paths()
        begins = table.begins()
        self.spans = _spans(table, begins)
        # Whether it is known of a stream what it had lost before it was archived.
        self.known = frozenset(begins)
        self.files: dict[StreamKey, StreamFiles] = {}
        # Streams of which more was asked for than this version has.
        self.too_short: set[StreamKey] = set()

    def span(self, key: StreamKey, after: int) -> Span | None:
        """What the archive holds of a stream after an ID, up to where something is missing; None where it
        holds nothing. It begins after that ID where what is between is missing.
        """
        for span in self.spans.get(key, ()):
            if span.upto > after:
                return span
        return None

    def upto(self, key: StreamKey) -> int:
        """How far the archive goes of a stream, 0 where it has nothing of it."""
        spans = self.spans.get(key)
        return spans[-1].upto if spans else 0


class Archive:
    """The archive of a root, opened at its first use; `retain` is given the paths of the files of each new
    version. Raises ArchiveError, and what reading raises.
    """

    def __init__(
        self, root: ArchiveRoot, clock: Clock, retain: Callable[[frozenset[str]], None] = lambda _: None
    ) -> None:
        self.root = root
        self._retain = retain
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "archive")
        self._table: ArchiveTable | None = None
        self._snapshot: Snapshot | None = None
        self._refreshing: asyncio.Future[Snapshot] | None = None
        # The first entries of streams, as far as readers needed them.
        self.firsts: dict[StreamKey, int] = {}

    def close(self) -> None:
        """Read no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def snapshot(self, key: StreamKey | None = None, upto: int = 0) -> Snapshot:
        """The archive at a version that was the latest REFRESH_S ago or later; the latest one where that
        does not reach `upto` of a stream.
        """
        found = self._snapshot
        if found is None:
            return await self.refresh()
        age_s = self._clock.monotonic() - found.seen_at
        if key is None or found.upto(key) >= upto:
            if age_s > REFRESH_S:
                return await self.refresh()
            if age_s > REFRESH_S / 2:
                # So that no page waits for it while there are pages.
                self._begin_refresh()
            return found
        if key in found.too_short and age_s <= _HURRY_S:
            return found
        found = await self.refresh()
        if found.upto(key) < upto:
            found.too_short.add(key)
        return found

    async def refresh(self) -> Snapshot:
        """The latest version; callers at one time share a look."""
        return await asyncio.shield(self._begin_refresh())

    def _begin_refresh(self) -> asyncio.Future[Snapshot]:
        refreshing = self._refreshing
        if refreshing is None:
            work = asyncio.get_running_loop().run_in_executor(self._thread, self._load)
            refreshing = self._refreshing = asyncio.ensure_future(work)
            refreshing.add_done_callback(self._loaded)
        return refreshing

    def _loaded(self, refreshed: asyncio.Future[Snapshot]) -> None:
        self._refreshing = None
        if not refreshed.cancelled() and refreshed.exception() is None:
            before, self._snapshot = self._snapshot, refreshed.result()
            if self._snapshot is not before:
                self._retain(self._snapshot.paths)

    def _load(self) -> Snapshot:
        seen_at = self._clock.monotonic()
        if self._table is None:
            self._table = ArchiveTable.open(self.root)
        else:
            self._table.refresh()
        known = self._snapshot
        if known is not None and (
            known.table_id != self._table.table_id or known.version > self._table.version
        ):
            # Another archive is there now, or an older copy of it.
            self._table, known, self.firsts = ArchiveTable.open(self.root), None, {}
        at = deletions.version(self.root)
        if known is not None and known.deleted.version == at:
            deleted = known.deleted
        else:
            deleted = Deleted.of(at, deletions.read(self.root))
        if known is not None and (known.version, known.deleted.version) == (self._table.version, at):
            known.seen_at = seen_at
            return known
        return Snapshot(self._table, deleted, seen_at)

    def note_first(self, key: StreamKey, first: int) -> int:
        """Keep the first entry of a stream, which is returned."""
        if len(self.firsts) >= _STREAMS_MAX:
            self.firsts.clear()
        self.firsts[key] = first
        return first

    async def files(self, snapshot: Snapshot, key: StreamKey) -> StreamFiles:
        """The files of a stream at a version."""
        found = snapshot.files.get(key)
        if found is None:
            run = asyncio.get_running_loop().run_in_executor
            found = await run(self._thread, self._find_files, snapshot.version, key)
            if len(snapshot.files) >= _STREAMS_MAX:
                snapshot.files.clear()
            snapshot.files[key] = found
        return found

    def _find_files(self, version: int, key: StreamKey) -> StreamFiles:
        table = self._table
        assert table is not None, "a snapshot was made of it"
        if table.version != version:
            table = ArchiveTable.open(self.root, version)
        return StreamFiles.of(table.adds(EntryFilter(*key)))


def _spans(table: ArchiveTable, begins: Mapping[StreamKey, EntryId]) -> Mapping[StreamKey, Sequence[Span]]:
    """What the table holds of each stream, ascending: ranges, cut where entries were lost before they were
    archived.
    """
    found: dict[StreamKey, list[Span]] = {}
    for one in table.ranges():
        found.setdefault(one.key, []).append(Span(number(one.after), number(one.upto)))
    for key, begin in begins.items():
        found[key] = [part for span in found[key] for part in _without(span, 0, number(begin))]
    for lost in table.lost():
        gateway, _, stream = lost.key.partition("/")
        key = StreamKey(gateway, stream, lost.generation)
        if found.get(key):
            after = number(ids.parse(lost.after))
            upto = found[key][-1].upto if lost.upto is None else number(ids.parse(lost.upto))
            found[key] = [part for span in found[key] for part in _without(span, after, upto)]
    return {key: sorted(spans) for key, spans in found.items()}


def _without(span: Span, after: int, upto: int) -> list[Span]:
    parts = (Span(span.after, min(span.upto, after)), Span(max(span.after, upto), span.upto))
    return [part for part in parts if part.after < part.upto]
