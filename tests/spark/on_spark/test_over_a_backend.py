"""Source, sink and archive in Spark over gateways whose streams are in servers of Valkey: exact counts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from pyspark_weir.gateway import GatewayAccess, GatewayClient
from pyspark_weir.jobs import trim
from pyspark_weir.jobs.archive import Archiver
from pyspark_weir.jobs.verify import verify
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable
from tests.cluster.clusters import primaries
from tests.cluster.servers import BackendServer
from tests.server import Server
from tests.spark.table.making import entries_in

# Over one server or over three.
pytestmark = pytest.mark.halved

ROWS = 6_000
# Every entry of an AOF that is always synced is on a disk when it is confirmed.
ON_DISK = ["--appendonly", "yes", "--appendfsync", "always"]

Gateway = tuple[Server, dict[str, str]]


@pytest.fixture(scope="module", params=["server", "cluster"])
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway over one server or over three, and the options with which it is read."""
    folder = tmp_path_factory.mktemp("backend")
    if request.param == "server":
        with (
            BackendServer(folder, "valkey", ON_DISK) as backend,
            Server(folder / "data", "--backend", backend.url, "--set", "backend_durability=fsync:1") as weir,
        ):
            yield weir, {}
    else:
        with (
            primaries(folder) as cluster,
            Server(folder / "data", "--backend", cluster.url, "--set", "backend_durability=memory") as weir,
        ):
            yield weir, {"durableOnly": "false"}


def write(spark: SparkSession, weir: Server, first: int, count: int) -> None:
    """Rows with these numbers, from two tasks each, into two streams."""
    rows = spark.range(first, first + count, 1, 2).selectExpr("cast(id as string) as n")
    for part in (0, 1):
        options = {"gateway.urls": weir.url, "chunkRows": "500", "stream": f"many.{part}"}
        rows.where(f"n % 2 = {part}").write.format("weir").mode("append").options(**options).save()


def test_what_the_sink_writes_the_source_reads_once(
    spark: SparkSession, gateway: Gateway, tmp_path: Path
) -> None:
    """In a batch, and in a query that goes on from its checkpoint."""
    weir, more = gateway
    write(spark, weir, 0, ROWS)
    options = {
        "gateway.urls": weir.url,
        "subscribePattern": "many[.].*",
        "startingOffsets": "earliest",
        "maxEntriesPerPartition": "700",
        "pollTimeoutMs": "0",
        **more,
    }
    frame = spark.read.format("weir").options(**options).load()
    number = sf.col("fields")["n"].cast("long")
    totals = frame.agg(sf.count("*"), sf.countDistinct(number), sf.min(number), sf.max(number)).first()
    assert totals is not None
    assert tuple(totals) == (ROWS, ROWS, 0, ROWS - 1)
    found: list[int] = []

    def collect(batch: DataFrame, _: int) -> None:
        found.extend(row.n for row in batch.select(number.alias("n")).collect())

    for beyond in (ROWS, ROWS + 600):
        stream = spark.readStream.format("weir").options(**options).load()
        writer = stream.writeStream.foreachBatch(collect).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(180)
        assert sorted(found) == list(range(beyond))
        write(spark, weir, beyond, 600)


def test_the_archive_job_holds_each_entry_once(spark: SparkSession, gateway: Gateway, tmp_path: Path) -> None:
    """Through a driver that dies before Spark's commit, a lost checkpoint, and a trim."""
    weir, more = gateway
    source = {
        "gateway.urls": weir.url,
        "subscribePattern": "kept[.].*",
        "maxEntriesPerTrigger": "300",
        "pollTimeoutMs": "0",
        **more,
    }
    root = ArchiveRoot.of(tmp_path / "archive")

    def archive(checkpoint: Path) -> ArchiveTable:
        job = Archiver(root, str(checkpoint), source)
        writer = job.query(spark).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        assert query.awaitTermination(180)
        job.settle()
        return ArchiveTable.open(root)

    with GatewayClient(GatewayAccess("g0", weir.url)) as client:
        publish(client, 0)
        archive(tmp_path / "first")
        last = max(int(one.name) for one in (tmp_path / "first" / "commits").iterdir() if one.name.isdigit())
        (tmp_path / "first" / "commits" / str(last)).unlink()
        publish(client, 400)
        archive(tmp_path / "first")
        publish(client, 800)
        table = archive(tmp_path / "lost")
        assert sorted(entries_in(table).values()) == [1] * 2_400
        assert [(one.key.stream, one.rows) for one in sorted(table.ranges())] == [
            ("kept.0", 1_200),
            ("kept.1", 1_200),
        ]
        assert verify(table, {"g0": client}, deep=True).findings == ()
        planned = trim.plan(table, {"g0": client}, trim.TrimRules(keep_last=100), 0)
        assert [one.deleted for one in trim.run(table, {"g0": client}, planned)] == [1_100, 1_100]
        assert [client.get(f"/v1/streams/kept.{part}")["length"] for part in (0, 1)] == [100, 100]
        assert verify(table, {"g0": client}, deep=True).findings == ()


def publish(client: GatewayClient, first: int) -> None:
    """Four hundred entries into each of two streams."""
    entries = [{"fields": {"n": str(number)}} for number in range(first, first + 400)]
    for part in (0, 1):
        client.post("/v1/publish", {"streams": {f"kept.{part}": entries}})
