"""Hostile JSON at every route with a body: a clear 4xx, nothing stored, and no word of the inside."""

import json
import re
from urllib.parse import quote

import pytest

from app.main import ROUTES
from tests.hostile.peers import Answer, ask, ask_json
from tests.server import Server

COMMAND_OPERATIONS = ("runCommand", "runPipeline", "runTransaction")
# Lines, and bodies of any kind; those of hooks are looked at behind their signature.
NOT_JSON = {"addEntriesNdjson", "addRawEntry", "receiveHook"}
TAKING = {
    route.operation_id: (route.method, re.sub(r"{\w+}", "s", route.template.replace("{id}", "1-0")))
    for route in ROUTES
    if not route.hidden and route.binder.has_body and route.operation_id not in NOT_JSON
}
INSIDE = re.compile(rb"Traceback|File \"|\.py\b|/site-packages|/app/|/engine/|Error\(|object at 0x|<class")

TEXTS = {
    "NaN": b"NaN",
    "Infinity": b"Infinity",
    "-Infinity": b"-Infinity",
    "leading zero": b"01",
    "plus": b"+1",
    "bare word": b"yes",
    "single quotes": b"'a'",
    "high surrogate": rb'"\ud800"',
    "low surrogate": rb'"\udc00"',
    "raw control character": b'"\x01"',
    "NUL": b'"\0"',
    "bad escape": rb'"\x41"',
    "truncated": b'"abc',
    "comma": b'"a",',
    "comment": b'"a"/**/',
    "5,000 brackets": b"[" * 5_000,
    "depth 33": b"[" * 33 + b"]" * 33,
    "depth 100,000": b"[" * 100_000 + b"]" * 100_000,
    "objects": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    "raw surrogate": b'"\xed\xa0\x80"',
    "latin-1": b'"\xe9"',
    "overlong": b'"\xc0\xaf"',
    "cut character": b'"\xe2\x80"',
    "objects without end": b'{"entries":' * 4_000,
    "escapes without end": b'"' + b'\\"' * 20_000,
}
WHOLE = {
    "BOM": b'\xef\xbb\xbf{"a":1}',
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "UTF-16 BE": '{"a":1}'.encode("utf-16-be"),
    "UTF-32": '{"a":1}'.encode("utf-32"),
    "trailing": b'{"a":1} {"a":1}',
    "NUL behind": b'{"a":1}\0',
    "comment": b'{"a":1} // c',
    "blank": b" \n",
    "brace": b"{",
    "bracket": b"[",
    "colon": b'{"a"}',
    "comma": b'{"a":1,}',
}
MANY = b",".join(b'"m%d":1' % n for n in range(200_000))
# JSON, and still nothing that any route takes.
# They look for the texts of entries first.
KEEPING_TEXTS = ("addEntries", "closeStream", "putSchedule")
# What may be left out may be null.
WITHOUT_BODY = ("putStream", "updateStream", "ensureGroup", "closeStream")
MEANINGLESS = {
    "5,000 digits": b'{"count":%b}' % (b"1" * 5_000),
    "1e400": b'{"count":1e400}',
    "2^64": b'{"count":18446744073709551616}',
    "-2^63-1": b'{"count":-9223372036854775809}',
    "fraction": b'{"count":1.5}',
    "exponent": b'{"count":1e2}',
    "twice": b'{"name":"a","name":"b"}',
    "twice, escaped": rb'{"name":"a","n\u0061me":"b"}',
    "__proto__": b'{"__proto__":{"a":1}}',
    "constructor": b'{"constructor":1}',
    "number": b"1",
    "text": b'"a"',
    "true": b"true",
    "null": b"null",
    "list of numbers": b"[1]",
    "list of objects": b"[{}]",
    "lists": b"[[[[[[]]]]]]",
    "empty name": b'{"":1}',
    "NUL in a name": rb'{"a\u0000b":1}',
    "nested": b'{"ids":[[[["1-0"]]]]}',
    "object for a number": b'{"count":{}}',
    "200,000 members": b"{%b}" % MANY,
}


def refused(answer: Answer, operation: str, *statuses: int) -> None:
    """A refusal as it should be: its status, a problem, and nothing of the inside."""
    said = answer.json()
    if operation == "runPipeline" and answer.status == 200 and 415 not in statuses:
        # Its commands are refused one by one.
        assert all(one["error"].startswith("ERR ") for one in said)
        return
    assert answer.status in statuses, answer
    assert answer.head.lower().count(b"application/problem+json") == (
        0 if "error" in said and "code" not in said else 1
    )
    if operation in COMMAND_OPERATIONS:
        assert re.match(r"[A-Z]+ ", said["error"])
    else:
        assert said["detail"]
    assert not INSIDE.search(answer.body)


def test_every_route_with_a_body_is_attacked() -> None:
    """A new route that writes is in the list without being named here."""
    writing = {
        route.operation_id
        for route in ROUTES
        if route.method in ("POST", "PUT", "PATCH") and not route.hidden
    }
    bodiless = {"createConsumer", "startRewrite", "createTicket", "fireSchedule"}
    assert writing - bodiless - NOT_JSON <= set(TAKING)


@pytest.mark.parametrize("operation", TAKING)
def test_hostile_json(untouched: Server, operation: str) -> None:
    """T25-T28. Depth, numbers, constants, surrogates, encodings: 400 where it is no JSON."""
    method, path = TAKING[operation]
    for what, text in TEXTS.items():
        for body in (b'{"a":%b}' % text, b"[%b]" % text, text):
            answer = ask_json(untouched.port, method, path, body)
            # 33 levels without anything around are within a list's bound at some operations.
            unusual = (422,) if "3" in what or operation in KEEPING_TEXTS else ()
            # More values than any body of the operation may have: refused before they are looked at.
            many = (413, 422) if max(body.count(b"["), body.count(b"{")) >= 20_000 else ()
            refused(answer, operation, 400, *unusual, *many)
    for body in WHOLE.values():
        # A bracket alone can begin no object.
        no_object = (422,) if operation in ("closeStream", "putSchedule") else ()
        refused(ask_json(untouched.port, method, path, body), operation, 400, *no_object)
    if operation == "addEntries":
        for body in (*TEXTS.values(), *WHOLE.values()):
            lines = b"Content-Type: application/x-ndjson\r\n"
            refused(ask(untouched.port, method, path.encode(), body, lines), operation, 400, 413, 422)


@pytest.mark.parametrize("operation", TAKING)
def test_meaningless_json(untouched: Server, operation: str) -> None:
    """T26, T29-T32. Huge integers, repeated names, wrong types, 200,000 members: 4xx, nothing stored."""
    method, path = TAKING[operation]
    for what, body in MEANINGLESS.items():
        if what == "null" and operation in WITHOUT_BODY:
            continue
        if operation == "addEntries":
            # An object alone is an entry; beside `fields` its members mean nothing.
            body = re.sub(rb"^{", b'{"fields":{"a":"b"},', body)  # noqa: PLW2901 - the same in its form
        refused(ask_json(untouched.port, method, path, body), operation, 400, 404, 413, 422)


@pytest.mark.parametrize("operation", TAKING)
def test_bodies_of_another_kind(untouched: Server, operation: str) -> None:
    """T4, T21, T28. Not in the coding it names, in an unknown one, multipart, in another charset: each route
    refuses it.
    """
    method, path = TAKING[operation]
    kinds = [
        (b"Content-Type: application/json\r\nContent-Encoding: gzip\r\n", 400),
        (b"Content-Type: application/json\r\nContent-Encoding: compress\r\n", 415),
        (b"Content-Type: application/json; charset=utf-16\r\n", 415),
        (b"Content-Type: multipart/form-data; boundary=a\r\n", 415),
    ]
    for headers, status in kinds:
        answer = ask(untouched.port, method, path.encode(), b'{"a":1}', headers)
        refused(answer, operation, status)


def test_members_named_like_javascript_are_fields(server: Server) -> None:
    """T29, T31. `__proto__`, `constructor` and NUL are names as any others, and come back."""
    fields = {"__proto__": "a", "constructor": "b", "toString": "c", "nul\0nul": "d\0e", "\u2028": "\u2029"}
    stored = ask_json(server.port, "POST", "/v1/streams/odd/entries", {"fields": fields})
    assert stored.status == 201
    (entry,) = ask(server.port, "GET", b"/v1/streams/odd/entries").json()["entries"]
    assert entry["fields"] == fields
    assert ask_json(server.port, "POST", "/v1/commands", ["DEL", "odd"]).json() == {"result": 1}


# ---- IDs and numbers

BAD_IDS = [
    "-1",
    "1-",
    "1--1",
    "+1",
    " 1",
    "1 ",
    "1_0",
    "١-0",
    "１-0",
    "0x1",
    "1e3",
    "1.0",
    "1-0-0",
    "1-*-*",
    "**",
    "18446744073709551616",
    "0-18446744073709551616",
    "18446744073709551615-18446744073709551616",
    "9" * 200,
    "1-0\n",
    "1\0",
    "NaN",
    "1-0;",
    "1,0",
    "١",
    "²",
]
ID_QUERIES = ["start", "end", "after"]
ID_BODIES = {
    "ack": ("POST", "/v1/streams/s/groups/g/ack", "ids"),
    "nack": ("POST", "/v1/streams/s/groups/g/nack", "ids"),
    "claim": ("POST", "/v1/streams/s/groups/g/claim", "ids"),
    "extend": ("POST", "/v1/streams/s/groups/g/extend", "ids"),
    "dead_letter": ("POST", "/v1/streams/s/groups/g/dead-letter", "ids"),
    "delete": ("POST", "/v1/streams/s/entries/delete", "ids"),
    "last-id": ("POST", "/v1/streams/s/last-id", "last_id"),
    "start of a group": ("POST", "/v1/streams/s/groups", "start"),
    "start of an ensured group": ("PUT", "/v1/streams/s/groups/h", "start"),
    "history": ("POST", "/v1/streams/s/groups/g/consumers/c/read", "after"),
    "trim": ("POST", "/v1/streams/s/trim", "minid"),
    "autoclaim": ("POST", "/v1/streams/s/groups/g/autoclaim", "start"),
}
MORE: dict[str, dict[str, object]] = {
    "claim": {"consumer": "c", "min_idle_ms": 0},
    "extend": {"consumer": "c"},
    "autoclaim": {"consumer": "c", "min_idle_ms": 0},
    "nack": {"mode": "silent"},
    "start of a group": {"name": "h"},
}


@pytest.mark.parametrize("place", [*ID_BODIES, *ID_QUERIES, "path", "If-Match"])
def test_ids_that_are_none(server: Server, place: str) -> None:
    """T49. 400 `malformed_id` wherever an ID may stand: ASCII digits alone, 64 bits, no blanks."""
    assert ask_json(server.port, "PUT", "/v1/streams/s/groups/g", {"mkstream": True}).status in (200, 201)
    for bad in BAD_IDS:
        if place in ID_BODIES:
            method, path, member = ID_BODIES[place]
            body = {**MORE.get(place, {}), member: [bad] if member == "ids" else bad}
            answer = ask_json(server.port, method, path, body)
        elif place == "If-Match":
            if not bad.isascii() or not bad.isprintable():
                continue
            headers = b'Content-Type: application/json\r\nIf-Match: "%b"\r\n' % bad.encode()
            answer = ask(server.port, "POST", b"/v1/streams/s/entries", b'{"fields":{"a":"1"}}', headers)
        elif place == "path":
            answer = ask(server.port, "GET", f"/v1/streams/s/entries/{quote(bad)}".encode())
        else:
            answer = ask(server.port, "GET", f"/v1/streams/s/entries?{place}={quote(bad)}".encode())
        code = "invalid_name" if place == "path" and not bad.isprintable() else "malformed_id"
        assert (answer.status, answer.json().get("code")) == (400, code), (bad, answer)
        assert not INSIDE.search(answer.body)
    assert ask(server.port, "GET", b"/v1/streams/s").json()["length"] == 0
    assert ask_json(server.port, "POST", "/v1/commands", ["DEL", "s"]).json() == {"result": 1}


NUMBERS = ["-1", "nan", "inf", "1e308", "1.5", "+1", "0x1", "1_0", "١", "", "9" * 30, str(1 << 63), "true"]


@pytest.mark.parametrize("name", ["count", "wait", "last", "max_bytes", "limit"])
def test_unbounded_counts_and_waits(server: Server, name: str) -> None:
    """T27, T41. What is no whole number within its bounds is 422, not cut down in silence."""
    path = "/v1/streams" if name == "limit" else "/v1/streams/s/entries"
    beyond = {
        "count": "10001",
        "wait": "60001",
        "last": "10001",
        "max_bytes": str((8 << 20) + 1),
        "limit": "1001",
    }
    for value in (*NUMBERS, beyond[name]):
        query = f"{path}?{name}={quote(value)}" + ("&after=0" if name in ("wait", "max_bytes") else "")
        answer = ask(server.port, "GET", query.encode())
        assert (answer.status, answer.json()["code"]) == (422, "invalid"), (value, answer)


def test_unbounded_blocks_at_the_command_api(server: Server) -> None:
    """T41. COUNT beyond all bounds gives what fits; a BLOCK that is no number gets Redis's words."""
    port = server.port
    for value in ("-1", "nan", "1.5", "9" * 30):
        answer = ask_json(port, "POST", "/v1/commands", ["XREAD", "BLOCK", value, "STREAMS", "s", "$"])
        assert (answer.status, json.loads(answer.body)["error"][:4]) == (400, "ERR "), value
    answer = ask_json(
        port, "POST", "/v1/commands", ["XREAD", "COUNT", str((1 << 63) - 1), "STREAMS", "s", "0"]
    )
    assert answer.json() == {"result": None}
