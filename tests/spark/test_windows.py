"""What is computed over windows is checked before Spark is started; results read back are the last told."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_weir.errors import OptionError
from pyspark_weir.jobs import windows as job
from pyspark_weir.jobs.fields import TimeField
from pyspark_weir.jobs.windows import Aggregate, Latest, Windows, checked_mode

COUNT = (Aggregate("count"),)


@pytest.mark.parametrize(
    ("text", "kind", "field", "name"),
    [
        ("count", "count", "", "count"),
        ("mean:temp", "mean", "temp", "mean_temp"),
        ("p50:temp", "p50", "temp", "p50_temp"),
        ("p99.9:a:b", "p99.9", "a:b", "p99.9_a:b"),
        ("exact-p100:t", "exact-p100", "t", "exact_p100_t"),
        ("distinct:user", "distinct", "user", "distinct_user"),
    ],
)
def test_what_is_computed_is_said_in_a_word(text: str, kind: str, field: str, name: str) -> None:
    """Whether a percentile is exact can be seen in its name."""
    found = Aggregate.of(text)
    assert (found.kind, found.field, found.name) == (kind, field, name)


@pytest.mark.parametrize(
    "text", ["", "mean", "mean:", "count:x", "p:x", "p101:x", "p-1:x", "median:x", "exact:x", "approx-p9:x"]
)
def test_what_cannot_be_computed_is_refused(text: str) -> None:
    """With what can be."""
    with pytest.raises(OptionError, match=r"write count, or sum, mean, min, max, distinct, p99"):
        Aggregate.of(text)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "one of --window and --session"),
        ({"size_ms": 1, "session_gap_ms": 1}, "one of --window and --session"),
        ({"size_ms": 0}, "has a length"),
        ({"session_gap_ms": 0}, "after a gap"),
        ({"session_gap_ms": 5, "by": ()}, "give --by"),
        ({"session_gap_ms": 5, "slide_ms": 5}, "--slide"),
        ({"size_ms": 5, "slide_ms": 6}, "--slide"),
        ({"size_ms": 5, "slide_ms": 0}, "--slide"),
        ({"size_ms": 5, "by": ("stream", "stream")}, "both be called stream"),
        ({"size_ms": 5, "by": ("count",)}, "both be called count"),
        ({"size_ms": 5, "by": ("window_start",)}, "both be called window_start"),
        ({"size_ms": 5, "aggregates": ()}, "nothing to compute"),
    ],
)
def test_windows_that_make_no_sense_are_refused(given: dict[str, Any], told: str) -> None:
    """By the option that is wrong."""
    with pytest.raises(OptionError, match=told):
        Windows(**{"aggregates": COUNT, **given})


def test_sessions_are_told_when_they_are_over() -> None:
    """Spark cannot tell one again; other windows are told again unless asked otherwise."""
    session, minutes = Windows(session_gap_ms=5), Windows(size_ms=60_000)
    assert checked_mode(session, None) == checked_mode(session, "append") == "append"
    assert checked_mode(minutes, None) == checked_mode(minutes, "update") == "update"
    assert checked_mode(minutes, "append") == "append"
    with pytest.raises(OptionError, match="told once"):
        checked_mode(session, "update")
    with pytest.raises(OptionError, match="write update or append"):
        checked_mode(minutes, "complete")


@pytest.mark.parametrize(
    ("text", "name", "unit"),
    [
        ("at", "at", "ms"),
        ("at:us", "at", "us"),
        ("a:b", "a:b", "ms"),
        ("a:b:iso", "a:b", "iso"),
        ("s:s", "s", "s"),
    ],
)
def test_a_field_with_a_time_may_have_a_unit(text: str, name: str, unit: str) -> None:
    """Milliseconds are what entries' IDs have."""
    assert TimeField.of(text) == TimeField(name, unit)


def test_a_unit_that_is_none_is_refused() -> None:
    """With those there are."""
    with pytest.raises(OptionError, match="ns, us, ms, s, iso"):
        TimeField("at", "minutes")


def _at(minute: int) -> datetime:
    return datetime(2023, 11, 14, 22, minute, tzinfo=UTC)


def _row(minute: int, stream: str | None, count: int) -> dict[str, Any]:
    return {job.START: _at(minute), job.END: _at(minute + 1), "stream": stream, "count": count}


def _batch(root: Path, number: int, rows: list[dict[str, Any]], *, complete: bool = True) -> None:
    folder = root / f"batch={number:010d}"
    folder.mkdir(parents=True)
    schema = pa.schema(
        [
            (job.START, pa.timestamp("us", "UTC")),
            (job.END, pa.timestamp("us", "UTC")),
            ("stream", pa.string()),
            ("count", pa.int64()),
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / "part-0.parquet")
    if complete:
        (folder / "_SUCCESS").touch()


def test_a_window_read_back_is_as_it_was_told_last(tmp_path: Path) -> None:
    """In the order of windows; a batch whose writing did not end does not count."""
    windows = Windows(size_ms=60_000)
    _batch(tmp_path, 0, [_row(1, "b", 1), _row(1, None, 5), _row(1, "a", 1)])
    _batch(tmp_path, 9, [_row(2, "a", 7), _row(1, "a", 2)])
    _batch(tmp_path, 10, [_row(1, "a", 3)])
    _batch(tmp_path, 11, [_row(1, "a", 99)], complete=False)
    found = job.read(str(tmp_path), windows)
    assert found == [_row(1, None, 5), _row(1, "a", 3), _row(1, "b", 1), _row(2, "a", 7)]


def test_nothing_was_told_yet(tmp_path: Path) -> None:
    """A folder that is not there is no error."""
    assert job.read(str(tmp_path / "none"), Windows(size_ms=1)) == []


def test_a_chart_has_a_line_for_each_key() -> None:
    """From rows as Spark gives them, without a zone, and as files give them, with one."""
    naive = {**_row(1, "a", 1), job.START: _at(1).replace(tzinfo=None)}
    latest = Latest(Windows(size_ms=60_000), [_row(2, "a", 5), naive, _row(2, None, 4)])
    latest.add([_row(1, "a", 3)])
    minute_ms = round(_at(1).timestamp() * 1_000)
    assert [(one.name, list(one.at_ms), list(one.values)) for one in latest.lines("count")] == [
        ("a", [minute_ms, minute_ms + 60_000], [3, 5]),
        ("-", [minute_ms + 60_000], [4]),
    ]


def test_times_are_told_in_utc() -> None:
    """As ISO 8601, whatever zone they come in."""
    assert job.plain({"a": _at(5), "b": _at(5).replace(tzinfo=None), "c": None}) == {
        "a": "2023-11-14T22:05:00.000Z",
        "b": "2023-11-14T22:05:00.000Z",
        "c": None,
    }
