"""The columns of each relation, for Spark and for Arrow.

Knows: names and types; what a user's own schema may hold. Built in code: a DDL text needs a live session.
Must never know: gateways, how a column is filled.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_weir.errors import OptionError
from pyspark_weir.options import SourceOptions

_TEXT: Final = StringType()
_LONG: Final = LongType()
_TIME: Final = TimestampType()

_FIELDS: Final = MappingProxyType(
    {
        "map": MapType(_TEXT, _TEXT),
        "entries": ArrayType(
            StructType([StructField("name", _TEXT), StructField("value", BinaryType())]), containsNull=True
        ),
        "json": _TEXT,
    }
)
# Always there, in this order.
_ENTRY: Final = ("stream", "id", "ms", "seq", "ts", "fields")
_META: Final = ("shard", "bytes")
# Sorts as the IDs do, where their halves do not fit a bigint; only when it is asked for.
_EXTRA: Final = ("id_key",)
_TYPES: Final = MappingProxyType(
    {
        "stream": _TEXT,
        "id": _TEXT,
        "ms": _LONG,
        "seq": _LONG,
        "ts": _TIME,
        "shard": _TEXT,
        "bytes": _LONG,
        "id_key": _TEXT,
    }
)
# What a user's own columns may be named to mean the entry rather than one of its fields.
RESERVED: Final = MappingProxyType({f"_{name}": name for name in _TYPES})

_RELATIONS: Final = MappingProxyType(
    {
        "streams": (
            ("shard", _TEXT),
            ("stream", _TEXT),
            ("length", _LONG),
            ("first_id", _TEXT),
            ("last_id", _TEXT),
            ("max_deleted_id", _TEXT),
            ("removed_upto", _TEXT),
            ("entries_added", _LONG),
            ("groups", _LONG),
            ("generation", _TEXT),
            ("archived_up_to", _TEXT),
            ("memory_bytes", _LONG),
        ),
        "groups": (
            ("shard", _TEXT),
            ("stream", _TEXT),
            ("group", _TEXT),
            ("consumers", _LONG),
            ("pending", _LONG),
            ("last_delivered_id", _TEXT),
            ("entries_read", _LONG),
            ("lag", _LONG),
            ("dead_letter_stream", _TEXT),
            ("max_deliveries", _LONG),
        ),
        "consumers": (
            ("shard", _TEXT),
            ("stream", _TEXT),
            ("group", _TEXT),
            ("consumer", _TEXT),
            ("pending", _LONG),
            ("idle_ms", _LONG),
            ("inactive_ms", _LONG),
        ),
        "pending": (
            ("shard", _TEXT),
            ("stream", _TEXT),
            ("group", _TEXT),
            ("id", _TEXT),
            ("ms", _LONG),
            ("seq", _LONG),
            ("ts", _TIME),
            ("consumer", _TEXT),
            ("idle_ms", _LONG),
            ("delivery_count", _LONG),
        ),
        "deadletter": (
            ("shard", _TEXT),
            ("stream", _TEXT),
            ("id", _TEXT),
            ("ms", _LONG),
            ("seq", _LONG),
            ("ts", _TIME),
            ("source", _TEXT),
            ("source_id", _TEXT),
            ("group", _TEXT),
            ("consumer", _TEXT),
            ("deliveries", _LONG),
            ("reason", _TEXT),
            ("fields", _FIELDS["map"]),
        ),
    }
)
# What a field's text can be read as.
_READABLE: Final = (
    StringType,
    BinaryType,
    BooleanType,
    ByteType,
    ShortType,
    IntegerType,
    LongType,
    FloatType,
    DoubleType,
    DecimalType,
    DateType,
    TimestampType,
)


def schema_of(options: SourceOptions) -> StructType:
    """The columns that these options give. Raises OptionError where the user has to give them."""
    if options.relation != "entries":
        if options.columns:
            raise OptionError(f"columns goes with relation=entries only, not with {options.relation}")
        return _struct(_RELATIONS[options.relation])
    if options.fields_format == "columns":
        raise OptionError(
            'fieldsFormat=columns needs a schema: call .schema("sensor string, temp double") with the fields '
            f"to read; {', '.join(RESERVED)} mean the entry itself"
        )
    known = {name: _TYPES.get(name, _FIELDS[options.fields_format]) for name in (*_ENTRY, *_META, *_EXTRA)}
    names = options.columns or (_ENTRY + _META if options.include_meta else _ENTRY)
    for name in names:
        if name not in known:
            raise OptionError(f"columns: {name} is none of {', '.join(known)}")
    return _struct([(name, known[name]) for name in names])


def checked(options: SourceOptions, schema: StructType) -> tuple[StructType, str]:
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
        if meant is not None and column.dataType != _TYPES[meant]:
            raise OptionError(
                f"column {column.name} is the entry's {meant}: its type is {_TYPES[meant].simpleString()}"
            )
    return schema, "columns"


def arrow_of(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark insists on, to the letter."""
    return to_arrow_schema(schema, timezone="UTC")


def _same(own: StructType, given: StructType) -> bool:
    return [(one.name, one.dataType) for one in own.fields] == [
        (one.name, one.dataType) for one in given.fields
    ]


def _struct(columns: Sequence[tuple[str, DataType]]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns])
