"""An archive of the classes that Spark loads: a Java that maps it starts in half of the time.

Knows: what loads most of them. Must never know: who starts with them.

    python -m tests.spark.classes
"""

import sys
from pathlib import Path
from typing import Final

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from pyspark_weir.session import SessionOptions, open_session

ARCHIVE: Final = Path(sys.prefix) / "spark-classes.jsa"
_ENDED_S_MAX: Final = 120.0


def make() -> None:
    """Run a batch with Python, and a stream, and have Java write its classes down when it ends."""
    options = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={ARCHIVE} -Xlog:cds=off"
    session = open_session(SessionOptions(app="classes", conf={"spark.driver.extraJavaOptions": options}))
    _load(session)
    # pyspark does not wait for its Java.
    gateway = SparkContext._gateway  # noqa: SLF001
    assert gateway is not None, "there is a session"
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_ENDED_S_MAX)


def _load(session: SparkSession) -> None:
    rows = session.range(100).selectExpr("id % 7 as key", "cast(id as string) as text")
    rows.mapInArrow(lambda batches: batches, rows.schema).groupBy("key").count().orderBy("key").collect()
    stream = session.readStream.format("rate").load().writeStream.foreachBatch(_collect)
    stream.trigger(once=True).start().awaitTermination()


def _collect(batch: DataFrame, _: int) -> None:
    batch.collect()


if __name__ == "__main__":
    make()
