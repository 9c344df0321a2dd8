"""Tokens over HTTP: every route, action and grant; what each API asks; what ends with a token."""

import asyncio
import re
from pathlib import Path
from typing import Final

import httpx
import pytest

from app.auth import Access, Action
from app.http.operations.operation import Operation
from app.main import ROUTES, App
from engine import Engine, entries
from engine.commands.types import XAdd
from tests.app.auth.callers import ROOT, app_with, client, made
from tests.app.test_sse import EventReader
from tests.engine.asking import reply_to
from tests.engine.clocks import settle
from tests.waiting import until_async

GUARDED: Final = [route for route in ROUTES if route.rule is not Access.OPEN]
BODIES: Final = {
    "runCommand": '["XLEN","s"]',
    "runPipeline": '[["XLEN","s"]]',
    "runTransaction": '[["XLEN","s"]]',
    "readStreams": '{"streams":{"s":"0"}}',
    "plan": '{"streams":{"s":"0"}}',
    "publish": '{"streams":{"s":[{"fields":{"a":"b"}}]}}',
    "createToken": '{"grants":[{"actions":["read"]}]}',
    "createRevocation": '{"jti":"x"}',
}
# Of these routes, beside `admin` on all streams: any grant with `issue`.
OF_ISSUERS: Final = ("listTokens", "getToken", "deleteToken")
# Of routes that name no action: what the request above needs.
NEEDED: Final = {
    "runCommand": Action.READ,
    "runPipeline": Action.READ,
    "runTransaction": Action.READ,
    "readStreams": Action.READ,
    "plan": Action.READ,
    "publish": Action.WRITE,
    "tailStreams": Action.READ,
    "listStreams": Action.READ,
    "listAllSchedules": Action.READ,
    # `consume`, of both, if it transfers what the consumer holds.
    "deleteConsumer": Action.MANAGE,
    # Any grant will do.
    "createTicket": None,
    "getCaller": None,
    # `issue` alone covers nothing that can be read.
    "createToken": Action.ADMIN,
    **dict.fromkeys(OF_ISSUERS, Action.ADMIN),
}


async def ask(http: httpx.AsyncClient, route: Operation, stream: str = "s") -> httpx.Response:
    names = {"stream": stream, "group": "g", "consumer": "c", "id": "1-0", "token": "000000000000"}
    names["schedule"] = "a"
    path = re.sub(r"\{(\w+)\}", lambda match: names[match[1]], route.template)
    if route.operation_id == "tailStreams":
        path += f"?stream={stream}"
    content = None
    if route.method not in ("GET", "HEAD"):
        content = BODIES.get(route.operation_id, "{}").replace('"s"', f'"{stream}"')
    if route.end is not None:
        # Events have no end; their headers do.
        return await http.head(path, headers={"accept": "text/event-stream"})
    return await http.request(route.method, path, content=content)


def needed(route: Operation) -> Action | None:
    return route.rule if isinstance(route.rule, Action) else NEEDED[route.operation_id]


async def test_every_route_allows_what_the_grant_says_and_nothing_else(
    engine: Engine, tmp_path: Path
) -> None:
    """Route × action × stream; 403 is a problem with WWW-Authenticate. A grant for all is asked where a
    route is about no stream.
    """
    made_tokens = {
        (action, stream): made(f"{action}:{stream}") for action in Action for stream in ("s", "other", "*")
    }
    app = await app_with(engine, tmp_path, *made_tokens.values())
    # What destroys the stream or the group goes last, over all tokens.
    for route in sorted(GUARDED, key=lambda route: route.method == "DELETE"):
        is_of_stream = "{stream}" in route.template or '"s"' in BODIES.get(route.operation_id, "")
        is_of_stream |= route.operation_id == "tailStreams"
        for (action, stream), token in made_tokens.items():
            async with client(app, token.text) as http:
                answer = await ask(http, route)
            wanted = needed(route)
            # Who may manage a stream may close it.
            allowed = {None, action, Action.CLOSE if action is Action.MANAGE else action}
            expected = wanted in allowed and (stream in ("*", "s") or not is_of_stream)
            # A list shows what its caller may read; metrics are about all streams.
            is_list = wanted in (None, Action.READ) and route.template != "/metrics"
            if not is_of_stream and not is_list:
                expected &= stream == "*"
            expected |= route.operation_id in OF_ISSUERS and action is Action.ISSUE
            assert (answer.status_code != 403) is expected, (route.operation_id, action, stream)
            if answer.status_code == 403:
                assert answer.headers["www-authenticate"] == 'Bearer error="insufficient_scope"'
                assert answer.headers["content-type"] == "application/problem+json"
                # It does not tell whether the stream is there.
                assert "'s'" not in answer.text


async def test_every_route_refuses_callers_without_a_token(engine: Engine, tmp_path: Path) -> None:
    """401, also where the request is wrong in other ways."""
    app = await app_with(engine, tmp_path)
    for token in (None, "wrong", made("*:*").text):
        async with client(app, token) as http:
            for route in GUARDED:
                answer = await ask(http, route)
                assert answer.status_code == 401, route.operation_id
                assert answer.headers["www-authenticate"].startswith("Bearer")
                if answer.request.method != "HEAD":
                    assert answer.json()["code"] == "unauthenticated"


async def test_open_routes_ask_for_no_token(engine: Engine, tmp_path: Path) -> None:
    async with client(await app_with(engine, tmp_path), "wrong") as http:
        for path in ("/", "/v1", "/healthz/live", "/healthz/ready", "/docs", "/console", "/openapi.json"):
            assert (await http.get(path, follow_redirects=True)).status_code == 200, path


async def test_the_root_token_may_do_everything(engine: Engine, tmp_path: Path) -> None:
    async with client(await app_with(engine, tmp_path), ROOT) as http:
        for route in GUARDED:
            if route.method != "DELETE":
                assert (await ask(http, route)).status_code not in (401, 403), route.operation_id


async def test_lists_show_what_may_be_read(engine: Engine, tmp_path: Path) -> None:
    """Streams, KEYS, SCAN and plans by pattern."""
    for name in ("a.1", "a.2", "b.1"):
        await reply_to(engine, XAdd(stream=name, bodies=[entries.body([("a", "1")])]))
    token = made("read:a.*", "write:b.*")
    async with client(await app_with(engine, tmp_path, token), token.text) as http:
        listed = (await http.get("/v1/streams")).json()
        assert [stream["name"] for stream in listed["streams"]] == ["a.1", "a.2"]
        keys = await http.post("/v1/commands", json=["KEYS", "*"])
        assert keys.json() == {"result": ["a.1", "a.2"]}
        plan = await http.post("/v1/plan", json={"pattern": "*", "streams": {}})
        assert sorted(plan.json()["streams"]) == ["a.1", "a.2"], plan.text


async def test_a_consumer_of_its_own_may_not_read_many_streams_as_another(
    engine: Engine, tmp_path: Path
) -> None:
    """All else that names a consumer is in `test_narrow_grants`."""
    token = made('{"actions":["consume"],"streams":"s","groups":"g","consumer":"c"}')
    async with client(await app_with(engine, tmp_path, token), token.text) as http:
        for consumer, status in (("d", 403), ("c", 200)):
            reading = {"group": "g", "consumer": consumer, "streams": {"s": ">"}}
            assert (await http.post("/v1/read", json=reading)).status_code == status


# Every way of a page to events, by the path of its route.
EVENTS: Final = {
    "/v1/streams/{stream}/tail": "/v1/streams/s/tail?after=0",
    "/v1/tail": "/v1/tail?stream=s&after=0",
    "/v1/streams/{stream}/entries": "/v1/streams/s/entries?after=0",
    "/v1/streams/{stream}/groups/{group}/consumers/{consumer}/stream": (
        "/v1/streams/s/groups/g/consumers/c/stream?max_in_flight=1"
    ),
    "/v1/stream/{stream:path}": "/v1/stream/s?offset=-1&live=sse",
    "the same in other words": "/v1/stream/s?live=%73se&offset=-1",
}
# What a ticket does not open.
NO_EVENTS: Final = (
    ("GET", "/v1/streams/s?"),
    ("POST", "/v1/stream/s?live=sse"),
    ("HEAD", "/v1/stream/s?offset=-1&live=sse"),
    ("GET", "/v1/stream/s?offset=-1"),
    ("GET", "/v1/stream/s?offset=-1&live=long-poll"),
)
SHOP: Final = {"origin": "https://shop.example"}
OTHER: Final = {"origin": "https://other.example"}
OWN: Final = {"origin": "http://127.0.0.1:8080", "host": "127.0.0.1:8080"}


def test_every_route_of_events_is_walked_over() -> None:
    routes = {route.template for route in ROUTES if route.end is not None}
    assert routes < EVENTS.keys()


async def opens(app: App, url: str, **headers: str) -> bool:
    """Whether a page gets events there."""
    reader = EventReader(app, *url.split("?"), accept="text/event-stream", **headers)
    await until_async(lambda: reader.status)
    await reader.leave()
    return (reader.status, reader.head[b"content-type"]) == (200, b"text/event-stream")


@pytest.mark.parametrize("route", EVENTS)
async def test_a_ticket_opens_events_once_from_its_own_page(
    engine: Engine, tmp_path: Path, route: str
) -> None:
    """Of another origin, which has to be the same; of this host, for which a browser sends none. It opens
    nothing else.
    """
    url, token = EVENTS[route], made("read,write,consume,manage:s")
    origins = [SHOP["origin"], OTHER["origin"]]
    app = await app_with(engine, tmp_path, token, allowed_origins=origins)
    async with client(app, token.text) as http, client(app, None) as page:
        await http.put("/v1/stream/s", headers={"content-type": "application/json"}, content="1")
        await http.put("/v1/streams/s/groups/g", json={})

        async def ticket(headers: dict[str, str]) -> str:
            return f"&ticket={(await http.post('/v1/tickets', headers=headers)).json()['ticket']}"

        for asked, sent in ((SHOP, SHOP), (OWN, {}), ({}, {})):
            text = await ticket(asked)
            assert [await opens(app, url + text, **sent) for _ in range(2)] == [True, False], asked
        for asked, sent in ((SHOP, {}), (SHOP, OTHER), (OWN, SHOP)):
            assert not await opens(app, url + await ticket(asked), **sent), asked
        text = await ticket({})
        for method, other in NO_EVENTS:
            assert (await page.request(method, other + text)).status_code == 401, other
        assert await opens(app, url + text)


async def test_a_read_that_waits_ends_when_its_token_does(engine: Engine, tmp_path: Path) -> None:
    """Within a second of its end, and what was waiting for a group is not lost."""
    token = made("read,consume:s", expires_in_s=0.5)
    app = await app_with(engine, tmp_path, token)
    async with client(app, token.text) as http:
        waits = [
            asyncio.create_task(http.get("/v1/streams/s/entries?after=$&wait=30000")),
            asyncio.create_task(http.post("/v1/streams/s/groups/g/consumers/c/read", json={"wait": 30_000})),
        ]
        await settle()
        assert len(app.gateway.access.sessions.open) == 2
        async with asyncio.timeout(2):
            answers = await asyncio.gather(*waits)
    assert [answer.status_code for answer in answers] == [401, 401]
    assert not app.gateway.access.sessions.open
