"""Delays are counted in Spark exactly as in Python, whatever stands in the fields."""

import random
from collections import defaultdict
from pathlib import Path

import httpx
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pyspark_weir.errors import OptionError
from pyspark_weir.histogram import Histogram, bucket_of
from pyspark_weir.jobs import counting, latency
from pyspark_weir.jobs.counting import Counted
from pyspark_weir.jobs.fields import UNITS, TimeField, millis_of
from pyspark_weir.jobs.latency import END_TO_END, PUBLISH, READ, Measure
from tests.server import Server

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
ENTRIES = "stream string, ms bigint, fields map<string,string>"
# Unit, text, and the milliseconds that it means.
TIMES = [
    ("ms", "1700000000000", NOW_MS),
    ("ms", "1700000000000.999", NOW_MS),
    ("ms", "-1", -1),
    ("ms", "253402300799999", 253_402_300_799_999),
    ("ms", "253402300800000", None),
    ("ms", "9" * 60, None),
    ("ms", "2023-11-14", None),
    ("ms", "", None),
    ("ms", "NaN", None),
    ("ms", "1_0", None),
    ("s", "1700000000.001", NOW_MS + 1),
    ("s", "9" * 29, None),
    ("us", "1700000000000001", NOW_MS),
    ("us", "-1", -1),
    ("ns", "1700000000000999999", NOW_MS),
    ("iso", "2023-11-14T22:13:20Z", NOW_MS),
    ("iso", "2023-11-14T23:13:20.001+01:00", NOW_MS + 1),
    ("iso", "2023-11-14 22:13:20", NOW_MS),
    ("iso", "1700000000000", None),
]


def _entries(spark: SparkSession, rows: list[tuple[str, int, dict[str, str]]]) -> DataFrame:
    return spark.createDataFrame(rows, ENTRIES)


def test_a_value_has_the_same_bucket_in_spark(spark: SparkSession) -> None:
    """Also next to each power of two, where a logarithm would be wrong."""
    values = sorted({(1 << k) + d for k in range(63) for d in (-1, 0, 1)} | {(1 << 63) - 1})
    rows = spark.createDataFrame([(value,) for value in values], "value bigint")
    found = rows.select("value", counting.bucket_of(F.col("value")).alias("bucket")).collect()
    assert [row["bucket"] for row in found] == [bucket_of(row["value"]) for row in found]


def test_counts_taken_in_spark_are_those_of_all_values(spark: SparkSession) -> None:
    """Over many partitions; values below zero and missing ones are told apart."""
    chance = random.Random(5)
    values = [chance.randrange(1 << chance.randrange(1, 40)) for _ in range(3_000)] + [-1, -(1 << 50)]
    rows = spark.createDataFrame([("a", one) for one in [*values, None]], "key string, value bigint")
    counts = counting.counted(rows.repartition(7), ["key"], F.col("value"))
    assert counting.added(counts.collect(), ["key"]) == {("a",): Counted(Histogram.of(values), unknown=1)}


def test_delays_are_those_that_python_finds(spark: SparkSession) -> None:
    """By stream, window and kind; 2 000 entries of which some have no time, or an impossible one."""
    chance = random.Random(7)
    rows: list[tuple[str, int, dict[str, str]]] = []
    expected: dict[tuple[str, int, str], list[int | None]] = defaultdict(list)
    for _ in range(2_000):
        stream, ms = chance.choice("ab"), NOW_MS + chance.randrange(3 * HOUR_MS)
        made, seen = ms - chance.randrange(-5, 9_000), ms + chance.randrange(50)
        fields, known = {"seen": str(seen)}, chance.random() < 0.9
        if known:
            fields["made"] = f"{made}.25"
        rows.append((stream, ms, fields))
        window = ms - ms % HOUR_MS
        expected[stream, window, PUBLISH].append(ms - made if known else None)
        expected[stream, window, READ].append(seen - ms)
        expected[stream, window, END_TO_END].append(seen - made if known else None)
    measure = Measure(TimeField("made"), TimeField("seen"), window_ms=HOUR_MS)
    found = latency.collected(latency.delays(_entries(spark, rows), measure))
    assert found == {
        key: Counted(Histogram.of(one for one in values if one is not None), unknown=values.count(None))
        for key, values in expected.items()
    }
    whole = latency.over_windows(latency.told(found))
    assert [(one.stream, one.what, one.counted.count) for one in whole] == [
        (stream, what, sum(row[0] == stream for row in rows))
        for stream in "ab"
        for what in (PUBLISH, READ, END_TO_END)
    ]


def test_a_time_is_read_in_its_unit_or_is_none(spark: SparkSession) -> None:
    """Nothing that somebody wrote into a field ends a job."""
    for unit in UNITS:
        rows = [({"t": text},) for told, text, _ in TIMES if told == unit]
        found = spark.createDataFrame(rows, "fields map<string,string>").select(
            millis_of(TimeField("t", unit))
        )
        assert [row[0] for row in found.collect()] == [ms for told, _, ms in TIMES if told == unit]


def test_an_impossible_id_is_an_unknown_delay(spark: SparkSession) -> None:
    """IDs may be anything up to 2^64, and differences beyond 2^63 are no error."""
    rows = [("s", (1 << 63) - 1, {"made": "-9000000000000"}), ("s", NOW_MS, {"made": str(NOW_MS)})]
    found = latency.collected(latency.delays(_entries(spark, rows), Measure(TimeField("made"))))
    assert found == {("s", None, PUBLISH): Counted(Histogram.of([0]), unknown=1)}


def test_an_answer_is_measured_by_the_entry_it_answers(spark: SparkSession) -> None:
    """Its field holds the ID that says when the entry was stored."""
    rows = [
        ("answers", NOW_MS + 500, {"seen": str(NOW_MS + 30), "of": f"{NOW_MS}-7"}),
        ("answers", NOW_MS + 600, {"seen": str(NOW_MS + 30), "of": "nothing"}),
    ]
    measure = Measure(read_at=TimeField("seen"), id_field="of")
    found = latency.collected(latency.delays(_entries(spark, rows), measure))
    assert found == {("answers", None, READ): Counted(Histogram.of([30]), unknown=1)}


def test_a_batch_that_is_run_again_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    """After a crash between the tally and Spark's own note of the batch; and a new process goes on."""
    batches = [_entries(spark, [("s", NOW_MS, {"made": str(NOW_MS - n)})]) for n in (10, 20, 30)]
    measure = Measure(TimeField("made"))
    tally = latency.tally(str(tmp_path), measure)
    latency.add_batch(tally, batches[0], 0, measure)
    latency.add_batch(tally, batches[1], 1, measure)
    again = latency.tally(str(tmp_path), measure)
    latency.add_batch(again, batches[1], 1, measure)
    (found,) = latency.add_batch(again, batches[2], 2, measure)
    assert found.counted == Counted(Histogram.of([10, 20, 30]))
    assert latency.kept(latency.tally(str(tmp_path), measure)) == [found]


def test_a_checkpoint_goes_on_with_what_it_was_begun_with(tmp_path: Path, spark: SparkSession) -> None:
    """Windows of another length would not add up; the refusal names both."""
    begun = Measure(TimeField("made"), window_ms=HOUR_MS)
    rows = _entries(spark, [("s", NOW_MS, {"made": "1"})])
    latency.add_batch(latency.tally(str(tmp_path), begun), rows, 0, begun)
    with pytest.raises(OptionError, match=r"window_ms 3600000.*window_ms 60000.*another --checkpoint"):
        latency.tally(str(tmp_path), Measure(TimeField("made"), window_ms=60_000))


def test_delays_in_a_gateway_are_counted_over_restarts(
    spark: SparkSession, shared_server: Server, checkpoint: str
) -> None:
    """Two runs of a query give what one look at everything gives, and what Python counts."""
    measure = Measure(TimeField("made"), window_ms=HOUR_MS)
    source = {"gateway.urls": shared_server.url, "subscribe": "delays"}
    chance = random.Random(3)
    expected: dict[int, list[int]] = defaultdict(list)
    shown: list[list[latency.Delay]] = []
    with httpx.Client(base_url=shared_server.url) as http:
        for run in range(2):
            entries = []
            for n in range(500):
                ms, delay = NOW_MS + run * HOUR_MS + n * 5_000, chance.randrange(100_000)
                entries.append({"id": f"{ms}-0", "fields": {"made": str(ms - delay), "other": "x"}})
                expected[ms - ms % HOUR_MS].append(delay)
            http.post("/v1/streams/delays/entries", json={"entries": entries}).raise_for_status()
            writer = latency.query(spark, source, checkpoint, measure, shown.append)
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()
            query.stop()
    found = latency.kept(latency.tally(checkpoint, measure))
    assert {one.window_ms: one.counted for one in found} == {
        window_ms: Counted(Histogram.of(delays)) for window_ms, delays in expected.items()
    }
    assert shown[-1] == found
    assert latency.once(spark, source, measure) == found
