"""Dead letters and recovery: what is delivered too often or held too long ends where it can be found."""

import asyncio
import io
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from app import logs
from app.main import App, create_app
from app.settings import Settings
from engine import Engine
from engine.errors import stream_exhausted
from tests.app.conftest import store
from tests.engine.clocks import HandClock, settle

G = "/v1/streams/s/groups/g"
BURY = G + "/dead-letter"
READ = G + "/consumers/{}/read"
DEAD = "/v1/streams/dead/entries"
NOW_MS = 1_700_000_000_000


@pytest.fixture
def clock() -> HandClock:
    return HandClock(NOW_MS)


@pytest.fixture
async def engine(clock: HandClock) -> AsyncIterator[Engine]:
    """An engine whose second passes when the test says so."""
    clock.drive(asyncio.get_running_loop())
    async with Engine.open(None, clock=clock) as engine:
        yield engine
        engine.check()


@pytest.fixture
def closed_app(settings: Settings, clock: HandClock) -> App:
    return create_app(settings, clock)


@pytest.fixture
async def held(http: httpx.AsyncClient) -> httpx.AsyncClient:
    """Of 1-0 to 3-0, which two deliveries suffice for a dead letter, a holds 1-0 and 2-0."""
    await store(http, "s", 3)
    await http.put(G, json={"start": "0", "dead_letter": {"stream": "dead", "max_deliveries": 2}})
    await http.post(READ.format("a"), json={"count": 2})
    return http


@pytest.fixture
def log() -> io.StringIO:
    """What the process's log gets."""
    target = io.StringIO()
    logs.configure("info", "json", target)
    return target


async def _dead(http: httpx.AsyncClient) -> list[dict[str, str]]:
    return [one["fields"] for one in (await http.get(DEAD)).json()["entries"]]


async def test_the_delivery_beyond_the_last_is_a_dead_letter(held: httpx.AsyncClient) -> None:
    """The entry with its fields and where it came from; it is no longer pending, and the reader gets none."""
    claim = {"consumer": "b", "min_idle_ms": 0, "ids": ["1-0"]}
    assert len((await held.post(G + "/claim", json=claim)).json()["entries"]) == 1
    assert (await held.post(G + "/claim", json=claim)).json() == {"entries": [], "more": False}
    assert await _dead(held) == [
        {
            "n": "1",
            "weir-source": "s",
            "weir-id": "1-0",
            "weir-group": "g",
            "weir-consumer": "b",
            "weir-deliveries": "2",
            "weir-reason": "max_deliveries",
        }
    ]
    pending = (await held.get(G + "/pending?count=5")).json()["pending"]
    assert [one["id"] for one in pending] == ["2-0"]


@pytest.mark.parametrize("way", ["history", "claiming read", "autoclaim"])
async def test_every_way_of_delivery_counts(held: httpx.AsyncClient, way: str) -> None:
    """The delivery beyond the limit moves the entry to the dead letters instead."""
    for _ in range(2):
        if way == "history":
            await held.post(READ.format("a"), json={"after": "0"})
        elif way == "claiming read":
            await held.post(READ.format("b"), json={"claim_min_idle_ms": 0, "count": 2})
        else:
            await held.post(G + "/autoclaim", json={"consumer": "b", "min_idle_ms": 0})
    assert [one["weir-id"] for one in await _dead(held)] == ["1-0", "2-0"]


async def test_a_poison_entry_does_not_stop_the_others(held: httpx.AsyncClient) -> None:
    """Given back for good it becomes a dead letter at the next claiming read, which then gets new ones."""
    await held.post(G + "/nack", json={"ids": ["1-0"], "mode": "fatal"})
    answer = await held.post(READ.format("b"), json={"claim_min_idle_ms": 60_000})
    assert [one["id"] for one in answer.json()["entries"]] == ["3-0"]
    assert [one["weir-id"] for one in await _dead(held)] == ["1-0"]


async def test_entries_are_dead_lettered_on_request(held: httpx.AsyncClient) -> None:
    """Pending ones of any consumer, with the reason given; the others are left alone."""
    answer = await held.post(BURY, json={"ids": ["2-0", "3-0", "2-0"], "reason": "not for us"})
    assert (answer.status_code, answer.headers["weir-durability"]) == (200, "os")
    assert answer.json() == {"stream": "dead", "ids": ["2-0"]}
    (letter,) = await _dead(held)
    assert (letter["weir-id"], letter["weir-reason"], letter["weir-consumer"]) == ("2-0", "not for us", "a")
    assert (await held.get(G)).json()["pending"] == 1


async def test_without_a_reason_it_was_by_hand(held: httpx.AsyncClient) -> None:
    """And on disk before the answer where that was asked for."""
    answer = await held.post(BURY, json={"ids": ["1-0"]}, headers={"prefer": "durability=fsync"})
    assert answer.headers["weir-durability"] == "fsync"
    assert [one["weir-reason"] for one in await _dead(held)] == ["by hand"]


async def test_a_group_without_a_dead_letter_stream_buries_nothing(held: httpx.AsyncClient) -> None:
    """422 says what is missing."""
    await held.patch(G, json={"dead_letter": None})
    answer = await held.post(BURY, json={"ids": ["1-0"]})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert "dead_letter" in answer.json()["detail"]


async def test_dead_letters_are_logged_and_counted(
    held: httpx.AsyncClient, app: App, log: io.StringIO
) -> None:
    """One warning for a turn's letters of a group, without a word of what stands in them."""
    assert app.gateway.reports.dead_letters.total == 0
    await held.post(BURY, json={"ids": ["1-0", "2-0"], "reason": "two\nlines"})
    assert app.gateway.reports.dead_letters.total == 2
    (line,) = log.getvalue().splitlines()
    result = json.loads(line)
    assert (result["level"], result["event"]) == ("warning", "dead letters")
    assert (result["stream"], result["group"], result["reason"]) == ("s", "g", "two\\nlines")
    assert (result["count"], result["ids"]) == (2, ["1-0", "2-0"])


async def test_dead_letters_that_cannot_be_moved_are_logged_once_a_minute(
    held: httpx.AsyncClient, app: App, clock: HandClock, log: io.StringIO
) -> None:
    """An error with a remedy for the group; each attempt is counted. The entries go on being delivered."""
    await store(held, "dead", 1)
    await held.post("/v1/streams/dead/last-id", json={"last_id": "18446744073709551615-0"})
    for seconds, lines in ((0, 0), (0, 1), (59, 1), (1, 2)):
        clock.pass_ms(1_000 * seconds)
        answer = await held.post(READ.format("a"), json={"after": "0"})
        assert [one["id"] for one in answer.json()["entries"]] == ["1-0", "2-0"]
        assert len(log.getvalue().splitlines()) == lines
    result = json.loads(log.getvalue().splitlines()[0])
    assert (result["level"], result["event"]) == ("error", "dead letters cannot be moved")
    assert (result["stream"], result["group"], result["dead_letter_stream"]) == ("s", "g", "dead")
    assert (result["reason"], result["count"]) == (stream_exhausted().detail, 2)
    assert "dead_letter" in result["remedy"]
    assert (app.gateway.reports.dead_letters.refused_total, app.gateway.reports.dead_letters.total) == (6, 0)


async def test_what_is_held_too_long_is_given_back(held: httpx.AsyncClient, clock: HandClock) -> None:
    """The gateway's cleaner releases it; the next reader that claims gets it, a dead one's work included."""
    await held.patch(G, json={"ack_timeout_ms": 5_000})
    clock.pass_ms(4_000)
    await settle()
    assert len((await held.get(G + "/pending")).json()["consumers"]) == 1
    clock.pass_ms(2_000)
    await settle()
    assert (await held.get(G + "/pending")).json()["consumers"] == []
    answer = await held.post(READ.format("b"), json={"claim_min_idle_ms": 60_000, "count": 2})
    assert [(one["id"], one["delivery_count"]) for one in answer.json()["entries"]] == [
        ("1-0", 2),
        ("2-0", 2),
    ]
    clock.pass_ms(6_000)
    await settle()
    assert [one["weir-id"] for one in await _dead(held)] == ["1-0", "2-0"]


async def test_a_silent_consumer_goes_and_its_entries_are_given_back(
    held: httpx.AsyncClient, clock: HandClock
) -> None:
    """Nothing is lost with it."""
    await held.patch(G, json={"consumer_timeout_ms": 5_000})
    clock.pass_ms(6_000)
    await settle()
    assert (await held.get(G + "/consumers")).json()["consumers"] == []
    assert (await held.get(G)).json()["pending"] == 2
