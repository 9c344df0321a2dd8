"""Conditional requests for streams and lists: ETag, If-None-Match, If-Match, and which patches are taken."""

import asyncio
from functools import partial

import httpx
import pytest

from app.main import App
from app.settings import Settings
from engine import Engine, EngineError
from engine.commands.types import Delete, XInfoStream
from engine.commands.weir_commands import UpdateStream
from engine.replies import StreamInfo
from tests.bounds import bounded
from tests.engine.asking import reply_to

STREAM = "/v1/streams/s"
ENTRIES = STREAM + "/entries"
LISTS = ("/v1/streams", STREAM, STREAM + "/groups")


@pytest.fixture
async def made(http: httpx.AsyncClient) -> httpx.AsyncClient:
    """A stream of 1-0 and 2-0, with a group."""
    rows = [{"id": f"{n}-0", "fields": {"n": str(n)}} for n in (1, 2)]
    assert (await http.post(ENTRIES, json={"entries": rows})).status_code == 201
    assert (await http.post(STREAM + "/groups", json={"name": "g", "start": "0"})).status_code == 201
    return http


async def tag(http: httpx.AsyncClient, path: str = STREAM) -> str:
    found: str = (await http.get(path)).headers["etag"]
    return found


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", [*LISTS, STREAM + "?full=true"])
async def test_what_is_held_is_not_sent_again(made: httpx.AsyncClient, path: str, method: str) -> None:
    """304 without a body, with the strong tag; weakly compared, `*` is any."""
    known = await tag(made, path)
    assert known.startswith('"')
    for held in (known, f"W/{known}", f'"x", {known}', "*"):
        answer = await made.request(method, path, headers={"if-none-match": held})
        assert (answer.status_code, answer.headers["etag"], answer.content) == (304, known, b"")
        assert answer.headers["cache-control"] == "private, no-cache"
        assert "content-length" not in answer.headers
    answer = await made.request(method, path, headers={"if-none-match": '"x"'})
    assert (answer.status_code, answer.headers["etag"]) == (200, known)


@pytest.mark.parametrize("path", LISTS)
async def test_a_change_is_sent(made: httpx.AsyncClient, path: str) -> None:
    """Another tag after each change of what is shown; the tag of the whole differs from that of the parts."""
    known = await tag(made, path)
    assert (await made.post(STREAM + "/groups", json={"name": "h", "start": "0"})).status_code == 201
    answer = await made.get(path, headers={"if-none-match": known})
    assert (answer.status_code, answer.headers["etag"] != known) == (200, True)
    assert await tag(made) != await tag(made, STREAM + "?full=true")


async def test_a_missing_stream_is_never_held(http: httpx.AsyncClient) -> None:
    """404 before any condition."""
    for name in ("if-none-match", "if-match"):
        assert (await http.get(STREAM, headers={name: "*"})).status_code == 404
    for method in ("PUT", "PATCH", "DELETE"):
        for held in ("*", '"x"'):
            answer = await http.request(method, STREAM, headers={"if-match": held})
            assert (answer.status_code, answer.json()["code"]) == (404, "no_stream")


async def test_a_patch_of_what_was_seen_is_done(made: httpx.AsyncClient) -> None:
    """Its answer has the next tag: that of the stream as GET shows it."""
    body = {"retention": {"max_len": 5}}
    answer = await made.patch(STREAM, json=body, headers={"if-match": f'"x", {await tag(made)}'})
    assert answer.status_code == 200
    assert answer.headers["etag"] == await tag(made)
    again = await made.patch(
        STREAM, json={"archived_up_to": "1-0"}, headers={"if-match": answer.headers["etag"]}
    )
    assert (again.status_code, again.json()["archived_up_to"]) == (200, "1-0")
    assert (await made.patch(STREAM, json=body, headers={"if-match": "*"})).status_code == 200


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
async def test_a_change_of_something_else_is_refused(made: httpx.AsyncClient, method: str) -> None:
    """412, and nothing has changed; neither a weak tag nor that of the full view is the stream's."""
    before = await tag(made)
    full = await tag(made, STREAM + "?full=true")
    for held in ('"x"', f"W/{before}", full):
        answer = await made.request(method, STREAM, headers={"if-match": held})
        assert (answer.status_code, answer.json()["code"]) == (412, "precondition_failed")
        assert answer.json()["retryable"] is False
    assert await tag(made) == before
    await made.post(ENTRIES, json={"id": "3-0", "fields": {"n": "3"}})
    answer = await made.request(method, STREAM, headers={"if-match": before})
    assert (answer.status_code, answer.json()["code"]) == (412, "precondition_failed")
    answer = await made.request(method, STREAM, headers={"if-match": await tag(made)})
    assert answer.status_code == (204 if method == "DELETE" else 200)


@pytest.mark.parametrize("held", ["x", '"x', '""x"', '"a" "b"', "", '*, "x"', 'w/"x"'])
async def test_a_malformed_condition_is_refused(made: httpx.AsyncClient, held: str) -> None:
    """422 with the header's name, and nothing has changed."""
    answer = await made.delete(STREAM, headers={"if-match": held})
    assert (answer.status_code, answer.json()["errors"][0]["header"]) == (422, "If-Match")
    assert (await made.get(STREAM)).status_code == 200


async def test_the_engine_compares_in_the_turn_of_the_change(made: httpx.AsyncClient, engine: Engine) -> None:
    """What was changed since it was looked at is neither changed nor removed; what was not is."""
    seen = await reply_to(engine, XInfoStream(stream="s"))
    assert isinstance(seen, StreamInfo)
    await made.post(ENTRIES, json={"id": "3-0", "fields": {"n": "3"}})
    update = partial(UpdateStream, stream="s", retention={"max_len": 1})
    for late in (update(expected=seen), Delete(streams=["s"], expected=seen)):
        with pytest.raises(EngineError) as refusal:
            await reply_to(engine, late)
        assert refusal.value.code == "precondition_failed"
    now = await reply_to(engine, XInfoStream(stream="s"))
    assert isinstance(now, StreamInfo)
    assert (now.length, now.max_len) == (3, None)
    assert await reply_to(engine, update(expected=now))
    now = await reply_to(engine, XInfoStream(stream="s"))
    assert isinstance(now, StreamInfo)
    assert await reply_to(engine, Delete(streams=["s"], expected=now)) == 1


async def test_one_of_two_deletions_at_once_is_done(made: httpx.AsyncClient) -> None:
    """With one tag: the other finds nothing, or something else."""
    held = {"if-match": await tag(made)}
    answers = await asyncio.gather(*(made.delete(STREAM, headers=held) for _ in range(5)))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [204, 404, 404, 404, 404]


@pytest.fixture
def settings() -> Settings:
    return bounded(log_requests="none", entry_bytes_max=256 << 10, entry_fields_max=16)


async def test_the_tag_of_a_compressed_stream_is_taken(http: httpx.AsyncClient) -> None:
    """It names the coding, as other bytes have another strong tag; the state behind it is the same."""
    await http.post(ENTRIES, json={"id": "1-0", "fields": {"n": "x" * (100 << 10)}})
    plain = (await http.get(STREAM, headers={"accept-encoding": "identity"})).headers["etag"]
    coded = (await http.get(STREAM, headers={"accept-encoding": "gzip"})).headers["etag"]
    assert coded == plain[:-1] + '-gzip"'
    again = await http.get(STREAM, headers={"accept-encoding": "gzip", "if-none-match": coded})
    assert (again.status_code, again.headers["etag"]) == (304, coded)
    assert (await http.delete(STREAM, headers={"if-match": coded})).status_code == 204


async def test_options_say_which_patches_are_taken(http: httpx.AsyncClient, app: App) -> None:
    """Accept-Patch where there is PATCH (RFC 5789, 3.1), and with the refusal of another type (2.2)."""
    answer = await http.options(STREAM)
    assert (answer.status_code, answer.headers["allow"]) == (204, "DELETE, GET, HEAD, OPTIONS, PATCH, PUT")
    assert answer.headers["accept-patch"] == "application/merge-patch+json, application/json"
    answer = await http.options("/v1/commands")
    assert (answer.status_code, answer.headers["allow"]) == (204, "OPTIONS, POST")
    assert "accept-patch" not in answer.headers
    assert (await http.options("/v1/nothing")).status_code == 404
    answer = await http.patch(STREAM, content="x", headers={"content-type": "application/json-patch+json"})
    assert answer.status_code == 415
    assert answer.headers["accept-patch"] == "application/merge-patch+json, application/json"


async def test_conditions_are_described(http: httpx.AsyncClient) -> None:
    """By the document: the headers that are taken, 304 without content, 412."""
    paths = (await http.get("/openapi.json")).json()["paths"]
    for path in ("/v1/streams", "/v1/streams/{stream}", "/v1/streams/{stream}/entries/{id}"):
        described = paths[path]["get"]
        assert "If-None-Match" in {one["name"] for one in described["parameters"]}
        assert "content" not in described["responses"]["304"]
        assert "ETag" in described["responses"]["200"]["headers"]
    for method in ("put", "patch", "delete"):
        described = paths["/v1/streams/{stream}"][method]
        assert "If-Match" in {one["name"] for one in described["parameters"]}
        assert "412" in described["responses"]


@pytest.mark.parametrize(
    ("method", "path", "header"),
    [
        ("PUT", STREAM, "If-None-Match"),
        ("PATCH", STREAM, "If-None-Match"),
        ("DELETE", STREAM, "If-None-Match"),
        ("POST", ENTRIES, "If-None-Match"),
        ("DELETE", ENTRIES + "/1-0", "If-Match"),
        ("PATCH", STREAM + "/groups/g", "If-Match"),
        ("DELETE", STREAM + "/groups/g", "If-Match"),
        ("POST", STREAM + "/trim", "If-Match"),
        ("POST", "/v1/publish", "If-Match"),
        ("POST", "/v1/commands", "If-Match"),
    ],
)
async def test_a_condition_that_is_not_looked_at_is_refused(
    made: httpx.AsyncClient, method: str, path: str, header: str
) -> None:
    """Ignored, it would be taken for fulfilled. Nothing is changed."""
    before = await tag(made, STREAM + "?full=true")
    answer = await made.request(method, path, json={}, headers={header: "*"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert answer.json()["errors"] == [{"header": header, "detail": "this operation has no such condition"}]
    assert await tag(made, STREAM + "?full=true") == before
