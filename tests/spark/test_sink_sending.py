"""The sink's tasks against a real gateway: what is sent again is stored once."""

from collections.abc import Iterator, Sequence

import httpx
import pytest

from pyspark_weir.errors import PipelineError
from pyspark_weir.gateway import GatewayAccess, GatewayClient
from pyspark_weir.sink.keys import TaskId, keys
from pyspark_weir.sink.rows import SinkEntry
from pyspark_weir.sink.sending import Sent, SinkSender
from tests.server import Server


def numbers(stream: str, count: int, *, start: int = 0) -> list[SinkEntry]:
    return [SinkEntry(stream, None, [("n", str(n))], None) for n in range(start, start + count)]


def send(
    gateway: GatewayClient, entries: Sequence[SinkEntry], mode: str, place: TaskId, *, in_flight: int = 1
) -> Sent:
    known = keys(mode, place)  # type: ignore[arg-type] # a mode of the test's
    return SinkSender(gateway, known, rows_max=10, in_flight=in_flight).send(entries, place)


def stored(gateway: GatewayClient, stream: str) -> list[str]:
    answer = gateway.get(f"/v1/streams/{stream}/entries", {"count": 10_000})
    return [entry["fields"]["n"] for entry in answer["entries"]]


class TestContent:
    def test_rows_in_another_order_and_partition_are_stored_once(self, gateway: GatewayClient) -> None:
        """As after a shuffle: one task fails half-way, and its rows come elsewhere, otherwise."""
        entries = numbers("content", 95)
        send(gateway, entries[:40], "content", TaskId("spark/q", 0, 0))
        send(gateway, entries[::-1], "content", TaskId("spark/q", 0, 1))
        assert sorted(stored(gateway, "content"), key=int) == [str(n) for n in range(95)]

    def test_the_stream_remembers_more_than_redis_does_by_default(self, gateway: GatewayClient) -> None:
        """100 keys for 100 seconds would not hold one chunk."""
        entries = numbers("window", 1_000)
        send(gateway, entries, "content", TaskId("spark/w", 0, 0))
        send(gateway, entries, "content", TaskId("spark/w", 0, 0))
        assert len(stored(gateway, "window")) == 1_000

    def test_a_stream_is_prepared_once(self, server: Server) -> None:
        """Two streams, each in several chunks: the second is prepared when its first chunk comes."""
        asked: list[bytes] = []

        class Watched(httpx.HTTPTransport):
            def handle_request(self, request: httpx.Request) -> httpx.Response:
                asked.append(request.read())
                return super().handle_request(request)

        place = TaskId("spark/once", 0, 0)
        entries = [*numbers("once-a", 25), *numbers("once-b", 25)]
        with GatewayClient(GatewayAccess("g0", server.url), transport=Watched()) as gateway:
            for name in ("once-a", "once-b"):
                gateway.ensure_stream(name)
            SinkSender(gateway, keys("content", place), rows_max=10).send(entries, place)
        prepared = [body for body in asked if b"XCFGSET" in body]
        assert [(b"once-a" in body, b"once-b" in body) for body in prepared] == [(True, False), (False, True)]

    def test_bytes_arrive_as_they_are(self, gateway: GatewayClient) -> None:
        """In the command API's base64."""
        entry = SinkEntry("raw", None, [("a", b"\xff"), ("a", "2")], None)
        for _ in range(2):
            send(gateway, [entry], "content", TaskId("spark/r", 0, 0))
        (found,) = gateway.get("/v1/streams/raw/entries")["entries"]
        assert found["pairs"] == [["a", "/w=="], ["a", "Mg=="]]
        assert found["encoding"] == "base64"

    def test_a_key_of_a_column_counts_beyond_the_batch(self, gateway: GatewayClient) -> None:
        """So a dead letter is not put back twice by two runs."""
        for epoch, value in enumerate("12"):
            entry = SinkEntry("keyed", None, [("n", value)], "source-1")
            send(gateway, [entry], "content", TaskId("job/requeue", epoch, 0))
        assert stored(gateway, "keyed") == ["1"]


class TestNone:
    def test_what_is_sent_again_is_stored_again(self, gateway: GatewayClient) -> None:
        """At least once, as asked for."""
        for _ in range(2):
            send(gateway, numbers("none", 3), "none", TaskId("spark/n", 0, 0))
        assert stored(gateway, "none") == ["0", "1", "2"] * 2


def test_several_requests_under_way_store_all(gateway: GatewayClient) -> None:
    """Their order is the gateway's; each chunk stays whole."""
    sent = send(gateway, numbers("wide", 95), "none", TaskId("spark/i", 0, 0), in_flight=4)
    assert (sent.rows, sent.chunks) == (95, 10)
    assert sorted(stored(gateway, "wide"), key=int) == [str(n) for n in range(95)]


def test_chunks_are_read_ahead_as_far_as_they_are_under_way(gateway: GatewayClient) -> None:
    """A fast source is not held in memory as a whole: when its end is read, two of 39 chunks may be open."""
    stored_at_end: list[int] = []

    def entries() -> Iterator[SinkEntry]:
        yield from numbers("ahead", 400)
        stored_at_end.append(gateway.get("/v1/streams/ahead")["length"])

    place = TaskId("spark/a", 0, 0)
    SinkSender(gateway, keys("none", place), rows_max=10, in_flight=2).send(entries(), place)
    assert stored_at_end[0] >= 370
    assert len(stored(gateway, "ahead")) == 400


def test_a_refused_chunk_ends_the_task(gateway: GatewayClient) -> None:
    """An ID that does not grow: the gateway's words reach the user, nothing of the chunk is stored."""
    entries = [SinkEntry("ids", "5-1", [("n", "1")], None), SinkEntry("ids", "4-1", [("n", "2")], None)]
    for in_flight in (1, 4):
        with pytest.raises(PipelineError, match=r"publishing chunk 0 to ids.*id_not_increasing"):
            send(gateway, entries, "none", TaskId("spark/x", 0, 0), in_flight=in_flight)
    assert stored(gateway, "ids") == []


def test_a_pace_is_kept_between_chunks(gateway: GatewayClient) -> None:
    """10 a second, chunks of 10: each after the first waits a second."""
    waited: list[float] = []
    place = TaskId("spark/p", 0, 0)
    known = keys("none", place)
    sender = SinkSender(gateway, known, rows_max=10, per_s=10, clock=lambda: 0.0, wait=waited.append)
    sender.send(numbers("paced", 25), place)
    assert waited == [1.0, 2.0]
    assert len(stored(gateway, "paced")) == 25


class TestPosition:
    def test_chunks_that_are_sent_again_are_stored_once(self, gateway: GatewayClient) -> None:
        """A task that died after four of ten chunks."""
        place = TaskId("spark/p1", 0, 0)
        entries = numbers("position", 95)
        send(gateway, entries[:40], "position", place)
        again = send(gateway, entries, "position", place)
        assert (again.chunks, again.repeated, again.rows) == (10, 4, 95)
        assert stored(gateway, "position") == [str(n) for n in range(95)]

    def test_a_new_batch_is_new_and_the_one_before_still_known(self, gateway: GatewayClient) -> None:
        """The same rows in the next batch are other entries; a late repetition of the last batch is none."""
        for epoch in (0, 1, 0):
            send(gateway, numbers("epochs", 5), "position", TaskId("spark/p2", epoch, 0))
        assert len(stored(gateway, "epochs")) == 10

    def test_a_task_of_the_past_is_fenced_off(self, gateway: GatewayClient) -> None:
        """A zombie with something new to say, two batches later: it ends with what to do."""
        for epoch in (7, 8, 9):
            send(gateway, numbers("fenced", 5), "position", TaskId("spark/p3", epoch, 0))
        with pytest.raises(PipelineError, match=r"WEIR_FENCED.*epoch 7 of spark/p3/0 is over.*epoch 9"):
            send(gateway, numbers("fenced", 5), "position", TaskId("spark/p3", 7, 0))
        assert len(stored(gateway, "fenced")) == 15

    def test_rows_that_moved_within_the_batch_are_noticed(self, gateway: GatewayClient) -> None:
        """One was deleted from the source before the batch ran again: its chunks hold other rows by now, and
        the gateway would call them repeated.
        """
        place = TaskId("spark/p4", 0, 0)
        entries = numbers("moved", 95)
        send(gateway, entries[:40], "position", place)
        for gone in (0, 5):
            with pytest.raises(PipelineError, match="WEIR_CHANGED: chunk 0 of spark/p4/0"):
                send(gateway, entries[:gone] + entries[gone + 1 :], "position", place)

    def test_rows_that_came_since_are_noticed(self, gateway: GatewayClient) -> None:
        """The last chunk was stored shorter: the gateway refuses it, and the user hears what to do."""
        place = TaskId("spark/p6", 0, 0)
        send(gateway, numbers("longer", 15), "position", place)
        for mine in (numbers("longer", 16), numbers("elsewhere", 15)):
            with pytest.raises(PipelineError, match=r"WEIR_CHANGED: chunk [01] of spark/p6/0.*another jobId"):
                send(gateway, mine, "position", place)
        assert len(stored(gateway, "longer")) == 15

    def test_another_job_under_the_same_name_is_noticed(self, gateway: GatewayClient) -> None:
        """Its rows would be taken for those of yesterday's."""
        send(gateway, numbers("daily", 10), "position", TaskId("job/daily", 0, 0))
        with pytest.raises(PipelineError, match="another jobId"):
            send(gateway, numbers("daily", 10, start=10), "position", TaskId("job/daily", 0, 0))

    def test_what_was_trimmed_since_is_no_change(self, gateway: GatewayClient) -> None:
        """The chunk is known by its number; its entries may have been worked on and be gone."""
        place = TaskId("spark/p5", 0, 0)
        send(gateway, numbers("trimmed", 10), "position", place)
        gateway.post("/v1/streams/trimmed/trim", {"maxlen": 0})
        assert send(gateway, numbers("trimmed", 10), "position", place).repeated == 1

    def test_bytes_and_repeated_names_are_recognised(self, gateway: GatewayClient) -> None:
        """As they are sent and as the gateway shows them, they are the same entry."""
        entries = [
            SinkEntry("bytes", None, [("a", b"\xff"), ("b", "text")], None),
            SinkEntry("bytes", None, [("a", "1"), ("a", b"\xfe")], None),
            SinkEntry("bytes", None, [("a", "1"), ("a", "2")], None),
            SinkEntry("bytes", None, [("a", b"plain")], None),
        ]
        for entry in entries:
            for _ in range(2):
                send(gateway, [entry], "position", TaskId(f"spark/{entries.index(entry)}", 0, 0))
        assert gateway.get("/v1/streams/bytes")["length"] == len(entries)
