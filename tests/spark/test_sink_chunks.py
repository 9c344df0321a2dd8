"""Chunks and keys: the same rows are always the same requests."""

import itertools
from collections.abc import Iterator, Sequence

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_weir.errors import OptionError, PipelineError
from pyspark_weir.sink.keys import SinkRequest, TaskId, keys
from pyspark_weir.sink.rows import CHUNK_BYTES_MAX, CHUNK_STREAMS_MAX, RowOptions, Rows, SinkEntry, cut
from pyspark_weir.sink.sending import Pace

PLACE = TaskId("spark/q", 3, 1)
entry_lists = st.lists(
    st.builds(
        SinkEntry,
        st.sampled_from(["a", "b", "c"]),
        st.none(),
        st.lists(
            st.tuples(st.text(max_size=3), st.text(max_size=5) | st.binary(max_size=3)),
            min_size=1,
            max_size=3,
        ),
        st.none(),
    ),
    max_size=40,
)


def requests(entries: Sequence[SinkEntry], mode: str, rows_max: int = 7) -> list[SinkRequest]:
    known = keys(mode, PLACE)  # type: ignore[arg-type] # parametrised
    return [known.request(chunk) for chunk in cut(entries, known.write, rows_max)]


def plain(stream: str, value: str = "1", *, entry_id: str | None = None, key: str | None = None) -> SinkEntry:
    return SinkEntry(stream, entry_id, [("n", value)], key)


@given(entry_lists, st.sampled_from(["position", "content", "none"]))
def test_the_same_entries_are_the_same_requests(entries: list[SinkEntry], mode: str) -> None:
    """To the byte, headers included."""
    assert requests(entries, mode) == requests(list(entries), mode)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=30), st.data())
def test_how_arrow_batches_are_cut_does_not_matter(sizes: list[int], data: st.DataObject) -> None:
    """Spark's batches differ with its settings; a retry must not."""
    table = pa.table({"text": ["x" * size for size in sizes]})
    at = sorted(data.draw(st.lists(st.integers(0, len(sizes)), max_size=4)))
    bounds = [0, *at, len(sizes)]
    rows = Rows(table.schema, RowOptions(stream="s"))

    def arriving(edges: Sequence[int]) -> Iterator[SinkEntry]:
        for start, stop in itertools.pairwise(edges):
            for batch in table.slice(start, stop - start).to_batches():
                yield from rows.entries(batch)

    assert requests(list(arriving(bounds)), "position") == requests(
        list(arriving([0, len(sizes)])), "position"
    )


@given(entry_lists, st.integers(1, 9))
def test_chunks_hold_all_entries_in_order(entries: list[SinkEntry], rows_max: int) -> None:
    """None lost, none twice, each stream's order kept, numbered from 0, none too long."""
    chunks = list(cut(entries, lambda entry: (entry, 1), rows_max))
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    assert all(chunk.rows == sum(chunk.counts().values()) <= rows_max for chunk in chunks)
    assert all(chunk.rows == rows_max for chunk in chunks[:-1])
    for name in ("a", "b", "c"):
        stored = [entry for chunk in chunks for entry in chunk.streams.get(name, [])]
        assert stored == [entry for entry in entries if entry.stream == name]


def test_a_chunk_ends_before_its_bytes_are_too_many() -> None:
    """One entry alone may have more: whether it is too large is for the gateway to say."""
    sizes = [CHUNK_BYTES_MAX // 2, CHUNK_BYTES_MAX // 2, 1, 2 * CHUNK_BYTES_MAX, 1]
    left = iter(sizes)
    chunks = list(cut([plain("s")] * len(sizes), lambda entry: (entry, next(left)), 100))
    assert [chunk.rows for chunk in chunks] == [2, 1, 1, 1]


def test_a_chunk_has_as_many_streams_as_a_request_may() -> None:
    """Beyond it the next chunk begins."""
    entries = [plain(f"s{number}") for number in range(CHUNK_STREAMS_MAX + 1)]
    assert [len(chunk.streams) for chunk in cut(entries, lambda entry: (entry, 1), 5_000)] == [1_000, 1]


def test_a_position_is_producer_epoch_and_chunk() -> None:
    """Query or job, and partition; the batch; the number of the chunk."""
    (first, second) = requests([plain("a"), plain("b")], "position", rows_max=1)
    assert first.headers == {"weir-producer": "spark/q/1", "weir-epoch": "3", "weir-chunk": "0"}
    assert second.headers == {"weir-producer": "spark/q/1", "weir-epoch": "3", "weir-chunk": "1"}
    assert first.path == "/v1/publish"
    assert orjson.loads(first.content) == {"streams": {"a": [{"fields": {"n": "1"}}]}}
    assert first.repeatable


def test_what_has_no_key_is_not_sent_again_by_itself() -> None:
    """A lost answer is an error then: the entries may be there or not."""
    (request,) = requests([plain("a")], "none")
    assert not request.repeatable
    assert request.headers == {}


def test_entries_are_written_as_the_gateway_takes_them() -> None:
    """Repeated names as pairs, bytes in base64 only where they are no text, an ID where there is one."""
    entries = [
        SinkEntry("s", "1-1", [("a", b"text"), ("b", "é")], None),
        SinkEntry("s", None, [("a", "1"), ("a", "2")], None),
        SinkEntry("s", None, [("a", b"\xff"), ("b", "x")], None),
        SinkEntry("s", None, [("a", b"\xff"), ("a", b"")], None),
    ]
    (request,) = requests(entries, "position")
    assert orjson.loads(request.content)["streams"]["s"] == [
        {"fields": {"a": "text", "b": "é"}, "id": "1-1"},
        {"fields": [["a", "1"], ["a", "2"]]},
        {"fields": {"a": "/w==", "b": "eA=="}, "encoding": "base64"},
        {"fields": [["a", "/w=="], ["a", ""]], "encoding": "base64"},
    ]


def words_of(entries: Sequence[SinkEntry], place: TaskId = PLACE) -> list[list[str]]:
    known = keys("content", place)
    (chunk,) = cut(entries, known.write, 100)
    request = known.request(chunk)
    assert request.path == "/v1/commands/multi-exec"
    found: list[list[str]] = orjson.loads(request.content)
    return found


def test_a_content_key_goes_where_its_row_goes() -> None:
    """Another partition, another order of fields: the same key, under the same producer."""
    one = words_of([SinkEntry("s", None, [("a", "1"), ("b", "2")], None)])[0]
    other = words_of([SinkEntry("s", None, [("b", "2"), ("a", b"1")], None)], TaskId("spark/q", 3, 7))[0]
    assert one[:6] == other[:6]
    assert one[0:3] == ["XADD", "s", "IDMP"]


def test_equal_rows_of_two_batches_are_two_entries() -> None:
    """A digest counts within its batch; a column's key counts for the whole query."""
    (now,), (then,) = words_of([plain("s")]), words_of([plain("s")], TaskId("spark/q", 4, 1))
    assert now[4] != then[4]
    (now,), (then,) = (
        words_of([plain("s", key="k")]),
        words_of([plain("s", key="k")], TaskId("spark/q", 4, 1)),
    )
    assert now == then
    assert now[4] == "k"


def test_field_boundaries_are_part_of_a_digest() -> None:
    """("ab", "c") is not ("a", "bc"), and once is not twice."""
    rows = [[("ab", "c")], [("a", "bc")], [("a", "1")], [("a", "1"), ("a", "1")]]
    found = words_of([SinkEntry("s", None, row, None) for row in rows])
    assert len({words[4] for words in found}) == len(rows)


def test_bytes_turn_the_whole_transaction_into_base64() -> None:
    """The command API takes one encoding for all of a request's words."""
    known = keys("content", PLACE)
    entries = [plain("s"), SinkEntry("s", None, [("a", b"\xff")], b"\xfe")]
    (chunk,) = cut(entries, known.write, 10)
    request = known.request(chunk)
    assert request.headers == {"weir-encoding": "base64"}
    assert orjson.loads(request.content)[1][-1] == "/w=="


def test_an_explicit_id_has_no_content_key() -> None:
    """The gateway, as Redis, keeps keys only for IDs of its own making."""
    with pytest.raises(PipelineError, match="explicitIds=false"):
        words_of([plain("s", entry_id="1-1")])


def test_a_repeated_chunk_of_other_rows_is_an_error() -> None:
    """The gateway has kept the first ones; these would be lost without a word."""
    known = keys("position", PLACE)
    (chunk,) = cut([plain("s", "1"), plain("s", "2"), plain("t")], known.write, 10)
    stored = {
        "s": {"first_id": "1-0", "last_id": "1-1", "count": 2},
        "t": {"first_id": "1-2", "last_id": "1-2", "count": 1},
    }
    assert known.repeated(chunk, {"streams": stored, "duplicate": False}) == ()
    looked_at = known.repeated(chunk, {"streams": stored, "duplicate": True})
    assert [(one.stream, one.id, one.pairs[0][1]) for one in looked_at] == [
        ("s", "1-0", b"1"),
        ("s", "1-1", b"2"),
        ("t", "1-2", b"1"),
        ("t", "1-2", b"1"),
    ]
    with pytest.raises(PipelineError, match="WEIR_CHANGED"):
        known.repeated(chunk, {"streams": {"s": {"count": 3}}, "duplicate": True})


@pytest.mark.parametrize("origin", ["job/näme", "job/a b", "job/" + "x" * 260])
def test_a_job_id_that_is_no_header_is_refused(origin: str) -> None:
    """Before anything is sent."""
    with pytest.raises(OptionError, match="jobId"):
        keys("position", TaskId(origin, 0, 0))


def test_a_pace_spreads_entries_and_saves_nothing_up() -> None:
    """100 entries at 50/s take two seconds; after a pause there is no burst."""
    now = [0.0]
    pace = Pace(50, lambda: now[0])
    assert pace.pause_s(100) == 0
    assert pace.pause_s(100) == 2
    now[0] = 100.0
    assert pace.pause_s(1) == 0
    assert pace.pause_s(1) == pytest.approx(0.02)
