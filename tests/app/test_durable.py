"""Durable Streams at /v1/stream: what the public suite does not ask for.

Knows: the protocol, and what Weir adds to it: other streams, rights, limits.
Must never know: the suite, which tests/sdk/durable runs.
"""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from app.doors.durable.events import Following
from app.live.feeds import FeedPage
from app.main import App
from app.settings import Settings
from engine import Engine
from engine.commands.types import Cursor
from tests.app.conftest import app_on, calling, until_waiting
from tests.app.following import wait_for
from tests.app.policies import FixedPolicy, principal_with
from tests.bounds import bounded

_PATH = "/v1/stream/chat/42"
_TEXT = {"content-type": "text/plain"}
_JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def settings() -> Settings:
    return bounded(
        log_requests="none",
        durable_streams=True,
        durable_long_poll_s=0.2,
        body_bytes_max=64 << 10,
        entry_bytes_max=1 << 10,
        batch_entries_max=100,
        answer_bytes_max=8 << 10,
    )


async def stored(http: httpx.AsyncClient, stream: str = "chat%2F42") -> list[dict[str, object]]:
    entries: list[dict[str, object]] = (await http.get(f"/v1/streams/{stream}/entries")).json()["entries"]
    return entries


# --- names --------------------------------------------------------------------------------------------------


async def test_the_path_is_the_name(http: httpx.AsyncClient) -> None:
    """With its slashes as they are: there is one URL for a stream."""
    made = await http.put(_PATH, headers=_TEXT, content="hello")
    assert (made.status_code, made.headers["location"]) == (201, f"http://127.0.0.1:8080{_PATH}")
    assert await stored(http) == [{"id": (await stored(http))[0]["id"], "fields": {"data": "hello"}}]
    assert (await http.get("/v1/stream/chat%2F42")).json()["code"] == "invalid_name"
    assert (await http.get("/v1/stream/__ds/42")).json()["code"] == "no_route"
    assert (await http.patch(_PATH)).status_code == 405


@pytest.mark.parametrize(
    "path", ["/v1/stream/", "/v1/stream", "/v1/stream/a/", "/v1/stream/a//b", "/v1/stream/../a"]
)
async def test_what_is_no_name_is_refused(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.put(path, headers=_TEXT)).status_code in (400, 404)


async def test_without_the_setting_there_is_nothing(engine: Engine) -> None:
    async with calling(app_on(engine, bounded(log_requests="none", durable_streams=False))) as http:
        assert (await http.put(_PATH, headers=_TEXT)).json()["code"] == "no_route"


# --- other streams ------------------------------------------------------------------------------------------


async def test_every_stream_is_read(http: httpx.AsyncClient) -> None:
    """One of others as JSON, its entries as they are stored; it takes none here."""
    await http.post("/v1/streams/orders/entries", json={"id": "5-0", "fields": {"item": "apple"}})
    page = await http.get("/v1/stream/orders")
    assert page.json() == [{"id": "5-0", "fields": {"item": "apple"}}]
    generation = (await http.get("/v1/streams/orders")).json()["generation"]
    assert page.headers["stream-next-offset"] == f"0000000000000005_0000000000000000_{generation}"
    assert (await http.get(f"/v1/stream/orders?offset={page.headers['stream-next-offset']}")).json() == []
    refused = await http.post("/v1/stream/orders", headers=_JSON, content="1")
    assert (refused.status_code, refused.json()["code"]) == (405, "not_durable")
    assert (await http.put("/v1/stream/orders", headers=_JSON)).status_code == 409


async def test_others_write_what_can_be_read_here(http: httpx.AsyncClient) -> None:
    await http.put(_PATH, headers=_JSON)
    entries = "/v1/streams/chat%2F42/entries"
    assert (await http.post(entries, json={"fields": {"data": '{"a":1}'}})).status_code == 201
    assert (await http.post(entries, json={"fields": {"data": "{"}})).status_code == 422
    assert (await http.post(entries, json={"fields": {"text": "1"}})).status_code == 422
    assert (await http.get(_PATH)).text == '[{"a":1}]'


async def test_what_was_removed_is_a_gap(http: httpx.AsyncClient) -> None:
    offsets = []
    await http.put(_PATH, headers=_TEXT)
    for number in range(3):
        await asyncio.sleep(0.002)
        answer = await http.post(_PATH, headers=_TEXT, content=str(number))
        offsets.append(answer.headers["stream-next-offset"])
    await http.post("/v1/streams/chat%2F42/trim", json={"maxlen": 1})
    assert (await http.get(f"{_PATH}?offset={offsets[1]}")).text == "2"
    for live in ("", "&live=sse", "&live=long-poll"):
        refused = await http.get(f"{_PATH}?offset={offsets[0]}{live}")
        assert (refused.status_code, refused.json()["code"]) == (410, "gap")
    assert (await http.get(_PATH)).text == "2"


async def test_an_offset_of_an_earlier_stream_is_a_gap(http: httpx.AsyncClient) -> None:
    """What comes before it would be passed over. With one that names no stream, an empty one is read from its
    start.
    """
    entries = "/v1/streams/orders/entries"
    await http.post(entries, json={"id": "8-0", "fields": {"n": "1"}})
    offset = (await http.get("/v1/stream/orders")).headers["stream-next-offset"]
    await http.delete("/v1/streams/orders")
    await http.post(entries, json={"id": "3-0", "fields": {"n": "2"}})
    bare = offset.rpartition("_")[0]
    for given in (offset, bare):
        for live in ("", "&live=sse", "&live=long-poll"):
            refused = await http.get(f"/v1/stream/orders?offset={given}{live}")
            assert (refused.status_code, refused.json()["code"]) == (410, "gap")
    assert [one["id"] for one in (await http.get("/v1/stream/orders?offset=-1")).json()] == ["3-0"]
    made = await http.put(_PATH, headers=_TEXT)
    empty = await http.get(f"{_PATH}?offset={bare}")
    assert empty.headers["stream-next-offset"] == made.headers["stream-next-offset"]
    assert (empty.text, empty.headers["stream-next-offset"][:34]) == ("", f"{0:016x}_{0:016x}_")


async def test_a_page_has_another_tag_once_an_entry_of_it_is_deleted(http: httpx.AsyncClient) -> None:
    """Of an open stream and of a closed one: no cache shows what is gone."""
    for headers in (_JSON, {**_JSON, "stream-closed": "true"}):
        path = f"/v1/stream/d{len(headers)}"
        await http.put(path, headers=headers, content="[1,2,3]")
        page = await http.get(path)
        condition = {"if-none-match": page.headers["etag"]}
        assert (await http.get(path, headers=condition)).status_code == 304
        middle = (await stored(http, path.rpartition("/")[2]))[1]["id"]
        await http.delete(f"{path.replace('stream', 'streams')}/entries/{middle}")
        again = await http.get(path, headers=condition)
        assert (again.status_code, again.text) == (200, "[1,3]")
        assert again.headers["stream-next-offset"] == page.headers["stream-next-offset"]


async def test_a_page_has_another_tag_once_its_stream_is_closed(http: httpx.AsyncClient) -> None:
    """Else a cache would go on with a page that says of no end."""
    made = await http.put(_PATH, headers=_JSON, content="[1]")
    places = (_PATH, f"{_PATH}?offset={made.headers['stream-next-offset']}")
    tags = [(await http.get(path)).headers["etag"] for path in places]
    await http.post(_PATH, headers={"stream-closed": "true"})
    for path, tag in zip(places, tags, strict=True):
        page = await http.get(path, headers={"if-none-match": tag})
        assert (page.status_code, page.headers["stream-closed"]) == (200, "true")
        assert page.headers["etag"] != tag


async def test_a_long_poll_ends_with_its_stream(http: httpx.AsyncClient, app: App) -> None:
    """With the word that nothing follows, and behind the last entry if one came with the end."""
    for content, status in ((b"", 204), (b"[2]", 200)):
        path = f"/v1/stream/ends-{status}"
        made = await http.put(path, headers=_JSON, content="[1]")
        offset = made.headers["stream-next-offset"]
        waiting = asyncio.create_task(http.get(f"{path}?offset={offset}&live=long-poll"))
        await until_waiting(app.gateway.engine)
        closed = await http.post(path, headers={**_JSON, "stream-closed": "true"}, content=content)
        answer = await waiting
        assert (answer.status_code, answer.content) == (status, content)
        assert (answer.headers["stream-closed"], answer.headers["stream-up-to-date"]) == ("true", "true")
        assert answer.headers["stream-next-offset"] == closed.headers["stream-next-offset"]


async def test_nothing_is_behind_the_highest_id(http: httpx.AsyncClient) -> None:
    """Its entry is not read again and again; of a stream that has no such entry the offset is a gap."""
    highest = f"{(1 << 64) - 1}-{(1 << 64) - 1}"
    await http.post("/v1/streams/s/entries", json={"id": highest, "fields": {"n": "1"}})
    page = await http.get("/v1/stream/s")
    assert [one["id"] for one in page.json()] == [highest]
    for offset in (page.headers["stream-next-offset"], "now"):
        for live, status in (("", 200), ("&live=long-poll", 204)):
            answer = await http.get(f"/v1/stream/s?offset={offset}{live}")
            assert (answer.status_code, answer.text) == (status, "" if live else "[]")
            assert answer.headers["stream-next-offset"] == page.headers["stream-next-offset"]
    await http.delete("/v1/streams/s")
    await http.post("/v1/streams/s/entries", json={"id": "1-0", "fields": {"n": "1"}})
    refused = await http.get(f"/v1/stream/s?offset={page.headers['stream-next-offset']}")
    assert (refused.status_code, refused.json()["code"]) == (410, "gap")


async def test_others_are_shown_what_it_is(http: httpx.AsyncClient) -> None:
    """Its media type as it was given, and where a fork comes from; a stream of others has neither."""
    fork = "{chat/42}fork"
    await http.put(_PATH, headers={"content-type": "Text/Plain; charset=utf-8"})
    await http.put("/v1/stream/{chat/42}fork", headers={"stream-forked-from": _PATH})
    await http.post("/v1/streams/s/entries", json={"fields": {"n": "1"}})
    shown = {one["name"]: one for one in (await http.get("/v1/streams")).json()["streams"]}
    assert shown["chat/42"]["media_type"] == shown[fork]["media_type"] == "Text/Plain; charset=utf-8"
    assert shown[fork]["forked_from"] == "chat/42"
    assert "forked_from" not in shown["chat/42"]
    assert shown["s"].keys().isdisjoint({"media_type", "forked_from"})
    found = await http.get("/v1/streams/{chat%2F42}fork")
    assert found.json() == shown[fork]
    condition = {"if-match": found.headers["etag"]}
    assert (await http.delete("/v1/streams/{chat%2F42}fork", headers=condition)).status_code == 204


# --- bodies -------------------------------------------------------------------------------------------------


async def test_messages_keep_their_text(http: httpx.AsyncClient) -> None:
    """Numbers, blanks, the order of members, members that occur twice."""
    texts = ['{"b":1.0,"a":1e2, "b":12345678901234567890}', "[1,\n2]", '"ä\\u00e4"', "null"]
    await http.put(_PATH, headers=_JSON, content=f" [{','.join(texts)}] ")
    assert (await http.get(_PATH)).text == f"[{','.join(texts)}]"
    assert [one["fields"] for one in await stored(http)] == [{"data": text} for text in texts]


@pytest.mark.parametrize("body", ["{", "[1,]", "[1] 2", '"\\ud800"', "NaN", b"\xff", "1 2"])
async def test_what_is_no_json_is_refused(http: httpx.AsyncClient, body: str | bytes) -> None:
    await http.put(_PATH, headers=_JSON)
    refused = await http.post(_PATH, headers=_JSON, content=body)
    assert (refused.status_code, refused.json()["code"]) == (400, "malformed_json")


async def test_bytes_take_as_many_entries_as_they_need(http: httpx.AsyncClient) -> None:
    """In the shorter form: control characters as base64; they come back as they were."""
    body = bytes(5_000) + "ä".encode() * 2_000 + b"\xff"
    await http.put(_PATH, content=body)
    entries = await stored(http)
    assert all(len(str(one["fields"]).encode()) <= 1_024 for one in entries)
    assert entries[0]["encoding"] == "base64"
    assert any("encoding" not in one for one in entries)
    read, offset = b"", "-1"
    while True:
        page = await http.get(f"{_PATH}?offset={offset}")
        read, offset = read + page.content, page.headers["stream-next-offset"]
        if "stream-up-to-date" in page.headers:
            break
    assert read == body


async def test_limits_are_those_of_others(http: httpx.AsyncClient) -> None:
    await http.put(_PATH, headers=_JSON)
    for body, code in (
        (f'"{"x" * 2_000}"', "entry_too_large"),
        (f"[{','.join('1' * 101)}]", "too_many_entries"),
        (f'"{"x" * 70_000}"', "body_too_large"),
    ):
        refused = await http.post(_PATH, headers=_JSON, content=body)
        assert (refused.status_code, refused.json()["code"]) == (413, code)
    assert (await http.get(_PATH)).text == "[]"


# --- readers that stay --------------------------------------------------------------------------------------


async def test_a_page_is_written_once_for_all_its_readers(http: httpx.AsyncClient, app: App) -> None:
    """The same bytes, however many they are."""
    await http.put(_PATH, headers=_JSON)
    feeds = app.gateway.tenant("").feeds
    tails = [await feeds.subscribe("chat/42", Cursor.LATEST) for _ in range(3)]
    readers = [Following(app.gateway, "anyone", tail, "application/json", "") for tail in tails]
    taking = [asyncio.create_task(wait_for(tail, 9, 9_000)) for tail in tails]
    await asyncio.sleep(0)
    await http.post(_PATH, headers=_JSON, content="[1,2]")
    pages = await asyncio.gather(*taking)
    written = [
        reader._page(page)  # noqa: SLF001 - what it sends of a page
        for reader, page in zip(readers, pages, strict=True)
        if isinstance(page, FeedPage)
    ]
    assert written == [b"event: data\ndata:[1,2]\n\n"] * 3
    assert len({id(one) for one in written}) == 1
    for reader in readers:
        reader.close()


# --- headers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"stream-ttl": "1", "stream-expires-at": "2030-01-01T00:00:00Z"},
        {"stream-ttl": "01"},
        {"stream-ttl": "9" * 20},
        {"stream-expires-at": "2030-01-01"},
        {"stream-expires-at": "2030-13-01T00:00:00Z"},
        {"stream-fork-offset": "-1"},
        {"stream-forked-from": "/v1/streams/a"},
        {"stream-forked-from": "/v1/stream/a", "stream-fork-offset": "5-0"},
        {"content-type": "text"},
    ],
)
async def test_a_wrong_header_is_named(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    refused = await http.put(_PATH, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (400, "malformed_header")
    assert refused.json()["errors"]
    assert refused.headers["cross-origin-resource-policy"] == "same-origin"


async def test_a_header_of_one_value_comes_once(http: httpx.AsyncClient) -> None:
    await http.put(_PATH, headers=_TEXT)
    twice = [("content-type", "text/plain"), ("stream-seq", "1"), ("stream-seq", "2")]
    assert (await http.post(_PATH, headers=twice, content="x")).status_code == 422


async def test_times_are_shown_as_they_hold(http: httpx.AsyncClient) -> None:
    await http.put(_PATH, headers={"stream-expires-at": "2130-01-01T00:00:00+01:00"})
    assert (await http.head(_PATH)).headers["stream-expires-at"] == "2129-12-31T23:00:00.000Z"
    native = (await http.get("/v1/streams/chat%2F42")).json()
    assert native["expires_at"] == "2129-12-31T23:00:00.000Z"


# --- rights -------------------------------------------------------------------------------------------------


@pytest.fixture
async def limited(settings: Settings, engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    """A caller that may read and write `chat/*` and read `pub/*`, and no more."""
    policy = FixedPolicy(principal_with("read,write:chat/*"))
    async with calling(app_on(engine, settings, policy=policy)) as client:
        yield client


async def test_rights_are_those_of_the_stream(limited: httpx.AsyncClient, app: App) -> None:
    """To close and to delete takes more than to write; a fork reads its source."""
    assert (await limited.put(_PATH, headers=_TEXT)).status_code == 201
    assert (await limited.post(_PATH, headers=_TEXT, content="x")).status_code == 204
    async with calling(app) as other:
        await other.put("/v1/stream/secret", headers=_TEXT, content="s")
    closing = {**_TEXT, "stream-closed": "true"}
    for method, path, headers in (
        ("POST", _PATH, closing),
        ("PUT", "/v1/stream/chat/43", closing),
        ("DELETE", _PATH, {}),
        ("GET", "/v1/stream/secret", {}),
        ("HEAD", "/v1/stream/secret", {}),
        ("PUT", "/v1/stream/secret", _TEXT),
        ("PUT", "/v1/stream/chat/43", {**_TEXT, "stream-forked-from": "/v1/stream/secret"}),
    ):
        assert (await limited.request(method, path, headers=headers)).status_code == 403, (method, path)
    assert (await limited.get(_PATH)).text == "x"
