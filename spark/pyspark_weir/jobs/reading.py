"""Entries as data frames, for jobs that count.

Knows: which options of the data source such jobs set, that the user's own win, and how to have the gateway
send no fields but those that are counted.
Must never know: what is counted.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

FORMAT: Final = "weir"
# What counting needs of an entry besides its fields: as a column of ours, and as the source calls it among
# columns that are fields.
_ENTRY: Final = {"stream": StringType(), "ms": LongType(), "ts": TimestampType()}
_CHOSEN: Final = frozenset(("columns", "fieldsformat", "relation"))
_WHOLE: Final = ",".join((*_ENTRY, "fields"))


def entries(spark: SparkSession, source: Mapping[str, str], fields: Iterable[str]) -> DataFrame:
    """What is there now: stream, ms, ts, and a map with these fields at least. `source` are options of the
    data source.
    """
    reader, schema = spark.read.format(FORMAT), projection(source, fields)
    if schema is None:
        return reader.options(**with_defaults(source, columns=_WHOLE)).load()
    return _mapped(reader.options(**source).schema(schema).load())


def following(spark: SparkSession, source: Mapping[str, str], fields: Iterable[str]) -> DataFrame:
    """What is there and what comes, from the first entry unless the options say otherwise; as `entries`."""
    source = with_defaults(source, startingOffsets="earliest")
    reader, schema = spark.readStream.format(FORMAT), projection(source, fields)
    if schema is None:
        return reader.options(**with_defaults(source, columns=_WHOLE)).load()
    return _mapped(reader.options(**source).schema(schema).load())


def with_defaults(source: Mapping[str, str], **defaults: str) -> dict[str, str]:
    """The options, with these where they say nothing of them; names compare without regard to case."""
    given = {name.lower() for name in source}
    return {**source, **{name: value for name, value in defaults.items() if name.lower() not in given}}


def projection(source: Mapping[str, str], fields: Iterable[str]) -> StructType | None:
    """Columns with which the gateway is asked for these fields alone. None where it cannot be, because a name
    would not be a column's or a list's, or where the user has chosen how fields come.
    """
    names = sorted(set(fields))
    chosen = {name.lower() for name in source} & _CHOSEN
    is_plain = all(name and name[0] != "_" and "," not in name and name == name.strip() for name in names)
    # To Spark `User` and `user` are one column.
    if chosen or not names or not is_plain or len({name.lower() for name in names}) < len(names):
        return None
    about = [StructField(f"_{name}", kind) for name, kind in _ENTRY.items()]
    return StructType([*about, *(StructField(name, StringType()) for name in names)])


def _mapped(rows: DataFrame) -> DataFrame:
    names = [name for name in rows.columns if name[0] != "_"]
    # Spark looks a key up in a map that is made on the spot without making it.
    pairs = (part for name in names for part in (F.lit(name), F.col(f"`{name.replace('`', '``')}`")))
    about = (F.col(f"_{name}").alias(name) for name in _ENTRY)
    return rows.select(*about, F.create_map(*pairs).alias("fields"))
