"""Hostile JSON at every operation that takes it: a clear 4xx, never a 5xx, nothing stored."""

import json
from collections.abc import Iterator

import httpx
import pytest

from app.errors import RefusalError
from app.http.models import RequestModel
from app.http.operations.binder import read_body
from app.main import App

ENTRIES = "/v1/streams/s/entries"
READ = "/v1/streams/s/groups/g/consumers/c/read"

# (what, text of a value where a field's value stands, code of the refusal)
VALUES = [
    ("nan", "NaN", "malformed_json"),
    ("infinity", "Infinity", "malformed_json"),
    ("minus infinity", "-Infinity", "malformed_json"),
    ("beyond a double", "1e400", "invalid"),
    ("minus beyond a double", "-1e400", "invalid"),
    ("5000 digits", "1" * 5_000, "invalid"),
    ("beyond 64 bits", "18446744073709551616", "invalid"),
    ("below 64 bits", "-9223372036854775809", "invalid"),
    ("leading zero", "01", "malformed_json"),
    ("plus", "+1", "malformed_json"),
    ("bare word", "yes", "malformed_json"),
    ("single quotes", "'a'", "malformed_json"),
    ("high surrogate", r'"\ud800"', "malformed_json"),
    ("low surrogate", r'"\udc00"', "malformed_json"),
    ("two high surrogates", r'"\ud800\ud800"', "malformed_json"),
    ("swapped surrogates", r'"\udc00\ud800"', "malformed_json"),
    ("surrogate and text", r'"\ud800x\udc00"', "malformed_json"),
    ("surrogate and escape", r'"\ud800\n"', "malformed_json"),
    ("raw control character", '"\x01"', "malformed_json"),
    ("raw line end", '"\n"', "malformed_json"),
    ("bad escape", r'"\x41"', "malformed_json"),
    ("short escape", r'"\u12"', "malformed_json"),
    ("null", "null", "invalid"),
    ("object", '{"a":"b"}', "invalid"),
    ("list", '["a"]', "invalid"),
    ("33 levels", "[" * 33 + "]" * 33, "malformed_json"),
    ("open levels", "[" * 20_000, "malformed_json"),
    ("closed levels", "[" * 20_000 + "]" * 20_000, "malformed_json"),
    ("truncated", '"abc', "malformed_json"),
    ("nothing", "", "malformed_json"),
    ("two", '"a" "b"', "malformed_json"),
    ("comma", '"a",', "malformed_json"),
    ("repeated name", '"1","f":"2"', "invalid"),
    ("repeated name, escaped", r'"1","\u0066":"2"', "invalid"),
]
SHAPES = {
    "one": ('{"fields":{"f":%s}}', "application/json"),
    "batch": ('{"entries":[{"fields":{"f":"1"}},{"fields":{"f":%s}}]}', "application/json"),
    "line": ('{"f":"1"}\n{"f":%s}', "application/x-ndjson"),
    "envelope": ('{"fields":{"f":"1"}}\n{"fields":{"f":%s}}', "application/x-ndjson"),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("text", "code"), [case[1:] for case in VALUES], ids=[case[0] for case in VALUES])
async def test_a_hostile_value_is_refused(http: httpx.AsyncClient, shape: str, text: str, code: str) -> None:
    """400 for what is no JSON, 422 for what is no value; in a batch, its index."""
    template, kind = SHAPES[shape]
    body = (template % text).encode()
    answer = await http.post(ENTRIES, content=body, headers={"content-type": kind})
    assert (answer.json()["code"], answer.status_code) == (code, 400 if code == "malformed_json" else 422)
    if "line" in shape or (code == "invalid" and shape != "one"):
        assert answer.json()["index"] == 1
    await nothing_stored(http)


@pytest.mark.parametrize(
    "path", [ENTRIES, "/v1/commands", "/v1/commands/pipeline", "/v1/commands/multi-exec"]
)
async def test_an_empty_body_is_refused(http: httpx.AsyncClient, path: str) -> None:
    """Other bytes that are no JSON are sent to every operation by tests/hostile/test_json.py."""
    answer = await http.post(path, content=b"", headers={"content-type": "application/json"})
    assert (answer.status_code, "error" in answer.json()) == (400, "commands" in path)
    await nothing_stored(http)


@pytest.mark.parametrize(
    "body",
    [
        "1", "null", "true", '"text"', "[]", "{}", '{"fields":null}', '{"fields":[]}',
        '{"fields":[["a"]]}', '{"fields":[["a","b","c"]]}', '{"fields":[[1,"b"]]}', '{"fields":["a","b"]}',
        '{"fields":[{"a":"b"}]}', '{"fields":{"a":"b"},"id":5}', '{"fields":{"a":"b"},"encoding":"gzip"}',
        '{"fields":{"a":"b"},"pairs":[]}', '{"fields":{"a":"b"},"fields":{"a":"c"}}',
        '{"entries":{}}', '{"entries":null}', '{"entries":[1]}', '{"entries":[[]]}', '{"entries":[{}]}',
        '{"entries":[{"fields":{"a":"b"}}],"id":"1-0"}', '{"entries":[],"entries":[{"fields":{"a":"b"}}]}',
        '{"entries":[{"entries":[{"fields":{"a":"b"}}]}]}', '{"entries":[{"a":"b"}]}',
        '{"fields":{"a":5},"encoding":"base64x"}',
    ],
)  # fmt: skip
async def test_json_that_is_no_entry_is_422(http: httpx.AsyncClient, body: str) -> None:
    """With the place and a hint."""
    answer = await http.post(ENTRIES, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert answer.json()["errors"][0]["detail"]
    await nothing_stored(http)


@pytest.mark.parametrize("value", ["%%", "a", "YQ", "YQ=", "Y Q==", "YQ==\n", "é"])
async def test_what_is_not_base64_is_400(http: httpx.AsyncClient, value: str) -> None:
    """Strictly: padded, nothing between."""
    answer = await http.post(ENTRIES, json={"fields": {"a": value}, "encoding": "base64"})
    assert answer.status_code == 400
    await nothing_stored(http)


@pytest.mark.parametrize(
    "entry_id",
    ["", "-", "-1", "1-", "1--1", "+1", " 1", "1 ", "1_0", "١-0", "0x1", "1-0-0", "1-*-*", "*-1", "**", "$",
     ">",      "18446744073709551616", "0-18446744073709551616", "1" * 200, "1-0\n", "1\u0000"],
)  # fmt: skip
async def test_what_is_no_id_is_400(http: httpx.AsyncClient, entry_id: str) -> None:
    """Python's `int` would take some of these."""
    answer = await http.post(ENTRIES, json={"id": entry_id, "fields": {"a": "1"}})
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_id")
    lines = json.dumps({"id": entry_id, "fields": {"a": "1"}})
    answer = await http.post(ENTRIES, content=lines, headers={"content-type": "application/x-ndjson"})
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_id")
    await nothing_stored(http)


@pytest.mark.parametrize("entry_id", ["0-0", "0"])
async def test_zero_is_no_new_id(http: httpx.AsyncClient, entry_id: str) -> None:
    """409, as Redis has it."""
    answer = await http.post(ENTRIES, json={"id": entry_id, "fields": {"a": "1"}})
    assert (answer.status_code, answer.json()["code"]) == (409, "id_not_increasing")


async def test_after_the_last_id_there_is_none(http: httpx.AsyncClient) -> None:
    """409 stream_exhausted, and the stream can still be read to its end."""
    last = "18446744073709551615-18446744073709551615"
    assert (await http.post(ENTRIES, json={"id": last, "fields": {"a": "1"}})).status_code == 201
    answer = await http.post(ENTRIES, json={"fields": {"a": "1"}})
    assert (answer.status_code, answer.json()["code"]) == (409, "stream_exhausted")
    for query in (f"after={last}", f"after={last}&end=%2B", f"start={last}"):
        page = await http.get(f"{ENTRIES}?{query}")
        assert (page.status_code, page.json()["next"]) == (200, last)


async def test_values_of_a_form_may_be_any_bytes(http: httpx.AsyncClient) -> None:
    """They become base64."""
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert (await http.post(ENTRIES, content="a=%ff", headers=headers)).status_code == 201
    (entry,) = (await http.get(ENTRIES)).json()["entries"]
    assert (entry["fields"], entry["encoding"]) == ({"a": "/w=="}, "base64")


async def nothing_stored(http: httpx.AsyncClient) -> None:
    """Neither an entry nor a stream, and the gateway serves on."""
    assert (await http.post("/v1/commands", json=["DBSIZE"])).json() == {"result": 0}


def _models(kind: type[RequestModel]) -> Iterator[type[RequestModel]]:
    for one in kind.__subclasses__():
        yield from (one, *_models(one))


def test_a_refusal_is_in_the_gateways_words(closed_app: App) -> None:
    """Whichever member of a body is wrong: the sentences of Pydantic stay inside."""
    numbers, texts, lists = [5, -5, 5.5], ["", "x" * 600, "a/b"], [[], [5], ["x"] * 3, ["a"] * 101]
    values: list[object] = [*numbers, *texts, *lists, True, {}, {"a": 5}, {"": ""}]
    details: set[str] = set()
    for model in _models(RequestModel):
        for body in ({name: value} for name in model.model_fields for value in values):
            try:
                read_body(
                    json.dumps(body).encode(), model=model, default=None, settings=closed_app.gateway.settings
                )
            except RefusalError as refusal:
                details |= {place.detail for place in refusal.places}
    assert "it is true or false" in details
    assert [one for one in details if "should" in one or "valid" in one] == []
