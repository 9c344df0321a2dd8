"""Spark's data source `weir`: which reader and which writer there is for what.

Knows: Spark's interface. Must never know: options, schemas, gateways.

What reads and what writes is imported when it is asked for: a worker that writes loads no reader.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyspark_weir.options import SourceOptions, source_options


class WeirDataSource(DataSource):
    """`spark.read.format("weir")`, `df.write.format("weir")`, and the same as streams."""

    @classmethod
    def name(cls) -> str:
        return "weir"

    def schema(self) -> StructType:
        from pyspark_weir.schema import schema_of  # noqa: PLC0415 - what writes does not load it

        return schema_of(self._source_options())

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_weir.source.batch import BatchReader  # noqa: PLC0415 - the same

        return BatchReader(self._source_options(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        from pyspark_weir.source.stream import StreamingReader  # noqa: PLC0415 - the same

        return StreamingReader(self._source_options(), schema)

    def _source_options(self) -> SourceOptions:
        from pyspark_weir.sink.options import SINK  # noqa: PLC0415 - names for an error, no more

        return source_options(self.options, also=SINK)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        from pyspark_weir.sink.writer import batch_writer  # noqa: PLC0415 - what reads does not load it

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's
    ) -> DataSourceStreamWriter:
        from pyspark_weir.sink.writer import stream_writer  # noqa: PLC0415 - the same

        return stream_writer(self.options, schema, overwrite=overwrite)
