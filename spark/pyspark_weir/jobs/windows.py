"""Numbers over windows of event time: counts, sums, means, extremes, percentiles, distinct values.

Knows: windows, watermarks, which of Spark's aggregates is what was asked for.
Must never know: how results are shown, where entries come from.

A window is told again whenever late entries change it (update), or once, when the watermark says that no more
are waited for (append). The watermark is the latest event time seen, of all streams, less `lateness_ms`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Self

import orjson
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_weir.checkpoint import query_id
from pyspark_weir.errors import OptionError
from pyspark_weir.jobs import reading
from pyspark_weir.jobs.batches import reported
from pyspark_weir.jobs.fields import FIELD, STREAM, TimeField, key_of, number_of, text_of, time_of
from pyspark_weir.place import Place
from pyspark_weir.series import Line
from pyspark_weir.tally import Tally

START: Final = "window_start"
END: Final = "window_end"
BATCH: Final = "batch"
APPEND: Final = "append"
UPDATE: Final = "update"
# The number of a batch's entries that have no event time, and what it is told with.
UNTIMED: Final = "untimed"
OBSERVED: Final = "windows"
# An approximate percentile is a value whose rank is wrong by 1/10 000 of all at most; approximate distinct
# counts have a standard deviation of 2 %.
rank_accuracy: Final = 10_000
distinct_deviation: Final = 0.02

_time: Final = "_time"
_CLAIM: Final = "_weir.json"
# What a chart remembers; the oldest windows go first.
_kept_max: Final = 20_000
_PERCENTILE: Final = re.compile(r"(exact-)?p([0-9]{1,2}(?:\.[0-9]{1,6})?|100)", re.ASCII)
_OF_FIELD: Final = ("sum", "mean", "min", "max", "distinct")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One number of a window: `count`, or `sum`, `mean`, `min`, `max`, `p99`, `exact-p99`, `distinct` of a
    field. Fields that are no number count for `count` and `distinct` alone.
    """

    kind: str
    field: str = ""

    @classmethod
    def of(cls, text: str) -> Self:
        """`count`, or `kind:field`. Raises OptionError."""
        kind, _, name = text.partition(":")
        if kind == "count" and not name:
            return cls(kind)
        if name and (kind in _OF_FIELD or _PERCENTILE.fullmatch(kind)):
            return cls(kind, name)
        raise OptionError(
            f"{text!r} is nothing to compute: write count, or {', '.join(_OF_FIELD)}, p99 (approximate) or "
            "exact-p99 with a field, as mean:temperature"
        )

    @property
    def name(self) -> str:
        """The column's name: `count`, `mean_temperature`, `exact_p99_temperature`."""
        return f"{self.kind.replace('-', '_')}_{self.field}" if self.field else self.kind

    def column(self) -> Column:
        """The number, in Spark."""
        if self.kind == "count":
            return F.count("*")
        if self.kind == "distinct":
            return F.approx_count_distinct(text_of(self.field), distinct_deviation)
        number = number_of(self.field)
        percentile = _PERCENTILE.fullmatch(self.kind)
        if percentile is None:
            return {"sum": F.sum, "mean": F.mean, "min": F.min, "max": F.max}[self.kind](number)
        share = float(percentile[2]) / 100
        # Exact ones keep every value of every open window.
        return F.percentile(number, share) if percentile[1] else _approximate(number, share)


def _approximate(number: Column, share: float) -> Column:
    return F.percentile_approx(number, share, rank_accuracy)


@dataclass(frozen=True, slots=True)
class Windows:
    """What is computed. Times in milliseconds.

    Windows of `size_ms` begin each `slide_ms` (one after the other where None); or, where `session_gap_ms`
    is given, a window lasts until nothing has come for so long. `time` is the field with the event time, None
    for the time in the ID. `by`: `stream`, or names of fields (`field:stream` for one that is called so).
    """

    size_ms: int | None = None
    slide_ms: int | None = None
    session_gap_ms: int | None = None
    lateness_ms: int = 0
    time: TimeField | None = None
    by: tuple[str, ...] = ("stream",)
    aggregates: tuple[Aggregate, ...] = field(default_factory=lambda: (Aggregate("count"),))

    def __post_init__(self) -> None:
        if (self.size_ms is None) == (self.session_gap_ms is None):
            raise OptionError("give one of --window and --session: how long windows are, or what ends them")
        if self.size_ms is not None and self.size_ms <= 0:
            raise OptionError("--window: a window has a length, such as 1m")
        if self.session_gap_ms is not None and (self.session_gap_ms <= 0 or not self.by):
            raise OptionError(
                "--session: a session ends after a gap, such as 30s, and is of something: give --by"
            )
        if self.slide_ms is not None and not 0 < self.slide_ms <= (self.size_ms or 0):
            raise OptionError("--slide: windows begin each so often, not longer than a window is")
        names = [*self.by, *(one.name for one in self.aggregates)]
        twice = next((name for name in names if names.count(name) > 1 or name in (START, END, BATCH)), None)
        if twice is not None or not self.aggregates:
            raise OptionError(f"two columns cannot both be called {twice}" if twice else "nothing to compute")

    def fields(self) -> list[str]:
        """The fields that are looked at."""
        found = [one.field for one in self.aggregates if one.field]
        found += [name.removeprefix(FIELD) for name in self.by if name != STREAM]
        return found if self.time is None else [*found, self.time.name]

    def window(self) -> Column:
        """The window of an entry, in Spark."""
        if self.session_gap_ms is not None:
            return F.session_window(_time, _interval(self.session_gap_ms))
        slide = None if self.slide_ms is None else _interval(self.slide_ms)
        return F.window(_time, _interval(self.size_ms or 0), slide)


def _interval(ms: int) -> str:
    return f"{ms} milliseconds"


def checked_mode(windows: Windows, mode: str | None) -> str:
    """The output mode; without `mode` it is update, but append for sessions. Raises OptionError."""
    if mode not in (None, APPEND, UPDATE):
        raise OptionError(f"--mode {mode}: write {UPDATE} or {APPEND}")
    if windows.session_gap_ms is None:
        return mode or UPDATE
    if mode == UPDATE:
        raise OptionError("--mode update: a session is told once, when it is over; use append")
    return APPEND


def aggregated(entries: DataFrame, windows: Windows) -> DataFrame:
    """Windows with their numbers. `entries` has stream, ts and fields as a map; streaming or not.

    Entries without an event time count in none; a streaming query tells how many they were.
    """
    time = F.col("ts") if windows.time is None else time_of(windows.time)
    keys = {name: key_of(name) for name in windows.by}
    timed = entries.withColumn(_time, time)
    if entries.isStreaming:
        untimed = F.count_if(F.isnull(_time)).alias(UNTIMED)
        timed = timed.observe(OBSERVED, untimed).withWatermark(_time, _interval(windows.lateness_ms))
    grouped = timed.groupBy(
        windows.window().alias("_window"), *(one.alias(name) for name, one in keys.items())
    )
    numbers = grouped.agg(*(one.column().alias(one.name) for one in windows.aggregates))
    others = (_quoted(name) for name in (*keys, *(one.name for one in windows.aggregates)))
    return numbers.select(F.col("_window.start").alias(START), F.col("_window.end").alias(END), *others)


def _quoted(name: str) -> Column:
    # A field's name may hold dots, which would mean a part of it.
    return F.col("`" + name.replace("`", "``") + "`")


def ordered(results: DataFrame, windows: Windows) -> DataFrame:
    """By window and keys, in one partition: the same results are the same files."""
    return results.coalesce(1).sortWithinPartitions(START, *(_quoted(name) for name in windows.by))


@dataclass(frozen=True, slots=True)
class Output:
    """Where results go besides to who is shown them: a folder of Parquet; a stream, with the sink's options
    (`gateway.urls` at least). `checkpoint` is the query's.
    """

    checkpoint: str
    folder: str | None = None
    stream: str | None = None
    sink: Mapping[str, str] = field(default_factory=dict)


Show = Callable[[Iterable[Mapping[str, Any]]], None]


def once(spark: SparkSession, source: Mapping[str, str], windows: Windows, show: Show) -> None:
    """The windows of all that is there now, none of it late; shown once."""
    results = ordered(aggregated(reading.entries(spark, source, windows.fields()), windows), windows)
    show(row.asDict() for row in results.toLocalIterator())


def query(
    spark: SparkSession,
    source: Mapping[str, str],
    windows: Windows,
    mode: str,
    output: Output,
    show: Show,
) -> DataStreamWriter:
    """A query that gives each batch's windows to the output, and shows them. Raises OptionError where its
    checkpoint was begun for other windows, or its folder holds another query's.
    """
    tally = Tally(output.checkpoint, "windows", {**_about(windows), "mode": mode})

    def deliver(batch: DataFrame, number: int) -> None:
        results = ordered(batch, windows).persist()
        try:
            if not results.isEmpty():
                _deliver(results, number, output)
            show(row.asDict() for row in results.toLocalIterator())
        finally:
            results.unpersist()
        tally.add(number, lambda _none: None)

    found = aggregated(reading.following(spark, source, windows.fields()), windows)
    return found.writeStream.outputMode(mode).foreachBatch(reported(deliver, Place.of(output.checkpoint)))


def _deliver(results: DataFrame, batch: int, output: Output) -> None:
    if output.folder is not None:
        _claim(output.folder, _query_id(output.checkpoint))
        write(results, output.folder, batch)
    if output.stream is not None:
        publish(results, output, batch)


def _about(windows: Windows) -> dict[str, Any]:
    return {**asdict(windows), "by": list(windows.by), "aggregates": names(windows.aggregates)}


def _query_id(checkpoint: str) -> str:
    found = query_id(Place.of(checkpoint))
    assert found is not None, "Spark writes it before the first batch"
    return found


def _claim(root: str, query: str) -> None:
    """Write the query's name into its folder. Raises OptionError where another name stands there."""
    place = Place.of(root)
    content = place.read(_CLAIM)
    if content is None:
        place.write(_CLAIM, orjson.dumps({"query": query}))
    elif orjson.loads(content).get("query") != query:
        raise OptionError(
            f"{root} holds the results of another query, whose batches have the same numbers: "
            "give another --out, or the --checkpoint that belongs to it"
        )


def write(results: DataFrame, root: str, batch: int) -> None:
    """Put a batch's results into its own folder of Parquet; run again, it replaces what was left there."""
    results.write.mode("overwrite").parquet(f"{Place.of(root).address}/{BATCH}={batch:010d}")


def publish(results: DataFrame, output: Output, batch: int) -> None:
    """Append a batch's results to the stream, once however often the batch is run: one entry for each window,
    its fields the columns as text.
    """
    columns = [(name, _text(name, kind)) for name, kind in results.dtypes]
    pairs = (part for name, text in columns for part in (F.lit(name), text))
    sink = {
        **output.sink,
        "stream": output.stream or "",
        "jobId": f"windows/{_query_id(output.checkpoint)}",
        "epoch": str(batch),
    }
    fields = results.select(F.create_map(*pairs).alias("fields"))
    fields.write.format(reading.FORMAT).mode("append").options(**sink).save()


def _text(name: str, kind: str) -> Column:
    value = _quoted(name)
    if kind == "timestamp":
        return F.date_format(value, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
    return value.cast("string")


def read(root: str, windows: Windows) -> list[dict[str, Any]]:
    """The results that `write` keeps, each window as it was told last, in order. Batches whose writing never
    ended are passed over.
    """
    place = Place.of(root)
    files = [name for name, _ in place.below("") if name.endswith(".parquet")]
    complete = {name.partition("/")[0] for name, _ in place.below("") if name.endswith("/_SUCCESS")}
    paths = [place.path(name) for name in sorted(files) if name.partition("/")[0] in complete]
    if not paths:
        return []
    partitioning = ds.partitioning(pa.schema([(BATCH, pa.int64())]), flavor="hive")
    found = ds.dataset(
        paths, filesystem=place.files, partitioning=partitioning, partition_base_dir=place.base
    ).to_table()
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(found.to_pylist(), key=lambda row: row[BATCH]):
        last[key(row, windows)] = {name: value for name, value in row.items() if name != BATCH}
    return sorted(last.values(), key=lambda row: tuple(map(_sortable, key(row, windows))))


def _sortable(value: Any) -> tuple[bool, Any]:  # noqa: ANN401 - of whatever type a column is
    return value is not None, value


def key(row: Mapping[str, Any], windows: Windows) -> tuple[Any, ...]:
    """What a row is about: its window and keys. A session that grows is another one."""
    return (row[START], *(row[name] for name in windows.by))


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for programs: times as ISO 8601 in UTC."""
    return {name: _iso(one) if isinstance(one, datetime) else one for name, one in row.items()}


def _iso(time: datetime) -> str:
    # Spark gives times without a zone, in the session's, which is UTC; pyarrow with one.
    utc = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    return utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Latest:
    """Each window as it was told last, for a chart."""

    def __init__(self, windows: Windows, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._windows = windows
        self._rows: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        self.add(rows)

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take these over what was told of the same windows before."""
        for row in rows:
            self._rows[_ms(row[START]), *key(row, self._windows)[1:]] = row
        if len(self._rows) > _kept_max:
            newest = sorted(self._rows, key=lambda one: one[0])[-_kept_max:]
            self._rows = {one: self._rows[one] for one in newest}

    def lines(self, name: str) -> list[Line]:
        """One number over time, a line for each of what windows are grouped by."""
        found: dict[str, tuple[list[int], list[float | None]]] = {}
        for at_ms, *by in sorted(self._rows, key=lambda one: one[0]):
            told = ", ".join("-" if one is None else str(one) for one in by) or name
            times, values = found.setdefault(told, ([], []))
            times.append(at_ms)
            values.append(self._rows[at_ms, *by][name])
        return [Line(told, *both) for told, both in found.items()]


def _ms(time: datetime) -> int:
    utc = time.replace(tzinfo=UTC) if time.tzinfo is None else time
    return round(utc.timestamp() * 1_000)


def names(aggregates: Sequence[Aggregate]) -> list[str]:
    """The columns of the numbers."""
    return [one.name for one in aggregates]
