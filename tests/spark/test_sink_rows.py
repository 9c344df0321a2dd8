"""Rows of a data frame become entries: exactly, or not at all."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pyspark_weir.errors import OptionError, PipelineError
from pyspark_weir.sink.rows import RowOptions, Rows, SinkEntry, values_of

PAIRS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))


def entries(columns: dict[str, pa.Array], **options: Any) -> list[SinkEntry]:
    batch = pa.RecordBatch.from_pydict(columns)
    return list(Rows(batch.schema, RowOptions(**options)).entries(batch))


def strings(*values: str | None) -> pa.Array:
    return pa.array(values, pa.string())


def test_every_other_column_becomes_a_field() -> None:
    """Without a column `fields`, what is neither stream nor ID nor key is stored under its column's name."""
    found = entries({"stream": strings("a", "b"), "n": pa.array([1, 2]), "text": strings("x", "y")})
    assert found == [
        SinkEntry("a", None, [("n", "1"), ("text", "x")], None),
        SinkEntry("b", None, [("n", "2"), ("text", "y")], None),
    ]


def test_the_option_wins_over_the_column() -> None:
    """Kafka's rule for topics; the column is no field then either."""
    (found,) = entries({"stream": strings("column"), "n": pa.array([1])}, stream="option")
    assert found == SinkEntry("option", None, [("n", "1")], None)


def test_a_map_is_the_fields() -> None:
    """Slices of a batch too: Arrow keeps their offsets."""
    fields = pa.array(
        [[("a", "0")], [("a", "1"), ("b", "2")], [("c", "3")]], pa.map_(pa.string(), pa.string())
    )
    batch = pa.RecordBatch.from_pydict({"fields": fields}).slice(1)
    found = list(Rows(batch.schema, RowOptions(stream="s")).entries(batch))
    assert [one.pairs for one in found] == [[("a", "1"), ("b", "2")], [("c", "3")]]


def test_pairs_keep_repeated_names_and_bytes() -> None:
    """The lossless form, also behind a slice."""
    rows = [
        [{"name": "gone", "value": b"0"}],
        [{"name": "a", "value": b"\xff"}, {"name": "a", "value": b"2"}],
        [{"name": "b", "value": b""}],
    ]
    batch = pa.RecordBatch.from_pydict({"fields": pa.array(rows, PAIRS)}).slice(1)
    found = list(Rows(batch.schema, RowOptions(stream="s")).entries(batch))
    assert [one.pairs for one in found] == [[("a", b"\xff"), ("a", b"2")], [("b", b"")]]


def test_what_our_own_source_gives_goes_back_as_it_was() -> None:
    """Stream, ID and pairs; the columns that tell of the ID are no loss."""
    columns = {
        "stream": strings("s"),
        "id": strings("5-1"),
        "ms": pa.array([5]),
        "seq": pa.array([1]),
        "ts": pa.array([None], pa.timestamp("us", "UTC")),
        "fields": pa.array([[{"name": "a", "value": b"1"}]], PAIRS),
        "shard": strings("g0"),
        "bytes": pa.array([2]),
        "id_key": strings("5-1"),
    }
    assert entries(columns) == [SinkEntry("s", "5-1", [("a", "1")], None)]
    assert entries(columns, explicit_ids=False)[0].id is None


def test_a_column_beside_fields_is_not_dropped_silently() -> None:
    """It would be lost: the user gets an error."""
    fields = pa.array([[("a", "1")]], pa.map_(pa.string(), pa.string()))
    with pytest.raises(OptionError, match="level would not be stored"):
        entries({"fields": fields, "level": strings("x")}, stream="s")


@pytest.mark.parametrize(
    ("mode", "pairs"), [("skip", [("b", "2")]), ("empty", [("a", ""), ("b", "2")])], ids=["skip", "empty"]
)
def test_nulls_are_skipped_or_made_empty(mode: str, pairs: list[tuple[str, str]]) -> None:
    """In columns and in maps alike."""
    columns = {"a": strings(None), "b": strings("2")}
    in_map = {"fields": pa.array([[("a", None), ("b", "2")]], pa.map_(pa.string(), pa.string()))}
    assert entries(columns, stream="s", null_fields=mode)[0].pairs == pairs
    assert entries(in_map, stream="s", null_fields=mode)[0].pairs == pairs


def test_nulls_can_be_refused() -> None:
    """With nullFields=fail the field is named."""
    with pytest.raises(PipelineError, match="WEIR_ROW: the field a is null"):
        entries({"a": strings(None), "b": strings("2")}, stream="s", null_fields="fail")


@pytest.mark.parametrize(
    "columns",
    [
        {"a": strings(None)},
        {"fields": pa.array([None], pa.map_(pa.string(), pa.string()))},
        {"fields": pa.array([[]], PAIRS)},
    ],
    ids=["null column", "null map", "empty pairs"],
)
def test_a_row_without_a_field_is_refused(columns: dict[str, pa.Array]) -> None:
    """It is no entry, and leaving it out would be a silent loss."""
    with pytest.raises(PipelineError, match="has no field that is not null"):
        entries(columns, stream="s")


def test_the_longest_name_that_the_gateway_takes_is_taken() -> None:
    """512 bytes of UTF-8."""
    for name in ("x" * 512, "ü" * 256):
        assert entries({"stream": strings(name), "n": strings("1")})[0].stream == name


@pytest.mark.parametrize("name", ["", "a//b", "/a", "a/", "a/..", "weir/a", "..", "new\nline", "x" * 513])
def test_names_that_the_gateway_refuses_are_refused_here(name: str) -> None:
    """Where the row is still known."""
    with pytest.raises(PipelineError, match="is no name of a stream"):
        entries({"stream": strings(name), "n": pa.array([1])})


def test_a_null_stream_is_refused() -> None:
    """There is no default place to go to."""
    with pytest.raises(PipelineError, match="column `stream` is null"):
        entries({"stream": strings("a", None), "n": pa.array([1, 2])})


def test_ids_may_be_explicit() -> None:
    """An ID, an ID's time alone, or the gateway's choice, which null means too."""
    ids = strings("7-1", "7-*", "*", None)
    found = entries({"id": ids, "n": pa.array([1, 2, 3, 4])}, stream="s")
    assert [one.id for one in found] == ["7-1", "7-*", None, None]


def test_a_column_id_that_holds_no_ids_is_refused_and_may_be_a_field() -> None:
    """Tables often have an `id` of their own; 42 would be taken for a time."""
    with pytest.raises(OptionError, match="explicitIds=false"):
        entries({"id": pa.array([42])}, stream="s")
    with pytest.raises(PipelineError, match="'42' in the column `id` is no ID"):
        entries({"id": strings("42")}, stream="s")
    (found,) = entries({"id": pa.array([42])}, stream="s", explicit_ids=False)
    assert found.pairs == [("id", "42")]


def test_a_key_is_no_field() -> None:
    """The column `idempotency_id`, or another that is named."""
    (found,) = entries({"idempotency_id": strings("k"), "n": pa.array([1])}, stream="s")
    assert found == SinkEntry("s", None, [("n", "1")], "k")
    (found,) = entries({"k": pa.array([7]), "n": pa.array([1])}, stream="s", key_column="k")
    assert found == SinkEntry("s", None, [("n", "1")], "7")
    with pytest.raises(OptionError, match="no such column"):
        entries({"n": pa.array([1])}, stream="s", key_column="k")


def test_without_a_stream_nothing_can_be_written() -> None:
    """Told when the writer is made, before any task runs."""
    with pytest.raises(OptionError, match="give the option stream"):
        entries({"n": pa.array([1])})


@pytest.mark.parametrize(
    ("values", "kind", "texts"),
    [
        ([1, -(2**63), None], pa.int64(), ["1", "-9223372036854775808", None]),
        ([True, False], pa.bool_(), ["true", "false"]),
        ([0.1, 1.0, 1e300, float("nan"), float("-inf"), -0.0], pa.float64(), None),
        ([0.1, 16777216.0], pa.float32(), ["0.1", "16777216.0"]),
        ([Decimal("1E-8"), Decimal("-12.50")], pa.decimal128(20, 8), ["0.00000001", "-12.50000000"]),
        ([date(2026, 1, 31)], pa.date32(), ["2026-01-31"]),
        ([datetime(2026, 1, 31, 1, 2, 3, 4, tzinfo=UTC)], pa.timestamp("us", "UTC"), None),
        ([datetime(1969, 12, 31, 23, 59, 59, 999999)], pa.timestamp("us"), ["1969-12-31T23:59:59.999999"]),  # noqa: DTZ001
        ([time(23, 59, 59, 1)], pa.time64("us"), ["23:59:59.000001"]),
        (
            [timedelta(seconds=-1.5), timedelta(days=2)],
            pa.duration("us"),
            ["PT-1.500000S", "PT172800.000000S"],
        ),
        ([b"\xff", b"a"], pa.binary(), [b"\xff", b"a"]),
        ([b"text", None], pa.binary(), ["text", None]),
        ([None, None], pa.null(), [None, None]),
    ],
)
def test_each_type_has_one_exact_text(
    values: list[object], kind: pa.DataType, texts: list[object] | None
) -> None:
    """The table in pyspark_weir.sink.rows."""
    known = {
        pa.float64(): ["0.1", "1.0", "1e+300", "NaN", "-Infinity", "-0.0"],
        pa.timestamp("us", "UTC"): ["2026-01-31T01:02:03.000004Z"],
    }
    assert list(values_of(pa.array(values, kind))) == (texts or known[kind])


def test_nested_values_are_json() -> None:
    """Numbers as numbers, what JSON has no form for as the text that a column of it would have."""
    kind = pa.struct(
        [
            ("big", pa.int64()),
            ("price", pa.decimal128(5, 2)),
            ("at", pa.timestamp("us", "UTC")),
            ("raw", pa.binary()),
            ("tags", pa.list_(pa.string())),
            ("counts", pa.map_(pa.string(), pa.int32())),
            ("by_number", pa.map_(pa.int32(), pa.string())),
            ("rate", pa.float64()),
            ("narrow", pa.float32()),
        ]
    )
    value = {
        "big": 2**63 - 1,
        "price": Decimal("1.50"),
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "raw": b"\xff",
        "tags": ["a", None],
        "counts": [("x", 1)],
        "by_number": [(1, "x")],
        "rate": float("nan"),
        "narrow": 0.1,
    }
    (text, nothing) = values_of(pa.array([value, None], kind))
    assert text == (
        '{"big":9223372036854775807,"price":"1.50","at":"2026-01-01T00:00:00.000000Z","raw":"/w==",'
        '"tags":["a",null],"counts":{"x":1},"by_number":[[1,"x"]],"rate":"NaN","narrow":0.1}'
    )
    assert nothing is None


def test_text_that_is_no_utf_8_stays_as_it_is() -> None:
    """Spark's cast of binary to string checks nothing."""
    raw = pa.array([b"\xff", b"a"])
    text = pa.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    assert list(values_of(text)) == [b"\xff", b"a"]
