"""Values and times out of entries' fields, which are text that anybody may have written.

Knows: how text becomes a number or a time in Spark, and that what is none becomes null, never an error.
Must never know: what is done with them.
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pyspark_weir.errors import OptionError

# What a number in a field counts, in microseconds.
_UNIT_US: Final = {"ns": "0.001", "us": "1", "ms": "1000", "s": "1000000"}
ISO: Final = "iso"
STREAM: Final = "stream"
# Before the name of a field that could be taken for something else.
FIELD: Final = "field:"
UNITS: Final = (*_UNIT_US, ISO)
# 20 digits before the point hold nanoseconds of any year that a timestamp has.
_EXACT: Final = "decimal(38,9)"
# The last microsecond of the year 9999, and the first of the year 1: what a timestamp shows as text.
_us_max: Final = 253_402_300_799_999_999
_us_min: Final = -62_135_596_800_000_000


@dataclass(frozen=True, slots=True)
class TimeField:
    """A field that holds a time: a number since 1970 UTC in `unit` (ns, us, ms, s; fractions are welcome), or
    text as ISO 8601 writes it (`iso`; UTC where it names no offset).
    """

    name: str
    unit: str = "ms"

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise OptionError(f"{self.unit!r} is no unit of time: write one of {', '.join(UNITS)}")

    @classmethod
    def of(cls, text: str) -> "TimeField":
        """`name` or `name:unit`, as `produced_at:us`. A name with a colon of its own needs the unit too."""
        name, colon, unit = text.rpartition(":")
        return cls(name, unit) if colon and unit in UNITS else cls(text)


def key_of(name: str) -> Column:
    """What entries are grouped by: `stream`, or a field, `field:stream` where it is called so."""
    return F.col(STREAM) if name == STREAM else text_of(name.removeprefix(FIELD))


def text_of(name: str) -> Column:
    """The field's text, null where an entry does not have it."""
    return F.col("fields").getItem(name)


def number_of(name: str) -> Column:
    """The field's value as a double; null where it is no number, or not a finite one."""
    number = text_of(name).try_cast("double")
    return F.when(~F.isnan(number) & (F.abs(number) != float("inf")), number)


def micros_of(field: TimeField) -> Column:
    """The time in whole microseconds since 1970 UTC (rounded down); null where it is none, or none that a
    timestamp could show.
    """
    text = text_of(field.name)
    if field.unit == ISO:
        return F.unix_micros(F.try_to_timestamp(text))
    exact = text.try_cast(_EXACT)
    # Compared before it is multiplied: what does not fit would be an error.
    factor = F.lit(_UNIT_US[field.unit]).cast("decimal(10,3)")
    within = F.abs(exact) <= F.lit(_us_max).cast("decimal(20,0)") / factor
    micros = F.when(within, F.floor(exact * factor)).cast("bigint")
    return F.when(micros.between(_us_min, _us_max), micros)


def millis_of(field: TimeField) -> Column:
    """The time in whole milliseconds since 1970 UTC (rounded down), as `micros_of`."""
    return F.floor(micros_of(field) / F.lit(1_000).cast("decimal(10,0)")).cast("bigint")


def time_of(field: TimeField) -> Column:
    """The time as a timestamp, as `micros_of`."""
    return F.timestamp_micros(micros_of(field))


def id_millis_of(name: str) -> Column:
    """The milliseconds of the entry ID that a field holds; null where it holds none."""
    return F.regexp_extract(text_of(name), r"^([0-9]{1,19})-[0-9]{1,20}$", 1).try_cast("bigint")
