"""Large answers in the coding that a client accepts, small ones and live ones as they are."""

import gzip
import json

import httpx
import pytest
import zstandard

from app.http.common import codings
from app.http.plan import HeadPlan
from app.http.requests import Request
from app.http.responses import GONE_EXTENSION, Exchange, Response, Scope
from app.main import App, create_app
from app.settings import Settings

ENTRIES = "/v1/streams/s/entries"


def plain(answer: httpx.Response, raw: bytes) -> bytes:
    """The content, decoded here: by no library that the client has."""
    kind = answer.headers.get("content-encoding")
    if kind == "gzip":
        return gzip.decompress(raw)
    return zstandard.ZstdDecompressor().decompressobj().decompress(raw) if kind == "zstd" else raw


async def get(http: httpx.AsyncClient, path: str, **headers: str) -> tuple[httpx.Response, bytes]:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    request = http.build_request("GET", path, headers={"accept-encoding": "identity", **given})
    answer = await http.send(request, stream=True)
    raw = b"".join([piece async for piece in answer.aiter_raw()])
    return answer, raw


@pytest.fixture
async def large(app: App, http: httpx.AsyncClient) -> httpx.AsyncClient:
    batch = {"entries": [{"fields": {"text": "all work and no play " * 30}}] * 60}
    assert (await http.post(ENTRIES, json=batch)).status_code == 201
    return http


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("gzip", "gzip"),
        ("GZIP", "gzip"),
        ("x-gzip", "gzip"),
        ("zstd", "zstd"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip;q=1.0, zstd;q=0.5", "gzip"),
        ("gzip; q=0.2 , identity;q=0.1", "gzip"),
        ("*", "zstd"),
        ("zstd;q=0, *", "gzip"),
        ("gzip;q=0", None),
        ("gzip;q=0, zstd;q=0.000", None),
        ("identity, gzip;q=0.5", None),
        ("*;q=0", None),
        ("identity", None),
        ("br", None),
        ("gzip;q=x", None),
        ("", None),
    ],
)
async def test_a_large_answer_comes_in_the_coding_that_is_liked_best(
    large: httpx.AsyncClient, header: str, kind: str | None
) -> None:
    """By quality, zstd first where it is equal; caches know that it depends on the request."""
    expected = json.loads((await get(large, ENTRIES))[1])
    answer, raw = await get(large, ENTRIES, accept_encoding=header)
    assert answer.headers.get("content-encoding") == kind
    assert answer.headers["vary"] == "Accept-Encoding"
    assert answer.headers["content-length"] == str(len(raw))
    assert json.loads(plain(answer, raw)) == expected
    assert kind is None or len(raw) < codings.CODED_BYTES_MIN / 4


async def test_small_answers_stay_as_they_are(large: httpx.AsyncClient) -> None:
    """One byte below the limit too: it is looked at, and at nothing else."""
    assert not codings.gains([(b"content-type", b"application/json"), (b"content-length", b"32767")])
    assert codings.gains([(b"content-type", b"application/json"), (b"content-length", b"32768")])
    assert not codings.gains([(b"content-type", b"image/png"), (b"content-length", b"99999")])
    answer, _ = await get(large, f"{ENTRIES}?count=2", accept_encoding="gzip")
    assert not {"content-encoding", "vary"} & answer.headers.keys()


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
async def test_an_export_is_compressed_as_it_is_sent(large: httpx.AsyncClient, kind: str) -> None:
    """Of any length, so without one."""
    ndjson = "application/x-ndjson"
    _, expected = await get(large, ENTRIES, accept=ndjson)
    answer, raw = await get(large, ENTRIES, accept=ndjson, accept_encoding=kind)
    assert answer.headers["content-encoding"] == kind
    assert "content-length" not in answer.headers
    assert plain(answer, raw) == expected
    assert len(raw) < len(expected) / 4


async def test_documents_are_compressed_and_still_fresh(large: httpx.AsyncClient) -> None:
    """The description; the tag of a file names the coding too, for the bytes are others."""
    answer, raw = await get(large, "/openapi.json", accept_encoding="zstd, gzip")
    assert json.loads(plain(answer, raw))["openapi"].startswith("3.1")
    assert len(raw) * 5 < len((await get(large, "/openapi.json"))[1])
    script = "/docs/swagger-ui.css"
    answer, raw = await get(large, script, accept_encoding="gzip")
    plain_tag = (await get(large, script))[0].headers["etag"]
    assert answer.headers["etag"] == plain_tag[:-1] + '-gzip"'
    again, _ = await get(large, script, accept_encoding="gzip", if_none_match=answer.headers["etag"])
    assert again.status_code == 304
    assert "content-encoding" not in again.headers
    head = await large.head(script, headers={"accept-encoding": "gzip"})
    assert (head.headers["content-encoding"], head.content) == ("gzip", b"")
    assert "content-length" not in head.headers


@pytest.mark.parametrize("path", ["/", "/v1", "/docs"])
async def test_the_socket_s_description_is_found(http: httpx.AsyncClient, path: str) -> None:
    """From where people and programs begin."""
    assert "/asyncapi.json" in (await http.get(path)).text


@pytest.mark.parametrize("leaves", [True, False])
async def test_what_a_client_was_to_get_goes_back_where_it_leaves_meanwhile(*, leaves: bool) -> None:
    """It was there when the answer was made, and has gone when that is compressed."""
    returned: list[bool] = []
    sent: list[str] = []
    made = Response(200, b"a" * codings.CODED_BYTES_MIN)
    made.unsent = lambda: returned.append(True)
    plan = HeadPlan("POST", b"/", b"", {})
    plan.coding = "gzip"
    gone = {GONE_EXTENSION: lambda: leaves and len(made.body) < codings.CODED_BYTES_MIN}

    async def receive() -> Scope:
        raise AssertionError("the body is in hand")

    async def send(message: Scope) -> None:
        sent.append(message["type"])

    async def answer(_: Request) -> Response:
        return made

    app = create_app(Settings(log_requests="none"))
    request = Request(app.gateway, {"headers": []}, receive, Exchange(plan, "r", gone))
    await app.exchanges.serve(request, send, answer)
    assert returned == ([True] if leaves else [])
    assert sent == ([] if leaves else ["http.response.start", "http.response.body"])
