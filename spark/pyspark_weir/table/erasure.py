"""Erases entries from an archive, and accepts what another program has removed from it or changed.

Knows: which rows are meant, what a commit says of those that are gone. Must never know: gateways, Spark.

The files that hold such entries are written anew without them; the commit counts what it leaves out. The old
files do not count any more, and hold the entries until vacuum deletes them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_weir.errors import ArchiveError, CommitConflictError, OptionError
from pyspark_weir.ids import EntryId
from pyspark_weir.table import digest
from pyspark_weir.table.compaction import CompactionRules, Merge, rewrite
from pyspark_weir.table.files import DataFile
from pyspark_weir.table.parquet import read_in_pieces
from pyspark_weir.table.ranges import ENTRY_KEYS, StreamKey, Tally, add_tallies
from pyspark_weir.table.reading import columns_of, read_whole, spans_of, tally
from pyspark_weir.table.schema import id_key, id_of_key
from pyspark_weir.table.table import ArchiveTable, EntryFilter

_PIECE_BYTES: Final = 16 << 20
# Other writers that are faster this often in a row are more than an archive has.
_ATTEMPTS_MAX: Final = 20


@dataclass(frozen=True)
class Erasure:
    """Entries of a stream, of one generation where it is given: those with these IDs, or those that have all
    of these fields. Raises OptionError where neither is given: it would be all of them.
    """

    stream: str
    generation: str | None = None
    ids: frozenset[EntryId] = frozenset()
    fields: tuple[tuple[str, bytes], ...] = ()

    def __post_init__(self) -> None:
        if not self.ids and not self.fields:
            raise OptionError("no entries are named: an erasure needs IDs, or fields")

    def of(self, rows: pa.Table) -> pa.ChunkedArray:
        """Which of these rows are meant, as booleans."""
        meant = pc.equal(rows["stream"], self.stream)
        if self.generation is not None:
            meant = pc.and_(meant, pc.equal(rows["generation"], self.generation))
        if self.ids:
            keys = pa.array([id_key(one) for one in self.ids], pa.string())
            meant = pc.and_(meant, pc.is_in(rows["id_key"], value_set=keys))
        for name, value in self.fields:
            meant = pc.and_(meant, pa.array(_with_field(rows, name, value)))
        return meant

    def without(self, rows: pa.Table) -> pa.Table:
        """The other rows."""
        return rows.filter(pc.invert(self.of(rows)))

    def may_be_in(self, file: DataFile) -> bool:
        """Whether a file's statistics allow such entries in it."""
        return not self.ids or any(file.low.id <= one <= file.high.id for one in self.ids)


def _with_field(rows: pa.Table, name: str, value: bytes) -> npt.NDArray[np.bool_]:
    fields = rows["fields"].combine_chunks()
    pairs = fields.flatten()
    same = pc.and_(pc.equal(pairs.field("name"), name), pc.equal(pairs.field("value"), value))
    places = pc.list_parent_indices(fields).filter(same).to_numpy()
    found = np.zeros(rows.num_rows, np.bool_)
    found[places] = True
    return found


@dataclass(frozen=True)
class Erased:
    """Entries that are meant, or gone: by stream, and the files that hold them, or held them."""

    tallies: Mapping[StreamKey, Tally]
    files: tuple[DataFile, ...]


def find(table: ArchiveTable, wanted: Erasure) -> Erased:
    """What would be erased. Raises ArchiveError."""
    files: list[DataFile] = []
    tallies: dict[StreamKey, Tally] = {}
    columns = columns_of((*ENTRY_KEYS, "fields"))
    chosen = table.files(EntryFilter(stream=wanted.stream, generation=wanted.generation))
    for file in filter(wanted.may_be_in, chosen):
        rows = 0
        for piece in read_in_pieces(table.root, file.path, _PIECE_BYTES, columns):
            meant = piece.filter(wanted.of(piece))
            rows += meant.num_rows
            add_tallies(tallies, _count(table, meant))
        files += [file] if rows else []
    return Erased(tallies, tuple(files))


def erase(table: ArchiveTable, wanted: Erasure) -> Erased:
    """Write the files that hold such entries without them, in one commit.

    Raises ArchiveDamagedError where a file is not as it was committed; then nothing is changed.
    CommitConflictError where others are faster each time.
    """
    rules = CompactionRules()
    for _attempt in range(_ATTEMPTS_MAX):
        table.refresh()
        found = find(table, wanted)
        added: list[DataFile] = []
        for file in found.files:
            added += rewrite(table.root, Merge(file.date, (file,), table.columns, wanted.without), rules)
        try:
            if found.files:
                table.erase(found.files, added, found.tallies)
        except CommitConflictError:
            continue
        return found
    raise _too_busy(table)


def accept_foreign(table: ArchiveTable, *, dry_run: bool = False) -> dict[StreamKey, Tally]:
    """Have what other programs have removed or changed count as erased, once: all files are read, and what
    they lack of what was committed is accepted. What that is, by stream.

    Raises ArchiveError where they hold more than was committed, or cannot be read.
    """
    for _attempt in range(_ATTEMPTS_MAX):
        table.refresh()
        changed = dict(_differences(table))
        if dry_run or not (changed or table.foreign()) or table.accept(changed):
            return changed
    raise _too_busy(table)


def _too_busy(table: ArchiveTable) -> CommitConflictError:
    return CommitConflictError(f"{table.root.url}: other writers were faster {_ATTEMPTS_MAX} times in a row")


def _differences(table: ArchiveTable) -> Iterator[tuple[StreamKey, Tally]]:
    """What the files lack of what was committed."""
    found: dict[StreamKey, Tally] = {}
    uptos = {one.key: one.upto for one in table.ranges()}
    for file in table.files():
        for rows in read_whole(table.root, file):
            for span in spans_of(rows):
                if span.key not in uptos or id_of_key(span.high) > uptos[span.key]:
                    raise ArchiveError(f"{file.path} holds entries that are in no batch: run verify")
            add_tallies(found, _count(table, rows))
    digests = table.digests()
    for key, committed in table.rows().items():
        one = found.get(key, Tally(0, digest.NONE))
        if one.rows > committed:
            raise ArchiveError(
                f"{key}: {committed} entries were committed, the files hold {one.rows}: run verify"
            )
        changed = digest.minus(digests[key].value, one.digest) if key in digests else digest.NONE
        if one.rows < committed or changed != digest.NONE:
            yield key, Tally(committed - one.rows, changed)


def _count(table: ArchiveTable, rows: pa.Table) -> dict[StreamKey, Tally]:
    """All of them, with the digests of those that the table has digests of."""
    digested = tally(rows, {key: one.after for key, one in table.digests().items()})
    return {span.key: Tally(span.rows, digested[span.key].digest) for span in spans_of(rows)}
