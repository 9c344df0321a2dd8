"""The sink in Spark, against a real gateway: what Spark runs again is stored once."""

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from pyspark_weir.errors import RefusedError
from pyspark_weir.gateway import GatewayAccess, GatewayClient
from pyspark_weir.running import query_error
from tests.server import Server
from tests.spark.on_spark.dying import DyingDataSource

ROWS = 12_000
CHUNK = 1_000


@pytest.fixture
def gateway(shared_server: Server) -> Iterator[GatewayClient]:
    with GatewayClient(GatewayAccess("g0", shared_server.url)) as opened:
        yield opened


@pytest.fixture
def write(shared_server: Server) -> Callable[..., None]:
    """`df.write` to the shared gateway."""

    def written(frame: DataFrame, *, mode: str = "append", form: str = "weir", **options: Any) -> None:
        given = {"gateway.urls": shared_server.url, "chunkRows": CHUNK, **options}
        frame.write.format(form).mode(mode).options(**given).save()

    return written


def stored(gateway: GatewayClient, stream: str, field: str = "n") -> list[str]:
    """A field of all entries of a stream, in order."""
    found: list[str] = []
    after = "0-0"
    while True:
        answer = gateway.get(f"/v1/streams/{stream}/entries", {"after": after, "count": 10_000})
        found += [entry["fields"][field] for entry in answer["entries"]]
        if not answer["more"]:
            return found
        after = answer["next"]


def numbers(spark: SparkSession, count: int = ROWS, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(sf.col("id").cast("string").alias("n"))


class TestBatch:
    def test_many_streams_by_column(
        self, spark: SparkSession, gateway: GatewayClient, write: Callable[..., None]
    ) -> None:
        """Each row where its column says, in order within a partition."""
        frame = numbers(spark, 3_000, 1).selectExpr("concat('many.', cast(n as int) % 3) as stream", "n")
        write(frame, keyMode="content", jobId="many")
        for rest in range(3):
            assert stored(gateway, f"many.{rest}") == [str(n) for n in range(rest, 3_000, 3)]

    def test_types_and_nulls(
        self, spark: SparkSession, gateway: GatewayClient, write: Callable[..., None]
    ) -> None:
        """Each value in its one exact text; nulls are left out, and `bytes` come back as they were."""
        frame = spark.sql(
            "select 1.5D as f, true as b, cast(2.50 as decimal(9,2)) as d, timestamp'2026-01-31 01:02:03' "
            "as t, date'2026-01-31' as day, cast(null as string) as nothing, array(1, 2) as list, X'FF' as "
            "raw"
        )
        write(frame, stream="types", keyMode="none")
        (entry,) = gateway.get("/v1/streams/types/entries")["entries"]
        assert entry["encoding"] == "base64"
        assert {name: base64.b64decode(value) for name, value in entry["fields"].items()} == {
            "f": b"1.5",
            "b": b"true",
            "d": b"2.50",
            "t": b"2026-01-31T01:02:03.000000Z",
            "day": b"2026-01-31",
            "list": b"[1,2]",
            "raw": b"\xff",
        }

    def test_a_map_with_ids_keeps_them(
        self, spark: SparkSession, gateway: GatewayClient, write: Callable[..., None]
    ) -> None:
        """Explicit IDs, ascending within the stream."""
        frame = spark.range(1, 101, 1, 1).selectExpr(
            "'explicit' as stream", "concat(id, '-7') as id", "map('n', cast(id as string)) as fields"
        )
        write(frame, keyMode="none")
        answer = gateway.get("/v1/streams/explicit/entries", {"count": 1_000})
        assert [one["id"] for one in answer["entries"]] == [f"{n}-7" for n in range(1, 101)]

    def test_content_keys_survive_another_order(
        self, spark: SparkSession, gateway: GatewayClient, write: Callable[..., None]
    ) -> None:
        """The same job twice, its rows shuffled otherwise: in other partitions, in another order."""
        write(numbers(spark).repartition(3), stream="shuffled", keyMode="content", jobId="shuffle")
        again = numbers(spark).orderBy(sf.rand(7)).repartition(2)
        write(again, stream="shuffled", keyMode="content", jobId="shuffle")
        assert sorted(map(int, stored(gateway, "shuffled"))) == list(range(ROWS))

    @pytest.mark.halved
    @pytest.mark.parametrize(("mode", "again"), [("position", 0), ("content", 0), ("none", 3_000)])
    def test_a_failed_task_stores_nothing_twice(
        self,
        spark: SparkSession,
        gateway: GatewayClient,
        write: Callable[..., None],
        tmp_path: Path,
        mode: str,
        again: int,
    ) -> None:
        """It dies after three chunks, and Spark runs it again; without keys they are there twice."""
        spark.dataSource.register(DyingDataSource)
        dying = {"dieAfter": 3_500, "diedFlag": str(tmp_path / "died")}
        write(numbers(spark), form="weir_dying", stream=f"failed.{mode}", keyMode=mode, **dying)
        found = stored(gateway, f"failed.{mode}")
        assert len(found) == ROWS + again
        assert set(map(int, found)) == set(range(ROWS))

    def test_a_job_that_runs_again_stores_nothing_twice(
        self, spark: SparkSession, gateway: GatewayClient, write: Callable[..., None]
    ) -> None:
        """Under its job ID; another epoch of it is something else."""
        for epoch in (0, 0, 1):
            write(numbers(spark, 3_000), stream="job", jobId="nightly", epoch=epoch)
        assert len(stored(gateway, "job")) == 6_000

    def test_a_job_id_used_for_something_else_is_refused(
        self, spark: SparkSession, gateway: GatewayClient, write: Callable[..., None]
    ) -> None:
        """Its rows would be taken for those of before."""
        write(numbers(spark, 10, 1), stream="else", jobId="used")
        other = numbers(spark, 20, 1).where("cast(n as int) >= 10")
        with pytest.raises(PySparkException, match=r"WEIR_CHANGED.*another jobId"):
            write(other, stream="else", jobId="used")
        assert len(stored(gateway, "else")) == 10

    def test_an_order_that_two_tasks_would_mix_is_refused(
        self, spark: SparkSession, write: Callable[..., None]
    ) -> None:
        """ordered=true with a stream in two partitions."""
        with pytest.raises(PySparkException, match=r"WEIR_ORDER.*repartition"):
            write(numbers(spark, 10), stream="mixed", keyMode="none", ordered=True)

    def test_overwrite_is_refused_unless_it_is_meant(
        self, spark: SparkSession, gateway: GatewayClient, write: Callable[..., None]
    ) -> None:
        """It deletes what is there; then it is what was written."""
        write(numbers(spark, 10, 1), stream="over", keyMode="none")
        with pytest.raises(PySparkException, match=r"WEIR_OPTION.*allowTruncate"):
            write(numbers(spark, 5, 1), stream="over", keyMode="none", mode="overwrite")
        assert len(stored(gateway, "over")) == 10
        write(numbers(spark, 5, 1), stream="over", keyMode="none", mode="overwrite", allowTruncate=True)
        assert stored(gateway, "over") == [str(n) for n in range(5)]

    def test_a_schema_that_cannot_be_written_fails_before_any_task(
        self, spark: SparkSession, write: Callable[..., None]
    ) -> None:
        """On the driver, with what to do."""
        with pytest.raises(PySparkException, match=r"WEIR_OPTION.*give the option stream"):
            write(numbers(spark, 1))


class TestStream:
    @pytest.fixture
    def query(
        self, spark: SparkSession, shared_server: Server, checkpoint: str, tmp_path: Path
    ) -> Callable[..., str]:
        """Run a query over files to its end; its ID."""

        def run(form: str = "weir", **options: Any) -> str:
            frame = (
                spark.readStream.schema("n string").option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
            )
            given = {"gateway.urls": shared_server.url, "chunkRows": CHUNK, **options}
            started = (
                frame.writeStream.format(form)
                .options(**given)
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            started.awaitTermination()
            return str(started.id)

        numbers(spark, 6_000, 3).write.json(str(tmp_path / "in"))
        return run

    @pytest.mark.halved
    @pytest.mark.parametrize("mode", ["position", "content"])
    def test_a_batch_that_runs_again_stores_nothing_twice(
        self, gateway: GatewayClient, query: Callable[..., str], checkpoint: str, mode: str
    ) -> None:
        """As after kill -9 between the last chunk and Spark's note that the batch is done."""
        stream = f"again.{mode}"
        query(stream=stream, keyMode=mode)
        (Path(checkpoint) / "commits" / "2").unlink()
        query(stream=stream, keyMode=mode)
        assert sorted(map(int, stored(gateway, stream))) == list(range(6_000))

    def test_a_finished_batch_leaves_one_mark(
        self, gateway: GatewayClient, query: Callable[..., str], checkpoint: str
    ) -> None:
        """By which others see what is complete; run again, a batch does not mark twice. Spark gives tasks the
        query and the batch under internal names: if a version drops them, this says so.
        """
        query_id = query(stream="marked", commitMarker="marks")
        (Path(checkpoint) / "commits" / "2").unlink()
        assert query(stream="marked", commitMarker="marks") == query_id
        marks = gateway.get("/v1/streams/marks/entries")["entries"]
        assert [one["fields"] for one in marks] == [
            {"query": f"spark/{query_id}", "batch": str(batch), "rows": "2000"} for batch in range(3)
        ]

    def test_a_task_that_dies_in_a_batch_stores_nothing_twice(
        self, spark: SparkSession, gateway: GatewayClient, query: Callable[..., str], tmp_path: Path
    ) -> None:
        """Spark runs it again within the batch."""
        spark.dataSource.register(DyingDataSource)
        query(form="weir_dying", stream="died", dieAfter=1_500, diedFlag=str(tmp_path / "died"))
        assert (tmp_path / "died").exists()
        assert sorted(map(int, stored(gateway, "died"))) == list(range(6_000))

    def test_a_zombie_of_an_older_batch_is_told_to_end(
        self, spark: SparkSession, gateway: GatewayClient, query: Callable[..., str], checkpoint: str
    ) -> None:
        """A driver that was thought dead goes on with batch 0 while another has done batch 2: here the
        gateway's memory of batch 0 is over, and nothing more is stored.
        """
        query_id = query(stream="zombie")
        producer = {"weir-producer": f"spark/{query_id}/0", "weir-epoch": "0", "weir-chunk": "99"}
        body = {"streams": {"zombie": [{"fields": {"n": "late"}}]}}
        with pytest.raises(RefusedError) as refused:
            gateway.post("/v1/publish", body, headers=producer, repeatable=True)
        assert refused.value.problem == "stale_epoch"
        assert len(stored(gateway, "zombie")) == 6_000

    @pytest.mark.parametrize(
        ("mode", "why"),
        [
            ("complete", "use append, or write what has changed in foreachBatch"),
            ("update", "requirement failed: weir does not support Update mode"),
        ],
    )
    def test_other_modes_are_refused_in_a_line(
        self,
        spark: SparkSession,
        shared_server: Server,
        checkpoint: str,
        query: Callable[..., str],
        tmp_path: Path,
        mode: str,
        why: str,
    ) -> None:
        """One would replace what the stream holds at each batch; Spark itself refuses the other."""
        counted = spark.readStream.schema("n string").json(str(tmp_path / "in")).groupBy("n").count()
        writer = counted.writeStream.format("weir").outputMode(mode).trigger(availableNow=True)
        options = {"gateway.urls": shared_server.url, "stream": "complete", "checkpointLocation": checkpoint}
        with pytest.raises(PySparkException) as refused:
            writer.options(**options).start().awaitTermination()
        sentence = query_error(str(refused.value)).sentence
        assert why in sentence
        assert "\n" not in sentence
