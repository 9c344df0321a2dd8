"""The Python client at the end of a stream: tails end, pages say so, workers stop, commands end."""

import asyncio
import threading

import pytest

from tests.cli.command import weir
from weir import ApiError, AsyncClient, Client, Delivery, Worker

ENDS_S_MAX = 20.0


def test_a_tail_ends_behind_the_last_entry(url: str, stream: str) -> None:
    """Whether it follows, or comes later."""
    with Client(url) as client, Client(url) as publisher:
        publisher.publish(stream, {"n": 1})
        last = {"n": 2}
        later = threading.Thread(
            target=publisher.close_stream, args=(stream, last), kwargs={"reason": "done"}
        )
        seen = []
        for entry in client.tail(stream, after="0"):
            seen.append(entry.fields["n"])
            if len(seen) == 1:
                later.start()
        later.join()
        assert seen == ["1", "2"]
        assert [entry.fields["n"] for entry in client.tail(stream, after="0")] == ["1", "2"]
        assert list(client.tail(stream)) == []


def test_a_tail_of_several_streams_ends_with_the_last(url: str, stream: str) -> None:
    """In any order of their ends."""
    first, second = f"{stream}1", f"{stream}2"
    with Client(url) as client:
        client.close_stream(first, {"n": 1})
        client.close_stream(second, {"n": 2})
        assert {entry.stream for entry in client.tail(first, second, after="0")} == {first, second}


def test_a_stream_is_closed_once(url: str, stream: str) -> None:
    """And refuses entries; a page and the stream say that it is closed."""
    with Client(url) as client:
        client.publish(stream, {"n": 1})
        end = client.close_stream(stream, {"n": 2}, reason="done", idempotency_key="k")
        assert client.close_stream(stream, {"n": 2}, reason="done", idempotency_key="k") == {
            **end,
            "duplicate": True,
        }
        with pytest.raises(ApiError) as refused:
            client.publish(stream, {"n": 3})
        assert refused.value.code == "stream_closed"
        first = client.read(stream, count=1)
        rest = client.read_after(stream, str(first.next), wait_ms=20_000)
        assert (first.closed, rest.closed, len(rest.entries)) == (False, True, 1)
        info = client.get_stream(stream)
        assert info is not None
        assert info["closed"]


@pytest.mark.parametrize("via", ["websocket", "long-poll"])
async def test_a_worker_stops_once_its_group_is_drained(url: str, stream: str, via: str) -> None:
    """With all of it acknowledged, what it gave back too."""
    seen: list[str] = []

    async def handle(delivery: Delivery) -> None:
        number = delivery.entry.fields["n"]
        seen.append(number)
        if number == "2" and seen.count("2") == 1:
            raise ValueError("once more")

    async with AsyncClient(url) as client:
        await client.publish(stream, {"n": 1})
        worker = Worker(url=url, stream=stream, group="g", consumer="c", start="0", via=via)  # type: ignore[arg-type]
        running = asyncio.create_task(worker.run(handle, stop_on=()))
        await client.close_stream(stream, {"n": 2})
        async with asyncio.timeout(ENDS_S_MAX):
            await running
        info = await client.group(stream, "g").info()
    assert seen == ["1", "2", "2"]
    assert (info["pending"], info["lag"]) == (0, 0)


def test_what_is_scheduled_keeps_a_stream_open_unless_it_is_dropped(url: str, stream: str) -> None:
    """The remedy of the refusal is an option of the client and of the command."""
    other = f"{stream}-other"
    with Client(url) as client:
        for one in (stream, other):
            client.publish_later(one, {"n": 1}, delay_ms=60_000, name="later")
        with pytest.raises(ApiError, match="schedules=drop") as refused:
            client.close_stream(stream)
        assert refused.value.code == "has_schedules"
        assert client.close_stream(stream, drop_schedules=True)["duplicate"] is False
        assert list(client.list_schedules(stream)) == []
        kept = weir(url, "close", other)
        assert (kept.code, "has_schedules" in kept.err) == (1, True)
        assert weir(url, "close", other, "--drop-schedules").code == 0
        closed = client.get_stream(other)
        assert closed is not None
        assert closed["closed"] is True


def test_what_is_scheduled_keeps_a_stream_unless_it_is_dropped(url: str, stream: str) -> None:
    """The command says how many there are before it asks, and names its own remedy."""
    other = f"{stream}-other"
    with Client(url) as client:
        for one in (stream, other):
            for name in ("a", "b"):
                client.publish_later(one, {"n": 1}, delay_ms=60_000, name=name)
        with pytest.raises(ApiError, match="schedules=drop") as refused:
            client.delete_stream(stream)
        assert refused.value.code == "has_schedules"
        client.delete_stream(stream, drop_schedules=True)
        assert client.get_stream(stream) is None
        kept = weir(url, "delete", other, "--yes")
        assert (kept.code, "2 schedules" in kept.err, "--drop-schedules" in kept.err) == (1, True, True)
        assert kept.err.endswith("(has_schedules)\n")
        asked = weir(url, "delete", other, "--drop-schedules")
        assert (asked.code, "0 entries, 0 groups, 2 schedules?" in asked.err) == (2, True)
        assert weir(url, "delete", other, "--drop-schedules", "1-0").code == 2
        gone = weir(url, "delete", other, "--drop-schedules", "--yes")
        assert (gone.code, gone.out) == (0, "deleted 0 entries, 0 groups, 2 schedules\n")


def test_the_command_line_closes_and_its_tail_ends(url: str, stream: str) -> None:
    """Also as a consumer of a group."""
    with Client(url) as client:
        client.publish(stream, {"n": 1}, id="5-0")
    first, again = (weir(url, "close", stream, "--reason", "done") for _ in range(2))
    assert (first.out.strip(), again.out.strip()) == ("closed behind 5-0", "it was closed already")
    tail = weir(url, "tail", stream)
    assert (tail.code, "5-0" in tail.out) == (0, True)
    with Client(url) as client:
        client.command("XGROUP", "CREATE", stream, "g", "0")
    group = weir(url, "tail", stream, "--group", "g", "--consumer", "c")
    assert (group.code, "5-0" in group.out) == (0, True)
