"""Spark reading, archiving and writing, beside Spark reading JSON lines and beside Redis (P14).

One session of `local[2,4]`, a gateway beside it. Entries of two short fields; rows are read and thrown away
(`noop`), in one partition and in two, in alternating rounds. Processor time is that of everything that works
for it: the driver, Spark's Python, and for the source the gateway too.

    rows      rows/s and processor seconds a million rows, source and JSON lines
    archive   entries/s of the archive job, from its start until the gateway knows that all are archived
    sink      entries/s of `df.write`, beside redis-benchmark's pipelined XADD
    memory    the peak of each kind of process, of the largest of that kind
    batches   how long after its publication a lone entry is in a micro-batch
    idle      what a streaming query that has nothing costs: requests/s and processor time

With several numbers of rows everything is measured for each; rates should not fall from 10^5 to 10^7.

    python -m bench.spark [--rows 1000000 …] [--rounds 3] [--json FILE]
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
from pyspark.sql import DataFrame, SparkSession

from bench.peers import redis_server
from bench.versus import redis_benchmark
from pyspark_weir.jobs.archive import Archiver
from pyspark_weir.session import SessionOptions, open_session
from pyspark_weir.table.root import ArchiveRoot
from tests.server import Server

STREAM: Final = "bench"
BATCH: Final = 10_000
# Of the rows/s of JSON lines; entries/s on two cores; of redis-benchmark's commands/s.
READ_GOAL: Final = 0.7
ARCHIVE_GOAL: Final = 60_000
SINK_GOAL: Final = 0.25
# The slowest rate beside the fastest, over all numbers of rows.
FLAT_GOAL: Final = 0.8
XADD: Final = ("XADD", "bench", "*", "device", "d42", "temperature", "19.8")
LONE: Final = 15
IDLE_S: Final = 10.0
# What of a row is in a line of JSON as well.
SCHEMA: Final = "id string, ms bigint, seq bigint, fields map<string,string>"


# ---- processor time


def _times(pid: int) -> tuple[int, float]:
    """A process's parent, and its own processor seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1]), sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def processor_times(*roots: int) -> dict[int, float]:
    """The processor seconds of each of these processes and of each below them."""
    found: dict[int, tuple[int, float]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = _times(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    counted = set(roots)
    while grown := {pid for pid, (parent, _) in found.items() if parent in counted} - counted:
        counted |= grown
    return {pid: seconds for pid, (_, seconds) in found.items() if pid in counted}


def cpu_s_since(before: dict[int, float], *roots: int) -> float:
    """What the running processes have used since. Spark ends idle workers: what those had used before is
    not subtracted from what others do.
    """
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in processor_times(*roots).items())


# ---- what is read


def fill(http: httpx.Client, rows: int, path: Path) -> None:
    """Publish the rows, and write them as lines of JSON, each as it is read from the gateway."""
    for start in range(0, rows, BATCH):
        lines = (
            f'{{"device":"d{n % 97}","temperature":"{n % 40}.{n % 10}"}}' for n in range(start, start + BATCH)
        )
        http.post(
            f"/v1/streams/{STREAM}/entries",
            content="\n".join(lines),
            headers={"content-type": "application/x-ndjson", "prefer": "return=minimal"},
        ).raise_for_status()
    export = http.stream("GET", f"/v1/streams/{STREAM}/entries", headers={"accept": "application/x-ndjson"})
    with path.open("w") as file, export as answer:
        for line in answer.iter_lines():
            entry = json.loads(line)
            ms, _, seq = entry["id"].partition("-")
            file.write(json.dumps({**entry, "ms": int(ms), "seq": int(seq)}, separators=(",", ":")) + "\n")


def from_gateway(spark: SparkSession, url: str, partitions: int, rows: int) -> DataFrame:
    """The stream through the source."""
    reader = spark.read.format("weir").options(url=url, subscribe=STREAM, minPartitions=partitions)
    whole = -(-rows // partitions)
    return reader.options(maxEntriesPerPartition=whole, maxBytesPerPartition=1 << 30).load()


def from_disk(spark: SparkSession, path: Path, partitions: int) -> DataFrame:
    """The same rows as lines of JSON, split into as many partitions."""
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(-(-path.stat().st_size // partitions) + 1))
    spark.conf.set("spark.sql.files.minPartitionNum", str(partitions))
    return spark.read.schema(SCHEMA).json(str(path))


# ---- rows


class Round(msgspec.Struct):
    """One reading of all rows."""

    rows_a_s: float
    cpu_s_a_million: float


def one_round(frame: DataFrame, rows: int, *roots: int) -> Round:
    """Read all rows and throw them away."""
    before, began = processor_times(*roots), time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    took_s = time.perf_counter() - began
    return Round(rows / took_s, cpu_s_since(before, *roots) / rows * 1e6)


Rounds = dict[str, dict[str, list[Round]]]


def read_rows(spark: SparkSession, server: Server, path: Path, rows: int, rounds: int) -> Rounds:
    """Alternating rounds, in one partition and in two."""
    own, found = os.getpid(), Rounds()
    for partitions in (1, 2):
        ways: dict[str, tuple[DataFrame, tuple[int, ...]]] = {
            "weir": (from_gateway(spark, server.url, partitions, rows), (own, server.pid)),
            "json": (from_disk(spark, path, partitions), (own,)),
        }
        found_rounds = found[f"{partitions} partitions"] = {way: [] for way in ways}
        for way, (frame, _) in ways.items():
            assert frame.count() == rows, f"{way} has all rows; the session is warm"
        for number in range(rounds):
            for way in ways if number % 2 == 0 else reversed(ways):
                frame, roots = ways[way]
                found_rounds[way].append(one_round(frame, rows, *roots))
                one = found_rounds[way][-1]
                print(
                    f"  {partitions} partitions  {way:5}{one.rows_a_s:12,.0f} rows/s   "
                    f"{one.cpu_s_a_million:6.2f} CPU s a million",
                    flush=True,
                )
    return found


# ---- micro-batches


class Streaming(msgspec.Struct):
    """Milliseconds until a lone entry is in a batch; an idle query's requests and processor time a second."""

    lone_ms: float
    lone_max_ms: float
    idle_requests_a_s: float
    idle_cpu: float


def stream(spark: SparkSession, server: Server, http: httpx.Client, folder: Path) -> Streaming:
    """A query that hands batches to this program: lone entries, then nothing."""
    came: dict[str, float] = {}

    def take(batch: Any, _: int) -> None:  # noqa: ANN401 - Spark's
        for row in batch.select("id").collect():
            came[row.id] = time.perf_counter()

    options = {"url": server.url, "subscribe": "lone", "startingOffsets": "earliest"}
    source = spark.readStream.format("weir").options(**options).load()
    query = source.writeStream.foreachBatch(take).option("checkpointLocation", str(folder / "cp")).start()
    try:
        waits = [_lone(http, came) for _ in range(LONE)][3:]
        time.sleep(2)
        roots = (os.getpid(), server.pid)
        requests, before = answered(http), processor_times(*roots)
        time.sleep(IDLE_S)
        cpu = cpu_s_since(before, *roots) / IDLE_S
        # The first of the two calls for the figures is in the second one's.
        requests = answered(http) - requests - 1
    finally:
        query.stop()
    assert requests > 0, "a query that waits asks again now and then"
    return Streaming(statistics.median(waits), max(waits), requests / IDLE_S, cpu)


def answered(http: httpx.Client) -> int:
    """How many requests the gateway has answered; its log has only those that failed."""
    lines = http.get("/metrics").raise_for_status().text.splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("weir_requests_total{"))


def _lone(http: httpx.Client, came: dict[str, float]) -> float:
    began = time.perf_counter()
    answer = http.post("/v1/streams/lone/entries", json={"fields": {"n": "1"}})
    entry_id = answer.raise_for_status().json()["id"]
    _wait(lambda: entry_id in came)
    took_ms = (came[entry_id] - began) * 1000
    time.sleep(0.5)
    return took_ms


def _wait(holds: Callable[[], bool]) -> None:
    deadline = time.perf_counter() + 120
    while not holds():
        assert time.perf_counter() < deadline, "a batch comes within two minutes"
        time.sleep(0.002)


# ---- the archive job and the sink


def archive_rate(spark: SparkSession, server: Server, rows: int, folder: Path) -> float:
    """Entries/s of the archive job."""
    began = time.perf_counter()
    source = {"gateway.urls": server.url, "subscribe": STREAM}
    job = Archiver(ArchiveRoot.of(folder / "archive"), str(folder / "archiving"), source)
    query = job.query(spark).trigger(availableNow=True)
    query.option("checkpointLocation", str(folder / "archiving")).start().awaitTermination()
    job.settle()
    return rows / (time.perf_counter() - began)


class Sinking(msgspec.Struct):
    """Entries/s of the sink, and XADDs/s of redis-benchmark."""

    weir: float
    redis: float


def sink_rate(spark: SparkSession, server: Server, rows: int) -> Sinking:
    """Entries of two fields into one stream, from two tasks; as many XADDs, a hundred in a pipeline."""
    frame = spark.range(0, rows, 1, 2).selectExpr("concat('d', id % 97) as device", "'19.8' as temperature")
    began = time.perf_counter()
    frame.write.format("weir").mode("append").options(url=server.url, stream="written").save()
    mine = rows / (time.perf_counter() - began)
    with redis_server("--appendonly", "yes", "--appendfsync", "everysec") as (port, _):
        return Sinking(mine, redis_benchmark(port, rows, 100, *XADD))


def peaks_mb() -> dict[str, float]:
    """The peak of resident memory of this process and of those below it, by their kind: the largest."""
    kinds: dict[str, float] = defaultdict(float)
    pids = {os.getpid()}
    while pids:
        pid = pids.pop()
        try:
            own = Path(f"/proc/{pid}")
            status = dict(line.split(":", 1) for line in (own / "status").read_text().splitlines())
            command = (own / "cmdline").read_text()
            for task in (own / "task").iterdir():
                pids |= {int(child) for child in (task / "children").read_text().split()}
        except (FileNotFoundError, ProcessLookupError):
            continue
        kind = "java" if "org.apache.spark" in command else "worker" if "pyspark" in command else "driver"
        if "VmHWM" in status and "serve" not in command:
            kinds[kind] = max(kinds[kind], int(status["VmHWM"].split()[0]) / 1024)
    return dict(kinds)


# ---- all of it


class Found(msgspec.Struct):
    """What was measured with one number of rows."""

    rows: int
    rounds: Rounds
    archive: float
    sink: Sinking
    memory_mb: dict[str, float]
    streaming: Streaming

    @property
    def ratios(self) -> dict[str, float]:
        """Rows/s of the source beside those of JSON lines."""
        return {
            name: statistics.median(
                one.rows_a_s / other.rows_a_s for one, other in zip(found["weir"], found["json"], strict=True)
            )
            for name, found in self.rounds.items()
        }

    @property
    def rates(self) -> dict[str, float]:
        """Entries/s of everything that is to be flat."""
        read = {
            name: statistics.median(one.rows_a_s for one in found["weir"])
            for name, found in self.rounds.items()
        }
        return {**read, "archive": self.archive, "sink": self.sink.weir}


def rows_beside_json(rows: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Rows a second in one partition and in two: through the source, from lines of JSON."""
    with tempfile.TemporaryDirectory() as directory, Server(Path(directory) / "data") as server:
        path = Path(directory) / "rows.json"
        with httpx.Client(base_url=server.url, timeout=120) as http:
            fill(http, rows, path)
        spark = open_session(SessionOptions(app="bench"))
        try:
            found = read_rows(spark, server, path, rows, rounds)
        finally:
            spark.stop()
    return {
        name: [(one.rows_a_s, other.rows_a_s) for one, other in zip(each["weir"], each["json"], strict=True)]
        for name, each in found.items()
    }


def measure(rows: int, rounds: int) -> Found:
    """Everything, with a gateway and a session of its own."""
    with tempfile.TemporaryDirectory() as directory, Server(Path(directory) / "data") as server:
        folder = Path(directory)
        with httpx.Client(base_url=server.url, timeout=120) as http:
            fill(http, rows, folder / "rows.json")
            spark = open_session(SessionOptions(app="bench"))
            try:
                found = read_rows(spark, server, folder / "rows.json", rows, rounds)
                archive = archive_rate(spark, server, rows, folder)
                sink = sink_rate(spark, server, rows)
                return Found(rows, found, archive, sink, peaks_mb(), stream(spark, server, http, folder))
            finally:
                spark.stop()


def show(found: Found) -> None:
    """The table of one number of rows."""
    print(f"{found.rows:,} rows")
    for name, ratio in found.ratios.items():
        print(f"  {name}: {ratio:.2f} of the rows/s of JSON lines (goal {READ_GOAL})")
    print(f"  archive: {found.archive:,.0f} entries/s (goal {ARCHIVE_GOAL:,})")
    sink = found.sink
    share = sink.weir / sink.redis
    print(f"  sink: {sink.weir:,.0f} entries/s, {share:.2f} of redis-benchmark (goal {SINK_GOAL})")
    print(
        "  memory: " + ", ".join(f"{kind} {peak:,.0f} MB" for kind, peak in sorted(found.memory_mb.items()))
    )
    lone = found.streaming
    print(f"  a lone entry is in a batch after {lone.lone_ms:.0f} ms, worst {lone.lone_max_ms:.0f}")
    print(
        f"  an idle query makes {lone.idle_requests_a_s:.1f} requests/s "
        f"and takes {100 * lone.idle_cpu:.1f} % of a core"
    )


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(sys.argv[1:])
    assert all(rows % BATCH == 0 for rows in options.rows), f"rows are published {BATCH} at a time"
    found = [measure(rows, options.rounds) for rows in options.rows]
    for one in found:
        show(one)
    if len(found) > 1:
        for name in found[0].rates:
            rates = [one.rates[name] for one in found]
            part = min(rates) / max(rates)
            print(f"  {name}: the slowest rate is {part:.2f} of the fastest (goal {FLAT_GOAL})")
    if options.json:
        report = [{**msgspec.to_builtins(one), "ratios": one.ratios, "rates": one.rates} for one in found]
        options.json.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
