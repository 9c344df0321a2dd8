"""Counting in Spark what a histogram counts, and adding it up on the driver.

Knows: that `pyspark_weir.histogram` and the expressions here put a value into the same bucket.
Must never know: what the values are.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pyspark_weir.histogram import Histogram, step_bits

Key = tuple[Any, ...]

_NEGATIVE: Final = -1
_PARTS: Final = ("_bucket", "_count", "_total", "_low", "_high")


@dataclass(frozen=True, slots=True)
class Counted:
    """Values of one key: those that are there in a histogram, and how many entries had none."""

    histogram: Histogram = field(default_factory=Histogram)
    unknown: int = 0

    @property
    def count(self) -> int:
        """All entries of the key."""
        return self.histogram.count + self.histogram.negative + self.unknown

    def __add__(self, other: "Counted") -> "Counted":
        return Counted(self.histogram + other.histogram, self.unknown + other.unknown)

    def to_json(self) -> dict[str, Any]:
        """As JSON keeps it; `of_json` reads it."""
        one = self.histogram
        return {
            "step_bits": step_bits,
            "counts": {str(bucket): count for bucket, count in sorted(one.counts.items())},
            "negative": one.negative,
            # As text: JSON's readers may lose what a double cannot hold.
            "total": str(one.total),
            "low": one.low,
            "high": one.high,
            "unknown": self.unknown,
        }

    @classmethod
    def of_json(cls, kept: Mapping[str, Any]) -> Self:
        """What `to_json` gave. Raises ValueError for buckets of another width."""
        if kept["step_bits"] != step_bits:
            raise ValueError(f"its buckets are 1/{1 << kept['step_bits']} of a power of two")
        counts = {int(bucket): count for bucket, count in kept["counts"].items()}
        histogram = Histogram(counts, kept["negative"], int(kept["total"]), kept["low"], kept["high"])
        return cls(histogram, kept["unknown"])


def bucket_of(value: Column) -> Column:
    """The bucket of a bigint; -1 for a negative value, null for null. In Spark what `histogram.bucket_of` is.

    The length of the binary digits is exact; a logarithm of a double is not, next to a power of two.
    """
    shift = F.greatest(F.length(F.bin(value)) - F.lit(1 + step_bits), F.lit(0))
    # `shiftright` as a function of Python takes a constant only.
    bucket = shift * F.lit(1 << step_bits) + F.call_function("shiftright", value, shift)
    return F.when(value >= 0, bucket).when(value < 0, F.lit(_NEGATIVE))


def counted(
    entries: DataFrame, keys: Sequence[str], value: Column, more: Mapping[str, Column] | None = None
) -> DataFrame:
    """A row for each bucket of each key, to be given to `added`; `more` are further aggregates by name."""
    # A sum of bigints may overflow; a sum of decimals has 30 digits.
    exact = F.col("_value").cast("decimal(20,0)")
    return (
        entries.withColumn("_value", value)
        .withColumn("_bucket", bucket_of(F.col("_value")))
        .groupBy(*keys, "_bucket")
        .agg(
            F.count("*").alias("_count"),
            F.sum(exact).alias("_total"),
            F.min("_value").alias("_low"),
            F.max("_value").alias("_high"),
            *(column.alias(name) for name, column in (more or {}).items()),
        )
    )


def part_of(row: Row) -> Counted:
    """What a row of `counted` counts."""
    bucket, count, total, low, high = (row[name] for name in _PARTS)
    if bucket is None:
        return Counted(unknown=count)
    if bucket == _NEGATIVE:
        return Counted(Histogram(negative=count))
    return Counted(Histogram({bucket: count}, 0, int(total), low, high))


def added(rows: Iterable[Row], keys: Sequence[str]) -> dict[Key, Counted]:
    """The rows of `counted` by key, added up."""
    found: dict[Key, Counted] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        found[key] = found.get(key, Counted()) + part_of(row)
    return found
