"""A failure in a batch is reported in one line, however much Spark has to say about it."""

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pyspark_weir.checkpoint import StateFolder
from pyspark_weir.jobs.batches import report_failures

_chars: int = 50_000


def test_a_long_error_of_spark_ends_the_query(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    """With the line that says what was wrong, and without the rest."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("x\n")

    def fail(batch: DataFrame, _number: int) -> None:
        jvm = spark.sparkContext._jvm  # noqa: SLF001 - the shortest way to an error of Java's
        assert jvm is not None, "the session runs"
        # An exception that PySpark has no class of its own for, as a failed write is one.
        jvm.java.lang.Class.forName("WEIR_ROW: no number" + "\n" + "x" * _chars)

    lines = spark.readStream.text(str(tmp_path / "in"))
    writer = lines.writeStream.foreachBatch(report_failures(fail, StateFolder.of(checkpoint))).option(
        "checkpointLocation", checkpoint
    )
    query = writer.trigger(availableNow=True).start()
    try:
        with pytest.raises(StreamingQueryException, match="WEIR_ROW: no number"):
            assert query.awaitTermination(60), "the query ends"
        assert len(str(query.exception())) < _chars // 2, "the text has not come along"
    finally:
        query.stop()
