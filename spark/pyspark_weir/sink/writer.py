"""Spark's writers: batch and streaming, both from Arrow batches.

Knows: Spark's writer interfaces, where a task finds its query, batch and partition.
Must never know: how rows become entries and entries requests.

A writer is made on the driver, travels to each task as a pickle, and comes back to the driver to commit. So
it holds what can be pickled, and no connection.
"""

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_weir import gateway as calls
from pyspark_weir.errors import OptionError, PipelineError
from pyspark_weir.gateway import Gateway
from pyspark_weir.gateway.client import of_stream
from pyspark_weir.sink import keys
from pyspark_weir.sink.keys import Place, checked_producer
from pyspark_weir.sink.options import SinkOptions
from pyspark_weir.sink.rows import Entry, Rows
from pyspark_weir.sink.sending import Sender, Sent

# Spark's own names of what a task belongs to; internal, so a test guards them.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"

# Beyond this part of what the gateway remembers, a repeated batch might meet keys that are gone.
_window_part_max: Final = 0.8

_log: Final = logging.getLogger(__name__)


@dataclass
class Written(WriterCommitMessage):
    """What a task stored, for the driver: entries by stream, chunks, and chunks that had been there."""

    origin: str
    partition: int
    streams: dict[str, int] = field(default_factory=dict)
    chunks: int = 0
    repeated: int = 0

    @property
    def rows(self) -> int:
        """Entries in all."""
        return sum(self.streams.values())


class BatchWriter(DataSourceArrowWriter):
    """One `df.write`. Two of the same job and epoch store their rows once."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._task = _Task(options, schema)
        self._options = options
        if options.job_id is None:
            if options.key_mode != "none":
                _log.warning(
                    "no jobId: a failed task stores nothing twice, but a second run stores all again"
                )
            self._origin = f"job/{uuid.uuid4()}"
        else:
            self._origin = f"job/{options.job_id}"
        checked_producer(self._origin)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On a worker: store a partition. Raises PipelineError."""
        context = _context()
        return self._task.store(iterator, Place(self._origin, self._options.epoch, context.partitionId()))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: all partitions are stored."""
        _finish(self._options, messages, self._options.epoch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: what was stored stays, and the same job run again goes on from there."""
        _log.warning("the write failed; %s", _told(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query: a batch that is run again stores nothing twice."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._task = _Task(options, schema)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On a worker: store a partition of a batch. Raises PipelineError."""
        return self._task.store(iterator, stream_place(_context()))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """On the driver: all partitions of the batch are stored."""
        _finish(self._options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """On the driver: what was stored stays, and the batch run again goes on from there."""
        _log.warning("batch %d failed; %s", batchId, _told(messages))


def batch_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    """For `DataSource.writer`. Raises OptionError; Refused, Unavailable where streams are to be emptied."""
    chosen = SinkOptions.of(options)
    writer = BatchWriter(chosen, schema)
    if overwrite:
        _truncate(chosen)
    return writer


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> StreamWriter:
    """For `DataSource.streamWriter`. Raises OptionError."""
    if overwrite:
        raise OptionError(
            'outputMode("complete") would replace all that the stream holds at each batch: use update or '
            "append"
        )
    return StreamWriter(SinkOptions.of(options), schema)


def stream_place(context: TaskContext) -> Place:
    """Where a task of a streaming query stands. Raises PipelineError where Spark does not tell."""
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if not query or not batch or not batch.isdigit():
        raise PipelineError(
            "WEIR_NO_BATCH",
            f"this Spark does not tell its tasks {QUERY_ID} and {BATCH_ID}, by which a repeated batch is "
            "known: write in foreachBatch, with jobId and epoch=<batch id>",
        )
    return Place(f"spark/{query}", int(batch), context.partitionId())


class _Task:
    """What both writers do on a worker."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")
        # On the driver, before any task runs.
        Rows(self._schema, options.rows)

    def store(self, batches: Iterator[pa.RecordBatch], place: Place) -> Written:
        """Store the rows of a partition."""
        options = self._options
        rows = Rows(self._schema, options.rows)
        known = keys.keys(options.key_mode, place, key_window=options.key_window)
        with Gateway(options.access) as gateway:
            sender = Sender(
                gateway,
                known,
                rows_max=options.chunk_rows,
                in_flight=options.in_flight,
                per_s=options.entries_per_s,
            )
            sent: Sent = sender.send(self._entries(rows, batches))
        return Written(place.origin, place.partition, sent.streams, sent.chunks, sent.repeated)

    def _entries(self, rows: Rows, batches: Iterator[pa.RecordBatch]) -> Iterator[Entry]:
        for batch in batches:
            # Spark's names of columns are of no account here; their order is the schema's.
            yield from rows.entries(batch.rename_columns(self._schema.names))


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise PipelineError("WEIR_NO_TASK", "a writer writes within a Spark task")
    return context


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]


def _told(messages: Sequence[WriterCommitMessage | None]) -> str:
    done = _written(messages)
    return f"{len(done)} of {len(messages)} tasks had stored {sum(one.rows for one in done)} entries"


def _finish(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], epoch: int) -> None:
    done = _written(messages)
    streams = _totals(done)
    if options.ordered:
        _expect_one_task_each(done)
    if options.key_mode == "content":
        crowded = [name for name, rows in streams.items() if rows > options.key_window * _window_part_max]
        if crowded:
            _log.warning(
                "batch %d put %d entries into %s: set keyWindow to more, or a repeat may store some twice",
                epoch,
                streams[crowded[0]],
                crowded[0],
            )
    if options.commit_marker is not None and done:
        _mark(options, options.commit_marker, done, epoch)
    _log.info("batch %d: %s", epoch, _told(messages))


def _totals(done: Sequence[Written]) -> dict[str, int]:
    streams: dict[str, int] = {}
    for message in done:
        for name, rows in message.streams.items():
            streams[name] = streams.get(name, 0) + rows
    return streams


def _expect_one_task_each(done: Sequence[Written]) -> None:
    tasks: dict[str, int] = {}
    for message in done:
        for name in message.streams:
            before = tasks.setdefault(name, message.partition)
            if before != message.partition:
                raise PipelineError(
                    "WEIR_ORDER",
                    f"ordered=true, but the partitions {before} and {message.partition} wrote to {name} side "
                    'by side: write df.repartition("stream").sortWithinPartitions("ms", "seq")',
                )


def _mark(options: SinkOptions, stream: str, done: Sequence[Written], epoch: int) -> None:
    """An entry that says that the batch is there; once, however often it is committed."""
    origin = done[0].origin
    rows = sum(message.rows for message in done)
    fields = {"query": origin, "batch": str(epoch), "rows": str(rows)}
    producer = checked_producer(f"{origin}/commit")
    with Gateway(options.access) as gateway:
        calls.publish(gateway, {stream: [{"fields": fields}]}, producer=producer, epoch=epoch)


def _truncate(options: SinkOptions) -> None:
    """Empty the stream that is to be overwritten."""
    stream = options.rows.stream
    if not options.allow_truncate or stream is None:
        raise OptionError(
            'mode("overwrite") would delete what the stream holds: use mode("append"), or name the stream '
            "with the option stream and set allowTruncate=true; emptying and writing are two steps, not one"
        )
    with Gateway(options.access) as gateway:
        if calls.stream(gateway, stream) is not None:
            gateway.post(
                f"{of_stream(stream)}/trim",
                {"maxlen": 0, "approx": False},
                repeatable=True,
                about=f"emptying {stream}",
            )
