"""Freshness: what depends on who asks, or on a stream, is asked about each time that it is shown.

Every route is walked over, with all answers of a table: one that is added is walked over too.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, MutableMapping
from typing import Any, Final, NamedTuple

import httpx
import pytest

from app.auth import Access
from app.http.operations.operation import Operation
from app.main import App, _routes
from tests.app.conftest import calling
from tests.bounds import bounded
from tests.caching import is_asked_about

ROOT: Final = "correct-horse-battery-staple-caches"
AS_ROOT: Final = {"authorization": f"Bearer {ROOT}"}
# A stream with a group and a schedule, and a closed one.
NAMES: Final = {
    "slug": "gap",
    "file": "main.js",
    "stream": "s",
    "group": "g",
    "consumer": "c",
    "id": "1-0",
    "schedule": "tick",
    "hook": "github",
}
STREAMS: Final = ("s", "closed", "many")
QUERIES: Final = {"/v1/tail": "stream=s", "/v1/streams/{stream}/columns": "after=0"}
OTHER_FORMS: Final = ("text/event-stream", "application/x-ndjson", "application/vnd.weir.columns+json")
# They are for an upgrade, for what is signed, and for events alone.
REFUSED: Final = {
    "/v1/ws",
    "/v1/hooks/{hook}",
    "/v1/streams/{stream}/groups/{group}/consumers/{consumer}/stream",
}
_NAME: Final = re.compile(r"\{(\w+)(?::\w+)?\}")


class Answer(NamedTuple):
    """Of an application; of events their beginning."""

    status: int
    headers: dict[str, str]
    body: bytes


async def answer_to(app: App, method: str, target: str, headers: Mapping[str, str]) -> Answer:
    """Ask, and leave once the answer has begun."""
    path, _, query = target.partition("?")
    begun, pieces = asyncio.Event(), list[bytes]()
    start: MutableMapping[str, Any] = {}
    asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> MutableMapping[str, Any]:
        for message in asked:
            return message
        await begun.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            pieces.append(message.get("body", b""))
            begun.set()

    scope = {
        "type": "http",
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1:8080"), *((k.encode(), v.encode()) for k, v in headers.items())],
        "client": ("127.0.0.1", 4_711),
        "server": ("127.0.0.1", 8080),
    }
    async with asyncio.timeout(10):
        await app(scope, receive, send)
    shown = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], shown, b"".join(pieces))


def targets(route: Operation, token: str) -> Iterator[str]:
    """The URLs at which it has something to show; of a token too."""
    names = {**NAMES, "token": token}
    if route.template.startswith("/v1/stream/"):
        names["stream"] = "closed"
    path = _NAME.sub(lambda found: names[found[1]], route.template)
    query = QUERIES.get(route.template)
    yield path if query is None else f"{path}?{query}"
    if route.template.startswith("/v1/stream/"):
        # A page that ends before the stream, and one of a stream that goes on.
        yield f"{path}?offset=now"
        yield "/v1/stream/many"
        yield "/v1/stream/s"


async def fill(http: httpx.AsyncClient, word: str) -> None:
    """Make all that the routes name, with this word in it and the same IDs whichever word it is."""
    fields = {"fields": {"data": json.dumps(word)}}
    for stream in STREAMS:
        rows = [{"id": f"{number}-0", **fields} for number in range(1, 12 if stream == "many" else 2)]
        made = await http.post(f"/v1/streams/{stream}/entries", json={"entries": rows})
        assert made.status_code == 201, made.text
        made = await http.put(f"/v1/streams/{stream}/groups/g", json={"start": "0"})
        assert made.status_code == 201, made.text
        made = await http.put(f"/v1/streams/{stream}/groups/g/consumers/c")
        assert made.status_code == 201, made.text
    made = await http.put("/v1/streams/s/schedules/tick", json={"every_ms": 3_600_000, "entry": fields})
    assert made.status_code == 201, made.text
    (await http.post("/v1/streams/closed/close", json={})).raise_for_status()


@pytest.fixture(scope="session")
def settings() -> Any:
    return bounded(log_requests="none", durable_streams=True, root_token=ROOT, count_max=10)


class Filled(NamedTuple):
    """An application with all that routes name; with the ID of a token that may do little, and that token."""

    app: App
    token: str
    secret: str


@pytest.fixture
async def filled(app: App) -> AsyncIterator[Filled]:
    async with calling(app) as http:
        http.headers.update(AS_ROOT)
        await fill(http, "first")
        body = {"grants": [{"actions": ["read"], "streams": "others"}]}
        made = (await http.post("/v1/admin/tokens", json=body)).raise_for_status().json()
        yield Filled(app, made["id"], made["token"])


def routes(app: App, *methods: str) -> list[Operation]:
    """What the application serves, by these methods if some are named; what changes nothing first."""
    found = [*_routes(app.gateway.settings)]
    found.sort(key=lambda route: route.method not in ("GET", "HEAD"))
    return [route for route in found if not methods or route.method in methods]


async def test_no_answer_is_shown_again_unasked(filled: Filled) -> None:
    """Of no route: neither what it answers nor what it refuses, to whichever caller and in whichever form."""
    for route in routes(filled.app):
        has_reader = route.rule is not Access.OPEN
        for target in targets(route, filled.token):
            for headers in (AS_ROOT, {}, *({**AS_ROOT, "accept": form} for form in OTHER_FORMS)):
                answer = await answer_to(filled.app, route.method, target, headers)
                said = answer.headers.get("cache-control")
                assert is_asked_about(answer.headers, has_reader=has_reader), (route.label, target, said)
                if route.method in ("GET", "HEAD") and headers is AS_ROOT and route.template not in REFUSED:
                    assert answer.status in (200, 204), (route.label, answer.body)


async def test_an_answer_about_a_stream_does_not_hold_for_another_one(filled: Filled) -> None:
    """A stream made anew, with the same IDs: whose answer is old gets the new one."""
    before = {
        target: (route.label, await answer_to(filled.app, "GET", target, AS_ROOT))
        for route in routes(filled.app, "GET")
        for target in targets(route, filled.token)
    }
    async with calling(filled.app) as http:
        http.headers.update(AS_ROOT)
        for stream in STREAMS:
            assert (await http.delete(f"/v1/streams/{stream}?schedules=drop")).status_code == 204
        await fill(http, "second")
    tagged = {target: seen for target, seen in before.items() if "etag" in seen[1].headers}
    changed = 0
    for target, (label, old) in tagged.items():
        new = await answer_to(filled.app, "GET", target, AS_ROOT)
        changed += new.body != old.body
        for method in ("GET", "HEAD"):
            condition = {**AS_ROOT, "if-none-match": old.headers["etag"]}
            again = await answer_to(filled.app, method, target, condition)
            assert (again.status == 304) == (new.body == old.body), (label, target)
    assert changed >= 6


async def test_a_copy_holds_for_those_alone_who_may_read(filled: Filled) -> None:
    """A caller that has it, with its tag, is refused as without."""
    for route in routes(filled.app, "GET", "HEAD"):
        if route.rule is Access.OPEN:
            continue
        for target in targets(route, filled.token):
            shown = await answer_to(filled.app, route.method, target, AS_ROOT)
            condition = {"if-none-match": shown.headers.get("etag", "*")}
            for others, refused in (({}, 401), ({"authorization": f"Bearer {filled.secret}"}, 403)):
                answer = await answer_to(filled.app, route.method, target, {**others, **condition})
                assert answer.status != 304, (route.label, target)
                if "{stream" in route.template or refused == 401:
                    assert answer.status == refused, (route.label, target)
