"""The source in Spark, against a real gateway: what is published is read, once, and a loss is raised."""

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType, StructField, StructType

from pyspark_weir.gateway import of_stream
from tests.spark.weir import Weir

# The first streaming query of a session takes ten seconds and more.
_query_s_max = 180.0
EVERYTHING = {"startingOffsets": "earliest"}

Read = Callable[..., DataFrame]
Run = Callable[..., StreamingQuery]


def ids(*numbers: int) -> list[str]:
    return [f"{number}-0" for number in numbers]


@pytest.fixture
def read(spark: SparkSession, weir: Weir) -> Read:
    """`spark.read` from the gateway."""

    def frame(schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("weir").options(**weir.options(**options))
        return (reader if schema is None else reader.schema(schema)).load()

    return frame


class Collected:
    """What a query's batches held, by batch, in the order in which they came."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[str]]] = []

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        # Sorted here: Spark would read the source twice, once for a sample.
        rows = sorted(frame.select("ms", "id").collect())
        self.batches.append((batch_id, [row.id for row in rows]))

    @property
    def ids(self) -> list[str]:
        return [one for _, batch in self.batches for one in batch]


@pytest.fixture
def run(spark: SparkSession, checkpoint: str) -> Iterator[Run]:
    """Start a query that collects; it is stopped in the end."""
    started: list[StreamingQuery] = []

    def query(
        weir: Weir, into: Callable[[DataFrame, int], None], *, once: bool = True, **options: str
    ) -> StreamingQuery:
        frame = spark.readStream.format("weir").options(**weir.options(**options)).load()
        writer = frame.writeStream.foreachBatch(into).option("checkpointLocation", checkpoint)
        query = (
            writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")
        ).start()
        started.append(query)
        return query

    yield query
    for one in started:
        one.stop()


def run_through(query: StreamingQuery) -> StreamingQuery:
    """Until it has ended by itself. Raises what ended it."""
    assert query.awaitTermination(int(_query_s_max)), "the query ends by itself"
    return query


def failure(query: StreamingQuery) -> str:
    """What ended a query, as its user sees it."""
    with pytest.raises(StreamingQueryException) as raised:
        run_through(query)
    return str(raised.value)


class TestBatch:
    def test_rows_have_the_columns_that_are_documented(self, weir: Weir, read: Read) -> None:
        weir.publish([1_700_000_000_000])
        frame = read()
        assert frame.schema.simpleString() == (
            "struct<stream:string,id:string,ms:bigint,seq:bigint,ts:timestamp,fields:map<string,string>>"
        )
        row = frame.selectExpr("*", "cast(ts as string) as written").first()
        assert row is not None
        assert (row.stream, row.id, row.ms, row.seq) == (
            weir.name(), "1700000000000-0", 1_700_000_000_000, 0,
        )  # fmt: skip
        assert row.fields == {"n": "1700000000000-0"}
        assert row.written == "2023-11-14 22:13:20"

    def test_many_pages_and_tasks_read_every_entry_once(self, weir: Weir, read: Read) -> None:
        weir.publish(range(1, 5_001))
        frame = read(maxEntriesPerPartition="1300", fetchSize="500", minPartitions="2")
        assert frame.rdd.getNumPartitions() == 4
        totals = frame.agg(sf.count("*"), sf.countDistinct("id"), sf.min("ms"), sf.max("ms")).first()
        assert totals is not None
        assert tuple(totals) == (5_000, 5_000, 1, 5_000)

    def test_nothing_is_no_rows(self, read: Read) -> None:
        assert read().count() == 0
        assert read(relation="groups").count() == 0

    @pytest.mark.parametrize(
        ("form", "expected"),
        [("map", {"n": "1-0"}), ("entries", [Row(name="n", value=b"1-0")]), ("json", '{"n":"1-0"}')],
    )
    def test_fields_come_in_the_form_that_is_asked_for(
        self, weir: Weir, read: Read, form: str, expected: object
    ) -> None:
        weir.publish([1])
        assert [row.fields for row in read(fieldsFormat=form).collect()] == [expected]

    def test_a_schema_names_the_fields_to_read(self, weir: Weir, read: Read) -> None:
        path = f"{of_stream(weir.name())}/entries"
        weir.gateway.post(path, {"id": "1-0", "fields": {"sensor": "a", "temp": "19.5", "other": "x"}})
        weir.gateway.post(path, {"id": "2-0", "fields": {"sensor": "b", "temp": "warm"}})
        frame = read("_id string, sensor string, temp double")
        assert frame.orderBy("_id").collect() == [
            Row(_id="1-0", sensor="a", temp=19.5),
            Row(_id="2-0", sensor="b", temp=None),
        ]
        with pytest.raises(PySparkException, match=r"WEIR_BAD_VALUE: .*'warm' does not fit column temp"):
            read("_id string, temp double", mode="FAILFAST").collect()

    def test_columns_and_meta(self, weir: Weir, read: Read) -> None:
        weir.publish([1])
        assert read(columns="id,ms").collect() == [Row(id="1-0", ms=1)]
        row = read(includeMeta="true").first()
        assert row is not None
        assert (row.shard, row.bytes) == ("g0", 4)

    def test_it_can_be_asked_in_sql(self, spark: SparkSession, weir: Weir) -> None:
        weir.publish(range(1, 11))
        spark.sql(
            f"create temporary view entries using weir options (`gateway.urls` '{weir.server.url}', "
            f"subscribe '{weir.name()}')"
        )
        found = spark.sql("select count(*) as n, max(ms) as last from entries where ms > 4").first()
        spark.catalog.dropTempView("entries")
        assert found == Row(n=6, last=10)

    def test_groups_are_rows(self, weir: Weir, read: Read) -> None:
        weir.publish(range(1, 11))
        weir.gateway.post(f"{of_stream(weir.name())}/groups", {"name": "g", "start": "0"})
        row = read(relation="groups").first()
        assert row is not None
        assert (row.stream, row.group, row.lag, row.pending) == (weir.name(), "g", 10, 0)

    def test_filters_are_pushed(self, weir: Weir, read: Read) -> None:
        weir.publish(range(1, 11))
        weir.publish(range(1, 11), "other")
        frame = read(subscribe=f"{weir.name()},{weir.name('other')}")
        wanted = (sf.col("stream") == weir.name("other")) & sf.col("ms").between(4, 6)
        assert [row.id for row in frame.where(wanted).orderBy("ms").collect()] == ids(4, 5, 6)
        late = sf.expr("ts >= timestamp'1970-01-01 00:00:00.009Z'")
        assert frame.where(late).count() == 4

    def test_several_gateways_are_one_table(self, spark: SparkSession, weir: Weir, own_weir: Weir) -> None:
        own_weir.prefix = weir.prefix
        weir.publish([1])
        own_weir.publish([2])
        urls = f"here={weir.server.url},there={own_weir.server.url}"
        options = weir.options(includeMeta="true", **{"gateway.urls": urls})
        frame = spark.read.format("weir").options(**options).load()
        assert {(row.shard, row.id) for row in frame.collect()} == {("here", "1-0"), ("there", "2-0")}

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"subscribe": "a", "assign": "{}"}, "WEIR_OPTION: give exactly one of"),
            ({"failOnDatLoss": "x"}, "did you mean failOnDataLoss?"),
            ({"failOnMissingStream": "true"}, "WEIR_NO_STREAM"),
            ({"gateway.urls": "http://127.0.0.1:1", "retryTimeoutMs": "0"}, "WEIR_UNAVAILABLE"),
        ],
    )
    def test_a_mistake_is_refused_with_our_code(
        self, read: Read, options: dict[str, str], sentence: str
    ) -> None:
        with pytest.raises(PySparkException) as raised:
            read(**options).count()
        assert sentence in str(raised.value)

    def test_a_trim_under_way_is_told(self, weir: Weir, read: Read) -> None:
        weir.publish(range(1, 1_001))
        weir.trim(10)
        with pytest.raises(PySparkException, match="WEIR_DATA_LOSS"):
            read(startingOffsets=f'{{"{weir.name()}": "5-0"}}').count()


class TestStream:
    def test_batches_keep_their_limit_and_a_later_run_goes_on_where_this_one_ended(
        self, weir: Weir, run: Run
    ) -> None:
        weir.publish(range(1, 26))
        first = Collected()
        query = run_through(run(weir, first, **EVERYTHING, maxEntriesPerTrigger="10"))
        assert [len(batch) for _, batch in first.batches] == [10, 10, 5]
        assert first.ids == ids(*range(1, 26))
        progress = query.recentProgress
        assert [one["numInputRows"] for one in progress if one["numInputRows"]] == [10, 10, 5]
        weir.publish(range(26, 31))
        second = Collected()
        run_through(run(weir, second, maxEntriesPerTrigger="10"))
        assert second.batches == [(3, ids(*range(26, 31)))]

    def test_a_running_query_reads_what_comes_and_streams_that_appear(self, weir: Weir, run: Run) -> None:
        weir.publish(range(1, 4), "a")
        found = Collected()
        pattern = f"{weir.prefix}/.*"
        query = run(weir, found, once=False, **EVERYTHING, subscribePattern=pattern, discoveryIntervalMs="0")
        query.processAllAvailable()
        assert found.ids == ids(1, 2, 3)
        weir.publish([4], "a")
        weir.publish([5, 6], "b")
        query.processAllAvailable()
        assert sorted(found.ids) == ids(1, 2, 3, 4, 5, 6)
        head = query.lastProgress
        assert head is not None
        assert f'"g0/{weir.name("b")}": ["6-0"' in str(head["sources"][0]["latestOffset"])

    def test_a_query_that_waits_is_woken_by_an_entry(self, weir: Weir, run: Run) -> None:
        weir.publish([1])
        found = Collected()
        arrived = threading.Event()

        def collect(frame: DataFrame, batch_id: int) -> None:
            found(frame, batch_id)
            if "2-0" in found.ids:
                arrived.set()

        query = run(weir, collect, once=False, **EVERYTHING, pollTimeoutMs="60000")
        while not found.ids:
            assert query.isActive
            query.awaitTermination(1)
        weir.publish([2])
        assert arrived.wait(30), "half of what the query would wait for"

    def test_a_batch_whose_end_was_written_down_is_read_again_the_same(
        self, weir: Weir, run: Run, checkpoint: str
    ) -> None:
        weir.publish(range(1, 16))
        first = Collected()
        run_through(run(weir, first, **EVERYTHING, maxEntriesPerTrigger="10"))
        # As if the driver had died before it knew the last batch done.
        (Path(checkpoint) / "commits" / "1").unlink()
        weir.publish(range(16, 21))
        again = Collected()
        run_through(run(weir, again, **EVERYTHING, maxEntriesPerTrigger="10"))
        assert again.batches == [(1, ids(*range(11, 16))), (2, ids(*range(16, 21)))]

    def test_what_was_trimmed_after_its_batch_was_written_down_is_told(
        self, weir: Weir, run: Run, checkpoint: str
    ) -> None:
        weir.publish(range(1, 16))
        run_through(run(weir, Collected(), **EVERYTHING, maxEntriesPerTrigger="10"))
        (Path(checkpoint) / "commits" / "1").unlink()
        weir.trim(13)
        assert "WEIR_DATA_LOSS" in failure(run(weir, Collected(), **EVERYTHING))
        kept = Collected()
        run_through(run(weir, kept, **EVERYTHING, failOnDataLoss="false"))
        assert kept.batches == [(1, ids(13, 14, 15))]

    def test_a_trim_between_two_runs_is_told_or_survived(self, weir: Weir, run: Run, checkpoint: str) -> None:
        weir.publish(range(1, 6))
        run_through(run(weir, Collected(), **EVERYTHING))
        weir.publish(range(6, 11))
        weir.trim(8)
        sentence = failure(run(weir, Collected()))
        assert "WEIR_DATA_LOSS" in sentence
        assert f"stream {weir.name()} of g0 after 5-0" in sentence
        assert "failOnDataLoss=false" in sentence
        assert not (Path(checkpoint) / "offsets" / "1").exists(), "raised before anything was written down"
        kept = Collected()
        run_through(run(weir, kept, failOnDataLoss="false"))
        assert kept.ids == ids(8, 9, 10)

    def test_a_stream_made_anew_is_told_or_begun_anew(self, weir: Weir, run: Run) -> None:
        weir.publish(range(1, 6))
        run_through(run(weir, Collected(), **EVERYTHING))
        weir.delete()
        weir.publish(range(3, 10))
        assert "made anew" in failure(run(weir, Collected()))
        kept = Collected()
        run_through(run(weir, kept, failOnDataLoss="false", maxEntriesPerTrigger="5"))
        assert kept.ids == ids(*range(3, 10))

    def test_older_data_that_was_restored_is_told_or_begun_anew(
        self, own_weir: Weir, run: Run, tmp_path: Path
    ) -> None:
        own_weir.publish(range(1, 6))
        own_weir.server.stop()
        shutil.copytree(own_weir.server.data, tmp_path / "copy")
        own_weir.server.start()
        own_weir.publish(range(6, 11))
        run_through(run(own_weir, Collected(), **EVERYTHING))
        own_weir.server.stop()
        shutil.rmtree(own_weir.server.data)
        shutil.copytree(tmp_path / "copy", own_weir.server.data)
        own_weir.server.start()
        assert "older data was restored" in failure(run(own_weir, Collected()))
        kept = Collected()
        run_through(run(own_weir, kept, onReset="latest"))
        own_weir.publish([7])
        run_through(run(own_weir, kept))
        assert kept.ids == ids(7)

    def test_a_gateway_that_restarts_is_waited_for(self, own_weir: Weir, run: Run) -> None:
        own_weir.publish(range(1, 6))
        found = Collected()
        query = run(own_weir, found, once=False, **EVERYTHING)
        query.processAllAvailable()
        own_weir.server.restart()
        own_weir.publish([6])
        query.processAllAvailable()
        assert found.ids == ids(*range(1, 7))


@pytest.fixture
def without_pushdown(spark: SparkSession) -> Iterator[None]:
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, "false")
    yield
    spark.conf.set(name, before or "false")


class TestWhatWeRelyOn:
    """What Spark does not promise, and does."""

    def test_a_reader_that_filters_is_not_refused_where_spark_does_not_allow_it(
        self, weir: Weir, read: Read, without_pushdown: None
    ) -> None:
        """It gives the same rows, without what is left unread."""
        weir.publish([1, 2])
        assert read().where("ms > 1").count() == 1

    def test_a_batch_of_another_schema_is_refused(self, spark: SparkSession) -> None:
        spark.dataSource.register(Mistaken)
        with pytest.raises(PySparkException, match="DATA_SOURCE_RETURN_SCHEMA_MISMATCH"):
            spark.read.format("mistaken").load().collect()

    def test_no_partitions_are_one_of_nothing(self, spark: SparkSession) -> None:
        spark.dataSource.register(Empty)
        assert [row.n for row in spark.read.format("empty").load().collect()] == [1]

    def test_a_task_of_a_stream_knows_its_query_and_its_batch(
        self, spark: SparkSession, weir: Weir, checkpoint: str, tmp_path: Path
    ) -> None:
        spark.dataSource.register(Telling)
        weir.publish([1, 2])
        frame = spark.readStream.format("weir").options(**weir.options(**EVERYTHING)).load()
        query = (
            frame.writeStream.format("telling")
            .option("checkpointLocation", checkpoint)
            .option("to", str(tmp_path / "stored"))
            .trigger(availableNow=True)
            .start()
        )
        run_through(query)
        assert (tmp_path / "stored").read_text() == f"{query.id} 0"


class _OneRow(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield (1 if partition.value is None else 2,)


class _WrongType(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"n": pa.array([1], type=pa.int32())})


class Empty(DataSource):
    """No partitions."""

    @classmethod
    def name(cls) -> str:
        return "empty"

    def schema(self) -> StructType:
        return StructType([StructField("n", LongType())])

    def reader(self, schema: StructType) -> DataSourceReader:
        return _OneRow()


class Mistaken(Empty):
    """Not what it says."""

    @classmethod
    def name(cls) -> str:
        return "mistaken"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _WrongType()


@dataclass
class Told(WriterCommitMessage):
    """What a task knows of itself."""

    text: str


class _Teller(DataSourceStreamWriter):
    def __init__(self, to: str) -> None:
        self._to = to

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        list(iterator)
        task = TaskContext.get()
        assert task is not None
        names = ("sql.streaming.queryId", "streaming.sql.batchId")
        return Told(" ".join(str(task.getLocalProperty(name)) for name in names))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        Path(self._to).write_text(" ".join({one.text for one in messages if isinstance(one, Told)}))


class Telling(Empty):
    """A sink that writes down what its tasks know."""

    @classmethod
    def name(cls) -> str:
        return "telling"

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamWriter:
        return _Teller(self.options["to"])
