"""The bounds of the settings: of their own values, and of what a gateway that is set so takes, at both sides.

Knows: one request for each setting, with and without it. Must never know: where a bound is looked at.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import annotated_types
import httpx
import pytest
from pydantic import ValidationError

from app.settings import Settings
from engine import Engine, SystemClock
from tests.app.conftest import app_on, calling
from tests.bounds import bounded
from tests.server import Server

ENTRIES = "/v1/streams/s/entries"
JSON = {"content-type": "application/json"}


@asynccontextmanager
async def gateway(**limits: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway that is set so."""
    async with (
        Engine.open(None, clock=SystemClock()) as engine,
        calling(app_on(engine, bounded(log_requests="none", **limits))) as http,
    ):
        yield http


# ---- what a setting may be


def bounds_of(name: str) -> tuple[int, int]:
    """The smallest and the largest value of a number."""
    found = Settings.model_fields[name].metadata
    (least,) = [one.ge for one in found if isinstance(one, annotated_types.Ge)]
    (most,) = [one.le for one in found if isinstance(one, annotated_types.Le)]
    assert isinstance(least, int)
    assert isinstance(most, int)
    return least, most


NUMBERS = [name for name, field in Settings.model_fields.items() if field.annotation is int]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_setting_is_within_its_bounds(name: str) -> None:
    """Every number has both; at each it is taken, beyond it refused by its name."""
    least, most = bounds_of(name)
    for value in (least, least + 1, most - 1, most):
        assert getattr(Settings.model_validate({name: value}), name) == value
    for value in (least - 1, most + 1):
        with pytest.raises(ValidationError, match=name):
            Settings.model_validate({name: value})


# ---- what is taken of a gateway that is set so


Ask = Callable[[int], tuple[str, str, bytes | None]]


def posted(path: str, body: object) -> tuple[str, str, bytes]:
    return "POST", path, json.dumps(body).encode()


def entry_of_bytes(size: int) -> tuple[str, str, bytes]:
    """A publication with a body of this number of bytes."""
    empty = len(b'{"fields":{"a":""}}')
    return "POST", ENTRIES, b'{"fields":{"a":"%b"}}' % (b"x" * (size - empty))


ASKED: dict[str, tuple[int, Ask, str]] = {
    "body_bytes_max": (1_024, entry_of_bytes, "body_too_large"),
    "batch_entries_max": (
        3,
        lambda n: posted(ENTRIES, {"entries": [{"fields": {"a": "1"}}] * n}),
        "too_many_entries",
    ),
    "pipeline_commands_max": (
        3,
        lambda n: posted("/v1/commands/pipeline", [["PING"]] * n),
        "too_many_entries",
    ),
    "request_streams_max": (
        3,
        lambda n: posted("/v1/publish", {"streams": {f"s{i}": [{"fields": {"a": "1"}}] for i in range(n)}}),
        "invalid",
    ),
    "count_max": (7, lambda n: ("GET", f"{ENTRIES}?count={n}", None), "invalid"),
    "columns_count_max": (7, lambda n: ("COLUMNS", f"{ENTRIES}?after=0&count={n}", None), "invalid"),
    "wait_ms_max": (3, lambda n: ("GET", f"{ENTRIES}?after=$&wait={n}", None), "invalid"),
}


@pytest.mark.parametrize("name", ASKED)
async def test_a_request_is_within_what_is_set(name: str) -> None:
    """One less and as much are taken; one more is refused."""
    most, ask, code = ASKED[name]
    async with gateway(**{name: most}) as http:
        await http.post(ENTRIES, json={"fields": {"a": "1"}})
        for size in (most - 1, most, most + 1):
            method, path, content = ask(size)
            headers = JSON if content else {}
            if method == "COLUMNS":
                method, headers = "GET", {"accept": "application/vnd.weir.columns+json"}
            answer = await http.request(method, path, content=content, headers=headers)
            if size <= most:
                assert answer.is_success, (size, answer.text)
            else:
                assert answer.status_code in (413, 422), answer.text
                assert answer.json()["code"] == code


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """What a document says at each place."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in pairs:
        yield from leaves(one, f"{place}/{name}")
    if not isinstance(value, dict | list):
        yield place, value


@pytest.mark.parametrize("name", sorted(ASKED.keys() - {"body_bytes_max", "pipeline_commands_max"}))
async def test_the_document_says_what_is_set(name: str) -> None:
    """The bound at which a request is refused, and nothing else moves."""
    most = ASKED[name][0]
    found = []
    for limits in ({}, {name: most}):
        async with gateway(**limits) as http:
            found.append(dict(leaves((await http.get("/openapi.json")).json())))
    usual, moved = found
    assert usual.keys() == moved.keys()
    assert {moved[place] for place in usual if usual[place] != moved[place]} == {most}


KEYWORDS = {
    "wait_ms_max": "maximum",
    "count_max": "maximum",
    "columns_count_max": "maximum",
    "request_streams_max": "maxProperties",
    "batch_entries_max": "maxItems",
    "ids_max": "maxItems",
}


async def test_no_bound_of_the_document_stays_where_a_setting_moves_it() -> None:
    """With each setting on a value of its own, no bound is left that has the usual value of one."""
    usual = {(keyword, getattr(Settings(), name)) for name, keyword in KEYWORDS.items()}
    async with gateway(**{name: 71 + number for number, name in enumerate(KEYWORDS)}) as http:
        found = dict(leaves((await http.get("/openapi.json")).json()))
    assert [place for place, value in found.items() if (place.rpartition("/")[2], value) in usual] == []


async def test_an_answer_without_a_count_has_as_many_entries_as_are_set() -> None:
    """One less and as many are whole; of one more the last stays for the next page."""
    async with gateway(count_default=3) as http:
        for size, more in ((2, False), (3, False), (4, True)):
            rows = [{"fields": {"a": "1"}}] * size
            await http.post(f"/v1/streams/{size}/entries", json={"entries": rows})
            page = (await http.get(f"/v1/streams/{size}/entries")).json()
            assert (len(page["entries"]), page["more"]) == (min(size, 3), more)


async def test_json_is_nested_as_deep_as_is_set() -> None:
    """What is within the limit is refused for what it is, what is deeper for its depth."""
    async with gateway(json_depth_max=6) as http:
        result = []
        for levels in (5, 6, 7):
            ids = "[" * (levels - 1) + "]" * (levels - 1)
            answer = await http.post(f"{ENTRIES}/delete", content=f'{{"ids":{ids}}}', headers=JSON)
            result.append(answer.json()["detail"])
        assert result[0] == result[1] != result[2]
        assert "6" in result[2]


# ---- how long an answer may be


ROWS = [{"id": f"5-{number}", "fields": {"a": "x" * 500}} for number in range(5)]
# What an entry counts for is its text.
ROW_BYTES = len(json.dumps(ROWS[0], separators=(",", ":")))
RANGE = ["XRANGE", "s", "-", "+"]


async def run(http: httpx.AsyncClient, way: str, *commands: list[str]) -> list[Any]:
    """The result of each command, or its error's text."""
    found = (await http.post(f"/v1/commands/{way}", json=commands)).json()
    return [one.get("result", one.get("error")) for one in found]


@pytest.mark.parametrize(("beside", "fit"), [(-1, 3), (0, 4), (1, 4)])
async def test_an_answer_has_as_many_bytes_of_entries_as_are_set(beside: int, fit: int) -> None:
    """A page and a delivery end there, and go on behind it; a range that does not end there is refused."""
    async with gateway(answer_bytes_max=4 * ROW_BYTES + beside) as http:
        await http.post(ENTRIES, json={"entries": ROWS[:4]})
        await http.put("/v1/streams/s/groups/g", json={"start": "0"})
        page = (await http.get(ENTRIES)).json()
        assert (len(page["entries"]), page["more"]) == (fit, fit < 4)
        delivered = (await http.post("/v1/streams/s/groups/g/consumers/c/read", json={})).json()["entries"]
        assert [one["id"] for one in delivered] == [f"5-{number}" for number in range(fit)]
        (found,) = await run(http, "pipeline", RANGE)
        assert isinstance(found, list) == (fit == 4), found


@pytest.mark.parametrize(("beside", "fits"), [(-1, False), (0, True), (1, True)])
async def test_reads_of_a_transaction_share_its_bytes(beside: int, *, fits: bool) -> None:
    """Each of two may have half of them."""
    limits = {
        "buffer_bytes_max": 2 * (2 * 5 * ROW_BYTES + beside),
        "entry_bytes_max": 1_024,
        "answer_bytes_max": 5 * ROW_BYTES + 1,
    }
    async with gateway(**limits) as http:
        await http.post(ENTRIES, json={"entries": ROWS})
        for found in await run(http, "multi-exec", RANGE, RANGE):
            assert isinstance(found, list) == fits, found


@pytest.mark.parametrize(
    ("most", "sentence"), [(1_000, "1 second"), (1_500, "1.5 seconds"), (3_599_999, "3599.999 seconds")]
)
async def test_how_long_a_read_may_wait_is_said_as_it_is_set(most: int, sentence: str) -> None:
    """Prefer asks in whole seconds; the limit may be a part of one."""
    async with gateway(wait_ms_max=most) as http:
        answer = await http.get(f"{ENTRIES}?after=$", headers={"prefer": "wait=3600"})
        assert answer.status_code == 422
        assert answer.json()["detail"] == f"Prefer: wait is at most {sentence}"


# ---- how many may stay


def test_there_are_as_many_as_are_set(tmp_path: Path) -> None:
    """As many are made; one more is refused by the name of its setting, and one that is there is still used.
    Each has its own limit. Trying again is no use, so there is no Retry-After.
    """
    limits = {"groups_max": 2, "consumers_max": 3, "streams_max": 4}
    paths = ("/v1/streams/0/groups/{}", "/v1/streams/0/groups/0/consumers/{}", "/v1/streams/{}")
    options = [word for name, most in limits.items() for word in ("--set", f"{name}={most}")]
    with Server(tmp_path / "data", *options) as server, httpx.Client(base_url=server.url) as http:
        http.put("/v1/streams/0", json={})
        for (name, most), path in zip(limits.items(), paths, strict=True):
            body = {"start": "0"} if name == "groups_max" else {}
            *made, refused = [http.put(path.format(number), json=body) for number in range(most + 1)]
            assert all(one.is_success for one in made), name
            problem = refused.json()
            assert (refused.status_code, problem["code"], problem["limit"]) == (422, "invalid", name)
            assert (name in problem["detail"], problem["retryable"]) == (True, False)
            assert "retry-after" not in refused.headers
            assert http.put(path.format(1), json=body).is_success
        entry = {"fields": {"a": "1"}}
        assert http.post("/v1/streams/t/entries", json=entry).json()["limit"] == "streams_max"
        command = http.post("/v1/commands", json=["XADD", "t", "*", "a", "1"])
        assert command.status_code == 400
        assert command.json()["error"].startswith("ERR no room for another stream")
        assert http.post("/v1/streams/1/entries", json=entry).status_code == 201


async def test_a_query_that_one_gateway_took_is_refused_by_another_with_a_lower_bound() -> None:
    """What is remembered of queries is of one gateway's settings; as many are taken as come."""
    async with gateway(count_max=10) as wide, gateway(count_max=5) as narrow:
        for asked, expected in ((wide, 200), (narrow, 422), (wide, 200)):
            assert (await asked.get(f"{ENTRIES}?count=6")).status_code == expected
        for number in range(300):
            assert (await narrow.get(f"{ENTRIES}?after={number}-0&count=5")).status_code == 200
        assert (await narrow.get(f"{ENTRIES}?count=6")).status_code == 422
