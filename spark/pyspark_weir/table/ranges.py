"""What an archive holds of each stream: the ranges of its commits, joined, and their cache.

Knows: the form of a commit's metadata, what continues what, and where the cache is stored.
Must never know: files of entries, Delta's log.

A commit's metadata are not in Delta's checkpoints, so the ranges of all commits up to a version are stored as
`_weir/ranges-<version>.parquet`, written after that commit. It is a cache: a torn one, one of another table
and one of a later version are passed over, as long as the log holds the commits.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pyspark_weir import ids
from pyspark_weir.errors import ArchiveDamagedError, RangeConflictError
from pyspark_weir.ids import EntryId
from pyspark_weir.offsets import Lost
from pyspark_weir.table import digest
from pyspark_weir.table.log import FOREIGN, MEMBER
from pyspark_weir.table.parquet import read_table, write_table
from pyspark_weir.table.root import ArchiveRoot

FOLDER: Final = "_weir"
_PREFIX: Final = "ranges-"
_SUFFIX: Final = ".parquet"
# More digits than a table has commits; names of equal length sort as numbers.
_DIGITS: Final = 20
_KEPT: Final = 2


class StreamKey(NamedTuple):
    """A stream of a gateway; one that was deleted and made anew has another generation."""

    gateway: str
    stream: str
    generation: str

    def __str__(self) -> str:
        return f"{self.gateway}/{self.stream} (generation {self.generation})"


# What an entry is known by.
ENTRY_KEYS: Final = (*StreamKey._fields, "id_key")


class Range(NamedTuple):
    """The IDs in `(after, upto]` of a stream, of which `rows` are entries (others were deleted before)."""

    key: StreamKey
    after: EntryId
    upto: EntryId
    rows: int


class Tally(NamedTuple):
    """Entries of a stream: how many, and the digest of all of them."""

    rows: int
    digest: int


class RangeDigest(NamedTuple):
    """The digest of what a table holds of a stream after an ID: commits of before have none."""

    after: EntryId
    value: int


class ArchivePosition(NamedTuple):
    """How far the archive goes in the latest generation of a stream."""

    generation: str
    upto: EntryId


@dataclass(frozen=True)
class BatchRanges:
    """What batch `number` of the streaming query `query` moves: one range a stream and generation. `lost`:
    what was gone before it was read, which was accepted. `begins`: of streams that are met here, up to where
    they had been trimmed by then. `digests`: of the entries in each range, an empty one left out; None where
    they are not known.
    """

    query: str
    number: int
    ranges: tuple[Range, ...]
    lost: tuple[Lost, ...] = ()
    begins: Mapping[StreamKey, EntryId] = field(default_factory=dict)
    digests: Mapping[StreamKey, int] | None = None

    def metadata(self) -> dict[str, Any]:
        moved = [[*one.key, str(one.after), str(one.upto), one.rows] for one in self.ranges]
        found = {"query": self.query, "batch": self.number, "ranges": moved}
        begins = {"begins": _begins_to_json(self.begins)} if self.begins else {}
        if self.digests is not None:
            # Beside the ranges: older versions know these by their members.
            of_ranges = [self.digests.get(one.key, digest.NONE) for one in self.ranges]
            found["digests"] = [digest.to_text(one) for one in of_ranges]
        return found | ({"lost": self.lost} if self.lost else {}) | begins

    @classmethod
    def of_metadata(cls, stored: Mapping[str, Any]) -> "BatchRanges":
        lost = tuple(Lost(*one) for one in stored.get("lost", ()))
        ranges = tuple(_range(one) for one in stored["ranges"])
        digests = None
        if "digests" in stored:
            texts = zip(ranges, stored["digests"], strict=True)
            digests = {one.key: int(text, 16) for one, text in texts}
        return cls(stored["query"], stored["batch"], ranges, lost, _begins_of_json(stored), digests)


class Ranges:
    """The ranges of all commits of a table up to `version`; what continues a range is joined to it."""

    def __init__(self, table_id: str) -> None:
        self.table_id = table_id
        self.version = -1
        # Of each query its last batch.
        self.queries: dict[str, int] = {}
        self.lost: list[Lost] = []
        # What ends for good where its ranges end.
        self.closed: set[StreamKey] = set()
        # Up to where streams had been trimmed when they were met; not known of what older versions have met.
        self.begins: dict[StreamKey, EntryId] = {}
        self.digests: dict[StreamKey, RangeDigest] = {}
        # How many entries of the ranges were erased.
        self.erased: dict[StreamKey, int] = {}
        # What other programs have changed, by version, and nobody has accepted.
        self.foreign: dict[int, str] = {}
        # The stream that moved last is last.
        self._spans: dict[StreamKey, list[Range]] = {}

    def __iter__(self) -> Any:  # noqa: ANN401 - an iterator of Range
        return (span for spans in self._spans.values() for span in spans)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and self._compared() == other._compared()

    def __hash__(self) -> int:
        raise TypeError("ranges change")

    def _compared(self) -> tuple[object, ...]:
        return (
            *(self.table_id, self.version, self.queries),
            *(self.lost, self.closed, self.begins, self.digests, self.erased, self.foreign, list(self)),
        )

    def rows(self) -> dict[StreamKey, int]:
        """How many entries of each stream there are: those of its ranges that were not erased."""
        return {
            key: sum(span.rows for span in spans) - self.erased.get(key, 0)
            for key, spans in self._spans.items()
        }

    def positions(self) -> dict[tuple[str, str], ArchivePosition]:
        return {
            (key.gateway, key.stream): ArchivePosition(key.generation, spans[-1].upto)
            for key, spans in self._spans.items()
        }

    def fold(self, version: int, stored: Mapping[str, Any]) -> None:
        """Take the next commit in; `stored` is its MEMBER, empty where it has none."""
        assert version == self.version + 1, "commits are folded in order"
        self.version = version
        if "batch" in stored:
            self._fold(BatchRanges.of_metadata(stored))
        self.closed.update(StreamKey(*one) for one in stored.get("closed", ()))
        if FOREIGN in stored:
            self.foreign[version] = stored[FOREIGN]
        if "erased" in stored:
            self._fold_erased(
                {StreamKey(*key): Tally(rows, int(text, 16)) for *key, rows, text in stored["erased"]}
            )
        accepted = stored.get("accepted", -1)
        self.foreign = {one: what for one, what in self.foreign.items() if one > accepted}

    def _fold_erased(self, erased: Mapping[StreamKey, Tally]) -> None:
        for key, one in erased.items():
            self.erased[key] = self.erased.get(key, 0) + one.rows
            if key in self.digests:
                known = self.digests[key]
                self.digests[key] = known._replace(value=digest.minus(known.value, one.digest))

    def _fold(self, batch: BatchRanges) -> None:
        self.queries[batch.query] = max(batch.number, self.queries.get(batch.query, -1))
        self.lost += batch.lost
        for moved in batch.ranges:
            self._fold_digest(moved, batch.digests)
            spans = self._spans.pop(moved.key, [])
            if not spans and moved.key in batch.begins:
                self.begins[moved.key] = batch.begins[moved.key]
            if spans and spans[-1].upto == moved.after:
                last = spans.pop()
                moved = Range(moved.key, last.after, moved.upto, last.rows + moved.rows)  # noqa: PLW2901
            self._spans[moved.key] = [*spans, moved]

    def _fold_digest(self, moved: Range, digests: Mapping[StreamKey, int] | None) -> None:
        if digests is None:
            # An older version has written between newer ones.
            self.digests.pop(moved.key, None)
            return
        known = self.digests.get(moved.key, RangeDigest(moved.after, digest.NONE))
        value = digest.plus(known.value, digests.get(moved.key, digest.NONE))
        self.digests[moved.key] = known._replace(value=value)

    def holds(self, batch: BatchRanges) -> bool:
        """Whether a batch was committed before.

        Raises RangeConflictError where its number was, and not all of its ranges.
        """
        if batch.number > self.queries.get(batch.query, -1):
            return False
        for moved in batch.ranges:
            upto = self._upto(moved.key)
            if upto is None or moved.upto > upto:
                raise RangeConflictError(
                    f"batch {batch.number} of query {batch.query} was archived, but not {moved.key} up to "
                    f"{moved.upto}: the checkpoint was put back to an older copy; start with a new checkpoint"
                )
        return True

    def check(self, batch: BatchRanges) -> None:
        """Raises RangeConflictError where a range does not begin where the table's ends."""
        seen: set[StreamKey] = set()
        for moved in batch.ranges:
            upto = self._upto(moved.key)
            begin = ids.ZERO if upto is None else upto
            if moved.after != begin:
                raise RangeConflictError(
                    f"batch {batch.number} continues {moved.key} after {moved.after}, the archive holds it "
                    f"up to {begin}: another checkpoint has written here; start with a new checkpoint"
                )
            if moved.upto <= moved.after or moved.rows < 0 or moved.key in seen:
                raise RangeConflictError(f"batch {batch.number} has an impossible range of {moved.key}")
            seen.add(moved.key)

    def _upto(self, key: StreamKey) -> EntryId | None:
        spans = self._spans.get(key)
        return spans[-1].upto if spans else None

    # ---- the cache

    @classmethod
    def of_table(cls, stored: pa.Table) -> "Ranges":
        """What `to_table` made. Raises KeyError, ValueError for another table."""
        about = json.loads(stored.schema.metadata[MEMBER.encode()])
        found = cls(about["table"])
        found.version, found.queries = about["version"], about["queries"]
        found.lost = [Lost(*one) for one in about.get("lost", ())]
        found.closed = {StreamKey(*one) for one in about.get("closed", ())}
        found.begins = _begins_of_json(about)
        for *key, after, value in about.get("digests", ()):
            found.digests[StreamKey(*key)] = RangeDigest(ids.parse(after), int(value, 16))
        found.erased = {StreamKey(*key): rows for *key, rows in about.get("erased", ())}
        found.foreign = dict(about.get(FOREIGN, ()))
        for row in stored.to_pylist():
            one = _range(list(row.values()))
            found._spans.setdefault(one.key, []).append(one)
        return found

    def to_table(self) -> pa.Table:
        """As a table of texts, one row a range."""
        rows = [(*one.key, str(one.after), str(one.upto), one.rows) for one in self]
        columns = list(zip(*rows, strict=True)) or [()] * len(_CACHED)
        about = json.dumps(
            {
                "table": self.table_id,
                "version": self.version,
                "queries": self.queries,
                # Older versions look for it.
                "lease": ("", 0),
                "lost": self.lost,
                "closed": sorted(self.closed),
                "begins": _begins_to_json(self.begins),
                "digests": [
                    [*key, str(one.after), digest.to_text(one.value)]
                    for key, one in sorted(self.digests.items())
                ],
                "erased": [[*key, rows] for key, rows in sorted(self.erased.items())],
                FOREIGN: sorted(self.foreign.items()),
            }
        )
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _CACHED, strict=True)]
        return pa.Table.from_arrays(arrays, schema=_CACHED.with_metadata({MEMBER: about}))


_CACHED: Final = pa.schema(
    [
        *((name, pa.string()) for name in (*StreamKey._fields, "after", "upto")),
        ("rows", pa.int64()),
    ]
)


def add_tallies(tallies: dict[StreamKey, Tally], more: Mapping[StreamKey, Tally]) -> None:
    """Count more entries in."""
    for key, one in more.items():
        before = tallies.get(key, Tally(0, digest.NONE))
        tallies[key] = Tally(before.rows + one.rows, digest.plus(before.digest, one.digest))


def erased_metadata(erased: Mapping[StreamKey, Tally]) -> dict[str, Any]:
    """As a commit has it."""
    return {"erased": [[*key, one.rows, digest.to_text(one.digest)] for key, one in sorted(erased.items())]}


def gaps(ranges: Iterable[Range]) -> list[Range]:
    """The ranges that neither continue another nor begin at 0-0: entries before them are not archived."""
    found: list[Range] = []
    upto: dict[StreamKey, EntryId] = {}
    for one in ranges:
        if one.after != upto.get(one.key, ids.ZERO):
            found.append(one)
        upto[one.key] = one.upto
    return found


def cache_name(version: int) -> str:
    """Where the ranges up to a version are stored."""
    return f"{FOLDER}/{_PREFIX}{version:0{_DIGITS}d}{_SUFFIX}"


def cached_versions(root: ArchiveRoot) -> list[int]:
    """The versions that have a cache, torn ones too, the latest first."""
    names = (name for name in root.names(FOLDER) if name.startswith(_PREFIX) and name.endswith(_SUFFIX))
    numbers = (name.removeprefix(_PREFIX).removesuffix(_SUFFIX) for name in names)
    return sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)


def read_cache(root: ArchiveRoot, version: int, table_id: str) -> Ranges | None:
    """The ranges up to a version; None where the file is missing, torn, or another table's."""
    try:
        found = Ranges.of_table(read_table(root, cache_name(version)))
    except (ArchiveDamagedError, KeyError, TypeError, ValueError):
        return None
    return found if (found.version, found.table_id) == (version, table_id) else None


def write_cache(root: ArchiveRoot, ranges: Ranges) -> None:
    """Store the ranges, and delete older caches except one: a reader may have just listed it."""
    sink = pa.BufferOutputStream()
    write_table(sink, ranges.to_table())
    root.replace(cache_name(ranges.version), sink.getvalue().to_pybytes())
    older = [version for version in cached_versions(root) if version <= ranges.version]
    for version in older[_KEPT:]:
        root.delete(cache_name(version))


def _begins_to_json(begins: Mapping[StreamKey, EntryId]) -> list[list[str]]:
    return [[*key, str(upto)] for key, upto in sorted(begins.items())]


def _begins_of_json(stored: Mapping[str, Any]) -> dict[StreamKey, EntryId]:
    return {StreamKey(*key): ids.parse(upto) for *key, upto in stored.get("begins", ())}


def _range(stored: Any) -> Range:  # noqa: ANN401 - a list of JSON
    gateway, stream, generation, after, upto, rows = stored
    return Range(StreamKey(gateway, stream, generation), ids.parse(after), ids.parse(upto), rows)
