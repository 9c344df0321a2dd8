"""Replaces many small files of an archive by few large ones, which readers see all at once or not at all.

Knows: which files belong together, how a compaction survives being stopped after any of its steps.
Must never know: Spark, gateways, what is printed.

Steps: write the new files; a manifest that adds them and removes the old ones, from which on it counts;
delete the old files after a time of grace, in which those end that listed them before. A compaction that was
stopped before its manifest left nothing that has a name; the next one has its number and clears it away.

A lock sees to it that one runs alone, on this machine. Elsewhere two may have the same number: their files
have names of their own, neither touches the other's, and the one whose manifest comes second finds the first.
What a stopped one left stays there, for nobody can know whether it still runs.
"""

import fcntl
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_weir import ids
from pyspark_weir.errors import OptionError
from pyspark_weir.manifest import (
    DATA,
    FOLDER,
    VERSION,
    Archive,
    File,
    Manifest,
    ManifestError,
    compaction_folder,
    write_manifest,
)
from pyspark_weir.parquet import SCHEMA, first_disorder, id_runs, opened
from pyspark_weir.place import Place

target_bytes_default: Final = 128 << 20
_rows_at_once: Final = 50_000
_row_group_rows: Final = 200_000
# Where no lock excludes a second run: what both wrote in the same moment has settled by then.
_grace_ms_min_elsewhere: Final = 600_000
_LOCK: Final = f"{FOLDER}/.compact.lock"


@dataclass(frozen=True)
class Rules:
    """Files are brought near `target_bytes`, which those of one stream and day may fill; what was replaced is
    deleted `grace_ms` later. `follow` brings another log, that of a Delta table, up to the manifests.
    """

    target_bytes: int = target_bytes_default
    grace_ms: int = 0
    follow: Callable[[Place], object] | None = None


@dataclass(frozen=True)
class Bin:
    """Files of one stream, generation and day, in order, that become one."""

    files: tuple[File, ...]

    @property
    def bytes(self) -> int:
        """What they weigh together."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True)
class Step:
    """Something that has been done: `what` is `wrote`, `counts` or `deleted`; `files`, of `bytes`."""

    what: str
    files: int
    bytes: int
    paths: tuple[str, ...] = ()


def bins(files: Iterable[File], target_bytes: int) -> list[Bin]:
    """Which files to join: neighbours, so that each new file is one range of IDs; each set is as large as it
    can be within `target_bytes`. Files that would stay alone are left as they are.

    Neighbours that share IDs come into one set, whatever they weigh.
    """
    groups: dict[tuple[str, str, str, str], list[File]] = {}
    for file in files:
        groups.setdefault((*file.key, file.generation, file.date or ""), []).append(file)
    found: list[Bin] = []
    for name in sorted(groups):
        ordered = sorted(groups[name], key=lambda file: (ids.parse(file.min), file.path))
        found += [Bin(tuple(joined)) for joined in _packed(ordered, target_bytes) if len(joined) > 1]
    return found


def _packed(ordered: Sequence[File], target_bytes: int) -> Iterator[list[File]]:
    joined: list[File] = []
    weight, high = 0, ids.ZERO
    for file in ordered:
        apart = ids.parse(file.min) > high
        if joined and apart and weight + file.bytes > target_bytes:
            yield joined
            joined, weight = [], 0
        joined.append(file)
        weight += file.bytes
        high = max(high, ids.parse(file.max))
    if joined:
        yield joined


def compact(place: Place, rules: Rules, now_ms: int) -> Generator[Step, None, None]:
    """Join files, and delete those that were joined long enough ago; what has been done, step by step.

    Raises ManifestError where a file is not what its manifest says: then nothing of this run counts;
    OptionError where another compaction runs, or might.
    """
    if not place.is_local and rules.grace_ms < _grace_ms_min_elsewhere:
        raise OptionError(
            f"{place.address} is not on this machine, where a lock keeps a second compaction away: give "
            "--grace 10m or more"
        )
    with _alone(place):
        archive = Archive.read(place)
        if archive.about.format == "delta" and rules.follow is None:
            raise OptionError(f"{place.address} is a Delta table too, and nobody is there to keep its log")
        _clear_away(place, archive)
        chosen = bins(archive.files(), rules.target_bytes)
        if chosen:
            yield from _joined(place, archive, chosen, now_ms)
        if rules.follow is not None:
            rules.follow(place)
        yield from _deleted(place, Archive.read(place), now_ms - rules.grace_ms)


def _joined(place: Place, archive: Archive, chosen: Sequence[Bin], now_ms: int) -> Iterator[Step]:
    number, run = archive.next_compaction(), uuid4().hex
    added: list[File] = []
    for index, one in enumerate(chosen):
        file = _merged(place, one, compaction_folder(number), f"part-{index:05d}-{run}")
        added.append(file)
        yield Step("wrote", len(one.files), file.bytes, (file.path,))
    _expect_there(place, added)
    removed = tuple(file.path for one in chosen for file in one.files)
    write_manifest(
        place,
        Manifest(
            v=VERSION,
            kind="compaction",
            number=number,
            archive=archive.about.archive,
            at_ms=now_ms,
            streams=(),
            add=tuple(added),
            remove=removed,
        ),
    )
    yield Step("counts", len(added), sum(file.bytes for file in added), removed)


def _expect_there(place: Place, added: Iterable[File]) -> None:
    """The old files will be deleted: look once more at what is to stand for them. Raises ManifestError."""
    for file in added:
        size = place.size(file.path)
        if size != file.bytes:
            found = "is gone" if size is None else f"has {size} bytes"
            raise ManifestError(
                f"{file.path} was written with {file.bytes} bytes and {found}: nothing was changed; does "
                "something else write or delete there?"
            )


def _merged(place: Place, one: Bin, root: str, name: str) -> File:
    """One file with the entries of all, in order; it is secure when this returns."""
    first = one.files[0]
    folder = PurePosixPath(first.path).parent.relative_to(DATA).parts[1:]
    path = "/".join((root, *folder, f"{name}.zstd.parquet"))
    rows, expected = 0, sum(file.rows for file in one.files)
    tables: Iterable[pa.Table] = _apart(place, one.files)
    if any(ids.parse(after.min) <= ids.parse(before.max) for before, after in pairwise(one.files)):
        together = pa.concat_tables([_whole(place, file) for file in one.files])
        tables = [_once(_sorted(together))]
        expected -= together.num_rows - tables[0].num_rows
    with (
        place.writing(path) as output,
        pq.ParquetWriter(output, SCHEMA, compression="zstd", write_statistics=True) as writer,
    ):
        for table in tables:
            writer.write_table(table, row_group_size=_row_group_rows)
            rows += table.num_rows
    runs = [run for run in id_runs(place, path) if len(run)]
    low, high = runs[0][0], runs[-1][-1]
    if rows != expected or first_disorder(runs) is not None:
        raise ManifestError(
            f"{path} would hold {rows} rows, by the manifests {expected}, or is out of order: run verify; "
            "nothing was changed"
        )
    size = place.size(path)
    assert size is not None, "it was written just now"
    return File(
        path=path,
        shard=first.shard,
        stream=first.stream,
        generation=first.generation,
        date=first.date,
        rows=rows,
        bytes=size,
        min=str(low),
        max=str(high),
    )


def _apart(place: Place, files: Sequence[File]) -> Iterator[pa.Table]:
    """The entries of files whose ranges lie apart, in order, a part of them at a time."""
    for file in files:
        with opened(place, file.path) as parquet:
            for batch in parquet.iter_batches(_rows_at_once):
                yield _as_schema(pa.Table.from_batches([batch]))


def _whole(place: Place, file: File) -> pa.Table:
    with opened(place, file.path) as parquet:
        return _as_schema(parquet.read())


def _as_schema(table: pa.Table) -> pa.Table:
    """The columns of entries, whatever a writer says of what may be null."""
    return table.select(SCHEMA.names).cast(SCHEMA)


def _sorted(table: pa.Table) -> pa.Table:
    # Both halves as text of 20 digits: what exceeds a bigint is null in `ms` and `seq`.
    halves = pc.split_pattern(table.column("id"), "-")
    keys = [pc.utf8_lpad(pc.list_element(halves, half), 20, "0") for half in (0, 1)]
    order = pc.sort_indices(pa.table(keys, ["ms", "seq"]), [("ms", "ascending"), ("seq", "ascending")])
    return table.take(order)


def _once(table: pa.Table) -> pa.Table:
    """Each entry once: a stream that was put back to before is archived again. Those that have only an ID in
    common both stay, and are out of order.
    """
    entry_ids, fields = table.column("id").to_pylist(), table.column("fields")
    kept = [
        entry_id != before or fields[at] != fields[at - 1]
        for at, (before, entry_id) in enumerate(pairwise([None, *entry_ids]))
    ]
    return table if all(kept) else table.filter(pa.array(kept))


def _deleted(place: Place, archive: Archive, before_ms: int) -> Iterator[Step]:
    """Delete what was replaced before that time; what is gone already costs a look."""
    for step in archive.compactions:
        if step.at_ms > before_ms:
            continue
        left = [(path, place.size(path)) for path in step.remove]
        paths = tuple(path for path, size in left if size is not None)
        for path in paths:
            place.delete(path)
        place.prune(str(PurePosixPath(path).parent) for path in step.remove)
        if paths:
            yield Step("deleted", len(paths), sum(size or 0 for _path, size in left), paths)


def _clear_away(place: Place, archive: Archive) -> None:
    """Delete what a compaction left that was stopped before its manifest: no other runs beside this one."""
    if place.is_local:
        place.clear(compaction_folder(archive.next_compaction()))


@contextmanager
def _alone(place: Place) -> Iterator[None]:
    """Two compactions at once would join the same files."""
    if not place.is_local:
        yield
        return
    path = Path(place.path(_LOCK))
    if not path.parent.is_dir():
        yield  # there is no archive, as reading it will say
        return
    with path.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OptionError(
                f"{path} is held: another compaction runs on this archive; let it end"
            ) from None
        yield
