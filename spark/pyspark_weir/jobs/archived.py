"""An archive as a table of Spark: the entries that count, each once, whatever lies in its folders besides.

Knows: that manifests name the files that count, and which stream's each is.
Must never know: how they came there.
"""

from collections.abc import Iterable
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_weir.manifest import Archive, ManifestError
from pyspark_weir.place import Place

_TEXT: Final = StringType()
_ENTRY: Final = (
    StructField("id", _TEXT),
    StructField("ms", LongType()),
    StructField("seq", LongType()),
    StructField("ts", TimestampType()),
    StructField(
        "fields", ArrayType(StructType([StructField("name", _TEXT), StructField("value", BinaryType())]))
    ),
)
_WHENCE: Final = (StructField("shard", _TEXT), StructField("stream", _TEXT), StructField("date", _TEXT))
_PATH: Final = StructField("_path", _TEXT)


def entries(spark: SparkSession, root: str, streams: Iterable[str] | None = None) -> DataFrame:
    """The entries of an archive, or of some of its streams: `shard, stream, date, id, ms, seq, ts, fields`,
    the last as names and bytes. What is archived later is in the next such table.

    Raises ManifestError where there is no archive, or where it has none of those streams.
    """
    place = Place.of(root)
    archive = Archive.read(place)
    wanted = None if streams is None else set(streams)
    files = [file for file in archive.files() if wanted is None or file.stream in wanted]
    if wanted is not None and (missing := wanted - {file.stream for file in files}):
        raise ManifestError(f"{place.address} holds no entries of {', '.join(sorted(missing))}")
    if not files:
        return spark.createDataFrame([], StructType([*_WHENCE, *_ENTRY]))
    # Folders are named for streams as file systems can bear it; the manifests have the names themselves.
    whence = spark.createDataFrame(
        [
            (_without_scheme(f"{place.address}/{file.path}"), file.shard, file.stream, file.date)
            for file in files
        ],
        StructType([_PATH, *_WHENCE]),
    )
    found = spark.read.schema(StructType(list(_ENTRY))).parquet(
        *(f"{place.address}/{one.path}" for one in files)
    )
    # Spark tells a file's address percent-encoded, and a plus sign as it is.
    address = sf.url_decode(sf.replace(sf.col("_metadata.file_path"), sf.lit("+"), sf.lit("%2B")))
    path = sf.regexp_replace(address, "^[a-z0-9]+:/+", "/")
    columns = [*(one.name for one in _WHENCE), *(one.name for one in _ENTRY)]
    return found.withColumn(_PATH.name, path).join(sf.broadcast(whence), _PATH.name).select(*columns)


def _without_scheme(address: str) -> str:
    """The address as it comes back from Spark, which writes some schemes with one slash, some with three."""
    _, _, path = address.partition("://")
    return "/" + path.lstrip("/")
