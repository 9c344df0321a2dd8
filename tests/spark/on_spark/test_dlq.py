"""Dead letters are counted as the gateway wrote them, also those of entries that look like letters."""

from pathlib import Path

import httpx
from pyspark.sql import SparkSession

from pyspark_weir.jobs import dlq
from tests.server import Server

NOW_MS = 1_700_000_000_000
LETTERS = "stream string, ms bigint, fields map<string,string>"


def _letter(
    at: int, source: str, reason: str, deliveries: object, **more: str
) -> tuple[str, int, dict[str, str]]:
    told = {
        "weir-source": source,
        "weir-id": f"{at}-0",
        "weir-group": "g",
        "weir-consumer": more.pop("consumer", "a"),
        "weir-deliveries": str(deliveries),
        "weir-reason": reason,
    }
    return "dead", NOW_MS + at, {**more, **told}


def test_letters_are_counted_by_what_is_asked_for(spark: SparkSession) -> None:
    """With first and last, and how often they had been delivered."""
    rows = [
        _letter(5, "orders", "max_deliveries", 3),
        _letter(1, "orders", "max_deliveries", 5, consumer="b"),
        _letter(9, "orders", "by hand", 1),
        _letter(7, "clicks", "max_deliveries", "x"),
        ("dead", NOW_MS, {"someone": "else"}),
    ]
    letters = spark.createDataFrame(rows, LETTERS)
    found = dlq.told(dlq.collected(dlq.counts(letters, ("source", "reason")), ("source", "reason")))
    assert [(one.by["source"], one.by["reason"], one.count) for one in found] == [
        ("orders", "max_deliveries", 2),
        (None, None, 1),
        ("clicks", "max_deliveries", 1),
        ("orders", "by hand", 1),
    ]
    orders, foreign, clicks, _ = found
    assert (orders.first_ms, orders.last_ms) == (NOW_MS + 1, NOW_MS + 5)
    row = orders.row()
    assert row["deliveries"]["buckets"] == [(3, 3, 1), (5, 5, 1)]
    assert (row["deliveries"]["min"], row["deliveries"]["mean"], row["deliveries"]["max"]) == (3, 4.0, 5)
    assert clicks.row()["deliveries"]["unknown"] == foreign.row()["deliveries"]["unknown"] == 1


def test_letters_are_counted_by_their_entries_fields_too(spark: SparkSession) -> None:
    """Which customer's orders fail? A long value is told by its beginning."""
    rows = [_letter(n, "orders", "x", 1, user="u" * 500 if n else "ann") for n in range(3)]
    by = ("letters", "field:user")
    found = dlq.told(dlq.collected(dlq.counts(spark.createDataFrame(rows, LETTERS), by), by))
    assert [(dict(one.by), one.count) for one in found] == [
        ({"letters": "dead", "field:user": "u" * 200}, 2),
        ({"letters": "dead", "field:user": "ann"}, 1),
    ]


def test_batches_of_letters_add_up(spark: SparkSession, tmp_path: Path) -> None:
    """To what all of them at once are; a batch that is run again changes nothing."""
    rows = [_letter(n, f"s{n % 3}", "x", n) for n in range(30)]
    by = ("source",)
    whole = dlq.told(dlq.collected(dlq.counts(spark.createDataFrame(rows, LETTERS), by), by))
    for batch, part in [(0, rows[:10]), (1, rows[10:11]), (1, rows[10:11]), (2, rows[11:])]:
        dlq.add_batch(dlq.tally(str(tmp_path), by), spark.createDataFrame(part, LETTERS), batch, by)
    assert dlq.kept(dlq.tally(str(tmp_path), by), by) == whole


def test_the_gateways_own_letters_are_counted(
    spark: SparkSession, shared_server: Server, checkpoint: str
) -> None:
    """Too often delivered, or buried by hand with a reason; where the entry looks like a letter too."""
    with httpx.Client(base_url=shared_server.url) as http:
        entries = [{"fields": {"n": str(n), "weir-reason": "mine"}} for n in range(6)]
        http.post("/v1/streams/work/entries", json={"entries": entries}).raise_for_status()
        group = "/v1/streams/work/groups/g"
        policy = {"start": "0", "dead_letter": {"stream": "work-dead", "max_deliveries": 1}}
        http.put(group, json=policy).raise_for_status()
        read = http.post(f"{group}/consumers/ann/read", json={"count": 6}).json()["entries"]
        ids = [one["id"] for one in read]
        http.post(
            f"{group}/dead-letter", json={"ids": ids[:2], "reason": "no such customer"}
        ).raise_for_status()
        claim = {"consumer": "bob", "min_idle_ms": 0, "ids": ids[2:]}
        http.post(f"{group}/claim", json=claim).raise_for_status()
    source = {"gateway.urls": shared_server.url, "subscribe": "work-dead"}
    shown: list[list[dlq.Letters]] = []
    by = ("source", "group", "consumer", "reason")
    writer = dlq.query(spark, source, checkpoint, by, shown.append)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    query.stop()
    assert [(*one.by.values(), one.count) for one in shown[-1]] == [
        ("work", "g", "ann", "max_deliveries", 4),
        ("work", "g", "ann", "no such customer", 2),
    ]
    assert dlq.once(spark, source, by) == shown[-1] == dlq.kept(dlq.tally(checkpoint, by), by)
