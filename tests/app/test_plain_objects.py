"""A JSON object by itself is an entry with its members as fields, as in a list, at each door for entries."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import httpx
import pytest

from app.errors import RefusalError
from app.http.entries import entry_bodies
from app.http.entries.stored_entries import CROWDED_BYTES_MIN
from app.http.media import MediaType
from app.limits import EntryLimits
from app.settings import Settings
from engine import entries

Json = dict[str, Any]
JSON: Final = {"content-type": "application/json"}
S: Final = "/v1/streams/s"
OBJECTS: Final[dict[str, Json]] = {
    "texts": {"action": "opened", "by": "ada"},
    "numbers": {"action": "opened", "number": 7, "ratio": 1.50, "draft": False},
    "an ID as a field": {"id": "5-1", "a": "b"},
    "an ID that is none": {"id": 7},
    "fields that are a text": {"fields": "a"},
    "entries that are a number": {"entries": 3, "id": "x"},
    "a delay as a field": {"delay_ms": 5, "deliver_at": "never", "schedule": "x"},
    "an encoding as a field": {"encoding": "base64", "a": "%"},
    "as many fields as there may be": {f"f{n}": n for n in range(16)},
    "an escape": {"\u0000é": '"\\'},
}
REFUSED: Final[dict[str, Json]] = {
    "nothing": {},
    "an object": {"pull_request": {"number": 7}},
    "a list": {"labels": ["a"]},
    "null": {"milestone": None},
    "too many fields": {f"f{n}": n for n in range(17)},
    "an envelope with more": {"fields": {"a": "b"}, "more": 1},
    "a batch with more": {"entries": [{"fields": {"a": "b"}}], "more": 1},
}


async def publish(http: httpx.AsyncClient, entry: object) -> httpx.Response:
    return await http.post(f"{S}/entries", json=entry)


async def close(http: httpx.AsyncClient, entry: object) -> httpx.Response:
    """As the last entry of a stream."""
    await http.put(S)
    return await http.post(f"{S}/close", json={"entry": entry})


async def schedule(http: httpx.AsyncClient, entry: object) -> httpx.Response:
    """As an entry for later, which is then published at once."""
    put = await http.put(f"{S}/schedules/x", json={"in_ms": 60_000, "entry": entry})
    return put if put.is_error else await http.post(f"{S}/schedules/x/fire")


DOORS: Final[dict[str, Callable[[httpx.AsyncClient, object], Awaitable[httpx.Response]]]] = {
    "entries": publish,
    "close": close,
    "schedules": schedule,
}


async def fields(http: httpx.AsyncClient, stream: str) -> list[Json]:
    """Those of all entries of a stream."""
    return [entry["fields"] for entry in (await http.get(f"/v1/streams/{stream}/entries")).json()["entries"]]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", OBJECTS)
async def test_an_object_is_what_it_is_in_a_list(http: httpx.AsyncClient, door: str, name: str) -> None:
    answer = await DOORS[door](http, OBJECTS[name])
    assert answer.is_success, answer.text
    assert (await http.post("/v1/streams/list/entries", json=[OBJECTS[name]])).status_code == 201
    assert await fields(http, "s") == await fields(http, "list") != []


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_no_entry_in_a_list_is_none_by_itself(
    http: httpx.AsyncClient, door: str, name: str
) -> None:
    """422 with the place; nothing is stored."""
    answer = await DOORS[door](http, REFUSED[name])
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), answer.text
    assert (await http.post("/v1/streams/list/entries", json=[REFUSED[name]])).status_code == 422
    assert await fields(http, "s") == []


async def test_an_object_with_an_envelopes_fields_is_an_envelope(http: httpx.AsyncClient) -> None:
    """And one with a list of entries is a batch."""
    for body in ({"id": "5-1", "fields": {"id": "x"}}, {"entries": [{"id": "6-1", "fields": [["a", "b"]]}]}):
        assert (await publish(http, body)).status_code == 201
    page = (await http.get(f"{S}/entries")).json()["entries"]
    assert [(one["id"], one["fields"]) for one in page] == [("5-1", {"id": "x"}), ("6-1", {"a": "b"})]


async def test_nested_values_are_refused_with_the_way_that_takes_them(http: httpx.AsyncClient) -> None:
    """Where they are said to be nested, they are stored."""
    hook = {"action": "opened", "pull_request": {"labels": ["a", None]}}
    (place,) = (await publish(http, hook)).json()["errors"]
    assert place["pointer"] == "/pull_request"
    assert "/entries/ndjson?nested=json" in place["detail"]
    for way in ("entries?nested=json", "entries/ndjson?nested=json"):
        assert (await http.post(f"{S}/{way}", json=hook)).status_code == 201
    stored = {"action": "opened", "pull_request": '{"labels":["a",null]}'}
    assert await fields(http, "s") == [stored, stored]


async def test_an_object_has_any_notation(http: httpx.AsyncClient) -> None:
    """Over several lines, with blanks, and with names that are escaped."""
    body = b'\r\n { "act\\u0069on" :\n"opened",\t"id":1.50 } '
    assert (await http.post(f"{S}/entries", content=body, headers=JSON)).status_code == 201
    assert await fields(http, "s") == [{"action": "opened", "id": "1.50"}]


@pytest.mark.parametrize("value", [b'"%b"' % (b"x" * 500), b'7,"%b":1' % (b"y" * 99_000), rb'"\u00e9"'])
def test_a_large_object_is_an_entry(value: bytes) -> None:
    """It is read in another way than a small one; a name that occurs twice is refused in both."""
    limits, media = EntryLimits.of(Settings()), MediaType("", "application/json")
    members = b",".join(b'"f%d":%b' % (number, value if number == 0 else b'"1"') for number in range(1_000))
    blanks = b" " * CROWDED_BYTES_MIN
    (body,) = entry_bodies.read(b"{%b%b}" % (blanks, members), media, limits).bodies
    assert entries.pairs_of(entries.encode(1, body))[-1] == ("f999", b"1")
    with pytest.raises(RefusalError, match="twice"):
        entry_bodies.read(b'{%b%b,"f0":1}' % (blanks, members), media, limits)
