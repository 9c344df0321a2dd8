"""How long entries took: from where they were made to the stream, and from the stream to who read them.

Knows: which times an entry holds, and that counts in buckets add up over windows, batches and streams.
Must never know: how the findings are shown.

    produced_at ──── publish ────► stored (the ID) ──── read ────► read_at
         └─────────────────────── end_to_end ────────────────────────┘

A consumer cannot write into the entry it read. What it writes elsewhere can hold its own time as `read_at`,
and the ID of the entry it came from as `id_field`; then that ID says when the entry was stored.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_weir.errors import OptionError
from pyspark_weir.histogram import Histogram, relative_error_max
from pyspark_weir.jobs import reading
from pyspark_weir.jobs.batches import reported
from pyspark_weir.jobs.counting import Counted, Key, added, counted
from pyspark_weir.jobs.fields import TimeField, id_millis_of, millis_of
from pyspark_weir.place import Place
from pyspark_weir.series import Spread
from pyspark_weir.tally import Tally
from weir.durations import format_ms

PUBLISH: Final = "publish"
READ: Final = "read"
END_TO_END: Final = "end_to_end"
TOLD: Final = {PUBLISH: "from produced to stored", READ: "from stored to read", END_TO_END: "end to end"}

KEYS: Final = ("stream", "window_ms", "what")
# Of one query; the oldest windows go first.
kept_max: Final = 50_000
_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
_MARKS: Final = ("p50", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Measure:
    """What is measured: `publish` where `produced_at` is given, `read` where `read_at` is, `end_to_end` where
    both are. `id_field` is a field with the ID that says when an entry was stored; without it, its own ID.

    `window_ms` is how long the windows are that are counted apart, by the time of storing; None for one.
    """

    produced_at: TimeField | None = None
    read_at: TimeField | None = None
    id_field: str | None = None
    window_ms: int | None = None

    def __post_init__(self) -> None:
        if self.produced_at is None and self.read_at is None:
            raise OptionError(
                "nothing to measure: give --produced-at, --read-at or both, the fields with times"
            )
        if self.window_ms is not None and self.window_ms <= 0:
            raise OptionError("a window has a length: leave --window out to count everything in one")

    def fields(self) -> list[str]:
        """The fields that are looked at."""
        times = [one.name for one in (self.produced_at, self.read_at) if one is not None]
        return times if self.id_field is None else [*times, self.id_field]

    def about(self) -> dict[str, Any]:
        """What numbers depend on, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Delay:
    """The delays of a stream in a window, in milliseconds; `window_ms` is its first, None for all time.

    `negative` entries were earlier than they can have been: clocks differ. `unknown` ones have no time.
    """

    stream: str
    window_ms: int | None
    what: str
    counted: Counted

    def row(self) -> dict[str, Any]:
        """For programs: counts, exact mean, min and max, and quantiles with the bounds of the true ones."""
        histogram = self.counted.histogram
        quantiles = {}
        for name, share in _QUANTILES.items():
            found = histogram.quantile(share)
            quantiles[name] = None if found is None else found._asdict()
        return {
            "stream": self.stream,
            "window_ms": self.window_ms,
            "what": self.what,
            "count": self.counted.count,
            "negative": histogram.negative,
            "unknown": self.counted.unknown,
            "mean_ms": histogram.mean,
            "min_ms": histogram.low,
            "max_ms": histogram.high,
            "quantiles_ms": quantiles,
            "relative_error_max": relative_error_max,
            "buckets_ms": [bar for bar in histogram.bars() if bar[2]],
        }


def delays(entries: DataFrame, measure: Measure) -> DataFrame:
    """Counts of delays, to be given to `collected`. `entries` has stream, ms and fields as a map."""
    stored = F.col("ms") if measure.id_field is None else id_millis_of(measure.id_field)
    produced = None if measure.produced_at is None else millis_of(measure.produced_at)
    read = None if measure.read_at is None else millis_of(measure.read_at)
    spans = {PUBLISH: (produced, stored), READ: (stored, read), END_TO_END: (produced, read)}
    measured = F.array(
        *(
            F.struct(F.lit(what).alias("what"), F.try_subtract(end, start).alias("ms"))
            for what, (start, end) in spans.items()
            if start is not None and end is not None
        )
    )
    rows = entries.select(
        "stream", _window(stored, measure.window_ms).alias("window_ms"), F.explode(measured).alias("_span")
    ).select("stream", "window_ms", F.col("_span.what").alias("what"), F.col("_span.ms").alias("_ms"))
    return counted(rows, KEYS, F.col("_ms"))


def _window(stored: Column, window_ms: int | None) -> Column:
    if window_ms is None:
        return F.lit(None).cast("bigint")
    return stored - F.pmod(stored, F.lit(window_ms))


def collected(counts: DataFrame) -> dict[Key, Counted]:
    """What `delays` counted, by stream, window and what."""
    return added(counts.collect(), KEYS)


def told(parts: Mapping[Key, Counted]) -> list[Delay]:
    """In the order of streams and windows."""
    found = [Delay(stream, window_ms, what, one) for (stream, window_ms, what), one in parts.items()]
    return sorted(found, key=lambda one: (one.stream, one.window_ms or -1, list(TOLD).index(one.what)))


def over_windows(found: Iterable[Delay]) -> list[Delay]:
    """All windows of a stream in one: histograms add up."""
    parts: dict[Key, Counted] = {}
    for one in found:
        key = (one.stream, None, one.what)
        parts[key] = parts.get(key, Counted()) + one.counted
    return told(parts)


def once(spark: SparkSession, source: Mapping[str, str], measure: Measure) -> list[Delay]:
    """The delays of all that is there now."""
    return told(collected(delays(reading.entries(spark, source, measure.fields()), measure)))


def query(
    spark: SparkSession,
    source: Mapping[str, str],
    checkpoint: str,
    measure: Measure,
    show: Callable[[list[Delay]], None],
) -> DataStreamWriter:
    """A query that counts into the tally of its checkpoint, which no other run may have meanwhile; `show` is
    called with all that is known after each batch. Raises as `tally`.
    """
    counts_ = tally(checkpoint, measure)

    def note(batch: DataFrame, number: int) -> None:
        show(add_batch(counts_, batch, number, measure))

    return reading.following(spark, source, measure.fields()).writeStream.foreachBatch(
        reported(note, Place.of(checkpoint))
    )


def tally(checkpoint: str, measure: Measure) -> Tally:
    """Where a query keeps its delays. Raises OptionError for a checkpoint that measured something else."""
    return Tally(checkpoint, "latency", measure.about())


def add_batch(tally: Tally, entries: DataFrame, batch: int, measure: Measure) -> list[Delay]:
    """Count a batch's entries into the tally, once however often the batch is run; all that is known then."""
    if batch > tally.batch:
        fresh = collected(delays(entries, measure))
        tally.add(batch, lambda kept: _to_json(_sum(_of_json(kept), fresh)))
    return told(_of_json(tally.kept))


def kept(tally: Tally) -> list[Delay]:
    """All that is known so far."""
    return told(_of_json(tally.kept))


def _sum(one: dict[Key, Counted], other: Mapping[Key, Counted]) -> dict[Key, Counted]:
    for key, counted_ in other.items():
        one[key] = one.get(key, Counted()) + counted_
    newest = sorted(one, key=lambda key: key[1] or 0, reverse=True)[:kept_max]
    return {key: one[key] for key in newest}


def _to_json(parts: Mapping[Key, Counted]) -> list[Any]:
    return [[*key, one.to_json()] for key, one in parts.items()]


def _of_json(kept: Iterable[Any] | None) -> dict[Key, Counted]:
    return {tuple(key): Counted.of_json(one) for *key, one in kept or ()}


def spreads(found: Iterable[Delay]) -> list[Spread]:
    """For a chart: a stream's delays of each kind, over all windows, with the quantiles people ask for."""
    return [
        Spread(f"{one.stream}, {TOLD[one.what]}", one.counted.histogram.bars(), _marks(one.counted.histogram))
        for one in over_windows(found)
    ]


def _marks(histogram: Histogram) -> dict[str, float]:
    quantiles = {name: histogram.quantile(_QUANTILES[name]) for name in _MARKS}
    return {name: estimate.value for name, estimate in quantiles.items() if estimate is not None}


def line(one: Delay) -> dict[str, str]:
    """For people: the same in a few words."""
    histogram = one.counted.histogram
    quantiles = {name: histogram.quantile(share) for name, share in _QUANTILES.items()}
    times = {name: "-" if at is None else format_ms(at.value) for name, at in quantiles.items()}
    return {
        "stream": one.stream,
        "what": TOLD[one.what],
        "count": str(one.counted.count),
        "negative": str(histogram.negative),
        "unknown": str(one.counted.unknown),
        "mean": "-" if histogram.mean is None else format_ms(histogram.mean),
        **times,
        "max": "-" if histogram.high is None else format_ms(histogram.high),
    }
