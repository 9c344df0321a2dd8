"""What tests of the archive's table share: entries, and batches that are ready to commit.

Knows: the public API of the table. Must never know: what is tested.
"""

from collections.abc import Sequence

import pyarrow as pa

from pyspark_weir import ids
from pyspark_weir.ids import EntryId
from pyspark_weir.table.files import write_files
from pyspark_weir.table.ranges import BatchRanges, Range, StreamKey
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import GIVEN
from pyspark_weir.table.table import ArchiveTable, Batch
from tests.spark.table.making import read_rows

KEY = StreamKey("g0", "orders", "gen-1")
# 2026-11-21T00:00:00Z
DAY_MS = 1_795_219_200_000


def rows_of(key: StreamKey, entries: Sequence[EntryId | str]) -> pa.Table:
    """Entries with two fields of one name, which holds no text."""
    texts = [str(one) for one in entries]
    fields = [[("n", text.encode()), ("n", b"\xff\x00")] for text in texts]
    columns = [[key.gateway] * len(texts), [key.stream] * len(texts), [key.generation] * len(texts), texts]
    return pa.Table.from_arrays(
        [*map(pa.array, columns), pa.array(fields, GIVEN.field("fields").type)], schema=GIVEN
    )


def moved(key: StreamKey, after: str, entries: Sequence[str]) -> Range:
    """The range from `after` up to the last of the entries."""
    return Range(key, ids.parse(after), ids.parse(entries[-1]), len(entries))


def batch(
    root: ArchiveRoot,
    number: int,
    after: str,
    entries: Sequence[str],
    *,
    key: StreamKey = KEY,
    query: str = "query-1",
) -> Batch:
    """A batch of one stream, its files written."""
    files = write_files(root, rows_of(key, entries))
    return Batch(BatchRanges(query, number, (moved(key, after, entries),)), files)


def stored_ids(table: ArchiveTable) -> list[str]:
    """The IDs of all entries of a table, as they are stored."""
    return [one for file in table.files() for one in read_rows(table.root, file, ["id"])["id"].to_pylist()]
