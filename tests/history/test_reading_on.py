"""Reads that begin where the stream was trimmed go on from its archive: one cursor to what comes."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.history.room import STREAM, Room
from weir import Client


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    """With the service running."""
    made = Room(tmp_path)
    made.served.start()
    yield made
    made.close()


@pytest.fixture
def filled(room: Room) -> tuple[Room, list[str]]:
    """Ten entries archived and trimmed, five archived, five live alone."""
    all_ids = room.publish(*"0123456789")
    room.archiver.run(STREAM)
    assert room.archiver.trim() == 10
    all_ids += room.publish(*"abcde")
    room.archiver.run(STREAM)
    all_ids += room.publish(*"vwxyz")
    return room, all_ids


@pytest.mark.parametrize("count", [1, 3, 7, 100])
def test_one_cursor_goes_from_the_first_archived_entry_to_the_last_one(
    filled: tuple[Room, list[str]], count: int
) -> None:
    """Page by page, forwards and backwards; each page says from where it is."""
    room, all_ids = filled
    found: list[str] = []
    sources: list[str | None] = []
    after = "0"
    while True:
        answer = room.page(after=after, count=count)
        assert "gap" not in answer.json()
        found += [one["id"] for one in answer.json()["entries"]]
        sources.append(answer.headers.get("weir-source"))
        after = answer.json()["next"]
        if not answer.json()["more"]:
            break
    assert found == all_ids
    assert sources[0] == "history"
    assert sources[-1] is None
    backwards: list[str] = []
    end = "+"
    while True:
        page = room.page(reverse="true", end=end, count=count).json()
        backwards += [one["id"] for one in page["entries"]]
        if not page["more"]:
            break
        end = f"({page['next']}"
    assert backwards == all_ids[::-1]


def test_entries_come_as_they_were_published(room: Room) -> None:
    """Repeated names and bytes too."""
    added = room.http.post(
        f"/v1/streams/{STREAM}/entries", json={"entries": [{"fields": {"n": 'é"\\\u2028'}}]}
    )
    assert added.status_code == 201, added.text
    before = room.page(start="-").json()["entries"]
    room.archiver.run(STREAM)
    assert room.archiver.trim() == 1
    assert room.page(start="-").json()["entries"] == before
    one = room.http.get(f"/v1/streams/{STREAM}/entries/{before[0]['id']}")
    assert one.json() == before[0]


def test_ranges_end_where_they_say(filled: tuple[Room, list[str]]) -> None:
    """In the archive, at the seam and behind it."""
    room, all_ids = filled
    for low, high in ((2, 5), (8, 9), (8, 12), (0, 19), (9, 10), (10, 19)):
        expected = all_ids[low : high + 1]
        found: list[str] = []
        start = all_ids[low]
        while True:
            page = room.page(start=start, end=all_ids[high], count=4).json()
            found += [one["id"] for one in page["entries"]]
            if not page["more"]:
                break
            start = f"({page['next']}"
        assert found == expected
    assert room.ids(start=all_ids[3], end=all_ids[3]) == [all_ids[3]]


@pytest.mark.parametrize("is_live", [True, False])
def test_a_reader_scrolls_from_the_newest_entries_into_the_archive(
    filled: tuple[Room, list[str]], *, is_live: bool
) -> None:
    """As the console does: the newest ones, then page after page of older ones; of an empty stream too."""
    room, all_ids = filled
    if not is_live:
        room.archiver.run(STREAM)
        assert room.archiver.trim() == 10
    shown = room.ids(last=3)
    assert shown == all_ids[-3:]
    more = True
    while more:
        page = room.page(reverse="true", end=f"({shown[0]}", count=4).json()
        shown = [one["id"] for one in page["entries"]][::-1] + shown
        more = page["more"]
    assert shown == all_ids


def test_an_export_has_all_of_it(filled: tuple[Room, list[str]]) -> None:
    """Forwards, backwards, from a cursor."""
    room, all_ids = filled

    def lines(**query: str) -> list[Any]:
        text = room.http.get(f"/v1/streams/{STREAM}/export", params=query).text
        return [json.loads(line).get("id", line) for line in text.splitlines()]

    assert lines() == all_ids
    assert lines(reverse="true") == all_ids[::-1]
    assert lines(after=all_ids[4]) == all_ids[5:]
    assert lines(after=all_ids[4], end=all_ids[12]) == all_ids[5:13]


def test_both_tails_and_a_long_poll_go_on_live(filled: tuple[Room, list[str]]) -> None:
    """Server-sent events by the official client; the long-poll waits behind the archive."""
    room, all_ids = filled
    with Client(room.gateway.url) as client:
        tail = client.tail(STREAM, after="0-0")
        found = [next(tail).id for _ in all_ids]
        assert found == all_ids
        newest = room.publish("new")
        assert next(tail).id == newest[0]
        assert [entry.id for entry in client.entries(STREAM, page_count=3)] == all_ids + newest
        waiting: list[str] = []
        thread = threading.Thread(
            target=lambda: waiting.extend(room.ids(after=newest[0], wait=20_000)), daemon=True
        )
        thread.start()
        last = room.publish("last")
        thread.join(20)
        assert waiting == last


def test_a_subscription_begins_in_the_archive(filled: tuple[Room, list[str]]) -> None:
    """`caught_up` stands where the stream ends, and what comes follows."""
    room, all_ids = filled
    url = f"ws://127.0.0.1:{room.gateway.port}/v1/ws"
    with connect(url, subprotocols=[Subprotocol("weir.v1")]) as socket:
        socket.send(json.dumps({"op": "subscribe", "sub": "all", "streams": {STREAM: "0"}, "credit": 1_000}))
        found: list[str] = []
        while True:
            frame = json.loads(socket.recv(timeout=20))
            assert frame["op"] in ("hello", "ok", "entries", "caught_up"), frame
            found += [one["id"] for one in frame.get("entries", ())]
            if frame["op"] == "caught_up":
                break
        assert found == all_ids
        newest = room.publish("new")
        assert [one["id"] for one in json.loads(socket.recv(timeout=20))["entries"]] == newest


def test_a_wait_behind_an_archive_whose_stream_is_empty_is_a_wait(room: Room) -> None:
    """Nothing lives in the stream: a reader that has all of the archive gets what comes next."""
    all_ids = room.publish("1", "2", "3")
    room.archiver.run(STREAM)
    assert room.archiver.trim() == 3
    assert room.ids(after="0", wait=20_000) == all_ids
    waiting: list[str] = []
    thread = threading.Thread(
        target=lambda: waiting.extend(room.ids(after=all_ids[-1], wait=20_000)), daemon=True
    )
    thread.start()
    assert room.ids(after=all_ids[-1]) == []
    last = room.publish("4")
    thread.join(20)
    assert waiting == last


def test_what_the_archive_does_not_have_is_a_gap_as_ever(room: Room) -> None:
    """With `archived_up_to` told, and after what it has."""
    all_ids = room.publish(*"01234")
    room.archiver.run(STREAM)
    all_ids += room.publish(*"56789")
    room.http.post(f"/v1/streams/{STREAM}/trim", json={"minid": all_ids[8]})
    assert room.ids(after="0") == all_ids[:5]
    page = room.page(after=all_ids[4]).json()
    assert [one["id"] for one in page["entries"]] == all_ids[8:]
    assert page["gap"] == {"requested": all_ids[4], "first_available": all_ids[8], "lost": None}
    assert room.page(after=all_ids[4], on_gap="fail").status_code == 410
    assert room.http.get(f"/v1/streams/{STREAM}").json()["archived_up_to"] == all_ids[4]


def test_another_generation_is_another_stream(room: Room) -> None:
    """What was archived of the one before is not shown as its past."""
    room.publish(*"012")
    room.archiver.run(STREAM)
    room.http.delete(f"/v1/streams/{STREAM}")
    new = room.publish(*"345")
    room.archiver.run(STREAM)
    room.http.post(f"/v1/streams/{STREAM}/trim", json={"minid": new[2]})
    assert room.ids(after="0") == new[:2]
    assert room.ids(after=new[1]) == new[2:]


def test_what_was_deleted_since_it_was_archived_is_not_shown(room: Room) -> None:
    """However the stream was trimmed: the archive's own list names what `weir-spark trim` found, the gateway
    remembers the others, over a restart too.
    """
    all_ids = room.publish(*"0123456789")
    room.archiver.run(STREAM)

    def delete(*places: int) -> None:
        for place in places:
            answer = room.http.delete(f"/v1/streams/{STREAM}/entries/{all_ids[place]}")
            assert answer.status_code in (200, 204)

    delete(0, 3)
    left = [all_ids[place] for place in (1, 2, 4, 5, 6, 7, 8, 9)]
    assert room.ids(after="0") == left
    room.http.post(f"/v1/streams/{STREAM}/trim", json={"minid": all_ids[5]})
    delete(6)
    assert room.archiver.trim() == 4
    left.remove(all_ids[6])
    for _ in range(2):
        assert room.ids(after="0") == left
        assert room.ids(after="0", count=1) == left[:1]
        assert room.ids(reverse="true") == left[::-1]
        assert room.http.get(f"/v1/streams/{STREAM}/entries/{all_ids[3]}").status_code == 404
        room.gateway.kill()
        room.gateway.start()
    room.publish("new")


def test_without_the_service_the_refusal_says_what_is_missing(filled: tuple[Room, list[str]]) -> None:
    """And what is live is read as ever."""
    room, all_ids = filled
    room.served.kill()
    refused = room.page(after="0")
    assert (refused.status_code, refused.json()["code"]) == (503, "history_unavailable")
    assert room.served.url in refused.json()["detail"]
    assert room.ids(after=all_ids[9]) == all_ids[10:]
    room.served.start()
    assert room.ids(after="0", count=3) == all_ids[:3]
    metrics = room.http.get("/metrics").text
    for outcome, count in (("ok", 1), ("busy", 0), ("unavailable", 1)):
        assert f'weir_history_fetches_total{{outcome="{outcome}"}} {count}.0' in metrics
    assert "weir_history_fetch_seconds_count 1.0" in metrics


def test_a_tail_outlives_the_service(filled: tuple[Room, list[str]]) -> None:
    """The client comes back by itself."""
    room, all_ids = filled
    room.served.kill()
    with Client(room.gateway.url) as client:
        tail = client.tail(STREAM, after="0-0")
        starting = threading.Timer(0.5, room.served.start)
        starting.start()
        assert [next(tail).id for _ in all_ids] == all_ids
        starting.join()


def test_a_subscription_outlives_the_service(filled: tuple[Room, list[str]]) -> None:
    """It begins again by itself, where it was."""
    room, all_ids = filled
    room.served.kill()
    starting = threading.Timer(1.0, room.served.start)
    with connect(
        f"ws://127.0.0.1:{room.gateway.port}/v1/ws", subprotocols=[Subprotocol("weir.v1")]
    ) as socket:
        socket.send(json.dumps({"op": "subscribe", "sub": "all", "streams": {STREAM: "0"}}))
        starting.start()
        found: list[str] = []
        while len(found) < len(all_ids):
            frame = json.loads(socket.recv(timeout=30))
            assert frame["op"] not in ("error", "revoked"), frame
            found += [one["id"] for one in frame.get("entries", ())]
    starting.join()
    assert found == all_ids


def test_a_command_of_redis_reads_the_stream_alone(filled: tuple[Room, list[str]]) -> None:
    """Redis's semantics stay exact."""
    room, all_ids = filled
    found = room.http.post("/v1/commands", json=["XRANGE", STREAM, "-", "+"]).json()
    assert [one[0] for one in found["result"]] == all_ids[10:]
