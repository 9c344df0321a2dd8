"""Pages of entries as rows: exact schemas, repeated names, bytes, and IDs beyond what a bigint holds."""

import dataclasses
import datetime as dt
import json
import pickle
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_weir import ids, schema
from pyspark_weir.errors import PipelineError
from pyspark_weir.gateway import ColumnsPage
from pyspark_weir.options import source_options
from pyspark_weir.source.batch import form_of
from pyspark_weir.source.decode import Form

Pair = tuple[bytes, bytes]
Entry = tuple[int, int, Sequence[Pair]]


def a_page(*entries: Entry) -> ColumnsPage:
    """Entries as the gateway sends them."""
    names: dict[bytes, int] = {}
    index, values = [], []
    for _, _, pairs in entries:
        for name, value in pairs:
            index.append(names.setdefault(name, len(names)))
            values.append(value)
    binary = not all(_is_text(raw) for raw in (*names, *values))

    def written(raw: bytes) -> str:
        return b64encode(raw).decode() if binary else raw.decode()

    return ColumnsPage(
        ms=[ms for ms, _, _ in entries],
        seq=[seq for _, seq, _ in entries],
        n=[len(pairs) for _, _, pairs in entries],
        names=[written(name) for name in names],
        name_index=index,
        values=[written(value) for value in values],
        base64=binary,
        next_id="9-9",
        more=False,
    )


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def a_form(own: StructType | None = None, **more: str) -> Form:
    options = source_options({"url": "http://h", "subscribe": "s", **more})
    return form_of(options, own or schema.schema_of(options))


def rows(form: Form, *entries: Entry) -> list[dict[str, Any]]:
    batch = form.batch(a_page(*entries), "g0", "s")
    batch.validate(full=True)
    assert batch.schema.equals(form.schema, check_metadata=True), "Spark insists on the schema, to the letter"
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def fields_of(form: Form, *entries: Entry) -> list[Any]:
    return [row["fields"] for row in rows(form, *entries)]


def test_an_entry_is_a_row_with_its_id_its_time_and_its_fields() -> None:
    assert rows(a_form(), (1_700_000_000_123, 7, [(b"a", b"1"), (b"b", b"")])) == [
        {
            "stream": "s",
            "id": "1700000000123-7",
            "ms": 1_700_000_000_123,
            "seq": 7,
            "ts": dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=dt.UTC),
            "fields": [("a", "1"), ("b", "")],
        }
    ]


@pytest.mark.parametrize("format_", ["map", "entries", "json"])
def test_no_entries_are_no_rows_of_the_same_schema(format_: str) -> None:
    assert rows(a_form(fieldsFormat=format_, includeMeta="true")) == []


@pytest.mark.parametrize("format_", ["map", "entries", "json"])
def test_an_entry_without_fields_has_none(format_: str) -> None:
    found = fields_of(a_form(fieldsFormat=format_), (1, 0, []), (2, 0, [(b"a", b"b")]), (3, 0, []))
    assert found[0] == found[2] == ("{}" if format_ == "json" else [])


halves = st.integers(0, ids.HALF_MAX)
raw = st.binary(max_size=4) | st.text(max_size=4).map(lambda text: text.encode())
pairs = st.lists(st.tuples(raw, raw), max_size=5)
entries = st.lists(st.tuples(halves, halves, pairs), max_size=12)


@given(entries)
def test_entries_keep_every_name_value_and_byte_in_order(given_: list[Entry]) -> None:
    found = rows(a_form(fieldsFormat="entries", onBadUtf8="base64"), *given_)
    for row, (ms, seq, expected) in zip(found, given_, strict=True):
        assert row["id"] == f"{ms}-{seq}"
        assert [pair["value"] for pair in row["fields"]] == [value for _, value in expected]
        for pair, (name, _) in zip(row["fields"], expected, strict=True):
            assert pair["name"] == (name.decode() if _is_text(name) else b64encode(name).decode())


@given(entries, st.sampled_from(["first", "last"]))
def test_a_map_has_each_name_once_as_a_plain_reading_has_it(given_: list[Entry], keep: str) -> None:
    found = fields_of(a_form(dupFields=keep), *given_)
    texts = fields_of(a_form(dupFields=keep, fieldsFormat="json"), *given_)
    for fields, text, (_, _, expected) in zip(found, texts, given_, strict=True):
        plain: dict[str, str] = {}
        for name, value in expected:
            word = name.decode("utf-8", "replace")
            if keep == "last" or word not in plain:
                plain[word] = value.decode("utf-8", "replace")
        assert len(fields) == len(plain)
        assert dict(fields) == plain
        assert json.loads(text) == plain


@given(st.lists(st.tuples(halves, halves), max_size=20))
def test_an_id_beyond_a_bigint_is_null_in_numbers_and_exact_as_text(found: list[tuple[int, int]]) -> None:
    form = a_form(columns="id,ms,seq,ts,id_key")
    read = rows(form, *((ms, seq, []) for ms, seq in found))
    for row, (ms, seq) in zip(read, found, strict=True):
        assert row["id"] == f"{ms}-{seq}"
        assert row["ms"] == (ms if ms <= ids.BIGINT_MAX else None)
        assert row["seq"] == (seq if seq <= ids.BIGINT_MAX else None)
        assert (row["ts"] is None) == (ms > ids.TS_MS_MAX)
        assert row["id_key"] == f"{ms:020d}-{seq:020d}"


def test_the_last_number_of_a_bigint_is_one_and_the_next_is_none() -> None:
    """Of both halves of an ID."""
    last = ids.BIGINT_MAX
    read = rows(a_form(columns="ms,seq"), *((half, half, []) for half in (last - 1, last, last + 1)))
    assert [(row["ms"], row["seq"]) for row in read] == [(last - 1, last - 1), (last, last), (None, None)]


def test_the_last_moment_of_the_calendar_is_a_time_and_the_next_is_none() -> None:
    read = rows(a_form(columns="ts"), (ids.TS_MS_MAX, 0, []), (ids.TS_MS_MAX + 1, 0, []))
    assert read[0]["ts"].year == 9999
    assert read[1]["ts"] is None


class TestBytes:
    SPOILT: Entry = (5, 0, [(b"a", b"\xff\x00"), (b"b", "ü".encode())])

    def test_are_replaced_where_nothing_else_is_asked_for(self) -> None:
        assert fields_of(a_form(), self.SPOILT) == [[("a", "\ufffd\x00"), ("b", "ü")]]

    def test_are_base64_on_request_and_only_where_they_are_no_text(self) -> None:
        assert fields_of(a_form(onBadUtf8="base64"), self.SPOILT) == [[("a", "/wA="), ("b", "ü")]]

    def test_fail_on_request_with_stream_and_remedy(self) -> None:
        with pytest.raises(PipelineError, match=r"WEIR_BAD_UTF8.*stream s of g0.*fieldsFormat=entries"):
            rows(a_form(onBadUtf8="fail"), self.SPOILT)

    def test_names_that_become_the_same_text_are_the_same_name(self) -> None:
        twice: Entry = (5, 0, [(b"\xff", b"1"), (b"\xfe", b"2")])
        assert fields_of(a_form(), twice) == [[("\ufffd", "1")]]
        assert fields_of(a_form(dupFields="last"), twice) == [[("\ufffd", "2")]]

    def test_are_kept_in_a_binary_column(self) -> None:
        own = StructType([StructField("a", BinaryType()), StructField("b", StringType())])
        assert rows(a_form(own), self.SPOILT) == [{"a": b"\xff\x00", "b": "ü"}]


def test_meta_tells_the_gateway_and_the_size_in_bytes() -> None:
    read = rows(a_form(includeMeta="true"), (1, 0, [(b"ab", "ü".encode())]), (2, 0, []))
    assert [(row["shard"], row["bytes"]) for row in read] == [("g0", 4), ("g0", 0)]


class TestColumns:
    OWN = StructType(
        [
            StructField("_stream", StringType()),
            StructField("_id", StringType()),
            StructField("_ts", TimestampType()),
            StructField("text", StringType()),
            StructField("whole", LongType()),
            StructField("small", IntegerType()),
            StructField("part", DoubleType()),
            StructField("price", DecimalType(6, 2)),
            StructField("truth", BooleanType()),
            StructField("day", DateType()),
            StructField("at", TimestampType()),
        ]
    )

    def test_are_read_from_text(self) -> None:
        pairs = {
            "whole": "-9007199254740993", "small": " 5 ", "part": "1e3", "price": "19.855", "truth": "TRUE",
            "day": "2026-01-31", "at": "2026-01-31T12:00:00+01:00", "text": "x", "other": "y",
        }  # fmt: skip
        entry = (9, 1, [(name.encode(), value.encode()) for name, value in pairs.items()])
        (row,) = rows(a_form(self.OWN), entry)
        assert row == {
            "_stream": "s",
            "_id": "9-1",
            "_ts": dt.datetime(1970, 1, 1, 0, 0, 0, 9_000, tzinfo=dt.UTC),
            "text": "x",
            "whole": -9_007_199_254_740_993,
            "small": 5,
            "part": 1000.0,
            "price": Decimal("19.86"),
            "truth": True,
            "day": dt.date(2026, 1, 31),
            "at": dt.datetime(2026, 1, 31, 11, tzinfo=dt.UTC),
        }

    def test_are_null_where_the_field_is_missing_or_none_of_that_type(self) -> None:
        names = [one.name for one in self.OWN.fields if not one.name.startswith("_") and one.name != "text"]
        wrong: Entry = (2, 0, [(name.encode(), b"wrong") for name in names])
        too_large: Entry = (3, 0, [(b"small", b"3000000000"), (b"price", b"99999.99"), (b"whole", b"7")])
        missing, mistaken, large = rows(a_form(self.OWN), (1, 0, []), wrong, too_large)
        assert all(missing[name] is None and mistaken[name] is None for name in names)
        assert (large["small"], large["price"], large["whole"]) == (None, None, 7)

    @pytest.mark.parametrize(
        ("text", "whole", "price"),
        [
            ("+5", 5, "5.00"),
            ("++5", None, None),
            ("0x10", None, None),
            ("1_0", None, None),
            ("٣", None, None),
            ("-0", 0, "0.00"),
            ("19.845", None, "19.85"),
            ("-19.845", None, "-19.85"),
            ("9223372036854775807", ids.BIGINT_MAX, None),
            ("9223372036854775808", None, None),
        ],
    )
    def test_are_numbers_where_they_are_to_spark(
        self, text: str, whole: int | None, price: str | None
    ) -> None:
        entry: Entry = (1, 0, [(b"whole", text.encode()), (b"price", text.encode())])
        (row,) = rows(a_form(self.OWN), entry)
        assert (row["whole"], row["price"]) == (whole, None if price is None else Decimal(price))

    def test_values_that_do_not_fit_are_counted(self) -> None:
        """By column; a missing field is no misfit, and neither is another field."""
        own = StructType([StructField("a", LongType()), StructField("b", DoubleType())])
        page = a_page((1, 0, [(b"a", b"x"), (b"c", b"y")]), (2, 0, [(b"a", b"1e"), (b"b", b"2")]))
        misfits: Counter[str] = Counter()
        for _ in range(2):
            a_form(own, mode="Permissive").batch(page, "g0", "s", misfits)
        assert misfits == {"a": 4}

    def test_values_that_do_not_fit_can_be_refused(self) -> None:
        """As by Spark's own readers; the first one is shown, and where it is."""
        own = StructType([StructField("a", LongType()), StructField("b", DoubleType())])
        form = a_form(own, mode="FAILFAST")
        with pytest.raises(
            PipelineError, match=r"WEIR_BAD_VALUE: stream s of g0, .*: '1e' does not fit column a"
        ):
            rows(form, (1, 0, [(b"a", b"1")]), (2, 0, [(b"a", b"1e")]))
        assert rows(form, (1, 0, []), (2, 0, [(b"b", b"2")])) == [
            {"a": None, "b": None},
            {"a": None, "b": 2.0},
        ]
        with pytest.raises(PipelineError, match="mode=DROPMALFORMED: it is one of permissive, failfast"):
            a_form(own, mode="DROPMALFORMED")

    def test_take_the_first_or_the_last_of_a_repeated_field(self) -> None:
        own = StructType([StructField("a", LongType())])
        entry: Entry = (1, 0, [(b"a", b"1"), (b"b", b"0"), (b"a", b"2")])
        assert rows(a_form(own), entry) == [{"a": 1}]
        assert rows(a_form(own, dupFields="last"), entry) == [{"a": 2}]

    def test_ask_for_their_fields_only(self) -> None:
        assert a_form(self.OWN).wanted_fields() == tuple(
            one.name for one in self.OWN.fields if not one.name.startswith("_")
        )
        assert a_form().wanted_fields() == ()

    def test_that_are_no_fields_bring_none_over_the_wire(self) -> None:
        only_ids = StructType([StructField("_id", StringType()), StructField("_ms", LongType())])
        assert a_form(only_ids).wanted_fields() == a_form(columns="id,ms").wanted_fields() == ("-",)
        with_size = StructType([StructField("_bytes", LongType())])
        assert a_form(with_size).wanted_fields() == a_form(columns="id,bytes").wanted_fields() == ()
        assert a_form(relation="deadletter").wanted_fields() == ()


class TestSchema:
    def test_columns_can_be_left_out_and_ordered(self) -> None:
        assert rows(a_form(columns="seq,stream"), (1, 2, [(b"a", b"b")])) == [{"seq": 2, "stream": "s"}]

    @pytest.mark.parametrize(
        ("own", "more", "sentence"),
        [
            (StructType([StructField("a", LongType())]), {"fieldsFormat": "map"}, "fieldsFormat=columns"),
            (StructType([StructField("_ms", StringType())]), {}, "its type is bigint"),
            (StructType([StructField("a", StructType())]), {}, "read it as string"),
            (StructType([StructField("a", LongType())]), {"relation": "groups"}, "relation=groups"),
        ],
    )
    def test_a_schema_that_cannot_be_filled_is_refused(
        self, own: StructType, more: dict[str, str], sentence: str
    ) -> None:
        with pytest.raises(PipelineError, match=sentence):
            a_form(own, **more)

    def test_columns_need_a_schema(self) -> None:
        with pytest.raises(PipelineError, match=r"\.schema\("):
            a_form(fieldsFormat="columns")

    def test_an_unknown_column_is_refused_with_those_that_there_are(self) -> None:
        with pytest.raises(PipelineError, match=r"columns: key is none of stream, id"):
            a_form(columns="key")


def test_many_names_are_looked_through_as_few_are() -> None:
    # More cells than are kept at once: repeats are found by sorting.
    wide = [(1, n, [(f"n{n}".encode(), b"1"), (b"x", b"1"), (b"x", b"2")]) for n in range(2_100)]
    read = fields_of(a_form(dupFields="last"), *wide)
    assert [dict(fields)["x"] for fields in read] == ["2"] * 2_100
    assert all(len(fields) == 2 for fields in read)


def test_the_form_is_what_a_worker_gets() -> None:
    form = a_form(fieldsFormat="entries")
    assert pickle.loads(pickle.dumps(form)) == form
    assert dataclasses.is_dataclass(form)
    assert isinstance(form.schema, pa.Schema)
