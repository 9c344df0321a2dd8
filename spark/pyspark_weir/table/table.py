"""The Delta table of an archive: its commits, each batch once, and the files that a query must read.

Knows: Delta's log through deltalake, and the protocol of commits. Must never know: how files are made, Spark,
gateways.

Delta alone does not make a batch exactly-once: it accepts an application's transaction again. So a writer
loads the table, looks whether it holds the batch, makes sure that the batch continues the table's ranges, and
commits as the very next version (`max_commit_retries=0`: deltalake rebases nothing). Where another commit has
that version, the writer begins again. If it did not learn how a commit ended, it repeats the batch.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from pyspark_weir import clock
from pyspark_weir.errors import (
    ArchiveError,
    CommitConflictError,
    StaleFilesError,
)
from pyspark_weir.ids import EntryId
from pyspark_weir.offsets import Lost
from pyspark_weir.table import log
from pyspark_weir.table import ranges as range_cache
from pyspark_weir.table.files import Bounds, DataFile
from pyspark_weir.table.ranges import (
    ENTRY_KEYS,
    ArchivePosition,
    BatchRanges,
    Range,
    RangeDigest,
    Ranges,
    StreamKey,
    Tally,
    erased_metadata,
)
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import DATE, IN_FILES, SCHEMA, all_of, id_key

# Constant: a commit's version in it is the archive's own number, never Spark's.
BATCHES: Final = "weir-archive"
COMPACTIONS: Final = "weir-archive/compaction"
ERASURES: Final = "weir-archive/erasure"
CLOSINGS: Final = "weir-archive/closed"
# Vacuum deletes files that no commit names when they are older.
VACUUM_AGE_MS_MIN: Final = 7 * 24 * 3_600_000
# Opening reads the commits since the last checkpoint, whose size is that of all that is known of files.
_CHECKPOINT_COMMITS: Final = 50
# So what is followed of a table does not grow, and agrees with what deltalake has.
_FOLLOWED_MAX: Final = 50
# The cache of ranges is small.
_RANGES_COMMITS: Final = 10
# Writers that lose this often in a row are more than an archive has.
_ATTEMPTS_MAX: Final = 100
_CONFIGURATION: Final = {
    # Only `clean_log` deletes commits: it makes sure that their ranges are kept.
    "delta.enableExpiredLogCleanup": "false",
    # A row that is only marked as deleted would be counted, and come back with a compaction.
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": str(_CHECKPOINT_COMMITS),
    "delta.dataSkippingStatsColumns": "gateway,stream,generation,id_key,ts",
}
_DELTA_SCHEMA: Final = Schema.from_arrow(SCHEMA)


@dataclass(frozen=True)
class Batch:
    """A batch to commit: what it moves, and the files that hold its entries."""

    moved: BatchRanges
    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class Committed:
    """The table's version when the batch was in it; `repeated` if an earlier commit had put it there."""

    version: int
    repeated: bool


@dataclass(frozen=True)
class EntryFilter:
    """Entries to look for; None means all. `since <= ts < until`, and IDs in `(after, upto]`."""

    gateway: str | None = None
    stream: str | None = None
    generation: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    after: EntryId | None = None
    upto: EntryId | None = None


class ArchiveTable:
    """A table at one version, until `refresh`; what commits refreshes first. For one thread at a time."""

    def __init__(self, root: ArchiveRoot, delta: DeltaTable, tip: bytes | None) -> None:
        self.root = root
        self._ranges: Ranges | None = None
        self._hold(delta, tip)
        # The last commit that is known to be on disk.
        self._synced = -1

    @classmethod
    def open(cls, root: ArchiveRoot, version: int | None = None) -> "ArchiveTable":
        """The latest version, or that one. Raises ArchiveError where there is no archive, ArchiveDamagedError
        where a power cut left its last commit unfinished: see `repair`; UnknownFeatureError.
        """
        return cls(root, *_load(root, version))

    @classmethod
    def exists(cls, root: ArchiveRoot) -> bool:
        return log.has_table(root)

    @classmethod
    def check_place(cls, root: ArchiveRoot) -> None:
        """Refuse a root that holds other files and no table: vacuum would delete them. Raises ArchiveError.

        Vacuum sees no names that begin with `_` or `.`.
        """
        others = [name for name in root.names("", folders=True) if not name.startswith(("_", "."))]
        # Another writer may have created the table and written files by now.
        if others and not cls.exists(root):
            raise ArchiveError(f"{root.url} holds {others[0]!r} and no archive: give an archive a new folder")

    @classmethod
    def create(cls, root: ArchiveRoot) -> "ArchiveTable":
        """Create the table, unless there is one; open it. Raises ArchiveError as `check_place` does."""
        if not cls.exists(root):
            cls.check_place(root)
        log.create(root, _DELTA_SCHEMA, _CONFIGURATION, [DATE], "weir archive")
        return cls.open(root)

    @property
    def delta(self) -> DeltaTable:
        """What deltalake has of this version, loaded where it is needed: to commit, and to change the log."""
        if self._delta.version() != self.version:
            self._hold(log.load(self.root, self.version), self._tip)
        return self._delta

    def refresh(self) -> None:
        """Be at the latest version. What a table costs to load grows with its files: where nothing but
        commits of ours has come since, these are read and no more. Raises as `open`.
        """
        if not self._has_tip() or not self._follow():
            self.reload()

    def reload(self) -> None:
        """The same, loaded anew: what is loaded reads files of the log, which may be deleted by now."""
        self._hold(*_load(self.root))

    def _hold(self, delta: DeltaTable, tip: bytes | None) -> None:
        self._delta = delta
        self.version = delta.version()
        # A digest of the commit of this version.
        self._tip = tip
        self._files: pa.Table | None = None
        # The files of commits since the one that deltalake has loaded: where they were added, and where not.
        self._changed: dict[str, log.Action | None] = {}

    def _has_tip(self) -> bool:
        """Whether the last commit is what it was: else the folder holds another archive now, or an older copy
        of this one; or its log was cleaned.
        """
        last = log.commit_name(self.version)
        return self._tip is not None and self._tip == _digest(self.root.read(last))

    def _follow(self) -> bool:
        """Take in the commits that have come; False where deltalake has to."""
        while (stored := self.root.read(log.commit_name(self.version + 1))) is not None:
            changed = log.files_in(stored)
            if changed is None or self.version - self._delta.version() >= _FOLLOWED_MAX:
                return False
            self._changed |= changed
            self.version += 1
            self._tip = _digest(stored)
        return True

    def commit(self, batch: Batch, now_ms: int | None = None) -> Committed:
        """Commit a batch, unless the table holds it; it stays through a power cut. `now_ms`: wall clock.

        Raises RangeConflictError where it does not continue the table's ranges, StaleFilesError where its
        files must be written again, CommitConflictError, and what deltalake raises. After an error the batch
        may be in the table all the same: repeat it.
        """
        now_ms = clock.wall_ms() if now_ms is None else now_ms
        _check(batch)
        added = [_add(file, data_change=True) for file in batch.files]
        for _attempt in range(_ATTEMPTS_MAX):
            self.refresh()
            known = self._known_ranges()
            if known.holds(batch.moved):
                self._sync_commits()
                return Committed(self.version, repeated=True)
            known.check(batch.moved)
            _check_young(batch.files, now_ms)
            _check_there(self.root, batch.files)
            if self._put(BATCHES, added, batch.moved.metadata()):
                return Committed(self.version, repeated=False)
        raise self._too_busy()

    def replace(
        self, removed: Sequence[DataFile], added: Sequence[DataFile], now_ms: int | None = None
    ) -> int:
        """Commit files that hold the very rows of others, which no longer count; the new version.

        Raises CommitConflictError where one of these does not count any more: begin again with a fresh table;
        ArchiveError where one still does.
        """
        return self._exchange(COMPACTIONS, removed, added, {}, now_ms)

    def erase(
        self,
        removed: Sequence[DataFile],
        added: Sequence[DataFile],
        erased: Mapping[StreamKey, Tally],
        now_ms: int | None = None,
    ) -> int:
        """Commit files that hold the rows of others but for those that were `erased`; the new version. Their
        digests are of what comes after where those of the table begin. Raises as `replace` does.
        """
        if self._delta.metadata().configuration.get("delta.appendOnly") == "true":
            raise ArchiveError(
                f"{self.root.url} has the property delta.appendOnly: take it off to erase entries"
            )
        return self._exchange(ERASURES, removed, added, erased, now_ms)

    def accept(self, changed: Mapping[StreamKey, Tally]) -> bool:
        """Commit that rows which other programs have removed or changed up to this version count as erased;
        False where there is a later version.
        """
        return self._put(ERASURES, [], {**erased_metadata(changed), "accepted": self.version})

    def _exchange(
        self,
        application: str,
        removed: Sequence[DataFile],
        added: Sequence[DataFile],
        erased: Mapping[StreamKey, Tally],
        now_ms: int | None,
    ) -> int:
        now_ms = clock.wall_ms() if now_ms is None else now_ms
        left_out = sum(one.rows for one in erased.values())
        if sum(file.rows for file in removed) - left_out != sum(file.rows for file in added):
            raise ArchiveError("files would be replaced by others with more or fewer rows")
        _check_young(added, now_ms)
        changes = bool(erased)
        actions: list[AddAction | RemoveAction] = [
            *(_add(file, data_change=changes) for file in added),
            *(RemoveAction(file.path, changes, now_ms, file.size, file.partition) for file in removed),
        ]
        metadata = erased_metadata(erased) if erased else {}
        for _attempt in range(_ATTEMPTS_MAX):
            self.refresh()
            if len(self._live(removed)) < len(removed):
                raise CommitConflictError("another process has replaced one of these files")
            _check_there(self.root, added)
            if self._put(application, actions, metadata):
                # By deltalake, which also knows what others add.
                self.reload()
                if still := self._live(removed):
                    raise ArchiveError(
                        f"{still[0].path} was removed, and still counts: another program has added it in a "
                        f"form that Weir does not know, perhaps with a deletion vector; look at {log.FOLDER}"
                    )
                return self.version
        raise self._too_busy()

    def close(self, streams: Iterable[StreamKey]) -> None:
        """Commit that these end for good where their ranges end, of those that the table holds."""
        for _attempt in range(_ATTEMPTS_MAX):
            self.refresh()
            known = self._known_ranges()
            ended = sorted({one.key for one in known}.intersection(streams) - known.closed)
            if not ended or self._put(CLOSINGS, [], {"closed": ended}):
                return
        raise self._too_busy()

    def adds(self, selection: EntryFilter) -> pa.Table:
        """The files that may hold such entries by their statistics, in any order: one row a file, as
        `data_file` takes it.
        """
        condition = _condition(selection)
        return self._adds() if condition is None else self._adds().filter(condition)

    def files(self, selection: EntryFilter | None = None) -> list[DataFile]:
        """The same, in the order of dates and of entries."""
        files = [data_file(row) for row in self.adds(selection or EntryFilter()).to_pylist()]
        return sorted(
            files,
            key=lambda one: (one.date or date.max, one.low.gateway, one.low.stream, one.low.id_key, one.path),
        )

    def paths(self) -> frozenset[str]:
        """Where its files are."""
        return frozenset(self._adds()["path"].to_pylist())

    def holds(self, moved: BatchRanges) -> bool:
        """Whether a batch was committed before. Raises RangeConflictError where another of its number was."""
        return self._known_ranges().holds(moved)

    def ranges(self) -> tuple[Range, ...]:
        """What the table holds of each stream: one range where nothing is missing; see `ranges.gaps`."""
        return tuple(self._known_ranges())

    def rows(self) -> dict[StreamKey, int]:
        """How many entries of each stream its files must hold."""
        return self._known_ranges().rows()

    def erased(self) -> dict[StreamKey, int]:
        """How many entries of streams were erased, of those that its ranges count."""
        return dict(self._known_ranges().erased)

    def foreign(self) -> dict[int, str]:
        """What other programs have changed in it, by version, and nobody has accepted."""
        return dict(self._known_ranges().foreign)

    def lost(self) -> tuple[Lost, ...]:
        """What was gone before it was archived, which was accepted."""
        return tuple(self._known_ranges().lost)

    def begins(self) -> dict[StreamKey, EntryId]:
        """Up to where streams had been trimmed when the archive met them; not known of those that an older
        version met.
        """
        return dict(self._known_ranges().begins)

    def digests(self) -> dict[StreamKey, RangeDigest]:
        """The digests of what the table holds, as far as its commits have them."""
        return dict(self._known_ranges().digests)

    def closed(self) -> frozenset[StreamKey]:
        """What ends for good where its ranges end, as far as commits say so."""
        return frozenset(self._known_ranges().closed)

    def positions(self) -> dict[tuple[str, str], ArchivePosition]:
        """How far the table goes, by gateway and stream: where a query without a checkpoint starts."""
        return self._known_ranges().positions()

    def checkpoint(self) -> None:
        """Store a checkpoint of Delta's, and the ranges up to this version; the disk holds both."""
        self._sync_commits()
        self.delta.create_checkpoint()
        self.root.sync([log.checkpoint_name(self.version), log.LAST_CHECKPOINT])
        range_cache.write_cache(self.root, self._known_ranges())

    def ranges_from_cache(self, version: int) -> Ranges | None:
        """The ranges that are cached for a version, with the commits after it; None where that is damaged."""
        known = range_cache.read_cache(self.root, version, self.table_id)
        return None if known is None else self._fold(known)

    def _too_busy(self) -> CommitConflictError:
        return CommitConflictError(
            f"{self.root.url}: other writers were faster {_ATTEMPTS_MAX} times in a row"
        )

    # ---- one commit

    def _put(
        self, application: str, actions: Sequence[AddAction | RemoveAction], metadata: dict[str, Any]
    ) -> bool:
        """Commit as the next version of this one; False where another commit is."""
        # No commit stands on one that the disk may not hold.
        self._sync_commits()
        last = self.delta.transaction_version(application)
        number = 0 if last is None else last + 1
        version = self.version + 1
        if not log.commit(self.delta, actions, Transaction(application, number), metadata, [DATE]):
            return False
        self.refresh()
        known = self._known_ranges()
        self._sync_commits()
        if version % _RANGES_COMMITS == 0 and self.version == version:
            range_cache.write_cache(self.root, known)
        return True

    def _sync_commits(self) -> None:
        """Have the disk hold all commits: a cache is written after that, and what it holds needs no more."""
        self._known_ranges()
        if self._synced < self.version:
            self.root.sync(log.commit_name(one) for one in range(self._synced + 1, self.version + 1))
            self._synced = self.version

    # ---- ranges

    def _known_ranges(self) -> Ranges:
        """The ranges up to this version: those that are known already, or cached, and the commits after."""
        if self._ranges is None:
            self._ranges = self._cached_ranges()
            self._synced = self._ranges.version
        return self._fold(self._ranges)

    def _fold(self, known: Ranges) -> Ranges:
        for version in range(known.version + 1, self.version + 1):
            known.fold(version, log.metadata_of(self.root, version))
        return known

    @property
    def columns(self) -> pa.Schema:
        """What files have: the archive's columns, and those that another program has added."""
        others = (field for field in _arrow_schema(self._delta) if field.name not in SCHEMA.names)
        return pa.schema([*IN_FILES, *others])

    @property
    def table_id(self) -> str:
        """Another one where the folder holds another archive now."""
        return str(self._delta.metadata().id)

    def _cached_ranges(self) -> Ranges:
        for version in range_cache.cached_versions(self.root):
            if version <= self.version:
                found = range_cache.read_cache(self.root, version, self.table_id)
                if found is not None:
                    return found
        return Ranges(self.table_id)

    # ---- files

    def _live(self, files: Iterable[DataFile]) -> list[DataFile]:
        """Those that count at this version."""
        paths = self.paths()
        return [file for file in files if file.path in paths]

    def _adds(self) -> pa.Table:
        """One row a file; made once a version, since jobs look up one stream after another."""
        if self._files is None:
            self._files = pa.table(self._delta.get_add_actions(flatten=True))
        if self._changed:
            paths = pa.array(list(self._changed), pa.string())
            kept = self._files.filter(pc.invert(pc.is_in(self._files["path"], paths)))
            added = [_flat(one) for one in self._changed.values() if one is not None]
            self._files = pa.concat_tables([kept, _as_adds(added, kept.schema)]).combine_chunks()
            self._changed = {}
        return self._files


def _load(root: ArchiveRoot, version: int | None = None) -> tuple[DeltaTable, bytes | None]:
    """The latest version, or that one, and the digest of its commit. Raises ArchiveError."""
    try:
        found = log.load(root, version)
    except TableNotFoundError:
        raise ArchiveError(f"{root.url} holds no archive") from None
    except DeltaError:
        if root.is_local and (names := log.unfinished(root)):
            raise log.cut_short(names[-1]) from None
        raise
    _check_schema(root, found)
    if version is not None:
        return found, None
    stored = root.read(log.commit_name(found.version()))
    # deltalake takes an empty commit, and one that ends after a line. Objects appear whole.
    if root.is_local:
        log.metadata_in(found.version(), stored)
    return found, _digest(stored)


def _digest(stored: bytes | None) -> bytes | None:
    return None if stored is None else hashlib.blake2b(stored).digest()


def _check_schema(root: ArchiveRoot, delta: DeltaTable) -> None:
    found = {field.name: field for field in _arrow_schema(delta)}
    if any(field.name not in found or found[field.name].type != field.type for field in SCHEMA):
        raise ArchiveError(f"{root.url} holds a Delta table that is no archive of Weir's")
    unknown = [name for name, field in found.items() if name not in SCHEMA.names and not field.nullable]
    if unknown:
        raise ArchiveError(
            f"{root.url} has columns that this version does not know and that must have a value "
            f"({', '.join(unknown)}): use the version of Weir that wrote it, or a newer one"
        )


def _arrow_schema(delta: DeltaTable) -> pa.Schema:
    return pa.schema(delta.schema().to_arrow())


def _check(batch: Batch) -> None:
    """A bug elsewhere must not make a range count whose entries are not there."""
    rows = sum(file.rows for file in batch.files)
    counted = sum(moved.rows for moved in batch.moved.ranges)
    if rows != counted:
        raise ArchiveError(f"a batch has {counted} entries in its ranges and {rows} in its files")
    for file in batch.files:
        keys = [moved.key for moved in batch.moved.ranges if moved.rows]
        low = min(id_key(moved.after) for moved in batch.moved.ranges if moved.rows)
        high = max(id_key(moved.upto) for moved in batch.moved.ranges if moved.rows)
        inside = low < file.low.id_key and file.high.id_key <= high
        if not inside or file.low.stream > max(key.stream for key in keys):
            raise ArchiveError(f"{file.path} holds entries that are in no range of its batch")


def _check_young(files: Iterable[DataFile], now_ms: int) -> None:
    oldest_ms = min((file.written_ms for file in files), default=now_ms)
    if now_ms - oldest_ms > VACUUM_AGE_MS_MIN // 2:
        raise StaleFilesError("a new file is so old that vacuum may soon delete it: write it again")


def _check_there(root: ArchiveRoot, files: Iterable[DataFile]) -> None:
    for file in files:
        if root.size(file.path) != file.size:
            raise StaleFilesError(
                f"{file.path} was deleted before its commit, as by another program's VACUUM: write it again"
            )


def _add(file: DataFile, *, data_change: bool) -> AddAction:
    return AddAction(file.path, file.size, file.partition, file.written_ms, data_change, file.stats)


def _condition(wanted: EntryFilter) -> Any:  # noqa: ANN401 - an expression of pyarrow's, or None
    found: list[Any] = []
    for name in StreamKey._fields:
        value = getattr(wanted, name)
        if value is not None:
            found += [pc.field(f"min.{name}") <= value, pc.field(f"max.{name}") >= value]
    if wanted.after is not None:
        found.append(pc.field("max.id_key") > id_key(wanted.after))
    if wanted.upto is not None:
        found.append(pc.field("min.id_key") <= id_key(wanted.upto))
    # Files without a timestamp have null here, which no comparison lets through.
    if wanted.since is not None:
        found.append(pc.field("max.ts") >= wanted.since)
    if wanted.until is not None:
        found.append(pc.field("min.ts") < wanted.until)
    return all_of(found)


def _flat(add: log.Action) -> dict[str, Any]:
    """An action of the log as deltalake gives one."""
    stats = json.loads(add["stats"])
    return {
        "path": add["path"],
        "size_bytes": add["size"],
        "modification_time": add["modificationTime"],
        "num_records": stats["numRecords"],
        f"partition.{DATE}": add["partitionValues"][DATE],
        **{f"min.{name}": value for name, value in stats["minValues"].items()},
        **{f"max.{name}": value for name, value in stats["maxValues"].items()},
        **{f"null_count.{name}": value for name, value in stats["nullCount"].items()},
    }


def _as_adds(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    # Times and dates are texts in the log.
    columns = [pa.array([row.get(field.name) for row in rows]).cast(field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def data_file(row: Mapping[str, Any]) -> DataFile:
    """A row of `adds`. Raises ArchiveError."""
    bounds = {}
    for side in ("min", "max"):
        values = {name: row[f"{side}.{name}"] for name in ENTRY_KEYS}
        if None in values.values() or row["num_records"] is None:
            raise ArchiveError(f"{row['path']} has no statistics: another program has written it")
        bounds[side] = Bounds(**values, ts=row[f"{side}.ts"])
    return DataFile(
        path=row["path"],
        size=row["size_bytes"],
        rows=row["num_records"],
        date=row[f"partition.{DATE}"],
        written_ms=row["modification_time"],
        low=bounds["min"],
        high=bounds["max"],
        ts_nulls=row["null_count.ts"] or 0,
    )
