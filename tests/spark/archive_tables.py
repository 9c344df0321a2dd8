"""Archives for tests that need no Spark to write one.

Knows: how batches get into a table. Must never know: what is tested with them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from pyspark_weir import ids
from pyspark_weir.offsets import Lost
from pyspark_weir.table.files import write_files
from pyspark_weir.table.ranges import BatchRanges, Range, StreamKey
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable, Batch
from tests.spark.table.making import digests_of

QUERY: Final = "11111111-2222-3333-4444-555555555555"
GATEWAY: Final = "g0"
GENERATION: Final = "00112233445566aa"
# What no text could hold, and what a map would lose.
FIELDS: Final = [
    {"name": "n", "value": b"1"},
    {"name": "n", "value": b"\xff"},
    {"name": "", "value": b""},
]


class Maker:
    """Adds batches to an archive, which it creates."""

    def __init__(self, root: str | Path) -> None:
        self.table = ArchiveTable.create(ArchiveRoot.of(root))
        self._number = 0
        self._upto: dict[StreamKey, ids.EntryId] = {}

    @property
    def root(self) -> ArchiveRoot:
        return self.table.root

    def skip(self, stream: str, upto: str) -> None:
        """Have what is up to this ID be lost before it was archived."""
        lost = Lost(f"{GATEWAY}/{stream}", GENERATION, "0-0", upto, "trimmed")
        key = StreamKey(GATEWAY, stream, GENERATION)
        self._upto[key] = ids.parse(upto)
        moved = BatchRanges(QUERY, self._number, (Range(key, ids.ZERO, self._upto[key], 0),), (lost,))
        self.table.commit(Batch(moved, ()))
        self._number += 1

    def batch(
        self,
        entries: Mapping[str, Sequence[str]],
        *,
        generation: str = GENERATION,
        upto: str | None = None,
        parts: int = 1,
    ) -> list[Path]:
        """A batch with these IDs, ascending, of each stream, up to the last or `upto`; its files, in each of
        which is one entry of as many as there are `parts`.
        """
        rows, ranges, begins = [], [], {}
        for stream, own in entries.items():
            key = StreamKey(GATEWAY, stream, generation)
            if key not in self._upto:
                # Nothing was lost before the first batch.
                begins[key] = ids.ZERO
            after = self._upto.get(key, ids.ZERO)
            self._upto[key] = ids.parse(upto or own[-1])
            ranges.append(Range(key, after, self._upto[key], len(own)))
            rows += [{**dict(zip(key._fields, key, strict=True)), "id": one, "fields": FIELDS} for one in own]
        split = [pa.Table.from_pylist(rows[part::parts]) for part in range(parts) if rows[part::parts]]
        files = tuple(file for part in split for file in write_files(self.root, part))
        digests = digests_of(pa.concat_tables(split)) if split else {}
        moved = BatchRanges(QUERY, self._number, tuple(ranges), (), begins, digests)
        self.table.commit(Batch(moved, files))
        self._number += 1
        return [Path(self.root.path(file.path)) for file in files]
