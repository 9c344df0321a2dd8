"""Entries as data frames, for jobs that count.

Knows: which options of the data source such jobs set, and that the user's own win.
Must never know: what is counted.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession

FORMAT: Final = "weir"
# What counting needs of an entry; the others need not be made.
_COLUMNS: Final = "stream,ms,ts,fields"


def entries(spark: SparkSession, source: Mapping[str, str]) -> DataFrame:
    """What is there now. `source` are options of the data source."""
    return spark.read.format(FORMAT).options(**with_defaults(source, columns=_COLUMNS)).load()


def following(spark: SparkSession, source: Mapping[str, str]) -> DataFrame:
    """What is there and what comes, from the first entry unless the options say otherwise."""
    chosen = with_defaults(source, columns=_COLUMNS, startingOffsets="earliest")
    return spark.readStream.format(FORMAT).options(**chosen).load()


def with_defaults(source: Mapping[str, str], **defaults: str) -> dict[str, str]:
    """The options, with these where they say nothing of them; names compare without regard to case."""
    given = {name.lower() for name in source}
    return {**source, **{name: value for name, value in defaults.items() if name.lower() not in given}}
