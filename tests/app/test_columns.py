"""Pages of columns: the same entries as the JSON form, as flat lists, in slices, with where to go on."""

import base64
from collections.abc import Sequence
from itertools import islice
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api.entries import columns
from app.api.entries.columns import ColumnsBuilder, ColumnsRange, ColumnsReading, split_uniform
from app.http.operations.binder import bind_query
from app.main import App
from app.settings import Settings
from engine import Engine, EngineError, entries, ids
from engine.commands.base import Command
from engine.commands.types import Delete, Trim, XAdd, XTrim
from engine.replies import Reply
from tests import halves
from tests.engine.asking import reply_to, turn_of

ENTRIES = "/v1/streams/s/entries"
COLUMNS = "application/vnd.weir.columns+json"
ACCEPT = {"accept": COLUMNS}
Pair = tuple[str, str | bytes]
Row = tuple[str, list[Pair]]


def rows(page: Any) -> list[Row]:
    """The entries that columns stand for."""
    assert set(page) <= {"ms", "seq", "n", "kd", "k", "v", "b64"}
    names, values = page["kd"], page["v"]
    if page.get("b64"):
        names = [base64.b64decode(name).decode() for name in names]
        values = [base64.b64decode(value) for value in values]
    assert len(page["ms"]) == len(page["seq"]) == len(page["n"])
    assert len(page["k"]) == len(values) == sum(page["n"])
    assert len(set(names)) == len(names)
    pairs = iter(zip(page["k"], values, strict=True))
    return [
        (f"{ms}-{seq}", [(names[place], value) for place, value in islice(pairs, n)])
        for ms, seq, n in zip(page["ms"], page["seq"], page["n"], strict=True)
    ]


async def page_of(http: httpx.AsyncClient, query: str) -> tuple[list[Row], httpx.Headers]:
    answer = await http.get(f"{ENTRIES}?{query}", headers=ACCEPT)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == COLUMNS
    return rows(msgspec.json.decode(answer.content)), answer.headers


async def page_by_page(http: httpx.AsyncClient, query: str, after: str = "0") -> list[Row]:
    """A range as a client reads it."""
    found: list[Row] = []
    while True:
        page, headers = await page_of(http, f"after={after}&{query}")
        found += page
        after = headers["weir-next-id"]
        if headers["weir-more"] == "false":
            return found


async def test_the_headers_tell_where_to_go_on(five: httpx.AsyncClient) -> None:
    """Next, more, what is there, what is gone, and which of its name the stream is."""
    generation = (await five.get("/v1/streams/s")).json()["generation"]
    await five.post("/v1/streams/s/trim", json={"maxlen": 4})
    page, headers = await page_of(five, "after=2-0&end=4-0&count=1")
    assert [entry_id for entry_id, _ in page] == ["3-0"]
    result = {
        name: headers[f"weir-{name}"] for name in ("next-id", "more", "first-available", "removed-upto")
    }
    assert result == {"next-id": "3-0", "more": "true", "first-available": "2-0", "removed-upto": "1-0"}
    assert headers["weir-generation"] == generation
    page, headers = await page_of(five, "after=3-0&end=4-0")
    assert ([entry_id for entry_id, _ in page], headers["weir-more"]) == (["4-0"], "false")


@pytest.mark.parametrize(
    ("query", "following"),
    [
        ("after=9-0", "5-0"),
        ("after=2-0&end=2-0", "2-0"),
        ("after=4-0&end=2-0", "4-0"),
        ("start=6", "5-18446744073709551615"),
    ],
)
async def test_an_empty_range_answers_with_where_it_began(
    five: httpx.AsyncClient, query: str, following: str
) -> None:
    """Behind the end, between nothing, backwards: no entries, nothing more."""
    page, headers = await page_of(five, query)
    assert (page, headers["weir-next-id"], headers["weir-more"]) == ([], following, "false")


@pytest.mark.parametrize("query", ["", "after=2-0&count=2", "since=1970-01-01T00:00:00Z&fields=n"])
async def test_its_own_path_gives_the_same(five: httpx.AsyncClient, query: str) -> None:
    """Without an Accept; parameters that ask for nothing there are unknown."""
    accepted = await five.get(f"{ENTRIES}?{query}", headers=ACCEPT)
    found = await five.get(f"/v1/streams/s/columns?{query}")
    assert (found.status_code, found.content) == (200, accepted.content)
    for name in ("content-type", "weir-next-id", "weir-more", "weir-removed-upto", "weir-generation"):
        assert found.headers[name] == accepted.headers[name]
    assert (await five.get("/v1/streams/s/columns?reverse=false")).json()["code"] == "unknown_parameter"


async def test_a_missing_stream_is_empty(http: httpx.AsyncClient) -> None:
    """As in every read; it has no generation."""
    page, headers = await page_of(http, "after=3-1&end=9")
    assert (page, headers["weir-next-id"], headers["weir-more"]) == ([], "3-1", "false")
    assert "weir-generation" not in headers


async def test_an_end_ahead_of_the_stream_is_its_end(five: httpx.AsyncClient) -> None:
    """Nothing more: what comes later is another read."""
    page, headers = await page_of(five, "after=4-0&end=99")
    assert ([entry_id for entry_id, _ in page], headers["weir-next-id"]) == (["5-0"], "5-0")
    assert headers["weir-more"] == "false"


async def test_deleted_entries_are_passed_over(five: httpx.AsyncClient) -> None:
    """Page by page nothing comes twice, and nothing is missed, even if entries are removed meanwhile."""
    for gone in ("2-0", "4-0"):
        await five.delete(f"{ENTRIES}/{gone}")
    for query in ("count=1", "count=2", "max_bytes=1", "end=5-0&count=1", "end=4-0&max_bytes=60"):
        found = [entry_id for entry_id, _ in await page_by_page(five, query)]
        assert found == ["1-0", "3-0", "5-0"][: 2 if "4-0" in query else 3]


async def test_a_gap_is_a_refusal_where_that_was_asked_for(five: httpx.AsyncClient) -> None:
    """410 for a cursor before what was trimmed; `after=0` is never one, nor is a range's start."""
    await five.post("/v1/streams/s/trim", json={"maxlen": 2})
    failed = await five.get(f"{ENTRIES}?after=1-0&on_gap=fail", headers=ACCEPT)
    assert (failed.status_code, failed.json()["code"], failed.json()["first_available"]) == (
        410,
        "gap",
        "4-0",
    )
    for query in ("after=0&on_gap=fail", "after=3-0&on_gap=fail", "start=1-0&on_gap=fail", "after=1-0"):
        page, headers = await page_of(five, query)
        assert [entry_id for entry_id, _ in page] == ["4-0", "5-0"]
        assert headers["weir-removed-upto"] == "3-0"


async def test_only_named_fields_are_given(five: httpx.AsyncClient) -> None:
    """An entry that has none of them is there without any."""
    await five.post(ENTRIES, json={"id": "6-0", "fields": {"other": "x"}})
    await five.post(ENTRIES, json={"id": "7-0", "fields": [["n", "7"], ["x", "1"], ["n", "8"]]})
    page, _ = await page_of(five, "after=4-0&fields=n,none")
    assert page == [("5-0", [("n", "5")]), ("6-0", []), ("7-0", [("n", "7"), ("n", "8")])]


async def test_what_is_not_utf8_makes_the_page_base64(http: httpx.AsyncClient) -> None:
    """All of its names and values; a page of text alone, or of base64 that stands for text, is text."""
    await http.post(ENTRIES, json={"id": "1-0", "fields": {"t": "é"}})
    text = base64.b64encode("ü".encode()).decode()
    await http.post(ENTRIES, json={"id": "2-0", "fields": {"t": text, "b": "/wA="}, "encoding": "base64"})
    page, _ = await page_of(http, "after=0")
    assert page == [("1-0", [("t", "é".encode())]), ("2-0", [("t", "ü".encode()), ("b", b"\xff\0")])]
    page, _ = await page_of(http, "after=0&fields=t")
    assert page == [("1-0", [("t", "é")]), ("2-0", [("t", "ü")])]


async def test_ids_are_whole_however_large(http: httpx.AsyncClient) -> None:
    """Both halves have 64 bits."""
    largest = f"{ids.MS_MAX}-{ids.SEQUENCE_MAX}"
    await http.post(ENTRIES, json={"id": largest, "fields": {"a": "1"}})
    page, headers = await page_of(http, f"after={ids.MS_MAX}-0")
    assert (page, headers["weir-next-id"]) == ([(largest, [("a", "1")])], largest)


async def test_head_tells_the_same(five: httpx.AsyncClient) -> None:
    """Without the body."""
    got = await five.get(f"{ENTRIES}?after=0", headers=ACCEPT)
    head = await five.head(f"{ENTRIES}?after=0", headers=ACCEPT)
    assert (head.status_code, head.content) == (200, b"")
    fleeting = ("weir-request-id", "date")
    result = [
        {name: value for name, value in one.headers.items() if name not in fleeting} for one in (got, head)
    ]
    assert result[0] == result[1]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("after=$", 400, "malformed_id"),
        ("reverse=true", 422, "invalid"),
        ("last=3", 422, "invalid"),
        ("after=0&wait=5", 422, "invalid"),
        ("after=0&start=0", 422, "invalid"),
    ],
)
async def test_wrong_questions_are_refused(
    five: httpx.AsyncClient, query: str, status: int, code: str
) -> None:
    """What does not go with columns too."""
    answer = await five.get(f"{ENTRIES}?{query}", headers=ACCEPT)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


@pytest.mark.parametrize("change", [XTrim(stream="s", trim=Trim(maxlen=3)), Delete(streams=["s"])])
async def test_a_page_ends_before_what_a_trim_took(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, change: Command
) -> None:
    """Slices of one page have others' turns between them: the next read reports the gap."""
    monkeypatch.setattr(columns, "SLICE_BYTES_MAX", 1)
    bodies = [entries.body([("n", str(n))]) for n in range(10)]
    await reply_to(engine, XAdd(stream="s", bodies=bodies, ids=[ids.make(n, 0) for n in range(1, 11)]))
    page = ColumnsReading.of("s", bind_query(ColumnsRange, {"after": "0"}, Settings()), Settings())

    async def replies() -> list[Reply]:
        answered = await turn_of(engine, page.commands())
        return [reply for reply in answered if not isinstance(reply, EngineError)]

    page.begin(await replies())
    page.go_on(await replies())
    assert (len(page.texts), page.done) == (2, False)
    await reply_to(engine, change)
    page.go_on(await replies())
    assert (len(page.texts), page.done, page.more, page.cursor) == (2, True, True, ids.make(2, 0))


names = st.text(max_size=5)
VALUES = st.text(max_size=8) | st.binary(max_size=8)


@settings(max_examples=halves.some(80), deadline=None)
@given(
    st.lists(st.lists(st.tuples(names, VALUES), min_size=1, max_size=4), min_size=1, max_size=8),
    st.integers(1, 4),
    st.none() | st.lists(names, min_size=1, max_size=3),
)
def test_columns_stand_for_the_same_entries(
    given_entries: Sequence[Sequence[Pair]], slice_length: int, fields: Sequence[str] | None
) -> None:
    """With any fields, in any number of slices, all of them or some."""
    texts = [entries.encode(ids.make(n, n), entries.body(pairs)) for n, pairs in enumerate(given_entries)]

    def made(*, binary: bool) -> ColumnsBuilder:
        page = ColumnsBuilder(fields, binary=binary)
        for at in range(0, len(texts), slice_length):
            page.add(b",".join(texts[at : at + slice_length]))
        return page

    page = made(binary=False)
    spoilt = page.spoilt
    found = rows(msgspec.json.decode((made(binary=True) if spoilt else page).body()))
    wanted = [
        (
            f"{n}-{n}",
            [(name, _raw(value)) for name, value in pairs if fields is None or name in fields],
        )
        for n, pairs in enumerate(given_entries)
    ]
    assert [(one, [(name, _raw(value)) for name, value in pairs]) for one, pairs in found] == wanted
    assert spoilt == any(not _is_text(value) for _, pairs in wanted for _, value in pairs)


def stored(*rows: Sequence[Pair]) -> bytes:
    """A slice of entries, 1-1 the first."""
    return b",".join(entries.encode(ids.make(n, n), entries.body(pairs)) for n, pairs in enumerate(rows, 1))


def test_a_slice_of_entries_with_the_same_names_is_not_decoded() -> None:
    """Their values are made of any signs of JSON, none of them escaped."""
    text = stored([("id", ""), ("fields", ",")], [("id", "},{"), ("fields", ":{é}")])
    assert split_uniform(text) == (
        ("id", "fields"),
        [b"1-1", b"2-2"],
        [b"", b",", b"},{", ":{é}".encode()],
    )
    most = [(f"n{n}", "1") for n in range(4)]
    assert split_uniform(stored(most)) == (tuple(name for name, _ in most), [b"1-1"], [b"1"] * 4)


@pytest.mark.parametrize(
    "text",
    [
        stored([("a", "1"), ("b", "2"), ("c", "3")], [("a", "1"), ("c", "2"), ("b", "3")]),
        stored([("a", "1"), ("b", "2")], [("a", "1")]),
        stored([("a", "1")], [("a", "1"), ("b", "2")]),
        stored([("a", "1"), ("a", "2")]),
        stored([("a", "1")], [("a", "1"), ("a", "2")]),
        stored([("a", "1")], [("a", '"')]),
        stored([("a", "1")], [("a", "\\")]),
        stored([("a", "1")], [("a", "\x1f")]),
        stored([("a", "1")], [("a", b"\xff")]),
        stored([("encoding", b"\xff")]),
        stored([(",", ":")]),
        stored([("é", "1")]),
        stored([(f"n{n}", "1") for n in range(5)]),
        entries.encode(ids.make(1, 1), entries.with_meta(entries.body([("a", "1")]), {"a": "2"})),
    ],
)
def test_other_slices_are_decoded(text: bytes) -> None:
    """Other names, another order, repeats, escapes, base64, a name of signs, too many, what is beside."""
    assert split_uniform(text) is None


@settings(max_examples=halves.some(150), deadline=None)
@given(
    st.lists(st.sampled_from(("id", "fields", "a", "encoding", "7")), min_size=1, max_size=4),
    st.data(),
)
def test_similar_entries_are_told_apart(given_names: Sequence[str], data: st.DataObject) -> None:
    """Those of the same names beside those of nearly the same, with values like pieces of JSON."""
    values = st.text(alphabet='{}[]:,"\\ia\x01\x1fé', max_size=8)
    shapes = st.just(given_names) | st.permutations(given_names)
    rows_given = [
        [(name, data.draw(values)) for name in data.draw(shapes)] for _ in range(data.draw(st.integers(1, 4)))
    ]
    page = ColumnsBuilder(None)
    page.add(stored(*rows_given))
    assert rows(msgspec.json.decode(page.body())) == [
        (f"{n}-{n}", pairs) for n, pairs in enumerate(rows_given, 1)
    ]


def _raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


async def test_a_page_is_counted_as_often_as_it_is_there(http: httpx.AsyncClient, app: App) -> None:
    """As entries and as lists, and as these and as the body."""
    value = "x" * 4_000
    for _ in range(60):
        await http.post("/v1/streams/s/entries", json={"fields": {"v": value}})
    pool = app.gateway.limits.budgets.output
    another = pool.reserve("another", pool.bytes_max - 200_000)
    before = pool.peak_bytes
    answer = await http.get("/v1/streams/s/columns")
    assert 60_000 < len(answer.content) < 110_000
    assert answer.headers["weir-more"] == "true"
    assert pool.peak_bytes - before >= 2 * (len(answer.content) - 5_000)
    another.release()
