"""Replaces many small files of the table, and those that another program has rewritten (a foreign OPTIMIZE),
by few large ones: sorted, every row once, in bounded memory.

Knows: which files to merge, and what is done when another compaction was faster.
Must never know: ranges, Spark, gateways.

A compaction that is stopped before its commit leaves files that no commit names; vacuum deletes them. Two at
once may merge the same files: the second commit is refused, and that one begins again at the latest version.
A batch that commits meanwhile changes nothing: it only adds files.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from operator import itemgetter
from typing import Final

import pyarrow as pa

from pyspark_weir import clock
from pyspark_weir.errors import ArchiveDamagedError, CommitConflictError
from pyspark_weir.table.files import DataFile, FileWriter, prove
from pyspark_weir.table.merging import merge
from pyspark_weir.table.parquet import read_footer, read_in_pieces
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import IN_FILES, SORTED_BY
from pyspark_weir.table.table import ArchiveTable

TARGET_BYTES: Final = 128 << 20
MEMORY_BYTES: Final = 256 << 20
# Each needs a file descriptor, of which a process has 1,024 as a rule.
_FILES_AT_ONCE_MAX: Final = 256
# An open file is read a page and a row group's rest ahead; a small one is not larger than itself, unpacked.
_FILE_MEMORY_BYTES: Final = 4 << 20
_UNPACKED: Final = 4
# Losing this often in a row, with nothing done in between, is not a race any more.
_LOST_MAX: Final = 20


@dataclass(frozen=True)
class CompactionRules:
    """Files below half of `target_bytes` are merged into larger ones, within `memory_bytes` of memory; those
    with the paths `anew` are written anew.
    """

    target_bytes: int = TARGET_BYTES
    memory_bytes: int = MEMORY_BYTES
    anew: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Merge:
    """Files of one day that become fewer; they keep these `columns`, and the rows that `keep` leaves."""

    day: date | None
    files: tuple[DataFile, ...]
    columns: pa.Schema = IN_FILES
    keep: Callable[[pa.Table], pa.Table] | None = None

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Merged:
    """What was done: `removed` files count no longer, `added` files hold their rows."""

    removed: tuple[DataFile, ...]
    added: tuple[DataFile, ...]


def merges(files: Sequence[DataFile], rules: CompactionRules, columns: pa.Schema = IN_FILES) -> list[Merge]:
    """Which files to merge: the small ones of each day, in the order in which they were written. Before that,
    each file that is to be written anew, and each that another program has written, to sort it.

    Each other set has at least two, and becomes at most half as many files: so repeating it comes to an end.
    """
    alone = [file for file in files if not file.is_ours or file.path in rules.anew]
    apart = {file.path for file in alone}
    small = [file for file in files if file.path not in apart and file.size < rules.target_bytes // 2]
    ordered = sorted(small, key=lambda file: (file.date or date.max, file.written_ms, file.path))
    found = [Merge(file.date, (file,), columns) for file in alone]
    for day, own in groupby(ordered, key=lambda file: file.date):
        found += [Merge(day, some, columns) for some in _sets(list(own), rules.memory_bytes) if len(some) > 1]
    return found


def unchecked(table: ArchiveTable) -> frozenset[str]:
    """The paths of files without checksums. Raises ArchiveDamagedError."""
    paths = (file.path for file in table.files())
    return frozenset(path for path in paths if not read_footer(table.root, path).is_checked)


def _sets(files: Sequence[DataFile], memory_bytes: int) -> Iterator[tuple[DataFile, ...]]:
    chosen: list[DataFile] = []
    used = 0
    for file in files:
        needed = min(_FILE_MEMORY_BYTES, file.size * _UNPACKED)
        full = used + needed > memory_bytes or len(chosen) == _FILES_AT_ONCE_MAX
        if full and len(chosen) > 1:
            yield tuple(chosen)
            chosen, used = [], 0
        chosen.append(file)
        used += needed
    yield tuple(chosen)


def compact(table: ArchiveTable, rules: CompactionRules) -> Iterator[Merged]:
    """Merge small files until there are none left to merge; each step is done when it is yielded.

    Raises ArchiveDamagedError where a file is not as it was committed, CommitConflictError where another
    compaction is faster each time.
    """
    lost = 0
    table.refresh()
    while chosen := merges(table.files(), rules, table.columns):
        for one in chosen:
            try:
                added = rewrite(table.root, one, rules)
                table.replace(one.files, added)
            except (CommitConflictError, ArchiveDamagedError):
                # Another compaction has replaced these files, and vacuum may have deleted them since.
                lost += 1
                if lost == _LOST_MAX or not _is_replaced(table, one):
                    raise
                break
            lost = 0
            yield Merged(one.files, added)
        table.refresh()


def _is_replaced(table: ArchiveTable, one: Merge) -> bool:
    table.refresh()
    live = {file.path for file in table.files()}
    return any(file.path not in live for file in one.files)


def rewrite(root: ArchiveRoot, one: Merge, rules: CompactionRules) -> tuple[DataFile, ...]:
    """Write the rows of a set into new files, which the disk holds then; no commit names them yet. Raises
    ArchiveDamagedError.
    """
    added = _merge(root, one, rules) if one.files[0].is_ours else _sort(root, one, rules)
    root.sync([file.path for file in added])
    for file in added:
        prove(root, file)
    return tuple(added)


def _sort(root: ArchiveRoot, one: Merge, rules: CompactionRules) -> list[DataFile]:
    """A file in any order as sorted ones, each as large as may be in memory; these are merged later."""
    (file,) = one.files
    added: list[DataFile] = []
    for part in _parts(_entries(root, one, file, rules.memory_bytes // 4), rules.memory_bytes // 4):
        with FileWriter(root, one.day, clock.wall_ms(), one.columns) as writer:
            writer.write(part.sort_by([(name, "ascending") for name in SORTED_BY]))
        added.append(writer.file)
    return added


def _parts(tables: Iterator[pa.Table], memory_bytes: int) -> Iterator[pa.Table]:
    """The same rows in tables of at least this many bytes, but for the last."""
    held: list[pa.Table] = []
    for table in tables:
        held.append(table)
        if sum(one.nbytes for one in held) >= memory_bytes:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)


def _merge(root: ArchiveRoot, one: Merge, rules: CompactionRules) -> list[DataFile]:
    share = rules.memory_bytes // (4 * len(one.files))
    sources = [_entries(root, one, file, share) for file in one.files]
    rows, parts = sum(file.rows for file in one.files), -(-one.size // rules.target_bytes)
    edges = [rows * part // parts for part in range(1, parts)]
    added: list[DataFile] = []
    for _part, pieces in groupby(_split(merge(sources), edges), key=itemgetter(0)):
        with FileWriter(root, one.day, clock.wall_ms(), one.columns) as writer:
            for _same, piece in pieces:
                writer.write(piece)
        added.append(writer.file)
    return added


def _entries(root: ArchiveRoot, one: Merge, file: DataFile, memory_bytes: int) -> Iterator[pa.Table]:
    """All rows of a file that are kept; it has as many as were committed."""
    rows = 0
    for table in read_in_pieces(root, file.path, memory_bytes, one.columns):
        rows += table.num_rows
        kept = table if one.keep is None else one.keep(table)
        if kept.num_rows:
            yield kept
    if rows != file.rows:
        raise ArchiveDamagedError(f"{file.path} has {rows} rows, not {file.rows}: restore it")


def _split(tables: Iterator[pa.Table], edges: Sequence[int]) -> Iterator[tuple[int, pa.Table]]:
    """The tables in parts that end at the given counts of rows, each piece with its part's number."""
    start, part = 0, 0
    for table in tables:
        rest = table
        while rest.num_rows:
            room = edges[part] - start if part < len(edges) else rest.num_rows
            piece = rest.slice(0, room)
            yield part, piece
            start += piece.num_rows
            rest = rest.slice(piece.num_rows)
            if part < len(edges) and start == edges[part]:
                part += 1
