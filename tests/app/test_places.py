"""Where something is wrong: pointers into bodies, names of parameters and headers, lines of files."""

import json
from typing import Any

import httpx
import pytest

STREAM = "/v1/streams/s"
ENTRIES = f"{STREAM}/entries"
GROUP = f"{STREAM}/groups/g"
LINES = {"content-type": "application/x-ndjson"}


def places(answer: httpx.Response) -> list[dict[str, str]]:
    return [{kind: name for kind, name in one.items() if kind != "detail"} for one in answer.json()["errors"]]


# RFC 6901: `~` is escaped before `/`, and read back the other way round.
STEPS = {"a/b": "a~1b", "a~b": "a~0b", "~1": "~01", "/~0/": "~1~00~1", "~/": "~0~1"}


@pytest.mark.parametrize(("name", "step"), STEPS.items())
async def test_names_are_steps_of_a_pointer(http: httpx.AsyncClient, name: str, step: str) -> None:
    """In every body that has names of its clients' choosing, or an unknown member."""
    in_base64 = {"encoding": "base64", "fields": {name: "?"}}
    found = {
        "field": await http.post(ENTRIES, json={"fields": {name: None}}),
        "field of a batch": await http.post(ENTRIES, json={"entries": [{"fields": {name: None}}]}),
        "field of a line": await http.post(ENTRIES, content=json.dumps({name: None}), headers=LINES),
        "field of many": await http.post("/v1/publish", json={"streams": {"s": [{"fields": {name: []}}]}}),
        "base64": await http.post(ENTRIES, json=in_base64),
        "stream of many": await http.post("/v1/publish", json={"streams": {name.replace("/", "|"): 1}}),
        "cursor": await http.post("/v1/read", json={"streams": {name.replace("/", "|"): 1}}),
        "plan": await http.post("/v1/plan", json={"streams": {name.replace("/", "|"): 1}}),
        "end": await http.post(
            "/v1/plan", json={"streams": {"s": "0"}, "end": {name.replace("/", "|"): "1"}}
        ),
        "member": await http.post(f"{STREAM}/trim", json={name: 1}),
        "inner member": await http.put(STREAM, json={"retention": {name: 1}}),
        "member of an entry": await http.post(ENTRIES, json={"fields": {"a": "1"}, name: 1}),
    }
    within = STEPS.get(name.replace("/", "|"), name.replace("/", "|").replace("~", "~0"))
    assert {what: places(answer) for what, answer in found.items()} == {
        "field": [{"pointer": f"/fields/{step}"}],
        "field of a batch": [{"pointer": f"/entries/0/fields/{step}"}],
        "field of a line": [{"pointer": f"/0/{step}"}],
        "field of many": [{"pointer": f"/streams/s/0/fields/{step}"}],
        "base64": [{"pointer": f"/fields/{step}"}],
        "stream of many": [{"pointer": f"/streams/{within}"}],
        "cursor": [{"pointer": f"/streams/{within}"}],
        "plan": [{"pointer": f"/streams/{within}"}],
        "end": [{"pointer": f"/end/{within}"}],
        "member": [{"pointer": f"/{step}"}],
        "inner member": [{"pointer": f"/retention/{step}"}],
        "member of an entry": [{"pointer": f"/{step}"}],
    }


TWICE = {
    ENTRIES: '{"fields":{%s:"1",%s:"1"}}',
    f"{STREAM}/trim": "{%s:1,%s:1}",
    "/v1/plan": '{"streams":{%s:"0",%s:"0"}}',
    "/v1/read": '{"streams":{%s:"0",%s:"0"}}',
    "/v1/publish": '{"streams":{%s:[],%s:[]}}',
}


@pytest.mark.parametrize("path", TWICE)
async def test_what_stands_twice_is_named_as_a_step(http: httpx.AsyncClient, path: str) -> None:
    """The same escape where a name is repeated."""
    name = json.dumps("a~1/b")
    answer = await http.post(
        path, content=TWICE[path] % (name, name), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422
    ((place,),) = [list(one.values()) for one in places(answer)]
    assert place.rpartition("/")[2] == "a~01~1b"


BROKEN = ("%zz", "%", "%4", "%4g", "1%", "a%G0")
QUERIES = (
    *(f"{ENTRIES}?count=", f"{ENTRIES}?after=", f"{ENTRIES}/1-0?", f"{ENTRIES}?x="),
    *(f"{STREAM}/tail?after=", "/v1/tail?stream=", f"{GROUP}/consumers/c/stream?max_in_flight="),
    *("/v1/streams?prefix=", f"{STREAM}?count=", f"{STREAM}/groups?limit=", f"{GROUP}/pending?consumer="),
)


@pytest.mark.parametrize("query", QUERIES)
async def test_a_query_that_is_not_percent_encoded_is_refused(http: httpx.AsyncClient, query: str) -> None:
    """400, wherever it stands, and in a name too: `%zz` is never read as plain text."""
    await http.put(GROUP, json={"mkstream": True})
    # Of events the head alone, which ends, should they be sent after all.
    events = "tail" in query or "/stream?" in query
    method, accept = ("HEAD", {"accept": "text/event-stream"}) if events else ("GET", {})
    for broken in BROKEN:
        for given in (f"{query}{broken}", f"{query}1&{broken}=1"):
            scope_path, _, raw = given.partition("?")
            request = http.build_request(method, scope_path, headers=accept)
            request.url = request.url.copy_with(raw_path=f"{scope_path}?{raw}".encode())
            answer = await http.send(request)
            assert answer.status_code == 400, given
            if not events:
                assert answer.json()["code"] == "unknown_parameter"
                assert "percent" in answer.json()["detail"]


FORMS = ["a=%zz", "%zz=a", "a=%", "a=%4", "a=1&b=%4g", "a=%%41", "%ff=a", "=%+1", "a=% 1"]


@pytest.mark.parametrize("form", FORMS)
async def test_a_form_that_is_not_percent_encoded_is_refused(http: httpx.AsyncClient, form: str) -> None:
    """400, and not as JSON: it never was any. So are names of fields that are not UTF-8."""
    headers = {"content-type": "application/x-www-form-urlencoded"}
    answer = await http.post(ENTRIES, content=form, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_encoding")
    assert (await http.get(STREAM)).status_code == 404


async def test_base64_that_is_none_is_named(http: httpx.AsyncClient) -> None:
    """400 `malformed_encoding`, with the place: the JSON around it is fine."""
    body = {"entries": [{"fields": {"a": "YQ=="}, "encoding": "base64"}] * 2}
    body["entries"].append({"fields": {"b": "YQ"}, "encoding": "base64"})
    answer = await http.post(ENTRIES, json=body)
    assert (answer.status_code, answer.json()["code"], answer.json()["index"]) == (
        400,
        "malformed_encoding",
        2,
    )
    assert places(answer) == [{"pointer": "/entries/2/fields/b"}]


ROWS = {
    "no JSON": (b'{"a":1', 400, "malformed_json", "column 7"),
    "not UTF-8": (b'{"a":"\xff"}', 400, "malformed_json", "byte 6"),
    "no value": (b'{"a":null}', 422, "invalid", "values are"),
    "no object": (b"[1]", 422, "invalid", "a line is an object"),
    "base64": (b'{"fields":{"a":"?"},"encoding":"base64"}', 400, "malformed_encoding", "base64"),
    "an ID": (b'{"fields":{"a":"1"},"id":"x"}', 400, "malformed_id", "ID"),
    "too large": (b'{"a":"%b"}' % (b"x" * 9_000), 413, "entry_too_large", "bytes"),
}


@pytest.mark.parametrize("what", ROWS)
async def test_an_error_of_ndjson_names_the_line_of_the_file(http: httpx.AsyncClient, what: str) -> None:
    """As editors count them: from one, blank ones too. `index` counts entries, from zero."""
    row, status, code, words = ROWS[what]
    body = b'{"a":"1"}\n\n \r\n{"a":"2"}\n\n' + row + b'\n{"a":"3"}\n'
    answer = await http.post(ENTRIES, content=body, headers=LINES)
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code)
    assert (problem["line"], problem["index"]) == (6, 2)
    assert problem["detail"].startswith("line 6: ")
    assert words in problem["detail"]
    assert "line 1" not in problem["detail"]


async def test_an_error_of_json_names_its_line_where_there_are_several(http: httpx.AsyncClient) -> None:
    """A body on one line has columns alone."""
    headers = {"content-type": "application/json"}
    one = await http.post(ENTRIES, content=b'{"fields":}', headers=headers)
    assert "column 11: Expecting value" in one.json()["detail"]
    assert "line" not in one.json()["detail"]
    two = await http.post(ENTRIES, content=b'{"fields":\n}', headers=headers)
    assert "line 2, column 1: Expecting value" in two.json()["detail"]


WRONG = [
    ("GET", f"{ENTRIES}?count=0", {}, {"parameter": "count"}),
    ("GET", f"{ENTRIES}?after=x", {}, {"parameter": "after"}),
    ("GET", f"{ENTRIES}?Count=1", {}, {"parameter": "Count"}),
    ("GET", f"{ENTRIES}/x", {}, {"parameter": "id"}),
    ("GET", f"{ENTRIES}?after=0", {"prefer": "wait=x"}, {"header": "Prefer"}),
    ("GET", f"{STREAM}/tail", {"last-event-id": "x"}, {"header": "Last-Event-ID"}),
    ("POST", ENTRIES, {"if-match": "5-0"}, {"header": "If-Match"}),
    ("POST", ENTRIES, {"idempotency-key": "k" * 256}, {"header": "Idempotency-Key"}),
    ("POST", ENTRIES, {"weir-epoch": "1"}, {"header": "Weir-Epoch"}),
    ("POST", f"{ENTRIES}?maxlen=-1", {}, {"parameter": "maxlen"}),
    ("POST", "/v1/commands", {"weir-encoding": "hex"}, {"header": "Weir-Encoding"}),
    ("POST", "/v1/publish", {"weir-producer": "p"}, {"header": "Weir-Epoch"}),
    ("DELETE", f"{GROUP}?pending=keep", {}, {"parameter": "pending"}),
]


@pytest.mark.parametrize(("method", "path", "headers", "place"), WRONG)
async def test_parameters_and_headers_are_no_pointers(
    http: httpx.AsyncClient, method: str, path: str, headers: dict[str, str], place: dict[str, str]
) -> None:
    """`parameter` and `header`, by their names: a pointer leads into the body."""
    body = {"content-type": "application/json"} if method == "POST" else {}
    answer = await http.request(
        method, path, headers={**body, **headers}, content=b'{"fields":{"a":"1"}}' if body else None
    )
    assert places(answer) == [place], answer.text


async def test_what_asks_for_nothing_goes_with_everything(http: httpx.AsyncClient) -> None:
    """`wait` 0, `noack` false, `reverse` false: clients that always send them are served."""
    await http.put(GROUP, json={"mkstream": True})
    read = f"{GROUP}/consumers/c/read"
    quiet = {"after": "0", "wait": 0, "noack": False}
    assert (await http.post(read, json=quiet)).status_code == 200
    for loud in ({"wait": 1}, {"noack": True}, {"claim_min_idle_ms": 0}):
        answer = await http.post(read, json={**quiet, **loud})
        assert places(answer) == [{"pointer": f"/{next(iter(loud))}"}]
    for query in ("end=5&wait=0", "last=1&wait=0&reverse=false", "after=0&reverse=0&wait=0", "wait=0"):
        assert (await http.get(f"{ENTRIES}?{query}")).status_code == 200
        columns = {"accept": "application/vnd.weir.columns+json"}
        expected = 422 if "last" in query else 200
        assert (await http.get(f"{ENTRIES}?{query}", headers=columns)).status_code == expected
    assert (await http.get(f"{ENTRIES}?end=5&wait=1")).status_code == 422


async def test_an_unknown_member_is_refused_with_those_of_its_own_object(http: httpx.AsyncClient) -> None:
    """The members of the body are no help for an object within it."""
    outer = await http.put(GROUP, json={"strat": "0"})
    inner = await http.put(GROUP, json={"dead_letter": {"stream": "d", "strem": "d"}})
    assert outer.json()["errors"][0]["detail"].startswith("unknown member; known here: dead_letter, ")
    assert inner.json()["errors"] == [{"detail": "unknown member", "pointer": "/dead_letter/strem"}]
