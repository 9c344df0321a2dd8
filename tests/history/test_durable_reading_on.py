"""Readers of Durable Streams go on from the archive too: one offset to what comes."""

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.history.room import STREAM, Room

PATH = f"/v1/stream/{STREAM}"
TEXT = {"content-type": "text/plain"}


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    """With the service running, and long-polls of a second."""
    made = Room(tmp_path, settings=("durable_long_poll_s=1",))
    made.served.start()
    yield made
    made.close()


def append(room: Room, texts: str) -> list[str]:
    """A message for each character; the offsets behind them."""
    answers = [room.http.post(PATH, headers=TEXT, content=text).raise_for_status() for text in texts]
    return [answer.headers["stream-next-offset"] for answer in answers]


@pytest.fixture
def filled(room: Room) -> tuple[Room, list[str]]:
    """Five messages archived and trimmed, two live alone; the offsets behind them."""
    room.http.put(PATH, headers=TEXT).raise_for_status()
    offsets = append(room, "01234")
    room.archiver.run(STREAM)
    assert room.archiver.trim() == 5
    return room, offsets + append(room, "ab")


def get(room: Room, offset: str, **query: str) -> httpx.Response:
    return room.http.get(PATH, params={"offset": offset, **query})


def events(room: Room, offset: str, until: str) -> str:
    """What an event stream says, up to this."""
    found = ""
    with room.http.stream("GET", PATH, params={"offset": offset, "live": "sse"}) as answer:
        assert answer.status_code == 200
        for piece in answer.iter_text():
            found += piece
            if until in found:
                return found
    raise AssertionError(f"it ended: {found}")


@pytest.mark.parametrize("live", [{}, {"live": "long-poll"}])
def test_pages_go_from_the_first_archived_message_to_the_last(
    filled: tuple[Room, list[str]], live: dict[str, str]
) -> None:
    """Those of the archive say so, and are not the end."""
    room, offsets = filled
    offset, pages, sources = "-1", [], []
    while True:
        answer = get(room, offset, **live)
        assert answer.status_code == 200, answer.text
        offset = answer.headers["stream-next-offset"]
        pages.append(answer.text)
        sources.append(answer.headers.get("weir-source"))
        if "stream-up-to-date" in answer.headers:
            break
    assert pages == ["01234", "ab"]
    assert sources == ["history", None]
    assert offset == offsets[-1]
    assert [get(room, one, **live).text for one in offsets[:5]] == ["1234", "234", "34", "4", "ab"]


def test_a_long_poll_waits_behind_an_archive_whose_stream_is_empty(filled: tuple[Room, list[str]]) -> None:
    """And is answered by what comes."""
    room, offsets = filled
    room.archiver.run(STREAM)
    assert room.archiver.trim() == 2
    assert get(room, offsets[4], live="long-poll").text == "ab"
    assert get(room, offsets[6], live="long-poll").status_code == 204
    coming = threading.Timer(0.3, append, (room, "x"))
    coming.start()
    assert get(room, offsets[6], live="long-poll").text == "x"
    coming.join()


@pytest.mark.parametrize(("begin", "expected"), [(-1, "01234ab"), (1, "234ab"), (4, "ab")])
def test_events_go_on_from_the_archive(filled: tuple[Room, list[str]], begin: int, expected: str) -> None:
    room, offsets = filled
    found = events(room, "-1" if begin < 0 else offsets[begin], "upToDate")
    data = [block for block in found.split("\n\n") if block.startswith("event: data")]
    assert "".join(block.partition("data:")[2] for block in data) == expected


def test_what_a_stream_is_does_not_ask_the_archive(filled: tuple[Room, list[str]]) -> None:
    room, offsets = filled
    room.served.kill()
    assert room.http.head(PATH).headers["stream-next-offset"] == offsets[-1]
    assert get(room, offsets[4]).text == "ab"
    assert get(room, "now").text == ""


def test_without_the_service_the_refusal_says_so(filled: tuple[Room, list[str]]) -> None:
    """Not that the messages are gone: with it they come."""
    room, offsets = filled
    room.served.kill()
    for offset in ("-1", offsets[1]):
        for query in ({}, {"live": "long-poll"}, {"live": "sse"}):
            refused = get(room, offset, **query)
            assert (refused.status_code, refused.json()["code"]) == (503, "history_unavailable")
    room.served.start()
    assert get(room, offsets[1]).text == "234"


def test_what_the_archive_does_not_have_is_gone(room: Room) -> None:
    """Trimmed before it was archived, behind what was: of a page, a long-poll, and events."""
    room.http.put(PATH, headers=TEXT).raise_for_status()
    offsets = append(room, "012")
    room.archiver.run(STREAM)
    offsets += append(room, "34567")
    room.http.post(f"/v1/streams/{STREAM}/trim", json={"maxlen": 2}).raise_for_status()
    assert get(room, offsets[0]).text == "12"
    ended = room.http.get(PATH, params={"offset": offsets[0], "live": "sse"})
    assert ended.status_code == 200
    assert "streamNextOffset" in ended.text
    assert offsets[2] in ended.text
    for query in ({}, {"live": "long-poll"}, {"live": "sse"}):
        for offset in offsets[2:5]:
            refused = get(room, offset, **query)
            assert (refused.status_code, refused.json()["code"]) == (410, "gap")
            assert get(room, named_in(refused)).text == "67"
    assert get(room, offsets[5]).text == "67"


def test_what_is_missing_between_entries_of_the_archive_is_gone(room: Room) -> None:
    """The refusal names where there is something again: from the beginning on a reader would meet the gap
    once more.
    """
    room.http.put(PATH, headers=TEXT).raise_for_status()
    offsets = append(room, "012")
    room.archiver.run(STREAM)
    offsets += append(room, "34567")
    room.http.post(f"/v1/streams/{STREAM}/trim", json={"maxlen": 2}).raise_for_status()
    room.archiver.run(STREAM)
    assert room.archiver.trim() == 2
    append(room, "89")
    assert get(room, "-1").text == "012"
    for query in ({}, {"live": "long-poll"}, {"live": "sse"}):
        refused = get(room, offsets[2], **query)
        assert refused.status_code == 410, refused.text
        assert get(room, named_in(refused)).text == "67"


def named_in(refused: httpx.Response) -> str:
    """The offset that a refusal names."""
    words, _, offset = str(refused.json()["detail"]).partition("go on with offset=")
    assert words.startswith("entries behind this offset were removed")
    return offset
