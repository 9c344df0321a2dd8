"""What a page of an archive costs: the service of history, read from one end to the other and at random.

The archive is a folder of this machine, or with --bucket a bucket of moto's server on it, written as the
archive job writes it: one stream, five fields an entry. The service is a process of its own, whose processor
time is measured; requests come one after the other from here. `sequential` reads every page once with nothing
cached, `again` the same with all groups encoded, `random` pages anywhere in an archive that does not fit into
the cache. With --apart-ms the reader waits so long between two pages, as one does that works on them.

    python -m bench.archived [--entries 1000000] [--count 1000] [--bucket] [--apart-ms 0]
"""

import argparse
import http.client
import os
import random
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from pyspark_weir.ids import parse
from pyspark_weir.table.files import write_files
from pyspark_weir.table.ranges import BatchRanges, Range, StreamKey
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import ENTRY_FIELDS, GIVEN
from pyspark_weir.table.table import ArchiveTable, Batch
from tests.history.served import Served
from tests.spark.table.object_store import ObjectStore

KEY: Final = StreamKey("g0", "visits", "00112233445566aa")
BATCH: Final = 250_000
RANDOM_PAGES: Final = 200
FIELDS: Final = ("path", "status", "agent", "bytes", "user")
_BEGIN_MS: Final = 1_795_252_515_378


def fill(root: ArchiveRoot, entries: int) -> list[str]:
    """Batches of one stream; some of its IDs."""
    table, after = ArchiveTable.create(root), "0-0"
    for number, first in enumerate(range(0, entries, BATCH)):
        count = min(BATCH, entries - first)
        ids = [f"{_BEGIN_MS + (first + one) // 10}-{(first + one) % 10}" for one in range(count)]
        values = [
            value
            for one in range(first, first + count)
            for value in (f"/index/{one}", "200", "Mozilla/5.0 (X11; Linux)", str(one * 37), f"u{one % 1000}")
        ]
        pairs = pa.StructArray.from_arrays(
            [pa.array(FIELDS * count), pa.array([value.encode() for value in values])],
            fields=list(ENTRY_FIELDS.value_type),
        )
        fields = pa.ListArray.from_arrays(pa.array(np.arange(0, 5 * count + 1, 5, dtype=np.int32)), pairs)
        own = [pa.array([value] * count) for value in KEY]
        rows = pa.Table.from_arrays([*own, pa.array(ids), fields.cast(ENTRY_FIELDS)], schema=GIVEN)
        moved = Range(KEY, parse(after), parse(ids[-1]), count)
        table.commit(Batch(BatchRanges("bench", number, (moved,)), write_files(root, rows)))
        after = ids[-1]
    return [f"{_BEGIN_MS + one // 10}-0" for one in range(0, entries, 997)]


class Reader:
    """Pages over one connection, with how long each took."""

    def __init__(self, served: Served, count: int, apart_s: float) -> None:
        self._apart_s = apart_s
        self._connection = http.client.HTTPConnection("127.0.0.1", served.port)
        self._count = count
        self.seconds: list[float] = []

    def page(self, after: str) -> tuple[int, str | None]:
        """How many entries, and where to go on."""
        began = time.perf_counter()
        path = f"/v1/streams/visits/entries?generation={KEY.generation}&after={after}&count={self._count}"
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        answer.read()
        self.seconds.append(time.perf_counter() - began)
        following = answer.headers["weir-next-id"]
        time.sleep(self._apart_s)
        return int(answer.headers["weir-count"]), following if answer.headers["weir-more"] == "true" else None

    def walk(self) -> int:
        """All pages, one after the other; how many entries."""
        total, following = self.page("0-0")
        while following is not None:
            count, following = self.page(following)
            total += count
        return total


def show(name: str, reader: Reader, entries: int, cpu_s: float, wall_s: float) -> None:
    """One line."""
    seconds = sorted(reader.seconds)
    p50, p99 = statistics.median(seconds), seconds[int(len(seconds) * 0.99)]
    print(
        f"{name:<12} {entries:>10,} entries  {entries / wall_s:>10,.0f}/s  {entries / cpu_s:>10,.0f}/s a core"
        f"  p50 {p50 * 1e3:6.1f} ms  p99 {p99 * 1e3:6.1f} ms"
    )


def main() -> None:
    """The three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--apart-ms", type=float, default=0)
    parser.add_argument("--bucket", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        if asked.bucket:
            root = opened.enter_context(ObjectStore()).root("archives/bench")
        else:
            root = ArchiveRoot.of(Path(folder) / "archive")
        storage = [word for name, value in root.options.items() for word in ("--storage", f"{name}={value}")]
        some = fill(root, asked.entries)
        for cache_mb in ("256", "32"):
            served = Served(root.url, "--cache-mb", cache_mb, *storage).start()
            reader = Reader(served, asked.count, asked.apart_ms / 1000)
            names = ("sequential", "again") if cache_mb == "256" else ("random",)
            for name in names:
                reader.seconds.clear()
                cpu_s, began = served.cpu_s(), time.perf_counter()
                if name == "random":
                    chosen = random.Random(3).choices(some, k=RANDOM_PAGES)
                    entries = sum(reader.page(after)[0] for after in chosen)
                else:
                    entries = reader.walk()
                wall_s = time.perf_counter() - began
                show(name, reader, entries, served.cpu_s() - cpu_s, wall_s)
            served.stop()
    print(f"pages of {asked.count}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
