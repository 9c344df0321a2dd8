"""Spark reading through the data source, beside Spark reading the same rows as JSON lines from disk (P14).

One session of `local[2,4]`, a gateway beside it. A million entries of two short fields; rows are read and
thrown away (`noop`), in one partition and in two, in alternating rounds. Processor time is that of everything
that works for it: the driver, Spark's Python, and for the source the gateway too.

    rows      rows/s and processor seconds a million rows, source and JSON lines
    batches   how long after its publication a lone entry is in a micro-batch
    idle      what a streaming query that has nothing costs: requests/s and processor time

    python -m bench.spark [--rows 1000000] [--rounds 3] [--json FILE]
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
from pyspark.sql import DataFrame, SparkSession

from pyspark_weir.session import SessionOptions, open_session
from tests.server import Server

STREAM: Final = "bench"
BATCH: Final = 10_000
GOAL: Final = 0.5
LONE: Final = 15
IDLE_S: Final = 10.0
# What of a row is in a line of JSON as well.
SCHEMA: Final = "id string, ms bigint, seq bigint, fields map<string,string>"


# ---- processor time


def _times(pid: int) -> tuple[int, float]:
    """A process's parent, and the processor seconds of it and of those of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def cpu_s(*roots: int) -> float:
    """The processor seconds of these processes and of all below them."""
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
    return sum(seconds for pid, (_, seconds) in found.items() if pid in counted)


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
    before_s, began = cpu_s(*roots), time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    took_s = time.perf_counter() - began
    return Round(rows / took_s, (cpu_s(*roots) - before_s) / rows * 1e6)


Rounds = dict[str, dict[str, list[Round]]]


def read_rows(spark: SparkSession, server: Server, path: Path, rows: int, rounds: int) -> Rounds:
    """Alternating rounds, in one partition and in two."""
    own, found = os.getpid(), Rounds()
    for partitions in (1, 2):
        ways: dict[str, tuple[DataFrame, tuple[int, ...]]] = {
            "weir": (from_gateway(spark, server.url, partitions, rows), (own, server.pid)),
            "json": (from_disk(spark, path, partitions), (own,)),
        }
        told = found[f"{partitions} partitions"] = {way: [] for way in ways}
        for way, (frame, _) in ways.items():
            assert frame.count() == rows, f"{way} has all rows; the session is warm"
        for number in range(rounds):
            for way in ways if number % 2 == 0 else reversed(ways):
                frame, roots = ways[way]
                told[way].append(one_round(frame, rows, *roots))
                one = told[way][-1]
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
        log, roots = server.data.with_name(f"{server.data.name}.log"), (os.getpid(), server.pid)
        requests, before_s = log.read_text().count('"event":"request"'), cpu_s(*roots)
        time.sleep(IDLE_S)
        cpu = (cpu_s(*roots) - before_s) / IDLE_S
        requests = log.read_text().count('"event":"request"') - requests
    finally:
        query.stop()
    return Streaming(statistics.median(waits), max(waits), requests / IDLE_S, cpu)


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


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(sys.argv[1:])
    assert options.rows % BATCH == 0, f"rows are published {BATCH} at a time"
    with tempfile.TemporaryDirectory() as directory, Server(Path(directory) / "data") as server:
        path = Path(directory) / "rows.json"
        with httpx.Client(base_url=server.url, timeout=120) as http:
            fill(http, options.rows, path)
            spark = open_session(SessionOptions(app="bench"))
            try:
                found = read_rows(spark, server, path, options.rows, options.rounds)
                streaming = stream(spark, server, http, Path(directory))
            finally:
                spark.stop()
    ratios = {
        name: statistics.median(
            one.rows_a_s / other.rows_a_s for one, other in zip(told["weir"], told["json"], strict=True)
        )
        for name, told in found.items()
    }
    for name, ratio in ratios.items():
        print(f"  {name}: {ratio:.2f} of the rows/s of JSON lines (goal {GOAL})")
    print(f"  a lone entry is in a batch after {streaming.lone_ms:.0f} ms, worst {streaming.lone_max_ms:.0f}")
    print(
        f"  an idle query makes {streaming.idle_requests_a_s:.1f} requests/s "
        f"and takes {100 * streaming.idle_cpu:.1f} % of a core"
    )
    if options.json:
        told = msgspec.to_builtins({"rounds": found, "ratios": ratios, "streaming": streaming})
        options.json.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
