"""The sink with a task that dies in the middle, once.

Knows: where a task dies. Must never know: what is written, and what the sink does about it.

    dieAfter   rows that the task has taken when it dies; what makes whole chunks of them is stored by then
    diedFlag   a file: the first task to make it is the one
"""

import os
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyspark_weir.datasource import WeirDataSource
from pyspark_weir.sink.writer import BatchWriter, StreamWriter, batch_writer, stream_writer

_step = 500


class Death:
    """Once, after this number of rows."""

    def __init__(self, after_rows: int, flag: str) -> None:
        self._after_rows = after_rows
        self._flag = flag

    def of(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same rows, up to there."""
        given = 0
        for batch in batches:
            for start in range(0, batch.num_rows, _step):
                part = batch.slice(start, _step)
                yield part
                given += part.num_rows
                if given >= self._after_rows and self._is_first():
                    raise RuntimeError("the task dies here")

    def _is_first(self) -> bool:
        try:
            os.close(os.open(self._flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class _Batch(DataSourceArrowWriter):
    def __init__(self, inner: BatchWriter, death: Death) -> None:
        self._inner = inner
        self._death = death

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._inner.write(self._death.of(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._inner.commit(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._inner.abort(messages)


class _Stream(DataSourceStreamArrowWriter):
    def __init__(self, inner: StreamWriter, death: Death) -> None:
        self._inner = inner
        self._death = death

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._inner.write(self._death.of(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        self._inner.commit(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        self._inner.abort(messages, batchId)


class DyingDataSource(WeirDataSource):
    """`weir` with `dieAfter` and `diedFlag`."""

    @classmethod
    def name(cls) -> str:
        return "weir_dying"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        options, death = self._parted()
        return _Batch(batch_writer(options, schema, overwrite=overwrite), death)

    def streamWriter(  # noqa: N802 - Spark's
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's
    ) -> DataSourceStreamWriter:
        options, death = self._parted()
        return _Stream(stream_writer(options, schema, overwrite=overwrite), death)

    def _parted(self) -> tuple[dict[str, str], Death]:
        options = {name.lower(): value for name, value in self.options.items()}
        death = Death(int(options.pop("dieafter")), options.pop("diedflag"))
        return options, death
