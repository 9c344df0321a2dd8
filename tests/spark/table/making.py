"""Archives made without Spark or a gateway; as a program, one that compacts or commits until it ends.

Knows: the table's API. Must never know: what is tested with it.

    python -m tests.spark.table.making compact ROOT TARGET_BYTES
    python -m tests.spark.table.making batches ROOT QUERY STREAM COUNT
"""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, Transaction
from deltalake.transaction import AddAction

from pyspark_weir import ids
from pyspark_weir.ids import EntryId
from pyspark_weir.table.compaction import CompactionRules, compact
from pyspark_weir.table.files import DataFile, write_files
from pyspark_weir.table.ranges import BatchRanges, Range, StreamKey
from pyspark_weir.table.reading import tally
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import GIVEN, complete
from pyspark_weir.table.table import ArchiveTable, Batch

GATEWAY: Final = "g0"
GENERATION: Final = "00000000000000aa"
DAY_MS: Final = 86_400_000


def key_of(stream: str, generation: str = GENERATION) -> StreamKey:
    """A stream of the only gateway."""
    return StreamKey(GATEWAY, stream, generation)


def read_rows(root: ArchiveRoot, file: DataFile, columns: list[str] | None = None) -> pa.Table:
    """A file's rows."""
    with root.files.open_input_file(root.path(file.path)) as opened:
        return pq.read_table(opened, columns=columns)


def rows_of(key: StreamKey, entry_ids: Sequence[str], value: bytes = b"1") -> pa.Table:
    """Entries with two fields each, of one name."""
    fields = [[{"name": "n", "value": one.encode()}, {"name": "n", "value": value}] for one in entry_ids]
    count = len(entry_ids)
    return pa.Table.from_arrays(
        [
            pa.array([key.gateway] * count, pa.string()),
            pa.array([key.stream] * count, pa.string()),
            pa.array([key.generation] * count, pa.string()),
            pa.array(entry_ids, pa.string()),
            pa.array(fields, GIVEN.field("fields").type),
        ],
        schema=GIVEN,
    )


def digests_of(rows: pa.Table) -> dict[StreamKey, int]:
    """Of rows of GIVEN, by stream."""
    return {key: one.digest for key, one in tally(complete(rows)).items()}


class Maker:
    """A table that grows batch by batch."""

    def __init__(self, root: Path | ArchiveRoot, query: str = "query") -> None:
        own = root if isinstance(root, ArchiveRoot) else ArchiveRoot.of(root)
        self.table = ArchiveTable.create(own)
        self.query = query
        self.number = 0

    def upto(self, stream: str) -> str:
        """Up to which ID a stream is archived."""
        place = self.table.positions().get((GATEWAY, stream))
        return str(ids.ZERO if place is None else place.upto)

    def batch(
        self,
        entries: dict[StreamKey, Sequence[str]],
        upto: dict[StreamKey, str] | None = None,
        value: bytes = b"1",
        fields: Sequence[tuple[str, str]] | None = None,
    ) -> None:
        """Commit one: of each stream what follows the table's range, up to the last entry or to `upto`.

        `fields`: the only field of each entry.
        """
        known = {one.key: one.upto for one in self.table.ranges()}
        moved: list[Range] = []
        for key, entry_ids in entries.items():
            after = known.get(key, ids.ZERO)
            end = (upto or {}).get(key) or (entry_ids[-1] if entry_ids else str(after))
            moved.append(Range(key, after, ids.parse(end), len(entry_ids)))
        rows = pa.concat_tables([rows_of(key, own, value) for key, own in entries.items()])
        if fields is not None:
            pairs = [[{"name": name, "value": text.encode()}] for name, text in fields]
            column = pa.array(pairs, GIVEN.field("fields").type)
            rows = rows.set_column(GIVEN.get_field_index("fields"), GIVEN.field("fields"), column)
        files = write_files(self.table.root, rows)
        batch = BatchRanges(self.query, self.number, tuple(moved), digests=digests_of(rows))
        self.table.commit(Batch(batch, files))
        self.number += 1


def commit_unchecked(table: ArchiveTable, rows: pa.Table | None, ranges: Sequence[Range]) -> None:
    """Commit what `ArchiveTable.commit` would refuse: ranges with gaps, or entries that it holds already."""
    files = () if rows is None else write_files(table.root, rows)
    commit_files_unchecked(table, files, ranges)


def commit_files_unchecked(table: ArchiveTable, files: Sequence[DataFile], ranges: Sequence[Range]) -> None:
    """The same for files."""
    table.refresh()
    table.delta.create_write_transaction(
        [
            AddAction(
                file.path, file.size, file.partition, file.written_ms, data_change=True, stats=file.stats
            )
            for file in files
        ],
        "append",
        table.delta.schema(),
        partition_by=["date"],
        commit_properties=CommitProperties(
            custom_metadata={"weir": BatchRanges("unchecked", table.version, tuple(ranges)).metadata()},
            app_transactions=[Transaction("unchecked", table.version)],
        ),
    )
    table.refresh()


def numbered(first: int, count: int, day: int = 0) -> list[str]:
    """IDs of one day."""
    return [str(EntryId(day * DAY_MS + number, 0)) for number in range(first, first + count)]


def entries_in(table: ArchiveTable) -> Counter[tuple[str, str, str, bytes]]:
    """How often each entry is in a table: stream, generation, ID and the last value."""
    table.refresh()
    found: Counter[tuple[str, str, str, bytes]] = Counter()
    for file in table.files():
        rows = read_rows(table.root, file, ["stream", "generation", "id", "fields"]).to_pylist()
        found.update(
            (row["stream"], row["generation"], row["id"], row["fields"][-1]["value"]) for row in rows
        )
    return found


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> None:
    """One of the two commands above."""
    if arguments[0] == "compact":
        root, target = arguments[1:]
        table = ArchiveTable.open(ArchiveRoot.of(root))
        for done in compact(table, CompactionRules(target_bytes=int(target))):
            _say(f"{len(done.removed)} {len(done.added)}")
    else:
        root, query, stream, count = arguments[1:]
        maker = Maker(Path(root), query)
        for number in range(int(count)):
            maker.batch({key_of(stream): numbered(1 + 10 * number, 10)})
            _say(str(number))


if __name__ == "__main__":
    main(sys.argv[1:])
