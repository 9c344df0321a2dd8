"""Archives of the old form: one that the last release with it wrote, and those that are made here.

Knows: the form of manifests. Must never know: how they are converted.

    python -m tests.spark.old_archives OLD NEW BATCH_BYTES      converts, a line for each batch
"""

import hashlib
import json
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_weir.jobs.adopt import adopt
from pyspark_weir.table.root import ArchiveRoot

ARCHIVE: Final = "9b2c7a52-7a0e-4f62-9d28-111111111111"
GENERATION: Final = "00000000000000aa"
SHARD: Final = "g0"
FIELDS: Final = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))


def unpack(folder: Path) -> dict[str, list[Any]]:
    """Put the two archives that the release wrote into a folder: `one`, compacted, of one gateway, and `two`.

    Their entries: gateway, stream, generation, ID, fields as names and base64.
    """
    with tarfile.open(Path(__file__).with_name("old_archives.tar.gz")) as packed:
        packed.extractall(folder, filter="data")
    found: dict[str, list[Any]] = json.loads((folder / "expected.json").read_text())
    return found


class OldMaker:
    """An archive of the old form that grows batch by batch."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.number = 0
        self.upto: dict[str, str] = {}
        (root / "_manifest").mkdir(parents=True)
        about = {"v": 1, "archive": ARCHIVE, "format": "parquet", "columns": ["stream", "date"]}
        self._write("archive.json", {**about, "gateways": [SHARD]})

    def batch(
        self,
        entries: Mapping[str, Sequence[str]],
        *,
        after: Mapping[str, str] | None = None,
        upto: Mapping[str, str] | None = None,
        value: bytes = b"1",
    ) -> None:
        """One file a stream, and the manifest; ranges go on where the last one ended, unless `after` says."""
        files, moved = [], []
        for stream, entry_ids in entries.items():
            end = (upto or {}).get(stream) or (entry_ids[-1] if entry_ids else self.upto[stream])
            key = {"shard": SHARD, "stream": stream, "generation": GENERATION, "rows": len(entry_ids)}
            begin = (after or {}).get(stream, self.upto.get(stream, "0-0"))
            edges = {"min": entry_ids[0], "max": entry_ids[-1]} if entry_ids else {"min": None, "max": None}
            moved.append({**key, **edges, "after": begin, "upto": end, "bytes": 1})
            if entry_ids:
                path = self._file(stream, entry_ids, value)
                files.append({**key, **edges, "path": path, "date": "1970-01-01", "bytes": 1})
            self.upto[stream] = end
        content = {"v": 1, "kind": "batch", "number": self.number, "archive": ARCHIVE, "at_ms": 1}
        self._write(f"{self.number:010d}.json", {**content, "streams": moved, "add": files, "remove": []})
        self.number += 1

    def _file(self, stream: str, entry_ids: Sequence[str], value: bytes) -> str:
        path = f"data/batch={self.number:010d}/stream={stream}/date=1970-01-01/part-0.parquet"
        fields = [[{"name": "n", "value": one.encode()}, {"name": "n", "value": value}] for one in entry_ids]
        (self.root / path).parent.mkdir(parents=True)
        table = pa.table({"id": list(entry_ids), "fields": pa.array(fields, FIELDS)})
        pq.write_table(table, self.root / path)
        return path

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        text = json.dumps(content).encode()
        digest = hashlib.sha256(text).hexdigest()
        whole = b'{"checksum":"sha256:%s","content":%s}\n' % (digest.encode(), text)
        (self.root / "_manifest" / name).write_bytes(whole)


def main(arguments: Sequence[str]) -> None:
    """Convert."""
    old, new, batch_bytes = arguments
    for done in adopt(ArchiveRoot.of(old), ArchiveRoot.of(new), int(batch_bytes)):
        sys.stdout.write(f"{done.streams} {done.rows}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
