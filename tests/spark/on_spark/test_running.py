"""Real queries are run once, on and on, and until a signal."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_weir.errors import PipelineError
from pyspark_weir.progress import BatchProgress
from pyspark_weir.running import QueryRun, run


def _written(folder: Path, *texts: str) -> Path:
    folder.mkdir()
    for text in texts:
        (folder / f"{text}.txt").write_text(f"{text}\n")
    return folder


def test_once_takes_all_that_is_there(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    """In as many batches as it takes; the second time nothing is left."""
    folder = _written(tmp_path / "in", "a", "b", "c")
    reports: list[BatchProgress] = []

    def build(spark: SparkSession) -> DataStreamWriter:
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder))
        return lines.writeStream.format("noop").queryName("lines")

    summary = run(QueryRun(checkpoint), build, reports.append)
    assert (summary.batches, summary.rows, summary.stopped) == (3, 3, False)
    assert [one.batch for one in reports if one.rows] == [0, 1, 2]
    assert {one.query for one in reports} == {"lines"}
    json.dumps(reports[0].members())
    assert run(QueryRun(checkpoint), build, reports.append).rows == 0


def test_a_signal_ends_a_query_that_goes_on(spark: SparkSession, checkpoint: str) -> None:
    """In order: the run returns, and no query is left."""

    def build(spark: SparkSession) -> DataStreamWriter:
        return spark.readStream.format("rate").load().writeStream.format("noop")

    def tell(_progress: BatchProgress) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    summary = run(QueryRun(checkpoint, 0), build, tell)
    assert summary.stopped
    assert spark.streams.active == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_beside_the_main_thread_needs_no_signals(spark: SparkSession, checkpoint: str) -> None:
    """Python allows handlers in the main thread alone."""
    rows: list[int] = []

    def work() -> None:
        def build(spark: SparkSession) -> DataStreamWriter:
            return spark.readStream.format("rate").load().writeStream.format("noop")

        rows.append(run(QueryRun(checkpoint), build, lambda _progress: None).batches)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert len(rows) == 1


def test_what_fails_in_a_batch_is_told_with_its_code(spark: SparkSession, checkpoint: str) -> None:
    """Through everything that Spark wraps it in; and nothing is tried again that cannot help."""

    def build(spark: SparkSession) -> DataStreamWriter:
        def fail(_batch: object, _number: int) -> None:
            raise PipelineError("WEIR_DATA_LOSS", "stream a is gone")

        return spark.readStream.format("rate").load().writeStream.foreachBatch(fail)

    with pytest.raises(PipelineError, match=r"^WEIR_DATA_LOSS: stream a is gone$") as error:
        run(QueryRun(checkpoint, 0), build, lambda _progress: None)
    assert error.value.code == "WEIR_DATA_LOSS"
