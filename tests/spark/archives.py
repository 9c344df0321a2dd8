"""Archives made without Spark: real manifests and real Parquet files of given entries.

Knows: the layout that the archive job writes. Must never know: what is tested with it.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_weir import ids
from pyspark_weir.manifest import (
    VERSION,
    About,
    File,
    Manifest,
    Progress,
    batch_folder,
    write_about,
    write_manifest,
)
from pyspark_weir.parquet import SCHEMA
from pyspark_weir.place import Place

ARCHIVE: Final = "9b2c7a52-7a0e-4f62-9d28-111111111111"
GENERATION: Final = "00000000000000aa"
SHARD: Final = "g0"
# The end of the year 9999.
_ms_max: Final = 253_402_300_799_999
ABOUT: Final = About(
    v=VERSION, archive=ARCHIVE, format="parquet", columns=("stream", "date"), gateways=(SHARD,)
)


def table(entry_ids: Sequence[str], value: bytes = b"1") -> pa.Table:
    """Entries with one field each."""
    halves = [ids.parse(one) for one in entry_ids]
    return pa.table(
        {
            "id": list(entry_ids),
            "ms": [_bigint(one.ms) for one in halves],
            "seq": [_bigint(one.seq) for one in halves],
            "ts": [
                datetime.fromtimestamp(one.ms / 1000, UTC) if one.ms <= _ms_max else None for one in halves
            ],
            "fields": [[{"name": "n", "value": value}]] * len(halves),
        },
        schema=SCHEMA,
    )


class Maker:
    """An archive that grows batch by batch."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.number = 0
        self.upto: dict[str, str] = {}
        write_about(place, ABOUT)

    def batch(
        self,
        entries: Mapping[str, Sequence[str]],
        upto: Mapping[str, str] | None = None,
        generation: str = GENERATION,
    ) -> Manifest:
        """Write the entries of a batch, one file per stream and day, and its manifest."""
        files: list[File] = []
        moved: list[Progress] = []
        for stream, entry_ids in entries.items():
            days = _by_day(entry_ids)
            own = [self._file(stream, day, of_day, generation) for day, of_day in days.items()]
            files += own
            end = (upto or {}).get(stream, entry_ids[-1] if entry_ids else ids.BEGINNING)
            moved.append(
                Progress(
                    shard=SHARD,
                    stream=stream,
                    generation=generation,
                    after=self.upto.get(stream, ids.BEGINNING),
                    upto=end,
                    rows=len(entry_ids),
                    bytes=sum(file.bytes for file in own),
                    min=entry_ids[0] if entry_ids else None,
                    max=entry_ids[-1] if entry_ids else None,
                )
            )
            self.upto[stream] = end
        manifest = Manifest(
            v=VERSION,
            kind="batch",
            number=self.number,
            archive=ARCHIVE,
            at_ms=1_000 * self.number,
            streams=tuple(moved),
            add=tuple(files),
            remove=(),
        )
        write_manifest(self.place, manifest)
        self.number += 1
        return manifest

    def _file(self, stream: str, day: str, entry_ids: Sequence[str], generation: str) -> File:
        path = f"{batch_folder(self.number)}/stream={stream}/date={day}/part-0.parquet"
        with self.place.writing(path) as output:
            pq.write_table(table(entry_ids), output, compression="zstd")
        return File(
            path=path,
            shard=SHARD,
            stream=stream,
            generation=generation,
            date=day or None,
            rows=len(entry_ids),
            bytes=self.place.size(path) or 0,
            min=entry_ids[0],
            max=entry_ids[-1],
        )


def _by_day(entry_ids: Sequence[str]) -> Mapping[str, list[str]]:
    days: dict[str, list[str]] = {}
    for entry_id in entry_ids:
        ms = ids.parse(entry_id).ms
        day = datetime.fromtimestamp(ms / 1000, UTC).date().isoformat() if ms <= _ms_max else ""
        days.setdefault(day, []).append(entry_id)
    return days


def _bigint(half: int) -> int | None:
    return half if half <= ids.BIGINT_MAX else None
