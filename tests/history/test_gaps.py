"""Every door says which entries are neither in the stream nor in its archive, and goes on behind them."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.history.room import STREAM, Room
from weir import Client

# Entries of one page, where a door has pages.
COUNT = 4


# A cursor, and the first entry behind what it has missed.
Missed = tuple[str, str | None]


class Read(NamedTuple):
    """What a reader got: gaps, as the cursor and the first entry behind each, and the IDs of entries."""

    gaps: list[Missed]
    ids: list[str]


def of_gap(gap: dict[str, Any]) -> Missed:
    """A gap of any door; how much is lost is not known of what was trimmed before it was archived."""
    return gap["requested"], gap["first_available"]


def by_pages(room: Room, after: str, **query: object) -> Read:
    """GET with a cursor, until there is no more."""
    gaps, found, more = list[Missed](), [], True
    while more:
        answer = room.page(after=after, count=COUNT, **query)
        page = answer.json()
        if "gap" in page:
            gaps.append(of_gap(page["gap"]))
            assert answer.headers["weir-first-available"] == page["gap"]["first_available"]
            assert room.page(after=after, on_gap="fail", **query).status_code == 410
        found += [one["id"] for one in page["entries"]]
        after, more = page["next"], page["more"]
    return Read(gaps, found)


def by_ranges(room: Room, after: str) -> Read:
    """The same up to an ID."""
    return by_pages(room, after, end="+", cursor="generation")


def by_long_polls(room: Room, after: str) -> Read:
    """The same, as one that would wait."""
    return by_pages(room, after, wait=20_000)


def by_reads_of_many(room: Room, after: str) -> Read:
    """XREAD of several streams."""
    gaps, found, more = list[Missed](), [], True
    while more:
        body = {"streams": {STREAM: after}, "count": COUNT, "wait": 10_000}
        answer = room.http.post("/v1/read", json=body)
        assert answer.status_code == 200, answer.text
        page = answer.json()["streams"][STREAM]
        if "gap" in page:
            gaps.append(of_gap(page["gap"]))
            refused = room.http.post("/v1/read", json={**body, "on_gap": "fail"})
            assert refused.status_code == 410
        found += [one["id"] for one in page["entries"]]
        after, more = page["next"], page["more"]
    return Read(gaps, found)


def by_export(room: Room, after: str) -> Read:
    """Lines."""
    text = room.http.get(f"/v1/streams/{STREAM}/export", params={"after": after}).text
    lines = [json.loads(line) for line in text.splitlines()]
    gaps = [of_gap(one["gap"]) for one in lines if "gap" in one]
    return Read(gaps, [one["id"] for one in lines if "id" in one])


def by_columns(room: Room, after: str) -> Read:
    """A header says what a cursor has missed."""
    gaps, found, more = list[Missed](), [], True
    path = f"/v1/streams/{STREAM}/columns"
    while more:
        answer = room.http.get(path, params={"after": after, "count": COUNT})
        page, headers = answer.json(), answer.headers
        own = [f"{ms}-{seq}" for ms, seq in zip(page["ms"], page["seq"], strict=True)]
        failing = room.http.get(path, params={"after": after, "count": COUNT, "on_gap": "fail"})
        assert failing.status_code in (200, 410)
        if after != "0-0" and order(headers["weir-removed-upto"]) > order(after):
            assert failing.status_code == 410
            gaps.append((after, own[0]))
        else:
            assert failing.status_code == 200
        found += own
        after, more = headers["weir-next-id"], headers["weir-more"] == "true"
    return Read(gaps, found)


def by_events(room: Room, after: str) -> Read:
    """Server-sent events, by the official client."""
    gaps: list[Missed] = []
    last = room.http.get(f"/v1/streams/{STREAM}").json()["last_id"]
    found: list[str] = []
    with Client(room.gateway.url) as client:
        tail = client.tail(
            STREAM, after=after, on_gap=lambda gap: gaps.append((gap.requested, gap.first_available))
        )
        while last not in found:
            found.append(next(tail).id)
    return Read(gaps, found)


def by_socket(room: Room, after: str) -> Read:
    """Frames of a subscription."""
    gaps, found = list[Missed](), []
    url = f"ws://127.0.0.1:{room.gateway.port}/v1/ws"
    with connect(url, subprotocols=[Subprotocol("weir.v1")]) as socket:
        socket.send(json.dumps({"op": "subscribe", "sub": "a", "streams": {STREAM: after}, "credit": 1_000}))
        while True:
            frame = json.loads(socket.recv(timeout=20))
            if frame["op"] == "gap":
                gaps.append(of_gap(frame))
            found += [one["id"] for one in frame.get("entries", ())]
            if frame["op"] == "caught_up":
                return Read(gaps, found)


def by_client(room: Room, after: str) -> Read:
    """Pages of the official client."""
    gaps, found, more = list[Missed](), [], True
    with Client(room.gateway.url) as client:
        while more:
            page = client.read_after(STREAM, after, count=COUNT)
            if page.gap is not None:
                gaps.append((page.gap.requested, page.gap.first_available))
            found += [entry.id for entry in page.entries]
            assert page.next is not None
            after, more = page.next, page.more
    return Read(gaps, found)


DOORS: list[Callable[[Room, str], Read]] = [
    *(by_pages, by_ranges, by_long_polls, by_reads_of_many, by_export),
    *(by_columns, by_events, by_socket, by_client),
]


def order(one: str) -> tuple[int, int]:
    """IDs in their order."""
    ms, _, seq = one.partition("-")
    return int(ms), int(seq)


def trim(room: Room, first_left: str) -> None:
    """By other means than the archive's."""
    room.http.post(f"/v1/streams/{STREAM}/trim", json={"minid": first_left}).raise_for_status()


@contextmanager
def begun_late(folder: Path, *, is_old: bool) -> Iterator[tuple[Room, list[str]]]:
    """Ten entries, of which three were trimmed before the others were archived and trimmed; three live."""
    room = Room(folder, is_old=is_old)
    try:
        all_ids = room.publish(*"0123456789")
        trim(room, all_ids[3])
        room.archiver.run(STREAM)
        assert room.archiver.trim() == 7
        room.served.start()
        yield room, all_ids + room.publish(*"abc")
    finally:
        room.close()


def test_what_was_trimmed_before_it_was_archived_is_a_gap_at_every_door(tmp_path: Path) -> None:
    """To a cursor below it. From 0, a reader gets what there is; at its edge nothing is missing."""
    with begun_late(tmp_path, is_old=False) as (room, all_ids):
        for door in DOORS:
            assert door(room, all_ids[0]) == ([(all_ids[0], all_ids[3])], all_ids[3:]), door
            assert door(room, "0-0") == ([], all_ids[3:]), door
            assert door(room, all_ids[2]) == ([], all_ids[3:]), door
            assert door(room, all_ids[4]) == ([], all_ids[5:]), door


def test_of_an_older_archive_what_comes_before_its_first_entry_is_a_gap(tmp_path: Path) -> None:
    """Nothing says whether there was anything; behind the first archived entry all is as ever."""
    with begun_late(tmp_path, is_old=True) as (room, all_ids):
        for door in DOORS:
            for early in (all_ids[0], "1-0"):
                assert door(room, early) == ([(early, all_ids[3])], all_ids[3:]), door
            assert door(room, "0-0") == ([], all_ids[3:]), door
            assert door(room, all_ids[3]) == ([], all_ids[4:]), door


def test_what_was_trimmed_while_the_archive_job_was_away_is_a_gap_at_every_door(tmp_path: Path) -> None:
    """Between entries of the archive; a reader that comes from before it learns of it there, once."""
    room = Room(tmp_path)
    try:
        all_ids = room.publish(*"012")
        room.archiver.run(STREAM)
        all_ids += room.publish(*"3456789")
        trim(room, all_ids[6])
        room.archiver.run(STREAM)
        assert room.archiver.trim() == 4
        room.served.start()
        all_ids += room.publish(*"abc")
        there = all_ids[:3] + all_ids[6:]
        for door in DOORS:
            for after, begin in (("0-0", 0), (all_ids[1], 2)):
                assert door(room, after) == ([(all_ids[2], all_ids[6])], there[begin:]), door
            assert door(room, all_ids[4]) == ([(all_ids[4], all_ids[6])], there[3:]), door
            assert door(room, all_ids[5]) == ([], there[3:]), door
    finally:
        room.close()
