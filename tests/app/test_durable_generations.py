"""Offsets of Durable Streams name their stream: every answer that gives one, every way to another stream.

Knows: what a reader with an offset of an earlier stream gets. Must never know: how readers wait, what the
engine is: tests/fronts and tests/cluster run all of this too.
"""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final

import httpx
import pytest

from app.auth import Grant, Principal
from app.main import App, create_app
from app.settings import Settings
from engine import SystemClock
from tests.app.policies import FixedPolicy
from tests.bounds import bounded
from tests.cluster.servers import Backend
from tests.waiting import PATIENCE_S, until_async

# In one slot of a cluster.
NAME: Final = "{chat}42"
OTHER: Final = "{chat}43"
FORK: Final = "{chat}44"
PATH: Final = f"/v1/stream/{NAME}"
JSON: Final = {"content-type": "application/json"}
CLOSES: Final = {"stream-closed": "true"}
OFFSET: Final = re.compile("[0-9a-f]{16}_[0-9a-f]{16}_[0-9a-f]{16}")
AGAIN: Final = "begin with offset=-1"

Http = httpx.AsyncClient


@pytest.fixture(scope="module")
def settings() -> Settings:
    return bounded(log_requests="none", durable_streams=True, durable_long_poll_s=20, count_max=10)


@pytest.fixture(params=["a caller", "a tenant"])
def closed_app(request: pytest.FixtureRequest, settings: Settings) -> App:
    """An application whose caller has all streams, or those under a prefix."""
    prefix = "acme/" if request.param == "a tenant" else None
    grant = Grant.from_value({"actions": ["*"], "streams": "*", "prefix": prefix})
    return create_app(settings, SystemClock(), policy=FixedPolicy(Principal("tester", [grant])))


@pytest.fixture
async def made(http: Http) -> Http:
    """A stream of two messages."""
    await create(http, NAME, 1, 2)
    return http


async def create(http: Http, name: str, *messages: int) -> httpx.Response:
    """Make a stream with these messages."""
    answer = await http.put(f"/v1/stream/{name}", headers=JSON, content=json.dumps(messages))
    assert answer.status_code == 201, answer.text
    return answer


async def append(http: Http, message: int, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await http.post(PATH, headers={**JSON, **named}, content=json.dumps([message]))


async def end_of(http: Http, name: str = NAME) -> str:
    """The offset at the end of the stream."""
    offset: str = (await http.head(f"/v1/stream/{name}")).headers["stream-next-offset"]
    return offset


async def told(http: Http, *commands: str) -> None:
    """Have these done in one turn."""
    words = [command.split() for command in commands]
    answer = await http.post("/v1/commands/multi-exec", json=words)
    assert answer.status_code == 200, answer.text


# --- every answer names it ----------------------------------------------------------------------------------


async def test_every_answer_that_has_an_offset_names_the_stream_in_it(made: Http) -> None:
    """Of each method and each kind of answer; what it is not found in has none."""
    generation = (await made.get(f"/v1/streams/{NAME}")).json()["generation"]
    producer = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}
    first = f"{PATH}?offset={await end_of(made)}"
    waiting = asyncio.create_task(made.get(f"{first}&live=long-poll"))
    answers = {
        "found": await made.put(PATH, headers=JSON),
        "head": await made.head(PATH),
        "appended": await append(made, 3),
        "by a producer": await append(made, 4, **producer),
        "a duplicate": await append(made, 4, **producer),
        "in an order": await append(made, 5, stream_seq="1"),
        "a page": await made.get(PATH),
        "the end": await made.get(f"{PATH}?offset=now"),
        "waited": await waiting,
        "closed": await made.post(PATH, headers=CLOSES),
        "closed before": await made.post(PATH, headers=CLOSES),
        "a closed page": await made.get(PATH),
        "waited at the end": await made.get(f"{PATH}?offset={await end_of(made)}&live=long-poll"),
        "refused": await append(made, 6),
    }
    offsets = {what: answer.headers["stream-next-offset"] for what, answer in answers.items()}
    events = (await made.get(f"{PATH}?offset=-1&live=sse")).text
    controls = re.findall(r'"streamNextOffset":"([^"]*)"', events)
    assert len(controls) >= 2
    offsets |= {f"event {number}": offset for number, offset in enumerate(controls)}
    assert {what for what, one in offsets.items() if not OFFSET.fullmatch(one)} == set()
    assert {one.rpartition("_")[2] for one in offsets.values()} == {generation}
    assert (answers["refused"].status_code, answers["refused"].json()["code"]) == (409, "stream_closed")
    assert await end_of(made) == offsets["closed"] == offsets["refused"] == controls[-1]


async def test_offsets_ascend_as_text_within_a_stream(http: Http) -> None:
    """That of an empty stream too."""
    offsets = [(await create(http, NAME)).headers["stream-next-offset"]]
    offsets += [(await append(http, number)).headers["stream-next-offset"] for number in range(5)]
    assert offsets == sorted(set(offsets))
    for after, offset in enumerate(offsets):
        assert (await http.get(f"{PATH}?offset={offset}")).json() == [*range(after, 5)]


# --- every way to another stream ----------------------------------------------------------------------------


async def _anew(http: Http) -> None:
    await http.delete(PATH)
    await create(http, NAME, 8, 9)


async def _in_one_turn(http: Http) -> None:
    await told(http, f"DEL {NAME}", f"XADD {NAME} * data 8", f"XADD {NAME} * data 9")


async def _renamed(http: Http) -> None:
    await create(http, OTHER, 8, 9)
    await told(http, f"RENAME {OTHER} {NAME}")


async def _copied(http: Http) -> None:
    await create(http, OTHER, 8, 9)
    await told(http, f"COPY {OTHER} {NAME} REPLACE")


async def _empty(http: Http) -> None:
    await http.delete(PATH)
    await create(http, NAME)


async def _gone(http: Http) -> None:
    await http.delete(PATH)


async def _moved(http: Http) -> None:
    await told(http, f"RENAME {NAME} {OTHER}")


Way = Callable[[Http], Coroutine[Any, Any, None]]
WAYS: Final[dict[str, Way]] = {
    "deleted and created": _anew,
    "deleted and created in one turn": _in_one_turn,
    "another one was renamed to it": _renamed,
    "another one was copied over it": _copied,
    "deleted and created without entries": _empty,
}
ENDS: Final[dict[str, Way]] = {"deleted": _gone, "renamed": _moved}
READERS: Final = ("", "&live=long-poll", "&live=sse")


def is_gap(answer: httpx.Response) -> bool:
    """Whether it refuses an offset of another stream, and says how to go on."""
    return answer.status_code == 410 and answer.json()["code"] == "gap" and AGAIN in answer.json()["detail"]


async def messages(http: Http, offset: str = "-1", name: str = NAME) -> list[int]:
    """What is behind an offset; of a stream of others what is in its entries."""
    found = (await http.get(f"/v1/stream/{name}?offset={offset}")).json()
    return [int(one["fields"]["data"]) if isinstance(one, dict) else one for one in found]


@pytest.mark.parametrize("way", WAYS)
async def test_an_offset_of_an_earlier_stream_is_refused(made: Http, way: str) -> None:
    """Of its beginning, its middle and its end, to each kind of reader; then the new one is read whole."""
    offsets = [f"{0:016x}_{0:016x}_{(await end_of(made)).rpartition('_')[2]}", await end_of(made)]
    offsets.append((await append(made, 3)).headers["stream-next-offset"])
    await WAYS[way](made)
    for offset in offsets:
        for live in READERS:
            assert is_gap(await made.get(f"{PATH}?offset={offset}{live}")), (offset, live)
    assert await messages(made) == ([] if way.endswith("without entries") else [8, 9])


@pytest.mark.parametrize("live", READERS[1:])
@pytest.mark.parametrize("way", [*WAYS, *ENDS])
async def test_who_waits_at_that_moment_gets_nothing_of_the_new_stream(
    made: Http, app: App, backend: Backend | None, way: str, live: str
) -> None:
    """A long-poll is refused at once, events end: then the client's own offset is refused."""
    offset = await end_of(made)
    waiting = asyncio.create_task(made.get(f"{PATH}?offset={offset}{live}"))
    await until_async(lambda: app.gateway.waits.count == 1)
    await (WAYS | ENDS)[way](made)
    async with asyncio.timeout(PATIENCE_S):
        answer = await waiting
    if live == "&live=sse":
        assert re.findall("data:(.*)", answer.text)[1:] == []
        answer = await made.get(f"{PATH}?offset={offset}{live}")
    is_gone = answer.status_code == 404
    # Over a backend the look may come between the two requests, when there is no stream.
    may_be_gone = backend is not None and way in {
        "deleted and created",
        "deleted and created without entries",
    }
    assert is_gone if way in ENDS else is_gap(answer) or (is_gone and may_be_gone)


async def test_an_offset_does_not_go_with_its_stream_to_another_name(made: Http) -> None:
    """There it is another stream, as is a copy."""
    offset = await end_of(made)
    await told(made, f"COPY {NAME} {FORK}", f"RENAME {NAME} {OTHER}")
    for name in (OTHER, FORK):
        for live in READERS:
            assert is_gap(await made.get(f"/v1/stream/{name}?offset={offset}{live}"))
        assert await messages(made, name=name) == [1, 2]
    assert (await made.get(f"{PATH}?offset={offset}")).status_code == 404


# --- offsets of before --------------------------------------------------------------------------------------


async def test_an_offset_without_a_generation_is_taken_as_it_was(made: Http) -> None:
    """Clients keep what an earlier version gave: it is of the stream that there is, but beyond its end."""
    bare = (await end_of(made)).rpartition("_")[0]
    await append(made, 3)
    for offset, expected in ((bare, [3]), (f"{0:016x}_{0:016x}", [1, 2, 3])):
        assert await messages(made, offset) == expected
        long_poll = await made.get(f"{PATH}?offset={offset}&live=long-poll")
        assert long_poll.json() == expected
        assert OFFSET.fullmatch(long_poll.headers["stream-next-offset"])
    await _anew(made)
    assert await messages(made, bare) == [8, 9]
    for live in READERS:
        assert is_gap(await made.get(f"{PATH}?offset={'f' * 16}_{0:016x}{live}"))


@pytest.mark.parametrize("offset", ["0_0", f"{0:016x}_{0:016x}_", f"{0:016x}_{0:016x}_{'G' * 16}", "5-0"])
async def test_what_is_no_offset_is_refused(made: Http, offset: str) -> None:
    answer = await made.get(f"{PATH}?offset={offset}")
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_header")


# --- forks --------------------------------------------------------------------------------------------------


async def fork(http: Http, offset: str, name: str = FORK, source: str = NAME) -> httpx.Response:
    place = {"stream-forked-from": f"/v1/stream/{source}", "stream-fork-offset": offset}
    return await http.put(f"/v1/stream/{name}", headers={**JSON, **place})


@pytest.mark.parametrize("form", ["with its generation", "without"])
async def test_a_fork_begins_at_an_offset_of_its_source(made: Http, form: str) -> None:
    """Made once more it is found."""
    offset = await end_of(made)
    place = offset.rpartition("_")[0] if form == "without" else offset
    await append(made, 3)
    assert (await fork(made, place)).status_code == 201
    assert await messages(made, name=FORK) == [1, 2]
    assert (await fork(made, place)).status_code == 200


async def test_readers_of_a_source_go_on_in_its_forks_as_far_as_these_have_it(made: Http) -> None:
    """Through several: an offset of the source is one of the fork, and a fork begins there; one behind the
    place where they part is one of another stream.
    """
    within, behind = [await end_of(made)], [(await append(made, 3)).headers["stream-next-offset"]]
    assert (await fork(made, within[0])).status_code == 201
    for name, source in ((OTHER, FORK), ("{chat}45", OTHER)):
        body = json.dumps([10])
        made_of = await made.post(f"/v1/stream/{source}", headers=JSON, content=body)
        within.append(made_of.headers["stream-next-offset"])
        await fork(made, within[-1], name, source)
        made_of = await made.post(f"/v1/stream/{source}", headers=JSON, content=body)
        behind.append(made_of.headers["stream-next-offset"])
    last = "{chat}45"
    assert await messages(made, name=last) == [1, 2, 10, 10]
    for number, offset in enumerate(within):
        assert await messages(made, offset, last) == [10, 10][number:]
        assert (await fork(made, offset, f"{last}-{number}", last)).status_code == 201
    for number, offset in enumerate(behind):
        for live in READERS:
            assert is_gap(await made.get(f"/v1/stream/{last}?offset={offset}{live}")), number
        assert (await fork(made, offset, f"{last}-behind", last)).status_code == 410
    await told(made, f"COPY {last} {{chat}}46")
    assert is_gap(await made.get(f"/v1/stream/{{chat}}46?offset={within[0]}"))


@pytest.mark.parametrize("way", [way for way in WAYS if way != "deleted and created in one turn"])
async def test_a_fork_at_an_offset_of_an_earlier_stream_is_refused(made: Http, way: str) -> None:
    """410, with the way on, and nothing is made; beyond the end of its own it is 400."""
    offset = await end_of(made)
    await WAYS[way](made)
    refused = await fork(made, offset)
    assert (refused.status_code, refused.json()["code"]) == (410, "gap")
    assert "offset=-1" in refused.json()["detail"]
    beyond = f"{'f' * 16}_{0:016x}_{(await end_of(made)).rpartition('_')[2]}"
    for place in (beyond, beyond.rpartition("_")[0]):
        refused = await fork(made, place)
        assert (refused.status_code, refused.json()["code"]) == (400, "malformed_header")
    assert (await made.head(f"/v1/stream/{FORK}")).status_code == 404
    assert (await fork(made, "-1")).status_code == 201
    assert (await fork(made, "now", OTHER + "f")).status_code == 201
