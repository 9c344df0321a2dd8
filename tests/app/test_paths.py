"""Names in paths: decoded once, strictly; no two collapse into one, none leaves its place."""

from urllib.parse import quote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import RefusalError
from app.http.common.paths import segments
from engine import EngineError


async def status(http: httpx.AsyncClient, raw_path: str, method: str = "GET") -> tuple[int, str]:
    """What a path as it stands on the wire gets."""
    url = httpx.URL("http://127.0.0.1:8080").copy_with(raw_path=raw_path.encode("latin-1"))
    answer = await http.request(method, url)
    return answer.status_code, answer.json().get("code", "")


@pytest.mark.parametrize(
    "name",
    ["a", "a%2Fb", "a%2fb%2Fc", "a%2F...", "entries%2Fraw", "weir", "weird%2Fa",
     "a%20b", "%C3%A9", "a:b", "a%2Eb", "%41", "...", "{stream}", "%7Bstream%7D", "a%25", "%2B", "a+b",
     "a;b",      "entries", "x" * 512, "%F0%9F%98%80", "a%5Cb", "%22", "%3C"],
)  # fmt: skip
async def test_a_name_is_what_its_bytes_say(http: httpx.AsyncClient, name: str) -> None:
    """It comes back from the engine as it was meant, and in Location as it can be used."""
    url = httpx.URL("http://127.0.0.1:8080").copy_with(raw_path=f"/v1/streams/{name}/entries".encode())
    answer = await http.post(url, json={"fields": {"a": "1"}})
    assert answer.status_code == 201
    meant = httpx.URL(f"http://x/{name}").path[1:]
    assert (await http.post("/v1/commands", json=["XLEN", meant])).json() == {"result": 1}
    assert (await http.get(answer.headers["location"])).status_code == 200


@pytest.mark.parametrize("raw", [b"/v1/./a", b"/v1/../a", b"/.", b"/a/..", b"/v1/%2E./a"])
def test_dots_are_not_resolved(raw: bytes) -> None:
    """A client that sends them as they are gets a refusal, too; most clients resolve them before."""
    with pytest.raises(EngineError, match="segment of a path"):
        segments(raw)


@pytest.mark.parametrize("path", ["/v1/streams/s/entries/", "/v1/", "//", "/v1//", "/healthz/live/"])
async def test_no_slash_is_added_or_taken(http: httpx.AsyncClient, path: str) -> None:
    """A slash too many is 404, never a redirect."""
    assert await status(http, path) == (404, "no_route")


async def test_an_empty_name_is_no_name(http: httpx.AsyncClient) -> None:
    """Two slashes with nothing between."""
    assert await status(http, "/v1/streams//entries") == (400, "invalid_name")
    assert await status(http, "//v1/streams") == (400, "invalid_name")


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_what_is_no_name_is_refused_before_there_is_a_route(
    http: httpx.AsyncClient, method: str
) -> None:
    """Those in the places of names are in tests/hostile/test_names.py."""
    for raw in ("%2F", "%2e%2e", "%00", "%ff", "%C2%85", "%zz", "x" * 513):
        assert await status(http, f"/{raw}/nowhere", method) == (400, "invalid_name")


@given(st.lists(st.text(st.characters(exclude_categories=["C"]), min_size=1), min_size=1))
def test_encoding_and_splitting_give_the_names_back(names: list[str]) -> None:
    """For every list of names: no two lists have one path."""
    raw = "".join("/" + quote(name, safe="") for name in names).encode()
    try:
        assert segments(raw) == tuple(names)
    except EngineError:
        assert any(
            {*name.split("/")} & {"", ".", ".."} or name.startswith("weir/") or len(name.encode()) > 512
            for name in names
        )


@given(st.binary())
def test_any_path_is_split_or_refused(raw: bytes) -> None:
    """Nothing else can happen, and what is split is clean."""
    try:
        found = segments(raw)
    except (EngineError, RefusalError):
        return
    assert all((name and name.isprintable()) or not name.isascii() for name in found)
    assert not {"", ".", ".."} & {part for name in found for part in name.split("/")}
