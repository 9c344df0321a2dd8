"""The columns of each relation, for Spark and for Arrow.

Knows: names and types; what a user's own schema may hold. Built in code: a DDL text needs a live session.
Must never know: gateways, how a column is filled.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from pyspark_weir.errors import OptionError
from pyspark_weir.options import SourceOptions

_TEXT: Final = types.StringType()
_LONG: Final = types.LongType()
_PAIR: Final = StructType([StructField("name", _TEXT), StructField("value", types.BinaryType())])
_FIELDS: Final = MappingProxyType(
    {"map": types.MapType(_TEXT, _TEXT), "entries": types.ArrayType(_PAIR), "json": _TEXT}
)
# Always there, in this order.
_ENTRY: Final = ("stream", "id", "ms", "seq", "ts", "fields")
_META: Final = ("shard", "bytes")
# Sorts as the IDs do, where their halves do not fit a bigint; only when it is asked for.
_EXTRA: Final = ("id_key",)
_NUMBERS: Final = (
    "ms seq bytes length entries_added groups memory_bytes consumers pending entries_read lag max_deliveries "
    "idle_ms inactive_ms delivery_count deliveries"
)
# What a user's own columns may be named to mean the entry rather than one of its fields.
RESERVED: Final = MappingProxyType({f"_{name}": name for name in (*_ENTRY[:-1], *_META, *_EXTRA)})
_RELATIONS: Final = MappingProxyType(
    {
        "streams": "shard stream length first_id last_id max_deleted_id removed_upto entries_added groups "
        "generation archived_up_to memory_bytes",
        "groups": "shard stream group consumers pending last_delivered_id entries_read lag "
        "dead_letter_stream max_deliveries",
        "consumers": "shard stream group consumer pending idle_ms inactive_ms",
        "pending": "shard stream group id ms seq ts consumer idle_ms delivery_count",
        "deadletter": "shard stream id ms seq ts source source_id group consumer deliveries reason fields",
    }
)
# What a field's text can be read as.
_READABLE: Final = (
    *(types.StringType, types.BinaryType, types.BooleanType, types.DateType, types.TimestampType),
    *(types.ByteType, types.ShortType, types.IntegerType, types.LongType),
    *(types.FloatType, types.DoubleType, types.DecimalType),
)


def schema_of(options: SourceOptions) -> StructType:
    """The columns that these options give. Raises OptionError where the user has to give them."""
    if options.relation != "entries":
        if options.columns:
            raise OptionError(f"columns goes with relation=entries only, not with {options.relation}")
        return _struct(_RELATIONS[options.relation].split(), "map")
    if options.fields_format == "columns":
        raise OptionError(
            'fieldsFormat=columns needs a schema: call .schema("sensor string, temp double") with the fields '
            f"to read; {', '.join(RESERVED)} mean the entry itself"
        )
    known = (*_ENTRY, *_META, *_EXTRA)
    names = options.columns or (_ENTRY + _META if options.include_meta else _ENTRY)
    for name in names:
        if name not in known:
            raise OptionError(f"columns: {name} is none of {', '.join(known)}")
    return _struct(names, options.fields_format)


def resolve(options: SourceOptions, schema: StructType) -> tuple[StructType, str]:
    """The schema to fill and in which format: the options' own, or the user's, whose columns are fields.

    Raises OptionError for a user's schema that cannot be filled.
    """
    if options.fields_format != "columns":
        own = schema_of(options)
        if _same(own, schema):
            return own, options.fields_format
        if options.format_given or options.relation != "entries" or options.columns:
            raise OptionError(
                f"the schema that was given is not that of relation={options.relation}, "
                f"fieldsFormat={options.fields_format}: leave .schema() out, or use fieldsFormat=columns"
            )
    for column in schema.fields:
        meant = RESERVED.get(column.name)
        if meant is None and not isinstance(column.dataType, _READABLE):
            raise OptionError(
                f"column {column.name}: {column.dataType.simpleString()} cannot be read from a field's text; "
                "read it as string, and take it apart with Spark's functions"
            )
        if meant is not None and column.dataType != _type_of(meant):
            raise OptionError(
                f"column {column.name} is the entry's {meant}: its type is {_type_of(meant).simpleString()}"
            )
    return schema, "columns"


def arrow_of(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark insists on, to the letter."""
    return to_arrow_schema(schema, timezone="UTC")


def _same(own: StructType, given: StructType) -> bool:
    return [(one.name, one.dataType) for one in own.fields] == [
        (one.name, one.dataType) for one in given.fields
    ]


def _struct(names: Sequence[str], fields_format: str) -> StructType:
    return StructType(
        [StructField(name, _FIELDS[fields_format] if name == "fields" else _type_of(name)) for name in names]
    )


def _type_of(name: str) -> DataType:
    if name == "ts":
        return types.TimestampType()
    return _LONG if name in _NUMBERS.split() else _TEXT
