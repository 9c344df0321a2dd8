"""A stream that ends under its readers: each way to end it, at each door where it is followed.

Knows: what each door's client sees, as one list of words. Must never know: how readers are woken.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx
import pytest

from app.fronts.remote_engine import RemoteEngine
from app.settings import Settings
from tests.app.pushing import Json, PushWorld
from tests.app.test_sse import EventReader
from tests.fronts.joined import join

PLACE: Final = "http://127.0.0.1:8080"
SETTINGS: Final = Settings(log_requests="none", waiters_max=10, wait_ms_max=60_000)


class House(PushWorld):
    """A gateway with a stream `s` of 1-0 and 2-0, and another one."""

    def __init__(self) -> None:
        super().__init__(SETTINGS)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=PLACE)
        # What followers do at the end.
        self.leaving: list[Callable[[], object]] = []
        self.tell("XADD s 1-0 n 1", "XADD s 2-0 n 2", "XADD other 0-7 n 7")

    def tell(self, *commands: str) -> None:
        """Run these, one after the other, with time for what they wake."""
        for command in commands:
            answer = self.run(self.http.post("/v1/commands", json=command.split()))
            assert answer.status_code == 200, answer.text
            self.settle()

    def at_once(self, *commands: str) -> None:
        """Run these in one turn."""
        words = [command.split() for command in commands]
        answer = self.run(self.http.post("/v1/commands/multi-exec", json=words))
        assert answer.status_code == 200, answer.text
        self.settle()

    def pass_ms(self, ms: int) -> None:
        """Let time pass, and what it brings."""
        self.clock.pass_ms(ms)
        self.until(lambda: True)

    @property
    def generation(self) -> str:
        found: str = self.run(self.http.get("/v1/streams/s")).json()["generation"]
        return found


class HouseOfFronts(House):
    """The same at a front."""

    async def served(self) -> RemoteEngine:
        return (await join(self.engine)).remote


def _gap(told: Any) -> str:
    return f"{told.get('reason')}: {told['requested']} to {told.get('next')}"


class LongPoll:
    """Reads behind the last answer's `next`, again and again."""

    def __init__(self, house: House, after: str, query: str) -> None:
        self._house, self._after, self._query = house, after, query
        self._seen: list[str] = []
        house.do(self._ask)
        house.leaving.append(self._leave)
        house.settle()

    def _leave(self) -> None:
        self.asked.cancel()

    def _ask(self) -> None:
        query = f"after={self._after}&wait=60000{self._query}"
        self.asked = self._house.loop.create_task(self._house.http.get(f"/v1/streams/s/entries?{query}"))
        self.asked.add_done_callback(lambda _: None if self.asked.cancelled() else self._take())

    def _take(self) -> None:
        page: Json = self.asked.result().json()
        self._seen += [_gap(page["gap"])] if "gap" in page else []
        self._seen += [one["id"] for one in page["entries"]]
        self._after = page["next"]
        self._ask()

    def news(self) -> list[str]:
        """What has come: IDs of entries, and gaps as `reason: requested to next`."""
        return list(self._seen)


class Events:
    """Server-sent events."""

    def __init__(self, house: House, after: str, query: str, path: str = "/v1/streams/s/tail") -> None:
        async def begin() -> EventReader:
            return EventReader(house.app, path, f"after={after}{query}")

        self.reader = house.run(begin())
        house.leaving.append(lambda: house.run(self.reader.leave()))
        house.settle()

    def news(self) -> list[str]:
        rows = [(one.name, json.loads(one.data)) for one in self.reader.events]
        return [
            told["id"] if name == "entry" else _gap(told) for name, told in rows if name in ("entry", "gap")
        ]


class Subscription:
    """A socket's subscription."""

    def __init__(self, house: House, after: str, query: str, **members: Any) -> None:
        self._house, self._peer = house, house.connect()
        form: Json = {"cursor": "generation"} if query else {}
        house.do(self._peer.say, "subscribe", sub="t", streams={"s": after}, **form, **members)
        house.settle()

    def grant(self, credit: int) -> None:
        self._house.do(self._peer.say, "credit", sub="t", n=credit)
        self._house.settle()

    def news(self) -> list[str]:
        found: list[str] = []
        for frame in self._peer.frames:
            if frame["op"] == "gap":
                found.append(_gap(frame))
            elif frame["op"] == "entries":
                found += [one["id"] for one in frame["entries"]]
        return found


# A client at one of the doors.
Follower = LongPoll | Events | Subscription


def _of_several(house: House, after: str, query: str) -> Events:
    return Events(house, after, f"&stream=s&stream=t{query}", "/v1/tail")


DOORS: Final[dict[str, Callable[[House, str, str], Follower]]] = {
    "long-poll": LongPoll,
    "sse": Events,
    "several": _of_several,
    "subscribe": Subscription,
}
# What ends the stream and what comes then; what is told while it is followed; what comes behind that.
WAYS: Final[dict[str, tuple[tuple[str, ...], str, list[str]]]] = {
    "DEL, XADD": (("DEL s", "XADD s 20-0 n 1"), "deleted", ["20-0"]),
    "DEL, XADD below": (("DEL s", "XADD s 0-1 n 1", "XADD s 1-0 n 1"), "deleted", ["0-1", "1-0"]),
    "FLUSHALL": (("FLUSHALL", "XADD s 3-0 n 1"), "deleted", ["3-0"]),
    "RENAME over": (("RENAME other s", "XADD s 3-0 n 1"), "replaced", ["0-7", "3-0"]),
    "COPY over": (("COPY other s REPLACE", "XADD s 3-0 n 1"), "replaced", ["0-7", "3-0"]),
    "RENAME away": (("RENAME s t2", "XADD s 3-0 n 1"), "deleted", ["3-0"]),
    "EXPIRE": (("PEXPIRE s 10", "", "XADD s 3-0 n 1"), "expired", ["3-0"]),
}


@pytest.fixture(params=[House, HouseOfFronts])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    house: House = request.param()
    yield house
    for leave in house.leaving:
        leave()
    house.settle()
    house.run(house.http.aclose())
    house.close()


def end(house: House, way: tuple[str, ...]) -> None:
    for command in way:
        if command:
            house.tell(command)
        else:
            house.pass_ms(50)


@pytest.mark.parametrize("query", ["", "&cursor=generation"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("door", DOORS)
def test_the_end_of_a_stream_is_told_to_who_follows_it(house: House, door: str, way: str, query: str) -> None:
    """Before anything of the stream that has its name then, of which nothing is left out."""
    commands, reason, new = WAYS[way]
    follower = DOORS[door](house, "0", query)
    assert follower.news() == ["1-0", "2-0"]
    end(house, commands[:-1])
    told = follower.news()[2]
    generation = told.partition(" to ")[2].partition(".")[2]
    assert told.removesuffix(f".{generation}") == f"{reason}: 2-0 to 0-0"
    end(house, commands[-1:])
    assert follower.news()[3:] == new
    # Where there is no stream there is no generation.
    assert bool(generation) is (bool(query) and reason == "replaced")


@pytest.mark.parametrize("door", DOORS)
def test_what_comes_in_the_turn_of_the_end_is_told_as_another_stream(house: House, door: str) -> None:
    """There is no moment without a stream."""
    follower = DOORS[door](house, "0", "")
    house.at_once("DEL s", "XADD s 2-0 n 1", "XADD s 2-1 n 1")
    assert follower.news() == ["1-0", "2-0", "recreated: 2-0 to 0-0", "2-0", "2-1"]


def test_a_reader_without_credit_is_told_when_it_reads_on(house: House) -> None:
    """Two of six entries were sent; the others went with the stream."""
    house.tell(*(f"XADD s {n}-0 n 1" for n in range(3, 7)))
    follower = Subscription(house, "0", "", credit=2)
    house.tell("DEL s", "XADD s 20-0 n 1")
    follower.grant(10)
    assert follower.news() == ["1-0", "2-0", "deleted: 2-0 to 0-0", "20-0"]


# ---- coming back


@pytest.mark.parametrize("door", DOORS)
def test_a_cursor_beyond_the_end_is_told_so_and_nothing_is_shown_again(house: House, door: str) -> None:
    """A stream that was made again with smaller IDs would else be silent for ever."""
    follower = DOORS[door](house, "9-0", "")
    house.tell("XADD s 2-1 n 1")
    assert follower.news() == ["ahead: 9-0 to 2-0", "2-1"]


@pytest.mark.parametrize("door", ["long-poll", "sse", "subscribe"])
def test_a_cursor_of_another_generation_is_told_so(house: House, door: str) -> None:
    """Whatever its ID is; and one of a stream that is gone, and of one that expired."""
    known = house.generation
    house.at_once("DEL s", "XADD s 1-0 n 1", "XADD s 5-0 n 1")
    follower = DOORS[door](house, f"1-0.{known}", "&cursor=generation")
    assert follower.news() == [f"recreated: 1-0 to 0-0.{house.generation}", "1-0", "5-0"]
    house.tell("DEL s")
    again = DOORS[door](house, f"1-0.{known}", "&cursor=generation")
    assert again.news() == ["deleted: 1-0 to 0-0"]


@pytest.mark.parametrize("door", DOORS)
def test_a_consumer_may_start_before_its_producer(house: House, door: str) -> None:
    """A bare cursor of a stream that is not there waits."""
    house.tell("DEL s")
    follower = DOORS[door](house, "4-0", "")
    house.tell("XGROUP CREATE s g $ MKSTREAM", "XADD s 4-1 n 1")
    assert follower.news() == ["4-1"]


def test_events_of_an_end_are_places_to_come_back_to(house: House) -> None:
    """The `id` of a gap that says where to go on: an EventSource that comes back is not told again."""
    plain, long = Events(house, "0", ""), Events(house, "0", "&cursor=generation")
    several = _of_several(house, "0", "&cursor=generation")
    second = Events(house, "0", "&stream=t&stream=s&cursor=generation", "/v1/tail")
    known = house.generation
    house.tell("RENAME other s")
    new = house.generation
    assert [one.last_id for one in plain.reader.events] == ["1-0", "2-0", "2-0", "0-0", "0-7"]
    ids = [f"1-0.{known}", f"2-0.{known}", f"2-0.{known}", f"0-0.{new}", f"0-7.{new}"]
    assert [one.last_id for one in long.reader.events] == ids
    mark = several.reader.parser.last_id.partition(".")[0]
    assert [one.last_id for one in several.reader.events] == [f"{mark}.{one}~0-0" for one in ids]
    mark = second.reader.parser.last_id.partition(".")[0]
    assert [one.last_id for one in second.reader.events] == [f"{mark}.0-0~{one}" for one in ids]
    back = Events(house, f"0-0.{new}", "")
    assert back.news() == ["0-7"]


@pytest.mark.parametrize("query", ["after=9-0", "after=1-0.0123456789abcdef", "after=9-0&wait=5000"])
def test_who_asks_for_it_is_refused(house: House, query: str) -> None:
    """410 instead, with the same members, for every form of the answer."""
    for accept in ("application/json", "application/x-ndjson", "application/vnd.weir.columns+json"):
        if "wait" in query and "json" not in accept.partition("/")[2][:5]:
            continue
        answer = house.run(
            house.http.get(f"/v1/streams/s/entries?{query}&on_gap=fail", headers={"accept": accept})
        )
        told = answer.json()
        assert (answer.status_code, told["code"]) == (410, "gap")
        assert (told["reason"], told["next"].partition(".")[0]) == (
            ("ahead", "2-0") if "9-0" in query else ("recreated", "0-0")
        )


def test_a_read_of_many_is_answered_at_once_for_one_that_is_another(house: House) -> None:
    """The others give what they have; cursors are long for all where one is."""
    body = {"streams": {"s": "1-0", "other": "0-7.0123456789abcdef", "none": "5-0"}, "wait": 60_000}
    answer = house.run(house.http.post("/v1/read", json=body)).json()["streams"]
    assert answer["other"]["gap"]["reason"] == "recreated"
    assert (answer["other"]["entries"], answer["other"]["more"]) == ([], True)
    assert answer["other"]["next"] == answer["other"]["gap"]["next"]
    assert answer["s"]["next"] == f"2-0.{house.generation}"
    assert (answer["none"]["next"], "gap" in answer["none"]) == ("5-0", False)
    refused = house.run(house.http.post("/v1/read", json={**body, "group": "g", "consumer": "c"}))
    assert refused.json()["code"] == "malformed_id"


def test_cursors_are_as_ever_for_who_does_not_ask(house: House) -> None:
    """And the gap of a trim is; who asks gets a reason and a cursor with it."""
    house.tell(*(f"XADD s {n}-0 n 1" for n in range(3, 7)), "XTRIM s MINID 5-0")
    path = "/v1/streams/s/entries?after=1-0"
    plain, long = [house.run(house.http.get(path + query)).json() for query in ("", "&cursor=generation")]
    assert plain["gap"] == {"requested": "1-0", "first_available": "5-0", "lost": None}
    assert plain["next"] == "6-0"
    before = "4-18446744073709551615"
    assert long["gap"] == {
        **plain["gap"], "reason": "trimmed", "next": f"{before}.{house.generation}"
    }  # fmt: skip
    assert long["next"] == f"6-0.{house.generation}"


@pytest.mark.parametrize(
    "text", ["1-0.", "1-0.0123", "1-0.0123456789ABCDEF", "1-0.0123456789abcdef0", ".1-0"]
)
def test_what_is_no_cursor_is_refused(house: House, text: str) -> None:
    answer = house.run(house.http.get("/v1/streams/s/entries", params={"after": text}))
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_id")
