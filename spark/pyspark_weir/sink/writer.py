"""Spark's writers: batch and streaming, both from Arrow batches.

Knows: Spark's writer interfaces, where a task finds its query, batch and partition.
Must never know: how rows become entries and entries requests.

A writer is made on the driver, travels to each task as a pickle, and comes back to the driver to commit. So
it holds what can be pickled, and no connection.
"""

import logging
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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

from pyspark_weir.errors import OptionError, PipelineError
from pyspark_weir.gateway import GatewayClient
from pyspark_weir.sink import keys
from pyspark_weir.sink.keys import TaskId, check_producer
from pyspark_weir.sink.options import SinkOptions
from pyspark_weir.sink.rows import Rows
from pyspark_weir.sink.sending import Sent, SinkSender

# Spark's own names of what a task belongs to; internal, so a test guards them.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"

# Beyond this part of what the gateway remembers, a repeated batch might meet keys that are gone.
_WINDOW_PART_MAX: Final = 0.8

_log: Final = logging.getLogger(__name__)

Messages = Sequence[WriterCommitMessage | None]


class _Writer:
    """What both writers do: store the rows of a task, and end a batch on the driver."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")
        # On the driver, before any task runs.
        Rows(self._schema, options.rows)

    def _store(self, batches: Iterator[pa.RecordBatch], place: TaskId) -> Sent:
        options = self._options
        rows = Rows(self._schema, options.rows)
        known = keys.keys(options.key_mode, place, key_window=options.key_window)
        # Spark's names of columns are of no account here; their order is the schema's.
        named = (batch.rename_columns(self._schema.names) for batch in batches)
        with GatewayClient(options.access) as gateway:
            sender = SinkSender(
                gateway,
                known,
                rows_max=options.chunk_rows,
                in_flight=options.in_flight,
                per_s=options.entries_per_s,
            )
            return sender.send((entry for batch in named for entry in rows.entries(batch)), place)

    def _finish(self, messages: Messages, epoch: int) -> None:
        done, options = _sent(messages), self._options
        if options.ordered:
            _expect_one_task_each(done)
        if options.key_mode == "content":
            _warn_of_window(options, done, epoch)
        if options.commit_marker is not None and done:
            _mark(options, options.commit_marker, done, epoch)
        _log.info("batch %d: %s", epoch, _describe(messages))


class BatchWriter(_Writer, DataSourceArrowWriter):
    """One `df.write`. Two of the same job and epoch store their rows once."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.job_id is None and options.key_mode != "none":
            _log.warning("no jobId: a failed task stores nothing twice, but a second run stores all again")
        self._origin = check_producer(f"job/{options.job_id or uuid.uuid4()}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._store(iterator, TaskId(self._origin, self._options.epoch, _context().partitionId()))

    def commit(self, messages: Messages) -> None:
        self._finish(messages, self._options.epoch)

    def abort(self, messages: Messages) -> None:
        """On the driver: what was stored stays, and the same job run again goes on from there."""
        _log.warning("the write failed; %s", _describe(messages))


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The sink of a streaming query: a batch that is run again stores nothing twice."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._store(iterator, stream_place(_context()))

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's
        self._finish(messages, batchId)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's
        """On the driver: what was stored stays, and the batch run again goes on from there."""
        _log.warning("batch %d failed; %s", batchId, _describe(messages))


def batch_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    """For `DataSource.writer`. Raises OptionError; RefusedError, Unavailable where streams are emptied."""
    chosen = SinkOptions.of(options)
    writer = BatchWriter(chosen, schema)
    if overwrite:
        _truncate(chosen)
    return writer


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> StreamWriter:
    """For `DataSource.streamWriter`. Raises OptionError."""
    if overwrite:
        raise OptionError(
            'outputMode("complete") would replace all that the stream holds at each batch, and Spark hands '
            'no "update" to this sink: use append, or write what has changed in foreachBatch'
        )
    return StreamWriter(SinkOptions.of(options), schema)


def stream_place(context: TaskContext) -> TaskId:
    """Where a task of a streaming query stands. Raises PipelineError where Spark does not tell."""
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if not query or not batch or not batch.isdigit():
        raise PipelineError(
            "WEIR_NO_BATCH",
            f"this Spark does not tell its tasks {QUERY_ID} and {BATCH_ID}, by which a repeated batch is "
            "known: write in foreachBatch, with jobId and epoch=<batch id>",
        )
    return TaskId(f"spark/{query}", int(batch), context.partitionId())


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise PipelineError("WEIR_NO_TASK", "a writer writes within a Spark task")
    return context


def _sent(messages: Messages) -> list[Sent]:
    return [message for message in messages if isinstance(message, Sent)]


def _describe(messages: Messages) -> str:
    done = _sent(messages)
    return f"{len(done)} of {len(messages)} tasks had stored {sum(one.rows for one in done)} entries"


def _warn_of_window(options: SinkOptions, done: Sequence[Sent], epoch: int) -> None:
    streams: Counter[str] = Counter()
    for message in done:
        streams.update(message.streams)
    for name, rows in streams.most_common(1):
        if rows > options.key_window * _WINDOW_PART_MAX:
            _log.warning(
                "batch %d put %d entries into %s: set keyWindow to more, or a repeat may store some twice",
                epoch,
                rows,
                name,
            )


def _expect_one_task_each(done: Sequence[Sent]) -> None:
    tasks: dict[str, int] = {}
    for message in done:
        for name in message.streams:
            before = tasks.setdefault(name, message.place.partition)
            if before != message.place.partition:
                raise PipelineError(
                    "WEIR_ORDER",
                    f"ordered=true, but the partitions {before} and {message.place.partition} wrote to "
                    f'{name} side by side: write df.repartition("stream").sortWithinPartitions("ms", "seq")',
                )


def _mark(options: SinkOptions, stream: str, done: Sequence[Sent], epoch: int) -> None:
    """An entry that says that the batch is there; once, however often it is committed."""
    origin = done[0].place.origin
    rows = sum(message.rows for message in done)
    fields = {"query": origin, "batch": str(epoch), "rows": str(rows)}
    producer = check_producer(f"{origin}/commit")
    with GatewayClient(options.access) as gateway:
        headers = {"weir-producer": producer, "weir-epoch": str(epoch), "weir-chunk": "0"}
        body = {"streams": {stream: [{"fields": fields}]}}
        gateway.post(keys.PUBLISH, body, headers=headers, repeatable=True)


def _truncate(options: SinkOptions) -> None:
    stream = options.rows.stream
    if not options.allow_truncate or stream is None:
        raise OptionError(
            'mode("overwrite") would delete what the stream holds: use mode("append"), or name the stream '
            "with the option stream and set allowTruncate=true; emptying and writing are two steps, not one"
        )
    with GatewayClient(options.access) as gateway:
        if gateway.stream(stream) is not None:
            gateway.trim(stream, maxlen=0)
