"""Dead letters counted: of which stream, group and consumer, why, since when, after how many deliveries.

Knows: what the gateway writes into a dead letter.
Must never know: how the findings are shown, how letters are sent back.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_weir.errors import OptionError
from pyspark_weir.jobs import reading
from pyspark_weir.jobs.batches import reported
from pyspark_weir.jobs.counting import Counted, Key, counted, part_of
from pyspark_weir.jobs.fields import FIELD, text_of
from pyspark_weir.place import Place
from pyspark_weir.series import Bar
from pyspark_weir.tally import Tally

# What a letter can be counted by, and the field that says it; `letters` is the stream it lies in.
LETTERS: Final = "letters"
_FIELDS: Final = {
    "source": "weir-source",
    "group": "weir-group",
    "consumer": "weir-consumer",
    "reason": "weir-reason",
}
BY_DEFAULT: Final = ("source", "group", "consumer", "reason")
_DELIVERIES: Final = "weir-deliveries"
# Of one query: so many different keys are told apart, those with the most letters; the others are one.
kept_max: Final = 10_000
OTHERS: Final = "(others)"
_value_chars_max: Final = 200
# In a chart, where ten colours could not be told apart: up to so many deliveries.
_DELIVERED: Final = {
    "delivered once": 1,
    "2 or 3 times": 3,
    "4 to 7 times": 7,
    "8 times and more": 1 << 64,
}
_UNKNOWN: Final = "unknown how often"
# The end of the year 9999.
_ms_max: Final = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class Letters:
    """Dead letters of one key: `by` says what it is made of, `deliveries` how often they had been delivered,
    and when by the clock of the gateway the first and the last became a dead letter (milliseconds).
    """

    by: Mapping[str, str | None]
    deliveries: Counted
    first_ms: int | None
    last_ms: int | None

    @property
    def count(self) -> int:
        """How many there are."""
        return self.deliveries.count

    def row(self) -> dict[str, Any]:
        """For programs."""
        histogram = self.deliveries.histogram
        return {
            **self.by,
            "count": self.count,
            "first_seen_ms": self.first_ms,
            "last_seen_ms": self.last_ms,
            "deliveries": {
                "min": histogram.low,
                "mean": histogram.mean,
                "max": histogram.high,
                "unknown": self.deliveries.unknown + histogram.negative,
                "buckets": [bar for bar in histogram.bars() if bar[2]],
            },
        }

    def __add__(self, other: "Letters") -> "Letters":
        """Letters of both; of the first one's key."""
        firsts = [one for one in (self.first_ms, other.first_ms) if one is not None]
        lasts = [one for one in (self.last_ms, other.last_ms) if one is not None]
        return Letters(
            self.by,
            self.deliveries + other.deliveries,
            min(firsts, default=None),
            max(lasts, default=None),
        )


def checked(by: Sequence[str]) -> tuple[str, ...]:
    """What to count by, each once. Raises OptionError."""
    for name in by:
        is_field = name.startswith(FIELD) and name != FIELD
        if name != LETTERS and name not in _FIELDS and not is_field:
            known = ", ".join((LETTERS, *_FIELDS))
            raise OptionError(f"letters are not counted by {name!r}: write {known}, or {FIELD}<name>")
    return tuple(dict.fromkeys(by))


def _field(name: str) -> str:
    return _FIELDS.get(name) or name.removeprefix(FIELD)


def _fields(by: Sequence[str]) -> list[str]:
    """The fields that are looked at."""
    return [_DELIVERIES, *(_field(name) for name in by if name != LETTERS)]


def _column(name: str) -> Column:
    if name == LETTERS:
        return F.col("stream")
    text = text_of(_field(name))
    # A key is to be told, not kept whole.
    return F.substring(text, 1, _value_chars_max)


def counts(letters: DataFrame, by: Sequence[str]) -> DataFrame:
    """Counts of letters, to be given to `collected`. `letters` has stream, ms and fields as a map; of fields
    that occur twice the last, since the gateway's own come after the entry's.
    """
    keys = [f"_by{place}" for place in range(len(by))]
    deliveries = text_of(_DELIVERIES).try_cast("bigint")
    keyed = letters.select(
        "ms",
        deliveries.alias("_deliveries"),
        *(_column(name).alias(key) for name, key in zip(by, keys, strict=True)),
    )
    seen = {"_first": F.min("ms"), "_last": F.max("ms")}
    return counted(keyed, keys, F.col("_deliveries"), seen)


def collected(rows: DataFrame, by: Sequence[str]) -> dict[Key, Letters]:
    """What `counts` counted, by key."""
    found: dict[Key, Letters] = {}
    for row in rows.collect():
        key = tuple(row[f"_by{place}"] for place in range(len(by)))
        _add(found, key, _letters(row, key, by))
    return found


def _letters(row: Row, key: Key, by: Sequence[str]) -> Letters:
    return Letters(dict(zip(by, key, strict=True)), part_of(row), row["_first"], row["_last"])


def _add(found: dict[Key, Letters], key: Key, one: Letters) -> None:
    known = found.get(key)
    found[key] = one if known is None else known + one


def told(parts: Mapping[Key, Letters]) -> list[Letters]:
    """Those of which there are most first."""
    return sorted(parts.values(), key=lambda one: (-one.count, [value or "" for value in one.by.values()]))


def source_options(source: Mapping[str, str]) -> dict[str, str]:
    """The options with which letters are read: what the gateway wrote stands after the entry's own fields."""
    return reading.with_defaults(source, dupFields="last")


def once(spark: SparkSession, source: Mapping[str, str], by: Sequence[str]) -> list[Letters]:
    """The letters that are there now."""
    return told(collected(counts(reading.entries(spark, source_options(source), _fields(by)), by), by))


def query(
    spark: SparkSession,
    source: Mapping[str, str],
    checkpoint: str,
    by: Sequence[str],
    show: Callable[[list[Letters]], None],
) -> DataStreamWriter:
    """A query that counts into the tally of its checkpoint, which no other run may have meanwhile; `show` is
    called with all that is known after each batch. Raises as `tally`.
    """
    counts_ = tally(checkpoint, by)

    def note(batch: DataFrame, number: int) -> None:
        show(add_batch(counts_, batch, number, by))

    return reading.following(spark, source_options(source), _fields(by)).writeStream.foreachBatch(
        reported(note, Place.of(checkpoint))
    )


def tally(checkpoint: str, by: Sequence[str]) -> Tally:
    """Where a query keeps its counts. Raises OptionError for a checkpoint that counted by something else."""
    return Tally(checkpoint, "dlq", {"by": list(by)})


def add_batch(tally: Tally, letters: DataFrame, batch: int, by: Sequence[str]) -> list[Letters]:
    """Count a batch's letters into the tally, once however often the batch is run; all that is known then."""
    if batch > tally.batch:
        fresh = collected(counts(letters, by), by)
        tally.add(batch, lambda kept: _to_json(_sum(_of_json(kept, by), fresh)))
    return kept(tally, by)


def kept(tally: Tally, by: Sequence[str]) -> list[Letters]:
    """All that is known so far."""
    return told(_of_json(tally.kept, by))


def _sum(one: dict[Key, Letters], other: Mapping[Key, Letters]) -> dict[Key, Letters]:
    for key, letters in other.items():
        _add(one, key, letters)
    if len(one) <= kept_max:
        return one
    ordered = sorted(one, key=lambda key: -one[key].count)
    found = {key: one[key] for key in ordered[: kept_max - 1]}
    for key in ordered[kept_max - 1 :]:
        letters = one[key]
        others = tuple(OTHERS for _ in key)
        by = dict(zip(letters.by, others, strict=True))
        _add(found, others, Letters(by, letters.deliveries, letters.first_ms, letters.last_ms))
    return found


def _to_json(parts: Mapping[Key, Letters]) -> list[Any]:
    return [[list(key), one.deliveries.to_json(), one.first_ms, one.last_ms] for key, one in parts.items()]


def _of_json(kept: Iterable[Any] | None, by: Sequence[str]) -> dict[Key, Letters]:
    return {
        tuple(key): Letters(dict(zip(by, key, strict=True)), Counted.of_json(one), first_ms, last_ms)
        for key, one, first_ms, last_ms in kept or ()
    }


def bars(found: Iterable[Letters]) -> list[Bar]:
    """For a chart: a bar for each key, its parts by how often the letters had been delivered."""
    return [
        Bar(", ".join(value or "-" for value in one.by.values()), _parts(one), f"{one.count:,}")
        for one in found
    ]


def _parts(one: Letters) -> dict[str, float]:
    parts = dict.fromkeys(_DELIVERED, 0.0)
    for _low, high, count in one.deliveries.histogram.bars():
        name = next(name for name, most in _DELIVERED.items() if high <= most)
        parts[name] += count
    parts[_UNKNOWN] = one.deliveries.unknown + one.deliveries.histogram.negative
    return {name: count for name, count in parts.items() if count}


def line(one: Letters) -> dict[str, str]:
    """For people: the same in a few words."""
    histogram = one.deliveries.histogram
    mean = histogram.mean
    return {
        **{name: "-" if value is None else value for name, value in one.by.items()},
        "count": str(one.count),
        "first seen": _time(one.first_ms),
        "last seen": _time(one.last_ms),
        "deliveries": "-" if mean is None else f"{histogram.low} to {histogram.high}, mean {mean:.1f}",
    }


def _time(ms: int | None) -> str:
    """To the second, in UTC; `-` for what no calendar has."""
    if ms is None or ms > _ms_max:
        return "-"
    return datetime.fromtimestamp(ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
