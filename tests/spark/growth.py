"""Whether an archive's age makes its upkeep slower: the same entries, in few commits and in very many.

Knows: the form of a commit, and how long each job takes in a process of its own.
Must never know: Spark.

    python -m tests.spark.growth                     1,000 commits beside 100,000; some minutes, by hand
    python -m tests.spark.growth measure URL ROOT    what one process measures
    python -m tests.spark.growth memory ROOT         the peak memory of one that only works on the table

Commits are simulated: their files of the log are written as the table writes them, a minute apart, and of
their data only what compactions have left. The log is cleaned as `compact` cleans it.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark_weir import clock, ids
from pyspark_weir.gateway import GatewayAccess, GatewayClient
from pyspark_weir.jobs import trim, verify
from pyspark_weir.table import log
from pyspark_weir.table.cleaning import clean_log
from pyspark_weir.table.compaction import CompactionRules, compact
from pyspark_weir.table.files import write_files
from pyspark_weir.table.ranges import BatchRanges, Range, StreamKey
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable, Batch
from tests.server import Server
from tests.spark.table.making import GATEWAY, numbered, rows_of

STREAM: Final = "grown"
ROWS: Final = 100_000
COMMITS: Final = (1_000, 100_000)
MERGED: Final = 1_000
ROUNDS: Final = 5
_MONTH_MS: Final = 30 * 86_400_000
_MINUTE_MS: Final = 60_000


def publish(gateway: GatewayClient, rows: int) -> StreamKey:
    """Entries `1-0` and on of a stream; which stream that is."""
    for first in range(1, rows + 1, 10_000):
        some = numbered(first, min(10_000, rows + 1 - first))
        gateway.post(
            "/v1/publish",
            {"streams": {STREAM: [{"id": one, "fields": [["n", one], ["n", "1"]]} for one in some]}},
        )
    seen = gateway.update_stream(STREAM, archived_up_to=f"{rows}-0")
    return StreamKey(GATEWAY, STREAM, seen["generation"])


def build(root: ArchiveRoot, key: StreamKey, rows: int, commits: int) -> ArchiveTable:
    """An archive of these entries in this number of commits, merged after each thousand and at the end."""
    ArchiveTable.create(root)
    (real,) = write_files(root, rows_of(key, numbered(1, rows)))
    merged = json.loads(_add_of(real.path, real.size, real.stats))
    for version, actions in enumerate(_commits(key, rows, commits, merged), 1):
        text = "\n".join(json.dumps(action) for action in actions)
        Path(root.path(log.commit_name(version))).write_text(text)
    now_ms = clock.wall_ms()
    for one in range(version + 1):
        then_s = (now_ms - (version - one) * _MINUTE_MS) / 1_000
        os.utime(root.path(log.commit_name(one)), (then_s, then_s))
    # Deletion wants the ranges of two versions.
    ArchiveTable.open(root, version - 1).checkpoint()
    table = ArchiveTable.open(root)
    clean_log(table, now_ms)
    return table


def _commits(key: StreamKey, rows: int, commits: int, real: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    then_ms = clock.wall_ms() - _MONTH_MS
    each = rows // commits
    live: list[str] = []
    for number in range(commits):
        after, upto = ids.EntryId(number * each, 0), ids.EntryId((number + 1) * each, 0)
        moved = BatchRanges("grown", number, (Range(key, after if number else ids.ZERO, upto, each),))
        live.append(f"date=1970-01-01/{number}.parquet")
        add = json.loads(_add_of(live[-1], 1, json.dumps({**json.loads(real["stats"]), "numRecords": each})))
        yield [_info(then_ms, moved.metadata()), {"add": add}, _txn("weir-archive", number)]
        if len(live) > MERGED or number == commits - 1:
            removed = [
                {"remove": {"path": one, "deletionTimestamp": then_ms, "dataChange": False}} for one in live
            ]
            live = [f"date=1970-01-01/merged-{number}.parquet"]
            merged = real if number == commits - 1 else {**real, "path": live[0]}
            yield [_info(then_ms, {}), {"add": merged}, *removed, _txn("weir-archive/compaction", number)]


def _add_of(path: str, size: int, stats: str) -> str:
    day = {"date": "1970-01-01"}
    add = {"path": path, "partitionValues": day, "size": size, "modificationTime": 1, "dataChange": True}
    return json.dumps({**add, "stats": stats})


def _info(at_ms: int, ours: dict[str, Any]) -> dict[str, Any]:
    return {"commitInfo": {"timestamp": at_ms, "operation": "WRITE", log.MEMBER: ours}}


def _txn(application: str, version: int) -> dict[str, Any]:
    return {"txn": {"appId": application, "version": version}}


def measure(url: str, root: ArchiveRoot) -> Iterator[tuple[str, float]]:
    """The median seconds of each job, and of a batch."""
    with GatewayClient(GatewayAccess(GATEWAY, url)) as gateway:
        gateways = {GATEWAY: gateway}

        def plan() -> None:
            (planned,) = trim.plan(ArchiveTable.open(root), gateways, trim.TrimRules(), clock.wall_ms())
            assert planned.entries == planned.archived == ROWS

        def compare() -> None:
            assert not verify.verify(ArchiveTable.open(root), gateways).findings

        def merge() -> None:
            list(compact(ArchiveTable.open(root), CompactionRules()))

        yield "trim", _median(plan)
        yield "verify", _median(compare)
        yield "batch", _median(lambda: append(ArchiveTable.open(root)))
        yield "compact", _median(merge, 1)


def append(table: ArchiveTable) -> None:
    """A batch of the next entry."""
    (place,) = table.ranges()
    upto = ids.EntryId(place.upto.ms + 1, 0)
    files = write_files(table.root, rows_of(place.key, [str(upto)]))
    moved = BatchRanges("later", table.version, (Range(place.key, place.upto, upto, 1),))
    assert not table.commit(Batch(moved, files)).repeated


def keep_up(root: ArchiveRoot) -> None:
    """What jobs do with a table: they open it, look at all of it, add to it, merge and clean."""
    table = ArchiveTable.open(root)
    assert table.ranges()
    assert table.files()
    append(table)
    list(compact(table, CompactionRules()))
    clean_log(table, clock.wall_ms())


def peak_mib() -> float:
    """The most memory that this process has had. What `getrusage` calls the peak is handed down: it is also
    that of the process that started this one.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1_024


def _median(act: Callable[[], None], rounds: int = ROUNDS) -> float:
    found = []
    for _round in range(rounds):
        begun = time.perf_counter()
        act()
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


def main(arguments: Sequence[str]) -> None:
    """Both tables, and what each job takes on them."""
    if arguments:
        _, *urls, place = arguments
        root = ArchiveRoot.of(place)
        if not urls:
            keep_up(root)
        for name, seconds in measure(urls[0], root) if urls else ():
            sys.stdout.write(f"{name} {seconds}\n")
        sys.stdout.write(f"memory {peak_mib()}\n")
        return
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder) / "data") as server:
        with GatewayClient(GatewayAccess(GATEWAY, server.url)) as gateway:
            key = publish(gateway, ROWS)
        found: dict[int, dict[str, float]] = {}
        for commits in COMMITS:
            grown = ArchiveRoot.of(Path(folder) / str(commits))
            build(grown, key, ROWS, commits)
            command = [sys.executable, "-m", "tests.spark.growth", "measure", server.url, grown.url]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[commits] = {name: float(value) for name, value in map(str.split, said.splitlines())}
        few, many = (found[commits] for commits in COMMITS)
        for name, value in few.items():
            unit = "MiB" if name == "memory" else "s"
            sys.stdout.write(
                f"{name}: {value:.3f} {unit}, {many[name]:.3f} {unit}: {many[name] / value:.2f}\n"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
