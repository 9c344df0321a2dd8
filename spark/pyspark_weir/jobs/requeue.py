"""Dead letters put back into the streams that their entries came from, each once.

Knows: what the gateway writes into a dead letter, Spark.
Must never know: how options are written, what is printed, how letters are counted.

A letter is the entry with six fields behind its own. What is put back are its own fields, with the ID that
the entry had as its key: so two groups' letters of one entry, or two runs over the same letters, give one
entry. An entry that dies again has another ID by then, and can be put back again. The gateway keeps keys for
a day.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from pyspark_weir import gateway as calls
from pyspark_weir import ids
from pyspark_weir.errors import OptionError
from pyspark_weir.gateway import Access, Gateway, PlanQuery
from pyspark_weir.gateway.client import of_stream
from pyspark_weir.jobs.sinking import assigned, connection, told, written

JOB: Final = "requeue"
# In the gateway's order.
_TOLD: Final = ("weir-source", "weir-id", "weir-group", "weir-consumer", "weir-deliveries", "weir-reason")
COLUMNS: Final = ("letters", "id", "source", "source_id", "group", "consumer", "deliveries", "reason")
_delete_at_once: Final = 500


@dataclass(frozen=True)
class Requeue:
    """Which letters: of the streams `letters` of a gateway, all that are there now; of those the ones for
    which the SQL expression `where` is true, and which come from `source`, for `reason`.
    """

    access: Access
    letters: tuple[str, ...]
    source: str | None = None
    reason: str | None = None
    where: str | None = None


@dataclass(frozen=True)
class Found:
    """Letters of one stream, for one source and reason."""

    letters: str
    source: str
    reason: str
    count: int

    def members(self) -> dict[str, Any]:
        """For programs and tables."""
        return {"letters": self.letters, "source": self.source, "reason": self.reason, "entries": self.count}


def chosen(spark: SparkSession, asked: Requeue) -> DataFrame:
    """The letters: COLUMNS, `fields` (the entry's own, as a map of text) and `entry` (the same, exact).
    Always the same ones, whatever comes later. Raises OptionError; Refused, Unavailable.
    """
    upto = ends(asked)
    if not upto:
        raise OptionError(f"there is no letter in {', '.join(asked.letters)}")
    options = {
        "assign": assigned(asked.access, upto),
        "fieldsFormat": "entries",
        "startingOffsets": "earliest",
        "endingOffsets": told(upto),
    }
    rows = spark.read.format("weir").options(**connection(asked.access), **options)
    found = _opened(rows.load())
    for column, wanted in (("source", asked.source), ("reason", asked.reason)):
        if wanted is not None:
            found = found.where(sf.col(column) == wanted)
    return found if asked.where is None else found.where(asked.where)


def counted(letters: DataFrame) -> list[Found]:
    """How many letters of each kind."""
    groups = letters.groupBy("letters", "source", "reason").count().orderBy("letters", "source", "reason")
    return [Found(row["letters"], row["source"], row["reason"], row["count"]) for row in groups.collect()]


def put_back(letters: DataFrame, access: Access) -> None:
    """Store the entries of letters in the streams that they came from; once, however often it is done."""
    entries = letters.select(
        sf.col("source").alias("stream"),
        sf.col("source_id").alias("idempotency_id"),
        sf.col("entry").alias("fields"),
    )
    written(entries, access, {"keyMode": "content", "jobId": JOB})


def remove(letters: DataFrame, access: Access) -> int:
    """Delete letters that have been put back; how many there were."""
    deleted = 0
    with Gateway(access) as gateway:
        for stream, found in _by_stream(letters):
            answer = gateway.post(
                f"{of_stream(stream)}/entries/delete",
                {"ids": found},
                repeatable=True,
                about=f"deleting letters of {stream}",
            )
            deleted += answer["deleted"]
    return deleted


def _by_stream(letters: DataFrame) -> Iterable[tuple[str, list[str]]]:
    for (stream,) in letters.select("letters").distinct().collect():
        rows = letters.where(sf.col("letters") == stream).select("id").toLocalIterator()
        while found := [row["id"] for row in islice(rows, _delete_at_once)]:
            yield stream, found


def ends(asked: Requeue) -> dict[str, str]:
    """The last ID of each stream that has letters."""
    with Gateway(asked.access) as gateway:
        plan = calls.plan_of_each(gateway, PlanQuery(streams=dict.fromkeys(asked.letters, ids.BEGINNING)))
    if plan.missing:
        raise OptionError(f"the gateway has no stream {', '.join(sorted(plan.missing))}")
    return {name: one.end for name, one in sorted(plan.streams.items()) if one.count}


def _opened(rows: DataFrame) -> DataFrame:
    """Letters with what the gateway told of them taken apart; what is no letter is left out."""
    names = sf.transform("fields", lambda one: one["name"])
    size = len(_TOLD)
    is_letter = (sf.size("fields") > size) & (sf.slice(names, -size, size) == sf.array(*map(sf.lit, _TOLD)))
    entry = sf.slice("fields", 1, sf.size("fields") - size)
    values = [_from_end(size - place).alias(column) for place, column in enumerate(COLUMNS[2:])]
    letters = rows.where(is_letter)
    return letters.select(sf.col("stream").alias("letters"), "id", *values, entry.alias("entry")).withColumn(
        "fields", as_map(sf.col("entry"))
    )


def _from_end(place: int) -> Column:
    return sf.element_at("fields", -place)["value"].cast("string")


def as_map(pairs: Column) -> Column:
    """Pairs of a name and bytes as a map of text; of a name that repeats, the first."""
    names = sf.array_distinct(sf.transform(pairs, lambda one: one["name"]))

    def first(name: Column) -> Column:
        return sf.element_at(sf.filter(pairs, lambda one: one["name"] == name), 1)["value"].cast("string")

    return sf.map_from_arrays(names, sf.transform(names, first))
