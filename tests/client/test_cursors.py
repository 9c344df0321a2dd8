"""Cursors of the Python client name their stream, so that another one of the same name is told from it.

Knows: a gateway that knows such cursors. Must never know: their form.
"""

from collections.abc import Iterator

import pytest

import weir
from weir import AsyncClient, Client, Gap, _sse
from weir._cursors import bare


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


def _replace(client: Client, stream: str) -> None:
    """Another stream of the name, with smaller IDs, as an import has them."""
    client.delete_stream(stream)
    client.publish(stream, {"n": "new"}, id="3-0")


def test_a_page_after_another_stream_took_the_name_has_a_gap_and_no_entries(
    client: Client, stream: str
) -> None:
    client.publish(stream, {"n": "old"}, id="7-0")
    page = client.read_after(stream, "0")
    assert [one.fields["n"] for one in page.entries] == ["old"]
    assert page.next is not None
    _replace(client, stream)
    told = client.read_after(stream, page.next, wait_ms=10_000)
    assert told.gap is not None
    assert (told.gap.requested, told.gap.reason, told.entries) == ("7-0", "recreated", ())
    assert told.next is not None
    assert [one.fields["n"] for one in client.read_after(stream, told.next).entries] == ["new"]


async def test_a_page_with_asyncio_has_it_too(client: Client, url: str, stream: str) -> None:
    async with AsyncClient(url) as other:
        client.publish(stream, {"n": "old"}, id="7-0")
        page = await other.read_after(stream, "0")
        _replace(client, stream)
        told = await other.read_after(stream, page.next or "")
        assert told.gap is not None
        assert told.gap.reason == "recreated"


def test_all_entries_end_where_another_stream_takes_the_name(client: Client, stream: str) -> None:
    client.publish_batch(stream, [{"n": 0}, {"n": 1}])
    entries = client.entries(stream, page_count=1)
    next(entries)
    _replace(client, stream)
    with pytest.raises(weir.GapError, match="was deleted and made again after") as gap:
        next(entries)
    assert gap.value.reason == "recreated"


@pytest.mark.parametrize("others", [0, 1])
def test_a_tail_is_told_what_happened_to_its_stream(client: Client, stream: str, others: int) -> None:
    """And goes on with the next one from its first entry on; one of several streams as well."""
    names = [stream, *(f"{stream} other" for _ in range(others))]
    gaps: list[Gap] = []
    client.publish(stream, {"n": "old"}, id="7-0")
    tail = client.tail(*names, after="0", on_gap=gaps.append)
    assert next(tail).fields["n"] == "old"
    client.delete_stream(stream)
    client.publish(stream, {"n": "new"}, id="3-0")
    assert next(tail).fields["n"] == "new"
    assert {one.reason for one in gaps} <= {"deleted", "recreated"}
    assert gaps


def test_a_tail_that_was_away_is_told_too(client: Client, stream: str) -> None:
    """By the cursor that it comes back with."""
    gaps: list[Gap] = []
    client.publish(stream, {"n": "old"}, id="7-0")
    tail = _sse.Tail((stream,), "0", None, gaps.append)
    _until_entry(client, tail)
    _replace(client, stream)
    assert _until_entry(client, tail).fields["n"] == "new"
    assert [one.reason for one in gaps] == ["recreated"]


def _until_entry(client: Client, tail: _sse.Tail) -> weir.Entry:
    """The next entry of a connection of its own."""
    with client._events(tail) as pieces:  # noqa: SLF001 - not one connection after the other
        parser = _sse.EventParser()
        for piece in pieces:
            for event in parser.feed(piece):
                if (entry := tail.accept(event)) is not None:
                    return entry
    raise AssertionError("the connection ended without an entry")


def test_a_gap_of_a_reason_of_tomorrow_is_a_gap() -> None:
    """A newer gateway may have others."""
    data = '{"requested":"5-0","first_available":"5-2","lost":2,"reason":"of_tomorrow","next":"5-1"}'
    event = _sse.Event("gap", data, "5-1", None)
    with pytest.raises(weir.GapError) as lost:
        _sse.Tail(("s",), "5-0", None, None).accept(event)
    assert str(lost.value) == "2 entries of 's' after 5-0 were lost (of_tomorrow)"
    gaps: list[Gap] = []
    _sse.Tail(("s",), "5-0", None, gaps.append).accept(event)
    assert gaps == [Gap("5-0", "5-2", 2, "of_tomorrow")]


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        (None, "an unknown number of entries of 's' after 5-0 were removed before they were read"),
        ("trimmed", "an unknown number of entries of 's' after 5-0 were removed before they were read"),
        ("failover", "an unknown number of entries of 's' after 5-0 were lost in a fail-over"),
        ("deleted", "the stream 's' was deleted after 5-0 was read"),
        ("expired", "the stream 's' has expired after 5-0 was read"),
        ("replaced", "the stream 's' was replaced by another one after 5-0 was read"),
        ("recreated", "the stream 's' was deleted and made again after 5-0 was read"),
        ("restored", "the stream 's' was restored from an older state after 5-0 was read"),
        ("ahead", "the stream 's' ends before 5-0, so entries were lost or it is another one"),
    ],
)
def test_each_reason_is_a_sentence(reason: str | None, says: str) -> None:
    assert str(weir.GapError("s", "5-0", None, None, reason)) == says


@pytest.mark.parametrize(
    ("cursor", "found"),
    [
        ("5-0", "5-0"),
        ("5-0.9f86d081884c7d65", "5-0"),
        ("$", "$"),
        ("1c2d3e4f.5-0~0-0", "1c2d3e4f.5-0~0-0"),
        ("1c2d3e4f.5-0.9f86d081884c7d65~0-0", "1c2d3e4f.5-0~0-0"),
        ("1c2d3e4f.5-0.9f86d081884c7d65~6-0.9f86d081884c7d66", "1c2d3e4f.5-0~6-0"),
        ("0", "0"),
    ],
)
def test_what_an_older_gateway_is_given_has_no_generation(cursor: str, found: str) -> None:
    assert bare(cursor) == found
