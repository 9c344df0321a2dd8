"""Publishing: every body's shape, every option, every refusal; what is refused stores nothing."""

import base64
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.http import strict_json
from app.main import App
from app.settings import Settings
from tests.app.test_waits import Message

ENTRIES = "/v1/streams/s/entries"
NDJSON = {"content-type": "application/x-ndjson"}
AS_JSON = {"content-type": "application/json"}
KEY = {"idempotency-key": "k"}


async def stored(http: httpx.AsyncClient) -> list[dict[str, object]]:
    entries: list[dict[str, object]] = (await http.get(ENTRIES)).json()["entries"]
    return entries


async def fields(http: httpx.AsyncClient) -> list[object]:
    return [entry["fields"] for entry in await stored(http)]


async def test_one_json_entry_is_stored_and_located(http: httpx.AsyncClient) -> None:
    """201 with the ID, `duplicate` and a Location that can be read."""
    answer = await http.post(ENTRIES, json={"fields": {"b": "1", "a": "2"}})
    assert answer.status_code == 201
    assert answer.json().keys() == {"id", "duplicate"}
    assert answer.json()["duplicate"] is False
    assert answer.headers["weir-durability"] == "os"
    found = await http.get(answer.headers["location"])
    assert found.json() == {"id": answer.json()["id"], "fields": {"b": "1", "a": "2"}}
    assert list(found.json()["fields"]) == ["b", "a"]


@pytest.mark.parametrize("trim", ["maxlen=0&approx=false", "minid=99999999999999"])
async def test_an_entry_that_is_trimmed_at_once_has_no_place(http: httpx.AsyncClient, trim: str) -> None:
    """There is no Location that would lead nowhere."""
    answer = await http.post(f"{ENTRIES}?{trim}", json={"fields": {"a": "b"}})
    assert answer.status_code == 201
    assert "location" not in answer.headers


async def test_a_json_batch_gets_consecutive_ids(http: httpx.AsyncClient) -> None:
    """All entries in order, one answer with first, last, count and all IDs."""
    answer = await http.post(ENTRIES, json={"entries": [{"fields": {"n": str(n)}} for n in range(3)]})
    result = answer.json()
    assert answer.status_code == 201
    assert result["count"] == 3
    assert result["ids"] == [entry["id"] for entry in await stored(http)]
    assert (result["first_id"], result["last_id"]) == (result["ids"][0], result["ids"][-1])
    assert "location" not in answer.headers


async def test_minimal_answers_leave_the_ids_out(http: httpx.AsyncClient) -> None:
    """Prefer: return=minimal is applied and said to be."""
    answer = await http.post(
        ENTRIES, content='{"a":"1"}\n{"a":"2"}', headers={**NDJSON, "prefer": "return=minimal"}
    )
    assert answer.json().keys() == {"first_id", "last_id", "count", "duplicate"}
    assert answer.headers["preference-applied"] == "return=minimal"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"a":"1"}\n{"b":"2"}\n', [{"a": "1"}, {"b": "2"}]),
        ('{"a": "1"}\r\n\r\n  {"b" : "2"}  \r\n', [{"a": "1"}, {"b": "2"}]),
        ('{"a": 1, "t": 19.80}\n{"a": 1e5}', [{"a": "1", "t": "19.80"}, {"a": "1e5"}]),
        ('{"a": 1, "t": 19.8, "no": false}', [{"a": "1", "t": "19.8", "no": "false"}]),
        ('{"fields":{"a":"1"}}\n{"fields":{"b":"2"}}', [{"a": "1"}, {"b": "2"}]),
        ('{"fields":{"a":1}}\n{"fields":"text"}', [{"a": "1"}, {"fields": "text"}]),
        ('{"fields":[["a","1"]]}', [{"a": "1"}]),
        ('{"a":"\\u00e9\\ud83d\\ude00 \\/ \u2028 \\u0000"}', [{"a": "é😀 / \u2028 \0"}]),
        ('{"a":"x\\\\","b":"\\"q\\""}', [{"a": "x\\", "b": '"q"'}]),
        ('{"__proto__":"1","constructor":"2"}', [{"__proto__": "1", "constructor": "2"}]),
        ('{"":""}', [{"": ""}]),
    ],
)  # fmt: skip
async def test_ndjson_is_one_entry_a_line(http: httpx.AsyncClient, body: str, expected: list[object]) -> None:
    """Bare fields and envelopes, any blanks, blank lines; numbers keep their text."""
    answer = await http.post(ENTRIES, content=body.encode(), headers=NDJSON)
    assert answer.status_code == 201, answer.text
    assert await fields(http) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('[{"a":"1"},{"b":"2"}]', [{"a": "1"}, {"b": "2"}]),
        (' [ {"a" : "1"} , {"b":"2"}\n] ', [{"a": "1"}, {"b": "2"}]),
        ('[{\n"a": "1"\n},\n{"b":"2"}]', [{"a": "1"}, {"b": "2"}]),
        ('[{"a":1,"t":19.80},{"a":true}]', [{"a": "1", "t": "19.80"}, {"a": "true"}]),
        ('[{"fields":{"a":"1"}},{"fields":[["b","2"]]},{"fields":"text"}]',
         [{"a": "1"}, {"b": "2"}, {"fields": "text"}]),
        ('[{"a":"x\\n]"}]', [{"a": "x\n]"}]),
    ],
)  # fmt: skip
async def test_a_list_is_a_batch(http: httpx.AsyncClient, body: str, expected: list[object]) -> None:
    """Bare fields and envelopes, as on lines, however it is written; of one entry too."""
    answer = await http.post(ENTRIES, content=body, headers=AS_JSON)
    assert answer.status_code == 201, answer.text
    assert answer.json()["count"] == len(expected)
    assert await fields(http) == expected


@pytest.mark.parametrize(
    ("body", "status", "code", "index"),
    [
        ("[]", 422, "invalid", None),
        ('[{"a":"1"},2]', 422, "invalid", 1),
        ('[{"a":"1"},{"a":{}}]', 422, "invalid", 1),
        ('[{"a":"1"},{"a":"1","a":"2"}]', 422, "invalid", 1),
        ('[{"a":"1"},{}]', 422, "invalid", 1),
        ('[{"a":"1"},{"fields":{"b":"2"},"more":1}]', 422, "invalid", 1),
        ('[{"a":"1"},{"a":"x\ny"}]', 400, "malformed_json", None),
        ('[{"a":"1"},{"b":"2"}', 400, "malformed_json", None),
        ('[{"a":"1"}]{"b":"2"}', 400, "malformed_json", None),
        ('[{"a":"1"}]\n[{"b":"2"}]', 400, "malformed_json", None),
        ("[" * 5_000, 400, "malformed_json", None),
        (f"[{','.join(['{}'] * 101)}]", 413, "too_many_entries", None),
        (json.dumps([{"a": "1"}, {"a": "x" * 9_000}]), 413, "entry_too_large", 1),
    ],
)
async def test_a_list_is_stored_whole_or_not_at_all(
    http: httpx.AsyncClient, body: str, status: int, code: str, index: int | None
) -> None:
    answer = await http.post(ENTRIES, content=body, headers=AS_JSON)
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem.get("index")) == (status, code, index)
    assert "line" not in problem
    assert await stored(http) == []


NESTED: dict[str, object] = {
    '{"a":"1","tags":["x",1.50],"k8s":{"pod":"p","labels":{}},"gone":null,"ok":true}': {
        "a": "1",
        "tags": '["x",1.50]',
        "k8s": '{"pod":"p","labels":{}}',
        "gone": "null",
        "ok": "true",
    },
    '{ "a" : [ 1 , { "b" : "x y" } ] }': {"a": '[1,{"b":"x y"}]'},
    '{"a":{"b":"\\u00e9","b":12345678901234567890123}}': {"a": '{"b":"é","b":12345678901234567890123}'},
    '{"fields":{"a":1},"name":"cpu"}': {"fields": '{"a":1}', "name": "cpu"},
    '{"fields":{"a":1}}': {"fields": '{"a":1}'},
    '{"a":"1"}': {"a": "1"},
}


@pytest.mark.parametrize("kind", ["lines", "list", "compact list"])
async def test_nested_values_are_stored_as_their_json(http: httpx.AsyncClient, kind: str) -> None:
    """Without blanks, numbers as they were written; each row alone and all together."""
    rows = list(NESTED)
    if kind == "compact list":
        rows = [json.dumps(json.loads(row), separators=(",", ":"), ensure_ascii=False) for row in rows[:2]]
    for together in (rows, *([row] for row in rows)):
        body = "\n".join(together) if kind == "lines" else f"[{','.join(together)}]"
        headers = NDJSON if kind == "lines" else AS_JSON
        answer = await http.post(f"{ENTRIES}?nested=json", content=body.encode(), headers=headers)
        assert answer.status_code == 201, answer.text
    expected = list(NESTED.values())[: len(rows)]
    if kind == "compact list":
        expected[0] = {**expected[0], "tags": '["x",1.5]'}  # type: ignore[dict-item]
    assert await fields(http) == [*expected, *expected]


@pytest.mark.parametrize(
    "body", [{"fields": {"a": {"b": [1]}}}, {"entries": [{"fields": [["a", {"b": [1]}]]}]}]
)
async def test_nested_values_of_envelopes_are_too(http: httpx.AsyncClient, body: object) -> None:
    assert (await http.post(f"{ENTRIES}?nested=json", json=body)).status_code == 201
    assert await fields(http) == [{"a": '{"b":[1]}'}]


@pytest.mark.parametrize(
    ("query", "body", "status"),
    [
        ("", '{"a":{"b":1}}', 422),
        ("?nested=text", '{"a":{"b":1}}', 422),
        ("?nested=json", '{"a":{"b":1', 400),
        ("?nested=json", '{"a":{"b":"\\ud800"}}', 400),
        ("?nested=json", f'{{"a":{"[" * 32}1{"]" * 32}}}', 400),
        ("?nested=json", '{"a":{"b":1},"a":2}', 422),
        ("?nested=json", '{"a":{"b":1}}\n5', 422),
    ],
)
async def test_nested_values_are_as_strict(
    http: httpx.AsyncClient, query: str, body: str, status: int
) -> None:
    """Without being asked for they are refused; what is no JSON, or too deep, always."""
    answer = await http.post(f"{ENTRIES}{query}", content=body, headers=NDJSON)
    assert answer.status_code == status, answer.text
    assert await stored(http) == []


@pytest.mark.parametrize("kind", ["application/x-ndjson", "application/jsonl", "text/plain", ""])
async def test_lines_have_a_path_of_their_own(http: httpx.AsyncClient, kind: str) -> None:
    """There the media type may be any, also where it is one line; options are as they are elsewhere."""
    lines = f"{ENTRIES}/ndjson"
    answer = await http.post(
        f"{lines}?nested=json", content='{"a":{"b":1}}\n', headers={"content-type": kind, **KEY}
    )
    assert (answer.status_code, answer.json()["count"]) == (201, 1), answer.text
    again = await http.post(lines, content='{"a":{"b":1}}\n', headers={"content-type": kind, **KEY})
    assert again.status_code == 422
    assert (await http.post(lines, content="1", headers={"content-type": kind})).status_code == 422
    assert await fields(http) == [{"a": '{"b":1}'}]
    assert (await http.get(lines)).status_code == 405


async def test_an_entry_as_it_is_has_a_path_of_its_own(http: httpx.AsyncClient) -> None:
    """JSON that is sent as text, too; a repeated key answers as the first time."""
    raw = f"{ENTRIES}/raw"
    for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
        answer = await http.post(raw, content=b'{"a":1}', headers={"content-type": kind})
        assert answer.status_code == 201, answer.text
        found = (await http.get(answer.headers["location"])).json()["fields"]
        assert found == {"data": '{"a":1}', "content-type": kind}
    once = await http.post(raw, content=b"\xff", headers=KEY)
    again = await http.post(raw, content=b"\xff", headers=KEY)
    assert (once.json()["id"], again.json()["duplicate"]) == (again.json()["id"], True)
    assert (await http.post(raw, content=b"")).status_code == 422
    assert (await http.post(raw, content=b"x" * 9_000)).status_code == 413
    assert len(await stored(http)) == 4


async def test_forms_work_as_typed(http: httpx.AsyncClient) -> None:
    """`curl -d sensor=1 -d temp=19.8`: the pairs are the fields, a repeated name is kept."""
    answer = await http.post(
        ENTRIES,
        content="sensor=1&temp=19.8+C&sensor=%C3%A9&flag",
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert answer.status_code == 201
    (entry,) = await stored(http)
    assert entry["fields"] == {"sensor": "é", "temp": "19.8 C", "flag": ""}
    assert entry["pairs"] == [["sensor", "1"], ["temp", "19.8 C"], ["sensor", "é"], ["flag", ""]]


async def test_json_sent_as_a_form_is_told_how_to_send_it(http: httpx.AsyncClient) -> None:
    """`curl -d '{"a":1}'` is 415 with the hint to use --json."""
    answer = await http.post(
        ENTRIES, content='{"a":1}', headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert answer.status_code == 415
    assert "--json" in answer.json()["detail"]


@pytest.mark.parametrize(
    "kind", ["text/plain", "text/plain;charset=UTF-8", "application/ndjson", "text/json", ""]
)
@pytest.mark.parametrize(
    "body",
    [
        b'{"fields":{"a":"1"}}',
        b' \n[{"a":1}]',
        b'{"a":1}\n{"a":2}\n',
        b'{"a":1}\r\n\r\n{"a":2}',
        b"[]",
        b"{}",
    ],
)
async def test_json_sent_as_text_is_told_how_to_send_it(
    http: httpx.AsyncClient, body: bytes, kind: str
) -> None:
    """A string that a browser's `fetch` sends is 415 and no entry; `application/octet-stream` keeps it."""
    answer = await http.post(ENTRIES, content=body, headers={"content-type": kind} if kind else {})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    assert "application/octet-stream" in answer.json()["detail"]
    assert await stored(http) == []
    kept = await http.post(ENTRIES, content=body, headers={"content-type": "application/octet-stream"})
    assert kept.status_code == 201
    assert await fields(http) == [{"data": body.decode(), "content-type": "application/octet-stream"}]


@pytest.mark.parametrize("kind", ["text/plain", "application/json", "application/x-www-form-urlencoded", ""])
@pytest.mark.parametrize("body", [b'{"fields":{"a":"1"}}', b"[1,", b"a=1"])
async def test_a_raw_body_is_one_entry_whatever_its_type(
    http: httpx.AsyncClient, body: bytes, kind: str
) -> None:
    """With the type as it was sent."""
    headers = {"content-type": kind} if kind else {}
    answer = await http.post(f"{ENTRIES}?raw=true", content=body, headers=headers)
    assert answer.status_code == 201
    said = {"content-type": kind} if kind else {}
    assert await fields(http) == [{"data": body.decode(), **said}]
    refused = await http.post(f"{ENTRIES}?raw=true&nested=json", content=body, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid")


@pytest.mark.parametrize(
    "text",
    [
        "{no",
        "[note] to myself",
        '{"a":1} and more',
        '{"a":1}\nand more',
        "[1,2",
        '"a"',
        "1",
        "null",
        "{" * 5_000,
    ],
)
async def test_text_that_only_begins_like_json_is_text(http: httpx.AsyncClient, text: str) -> None:
    """And so is a value that is no object and no list."""
    answer = await http.post(ENTRIES, content=text, headers={"content-type": "text/plain"})
    assert answer.status_code == 201
    assert await fields(http) == [{"data": text, "content-type": "text/plain"}]


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        (b"hello", "text/plain", {"data": "hello", "content-type": "text/plain"}),
        (b"<a/>", "a/xml; charset=utf-8", {"data": "<a/>", "content-type": "a/xml; charset=utf-8"}),
        (b"", "text/plain", {"data": "", "content-type": "text/plain"}),
    ],
)  # fmt: skip
async def test_any_other_body_is_one_entry(
    http: httpx.AsyncClient, body: bytes, kind: str, expected: dict[str, str]
) -> None:
    """Field `data` holds the body, `content-type` what it was."""
    answer = await http.post(ENTRIES, content=body, headers={"content-type": kind})
    assert answer.status_code == 201
    assert await fields(http) == [expected]


async def test_bytes_that_are_no_text_come_back_as_base64(http: httpx.AsyncClient) -> None:
    """All values of such an entry are base64, and `encoding` says so; in JSON they go in the same way."""
    raw = b"\xff\x00\xfe"
    await http.post(ENTRIES, content=raw, headers={"content-type": "image/png"})
    await http.post(ENTRIES, json={"fields": {"data": base64.b64encode(raw).decode()}, "encoding": "base64"})
    for entry in await stored(http):
        assert entry["encoding"] == "base64"
        assert isinstance(entry["fields"], dict)
        assert base64.b64decode(entry["fields"]["data"]) == raw


async def test_base64_of_text_is_stored_as_text(http: httpx.AsyncClient) -> None:
    """`encoding` appears only where a value is not UTF-8."""
    await http.post(ENTRIES, json={"fields": {"a": "aGk="}, "encoding": "base64"})
    assert [sorted(entry) for entry in await stored(http)] == [["fields", "id"]]
    assert await fields(http) == [{"a": "hi"}]


async def test_a_name_may_stand_twice_in_a_list_of_pairs(http: httpx.AsyncClient) -> None:
    """`fields` has the last value, `pairs` the exact list."""
    await http.post(ENTRIES, json={"fields": [["a", "1"], ["a", 2]]})
    (entry,) = await stored(http)
    assert (entry["fields"], entry["pairs"]) == ({"a": "2"}, [["a", "1"], ["a", "2"]])


async def test_ids_may_be_given(http: httpx.AsyncClient) -> None:
    """Explicit, with an automatic sequence, wholly automatic; in a batch each entry has its own."""
    assert (await http.post(ENTRIES, json={"id": "5-1", "fields": {"a": "1"}})).json()["id"] == "5-1"
    assert (await http.post(ENTRIES, json={"id": "5-*", "fields": {"a": "1"}})).json()["id"] == "5-2"
    batch = {"entries": [{"id": "7-7", "fields": {"a": "1"}}, {"id": "7-*", "fields": {"a": 1}}]}
    assert (await http.post(ENTRIES, json=batch)).json()["ids"] == ["7-7", "7-8"]
    lines = '{"fields":{"a":"1"},"id":"8"}\n{"fields":{"a":"1"},"id":"9-1"}'
    assert (await http.post(ENTRIES, content=lines, headers=NDJSON)).json()["ids"] == ["8-0", "9-1"]
    last = await http.post(ENTRIES, json={"id": "*", "fields": {"a": "1"}})
    assert last.status_code == 201


async def test_an_id_that_does_not_increase_is_409(http: httpx.AsyncClient) -> None:
    """The problem has Redis's sentence and the last ID; a batch with one such ID stores nothing."""
    await http.post(ENTRIES, json={"id": "5-5", "fields": {"a": "1"}})
    answer = await http.post(ENTRIES, json={"id": "5-5", "fields": {"a": "1"}})
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["last_id"]) == (409, "id_not_increasing", "5-5")
    assert problem["redis_error"].startswith("ERR The ID specified in XADD is equal or smaller")
    batch = {"entries": [{"id": "6-1", "fields": {"a": "1"}}, {"id": "6-1", "fields": {"a": "1"}}]}
    assert (await http.post(ENTRIES, json=batch)).status_code == 409
    assert len(await stored(http)) == 1


async def test_nomkstream_refuses_a_missing_stream(http: httpx.AsyncClient) -> None:
    """404 and nothing made."""
    answer = await http.post(ENTRIES + "?nomkstream=true", json={"fields": {"a": "1"}})
    assert (answer.status_code, answer.json()["code"]) == (404, "no_stream")
    exists = await http.post("/v1/commands", json=["EXISTS", "s"])
    assert exists.json() == {"result": 0}


async def test_trimming_tells_what_it_removed(http: httpx.AsyncClient) -> None:
    """`maxlen` is approximate by default; `minid` works the same way."""
    for n in range(1, 6):
        await http.post(ENTRIES, json={"id": f"{n}-0", "fields": {"a": "1"}})
    kept = await http.post(ENTRIES + "?maxlen=2", json={"id": "6-0", "fields": {"a": "1"}})
    assert kept.json()["trimmed"] == 0
    answer = await http.post(ENTRIES + "?maxlen=2&approx=false", json={"id": "7-0", "fields": {"a": "1"}})
    assert answer.json() == {"id": "7-0", "duplicate": False, "trimmed": 5, "pending_affected": 0}
    answer = await http.post(ENTRIES + "?minid=7&approx=false", json={"id": "8-0", "fields": {"a": "1"}})
    assert answer.json()["trimmed"] == 1


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("maxlen=1&minid=1", 422, "invalid"),
        ("limit=5", 422, "invalid"),
        ("maxlen=1&approx=false&limit=5", 422, "invalid"),
    ],
)
async def test_wrong_options_are_refused_by_name(
    http: httpx.AsyncClient, query: str, status: int, code: str
) -> None:
    """Each with its code; nothing is stored."""
    answer = await http.post(f"{ENTRIES}?{query}", json={"fields": {"a": "1"}})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert await stored(http) == []


async def test_if_match_stores_only_on_the_expected_last_id(http: httpx.AsyncClient) -> None:
    """`"0-0"` is an empty or missing stream; a mismatch is 412 with the last ID."""
    body = {"id": "1-0", "fields": {"a": "1"}}
    assert (await http.post(ENTRIES, json=body, headers={"if-match": '"0-0"'})).status_code == 201
    late = await http.post(ENTRIES, json={"fields": {"a": "1"}}, headers={"if-match": '"0-0"'})
    assert (late.status_code, late.json()["code"], late.json()["last_id"]) == (412, "last_id_mismatch", "1-0")
    fresh = await http.post(ENTRIES, json={"fields": {"a": "1"}}, headers={"if-match": '"1-0"'})
    assert fresh.status_code == 201
    for wrong in ("1-0", '"x"', 'W/"1-0"', '"*"', "**"):
        answer = await http.post(ENTRIES, json={"fields": {"a": "1"}}, headers={"if-match": wrong})
        assert (answer.status_code, answer.json()["code"]) == (400, "malformed_id")


async def test_if_match_any_stores_only_in_a_stream_that_exists(http: httpx.AsyncClient) -> None:
    """`*` (RFC 9110, 13.1.1): 412 without the stream, before and after; an empty stream is one."""
    any_of_it: dict[str, Any] = {"headers": {"if-match": "*"}, "json": {"fields": {"a": "1"}}}
    missing = await http.post(ENTRIES, **any_of_it)
    assert (missing.status_code, missing.json()["code"]) == (412, "last_id_mismatch")
    assert (await http.get("/v1/streams/s")).status_code == 404
    await http.put("/v1/streams/s", json={})
    assert [(await http.post(ENTRIES, **any_of_it)).status_code for _ in range(2)] == [201, 201]
    await http.delete("/v1/streams/s")
    assert (await http.post(ENTRIES, **any_of_it)).status_code == 412


async def test_an_idempotency_key_answers_as_the_first_time(http: httpx.AsyncClient) -> None:
    """The same key and body: 201, `duplicate`, nothing stored again. Another body: 422."""
    headers = {"idempotency-key": "order 17"}
    first = await http.post(ENTRIES, json={"fields": {"a": "1"}}, headers=headers)
    again = await http.post(ENTRIES, json={"fields": {"a": "1"}}, headers=headers)
    assert (again.status_code, again.json()) == (201, {"id": first.json()["id"], "duplicate": True})
    other = await http.post(ENTRIES, json={"fields": {"a": "2"}}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    assert len(await stored(http)) == 1
    for wrong in ("", "x" * 256, "a\u00e9"):
        answer = await http.post(
            ENTRIES, json={"fields": {"a": "1"}}, headers={b"idempotency-key": wrong.encode("latin-1")}
        )
        assert answer.status_code == 422


async def test_a_synced_answer_says_so(http: httpx.AsyncClient) -> None:
    """Prefer: durability=fsync holds the answer until its frame is on the disk; there are no replicas."""
    body = {"fields": {"a": "1"}}
    answer = await http.post(ENTRIES, json=body, headers={"prefer": "durability=fsync"})
    assert (answer.status_code, answer.headers["weir-durability"]) == (201, "fsync")
    answer = await http.post(ENTRIES, json=body, headers={"prefer": "durability=replicated:1"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


@pytest.mark.parametrize("header", ["weir-producer", "weir-epoch", "weir-chunk"])
async def test_chunks_of_a_producer_go_elsewhere(http: httpx.AsyncClient, header: str) -> None:
    """422 with the place; nothing is stored."""
    answer = await http.post(ENTRIES, json={"fields": {"a": "1"}}, headers={header: "1"})
    assert (answer.status_code, answer.json()["errors"][0]["header"]) == (422, header.title())
    assert "/v1/publish" in answer.json()["detail"]
    assert await stored(http) == []


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": "application/x-ndjson; charset=utf-16"},
        {"content-type": "text/plain; charset=iso-8859-1"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/json", "content-encoding": "br"},
    ],
)
async def test_what_cannot_be_read_is_415(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    """Multipart, other charsets, other codings."""
    answer = await http.post(ENTRIES, content=b'{"fields":{"a":"1"}}', headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    assert await stored(http) == []


@pytest.mark.parametrize("kind", ["json", "ndjson"])
async def test_the_first_bad_entry_of_a_batch_is_named(http: httpx.AsyncClient, kind: str) -> None:
    """None is stored, and the problem has the index."""
    rows: list[object] = [{"a": "1"}, {"a": "2"}, {"a": None}, {"a": []}]
    if kind == "json":
        answer = await http.post(ENTRIES, json={"entries": [{"fields": row} for row in rows]})
    else:
        answer = await http.post(ENTRIES, content="\n".join(map(json.dumps, rows)), headers=NDJSON)
    assert (answer.status_code, answer.json()["code"], answer.json()["index"]) == (422, "invalid", 2)
    assert "encode" in answer.json()["errors"][0]["detail"]
    assert await stored(http) == []


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"entries": []}, 422, "invalid"),
        ({"entries": [{"fields": {"a": "1"}}] * 101}, 413, "too_many_entries"),
        ({"entries": [{"fields": {"a": "x" * 9_000}}]}, 413, "entry_too_large"),
        ({"fields": {"a": "x" * 9_000}}, 413, "entry_too_large"),
        ({"fields": {"a": "x" * 70_000}}, 413, "body_too_large"),
        ({"fields": {str(n): "x" for n in range(17)}}, 422, "invalid"),
        ({"fields": [["a", "1"]] * 17}, 422, "invalid"),
        ({"fields": {}}, 422, "invalid"),
    ],
)
async def test_limits_have_their_codes(http: httpx.AsyncClient, body: object, status: int, code: str) -> None:
    """Batch, entry, body, fields."""
    answer = await http.post(ENTRIES, json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert await stored(http) == []


@pytest.mark.parametrize(
    ("lines", "status", "index"),
    [
        (['{"a":"1"}'] * 101, 413, None),
        (['{"a":"1"}', json.dumps({"a": "x" * 9_000})], 413, 1),
        (['{"a":"1"}', json.dumps({str(n): "x" for n in range(17)})], 422, 1),
        (['{"a":"1"}', "{}"], 422, 1),
        (['{"a":"1"}', '{"fields":{"a":"1"},"id":"x"}'], 400, 1),
        ([""], 422, None),
    ],
)
async def test_limits_hold_line_by_line(
    http: httpx.AsyncClient, lines: list[str], status: int, index: int | None
) -> None:
    """The index says which line; blank lines do not count."""
    answer = await http.post(ENTRIES, content="\n".join(lines), headers=NDJSON)
    assert (answer.status_code, answer.json().get("index")) == (status, index)
    assert await stored(http) == []


@pytest.mark.parametrize("way", ["announced", "at once", "in pieces"])
async def test_a_body_may_have_as_many_bytes_as_the_limit(app: App, settings: Settings, way: str) -> None:
    """One more is refused, whether it is announced, comes at once, or in pieces."""
    statuses, pieces = [], list[bytes]()
    for size in (settings.body_bytes_max, settings.body_bytes_max + 1):
        body = b'{"a":"1"}\n'.ljust(size, b"\n")
        pieces = [body[:-1], body[-1:]] if way == "in pieces" else [body]
        length = [(b"content-length", b"%d" % size)] if way == "announced" else []
        statuses.append(await posted(app, pieces, length))
    assert statuses == [201, 413]
    assert bool(pieces) == (way == "announced"), "what is announced is refused before it is read"


async def posted(app: App, pieces: list[bytes], headers: list[tuple[bytes, bytes]]) -> int:
    """The status of the answer to NDJSON that arrives in these pieces."""
    statuses: list[int] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: Message) -> None:
        statuses.append(message.get("status", 0))

    scope = {
        "type": "http",
        "method": "POST",
        "raw_path": ENTRIES.encode(),
        "path": ENTRIES,
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:8080"), (b"content-type", b"application/x-ndjson"), *headers],
    }
    await app(scope, receive, send)
    return statuses[0]


async def test_an_endless_body_is_cut_at_the_limit(http: httpx.AsyncClient) -> None:
    """Without a Content-Length the limit is found while the body arrives."""
    chunks = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal chunks
        while chunks < 1_000:
            chunks += 1
            yield b"x" * 1_024

    answer = await http.post(ENTRIES, content=endless(), headers={"content-type": "text/plain"})
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert answer.headers["connection"] == "close"
    assert chunks < 100


async def test_a_list_may_continue_in_another_header(http: httpx.AsyncClient) -> None:
    """RFC 9110, 5.3."""
    wishes = [("prefer", "durability=fsync"), ("prefer", "return=minimal")]
    answer = await http.post(ENTRIES, json={"entries": [{"fields": {"a": "b"}}]}, headers=wishes)
    assert answer.headers["weir-durability"] == "fsync"
    assert "ids" not in answer.json()
    seen = [("if-match", '"9-0"'), ("if-match", f'"{answer.json()["last_id"]}"')]
    tag = (await http.get("/v1/streams/s")).headers["etag"]
    held = [("if-none-match", tag), ("if-none-match", '"x"')]
    assert (await http.get("/v1/streams/s", headers=held)).status_code == 304
    assert (await http.post(ENTRIES, json={"fields": {"a": "b"}}, headers=seen)).status_code == 400


@pytest.mark.parametrize(
    "name", ["Idempotency-Key", "Content-Type", "Weir-Producer", "Weir-Epoch", "Weir-Chunk", "Last-Event-ID"]
)
async def test_a_header_with_one_value_comes_once(http: httpx.AsyncClient, name: str) -> None:
    """A proxy may have looked at the other one."""
    twice = [(name, "1"), (name.lower(), "1")]
    answer = await http.post("/v1/publish", json={"streams": {"s": [{"fields": {"a": "b"}}]}}, headers=twice)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert answer.json()["errors"] == [{"header": name, "detail": "it is given once"}]
    assert await stored(http) == []


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        (ENTRIES, '{"id":null,"encoding":null,"entries":null,"fields":{"a":"b"}}', "json"),
        (ENTRIES, '{"entries":[{"id":null,"encoding":null,"fields":{"a":"b"}}]}', "json"),
        (ENTRIES, '{"id":null,"encoding":null,"fields":{"a":"b"}}', "x-ndjson"),
        ("/v1/publish", '{"streams":{"s":[{"id":null,"encoding":null,"fields":{"a":"b"}}]}}', "json"),
    ],
)
async def test_a_member_that_is_null_was_not_given(
    http: httpx.AsyncClient, path: str, body: str, kind: str
) -> None:
    """A field of null is refused: it would be a value."""
    answer = await http.post(path, content=body, headers={"content-type": f"application/{kind}"})
    assert answer.status_code == 201
    assert await fields(http) == [{"a": "b"}]


@pytest.mark.parametrize(
    ("path", "kind", "text"),
    [
        (ENTRIES, "x-ndjson", "\n".join(['{"a":15e1}'] * 90)),
        (ENTRIES, "json", '{"entries":[' + ",".join(['{"fields":{"a":15e1}}'] * 90) + "]}"),
        (ENTRIES, "json", "[" + ",".join(['{"a":15e1}'] * 90) + "]"),
        ("/v1/publish", "json", '{"streams":{"s":[' + ",".join(['{"fields":{"a":15e1}}'] * 90) + "]}}"),
    ],
)
async def test_what_is_not_plain_is_read_in_a_thread_unless_it_is_short(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str, kind: str, text: str
) -> None:
    """The strict reader takes ten times as long: 16 KiB of it have the loop, and no more."""
    threads: list[int] = []
    strict = strict_json.parse

    def parse(*given: Any, **named: Any) -> Any:
        threads.append(threading.get_ident())
        return strict(*given, **named)

    monkeypatch.setattr(strict_json, "parse", parse)
    for blanks, is_inline in (16_384 - len(text), True), (16_385 - len(text), False):
        threads.clear()
        content = text + " " * blanks
        answer = await http.post(path, content=content, headers={"content-type": f"application/{kind}"})
        assert answer.status_code in (200, 201), answer.text
        assert threads
        assert (set(threads) == {threading.get_ident()}) is is_inline
