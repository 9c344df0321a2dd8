"""Live tails of the Python client: from history to live, across lost connections, with gaps reported."""

import asyncio
import threading
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weir
from tests.server import Server
from weir import AsyncClient, Client
from weir._sse import Event, EventParser, Tail


def test_a_tail_begins_in_history_and_goes_on_live(url: str, stream: str) -> None:
    with Client(url) as client, Client(url) as publisher:
        publisher.publish_batch(stream, [{"n": 0}, {"n": 1}, {"n": 2}])
        seen = []
        later = threading.Thread(target=publisher.publish, args=(stream, {"n": 3}))
        for entry in client.tail(stream, last=2):
            seen.append(entry.fields["n"])
            if seen == ["1", "2"]:
                later.start()
            if len(seen) == 3:
                break
        later.join()
    assert seen == ["1", "2", "3"]


def test_a_tail_of_several_streams_names_the_stream_of_each_entry(url: str, stream: str) -> None:
    first, second = f"{stream}1", f"{stream}2"
    with Client(url) as client:
        client.publish(first, {"n": 1}, id="5-0")
        client.publish(second, {"n": 2}, id="5-1")
        tail = client.tail(first, second, after="0")
        assert {(entry.stream, entry.id) for entry in (next(tail), next(tail))} == {
            (first, "5-0"),
            (second, "5-1"),
        }


async def test_a_tail_misses_nothing_over_kills_of_the_gateway(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        async with AsyncClient(server.url) as client:
            published, seen = 60, []

            async def publish() -> None:
                for number in range(published):
                    await client.publish("s", {"n": number})
                    if number in (20, 40):
                        await asyncio.to_thread(server.restart)

            publishing = asyncio.create_task(publish())
            async with asyncio.timeout(60):
                async for entry in client.tail("s", after="0"):
                    seen.append(int(entry.fields["n"]))
                    if len(seen) == published:
                        break
            await publishing
    assert seen == list(range(published))


def test_a_gap_raises_or_is_reported(url: str, stream: str) -> None:
    with Client(url) as client:
        for sequence in range(3):
            client.publish(stream, {"n": sequence}, id=f"5-{sequence}")
        client.trim(stream, maxlen=1)
        with pytest.raises(weir.GapError) as lost:
            next(client.tail(stream, after="5-0"))
        assert (lost.value.requested, lost.value.first_available) == ("5-0", "5-2")
        gaps: list[weir.Gap] = []
        assert next(client.tail(stream, after="5-0", on_gap=gaps.append)).id == "5-2"
        assert gaps == [weir.Gap("5-0", "5-2", None, "trimmed")]
        assert next(client.tail(stream, after="5-1")).id == "5-2", "nothing after 5-1 is missing"


def test_a_gap_says_that_a_failover_has_lost_entries() -> None:
    gap = Event(
        "gap", '{"requested":"5-1","first_available":"5-2","lost":null,"reason":"failover"}', None, None
    )
    with pytest.raises(weir.GapError, match="lost in a fail-over") as lost:
        Tail(("s",), "5-1", None, None).accept(gap)
    assert lost.value.reason == "failover"
    gaps: list[weir.Gap] = []
    Tail(("s",), "5-1", None, gaps.append).accept(gap)
    assert gaps == [weir.Gap("5-1", "5-2", None, "failover")]


def test_a_refused_tail_raises_what_was_refused(url: str, stream: str) -> None:
    with Client(url) as client, pytest.raises(weir.InvalidRequestError):
        next(client.tail(stream, after="no ID"))


@pytest.mark.parametrize(
    "event",
    ["entry\ndata: hello", "entry\ndata: {}", "entry\ndata: 7", "gap\ndata: {}", "error\ndata: []"],
)
def test_an_event_that_is_no_gateways_is_named(event: str) -> None:
    (parsed,) = EventParser().feed(f"event: {event}\n\n".encode())
    with pytest.raises(weir.NotAGatewayError):
        Tail(("s",), "5-0", None, None).accept(parsed)


def test_a_page_in_place_of_events_is_named() -> None:
    """It would be asked for again for ever otherwise."""

    def page(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, html="<html>")

    client = Client("http://gateway", transport=httpx.MockTransport(page))
    with client, pytest.raises(weir.NotAGatewayError, match="gateway/v1/streams/s/tail"):
        next(client.tail("s"))


def test_what_a_program_raises_at_a_gap_is_its_own() -> None:
    def fail(_: weir.Gap) -> None:
        raise KeyError("mine")

    gap = '{"requested":"5-0","first_available":"5-2","lost":null}'
    with pytest.raises(KeyError, match="mine"):
        Tail(("s",), "5-0", None, fail).accept(Event("gap", gap, "5-1", None))


LINES = b"id: 1-0\nevent: entry\ndata: a\xe2\x80\xa8b\n\n: comment\n\nretry: 50\r\ndata:x\rdata: y\r\n\r\n"
EVENTS = [Event("entry", "a\u2028b", "1-0", None), Event("message", "x\ny", None, 50)]


def test_a_tail_comes_back_after_the_last_id_of_any_event_when_the_gateway_says() -> None:
    gaps: list[weir.Gap] = []
    tail = Tail(("s",), "5-0", None, gaps.append)
    gap = '{"requested":"5-0","first_available":"5-2","lost":null}'
    assert tail.accept(Event("gap", gap, "5-1", None)) is None
    assert tail.accept(Event("end", "{}", None, 50)) is None
    assert (gaps, tail.ended, tail.retry_ms) == ([weir.Gap("5-0", "5-2", None)], True, 50)
    assert tail.request().headers["last-event-id"] == "5-1"


@given(st.lists(st.integers(0, len(LINES)), max_size=8))
def test_events_are_the_same_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), len(LINES)]
    parser = EventParser()
    pieces = (LINES[start:end] for start, end in pairwise(borders))
    assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS
