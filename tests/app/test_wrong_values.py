"""What the description rules out is refused with its place and changes nothing, at every operation.

Knows: values of all kinds, and how one is put into an example of the description.
Must never know: which operation takes what.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import httpx
import jsonschema_rs
import pytest

from tests.app.conftest import refusal
from tests.app.orders import client_of, open_gateway
from tests.app.test_openapi import (
    DOCUMENT,
    EXAMPLES,
    OPERATIONS,
    SCHEMAS,
    Json,
    Sent,
    id_of,
    request_of,
    settled,
)

LATE_S: Final = 10.0
VALUES: Final[Sequence[Any]] = [
    *(True, 0, -1, 5, 1.5, 1 << 53, 1 << 63, "", "x", "5", ">", "a//b", "x" * 1_001, None),
    *([], [5], ["x"], ["1-0", "x"], {}, {"colour": 1}, {"a//b": "0"}),
]
TEXTS: Final = ("", "x", "-1", "1.5", "1e3", "2", "9" * 30, ">", "1-x", "a//b", "x" * 513)
COMPONENTS: Final = {"components": DOCUMENT["components"]}
BODIES: Final[Mapping[str, Json]] = {
    name: content["application/json"]
    for name, one in OPERATIONS.items()
    if "application/json" in (content := one.declaration.get("requestBody", {}).get("content", {}))
}
# What the description cannot bound, so that it is refused for its length alone, without a place.
UNNAMED: Final = {"/entries": [], "/reason": "x" * 1_001}
# What comes with a request for a page's own events: a ticket that is none is another caller's.
TICKET: Final = "ticket"
ENTRY: Final = {"fields": {"a": "1"}}
READER: Final = {"group": "g", "consumer": "c"}
CLAIM: Final = {"consumer": "c", "min_idle_ms": 0, "ids": ["1-0"]}
KEEP: Final = "/retention/keep_unacknowledged"
# Their own reader says what else is wrong with them.
OF_ENTRIES: Final = {"addEntryBatch", "publish"}
# What senders of hooks add to an address is theirs, and the signature comes before it.
WITHOUT_QUERIES: Final = {"getRoot", "getVersion", "isLive", "isReady", "confirmHook", "receiveHook"}


class Place(NamedTuple):
    """Where a value stands in a body, and what the description says of it."""

    steps: tuple[str, ...]
    schema: Json

    @property
    def pointer(self) -> str:
        """As a refusal has it."""
        return "".join(f"/{step}" for step in self.steps)


def places(schema: Json, steps: tuple[str, ...] = ()) -> Iterator[Place]:
    """All of a body, from the outside inwards. An entry may have any of many forms: `test_hostile_bodies`."""
    forms = [one.get("$ref", "").rpartition("/")[2] for one in (schema, *schema.get("anyOf", ()))]
    if {"EntryInput", "PlainEntryInput"} & {*forms}:
        return
    schema = SCHEMAS.get(forms[0], schema)
    yield Place(steps, schema)
    for name, inner in schema.get("properties", {}).items():
        yield from places(inner, (*steps, name))
    for one in schema.get("anyOf", ()):
        yield from (place for place in places(one, steps) if place.steps != steps)


def ruled_out(schema: Json, values: Sequence[Any]) -> list[Any]:
    """Those of these values that it rules out, and those beside its edges."""
    validator = jsonschema_rs.validator_for({**schema, **COMPONENTS}, validate_formats=True)
    edges = [
        one[edge] + step
        for one in (schema, *schema.get("anyOf", ()))
        for edge, step in (("minimum", -1), ("maximum", 1))
        if edge in one
    ]
    return [value for value in (*values, *edges) if not validator.is_valid(value)]


def ruled_out_texts(schema: Json) -> list[str]:
    """The same of what stands in a query."""
    kind = SCHEMAS["PathName"]["type"] if "$ref" in schema else schema["type"]
    if kind == "integer":
        numbers = {text: int(text) for text in TEXTS if re.fullmatch("-?[0-9]+", text)}
        wrong = ruled_out(schema, [*numbers.values()])
        return [*(text for text in TEXTS if text not in numbers), *map(str, wrong)]
    return list(TEXTS) if kind == "boolean" else ruled_out(schema, TEXTS)


def put(body: Any, steps: Sequence[str], value: Any) -> Any:
    """A body with this value there."""
    if not steps:
        return value
    (step, *rest) = steps
    body = body if isinstance(body, dict) else {}
    return {**body, step: put(body.get(step), rest, value)}


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """A client of the gateway that the examples are about."""
    app, engine = await open_gateway()
    async with client_of(app) as http, asyncio.timeout(LATE_S):
        yield http
    engine.check()
    await engine.close()


async def state(http: httpx.AsyncClient) -> list[Any]:
    """All that a request could change."""
    streams = [f"/v1/streams/{name}?full=true" for name in ("orders", "payments", "orders:dead")]
    others = ("/v1/streams", "/v1/schedules", "/v1/admin/tokens", "/v1/admin/revocations")
    return [(await http.get(path)).json() for path in (*streams, *others)]


def usual(http: httpx.AsyncClient, name: str) -> httpx.Request:
    """Its first example."""
    keys = [one.key for one in EXAMPLES if one.operation is OPERATIONS[name]]
    return request_of(http, OPERATIONS[name], keys[0] if keys else "usual")


# What may be nothing; all else is counted from one. A bound that is loosened would be described as well.
FROM_NOTHING: Final = {
    *("Weir-Chunk", "Weir-Epoch", "claim_min_idle_ms", "delay_ms", "entries_added", "entries_read"),
    *("expires_at_ms", "idle_ms", "in_ms", "issued_before_ms", "limit", "max_age_ms", "max_bytes", "max_len"),
    *("maxlen", "min_idle_ms", "older_than_ms", "retry_count", "time_ms", "wait"),
}


def test_what_is_counted_begins_at_one() -> None:
    parameters = [
        one for operation in OPERATIONS.values() for one in operation.declaration.get("parameters", ())
    ]
    described = [(one["name"], one["schema"]) for one in parameters]
    described += [
        (place.steps[-1], place.schema)
        for body in BODIES.values()
        for place in places(body["schema"])
        if place.steps
    ]
    least = [
        (name, form.get("minimum"))
        for name, schema in described
        for form in (schema, *schema.get("anyOf", ()))
        if form.get("type") == "integer"
    ]
    assert len(least) > 50
    assert {name for name, minimum in least if not minimum} == FROM_NOTHING


@pytest.mark.parametrize("name", BODIES)
async def test_a_wrong_value_of_a_body_is_named(http: httpx.AsyncClient, name: str) -> None:
    """Of any kind, too small, too large, one that is not known: at each place of the body."""
    asked, before = usual(http, name), await state(http)
    (example, *_) = BODIES[name]["examples"].values()
    for place in places(BODIES[name]["schema"]):
        wrong = [(place.steps, value) for value in ruled_out(place.schema, VALUES)]
        if "properties" in place.schema and name not in OF_ENTRIES:
            # An object is closed, also where the description does not say so.
            wrong.append(((*place.steps, "colour"), 1))
        for steps, value in wrong:
            if UNNAMED.get(place.pointer) == value or (value is None and not steps):
                # A body that is null was left out.
                continue
            answer = await http.request(asked.method, asked.url, json=put(example["value"], steps, value))
            assert answer.status_code in (400, 422), (steps, value, answer.text)
            named = [one["pointer"] for one in answer.json()["errors"]]
            assert any(one.startswith("".join(f"/{step}" for step in steps)) for one in named), (steps, value)
    assert await state(http) == before


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in WITHOUT_QUERIES])
async def test_a_wrong_parameter_is_named(http: httpx.AsyncClient, name: str) -> None:
    """What it may not be, one that stands twice, and one that is not known."""
    asked, before = usual(http, name), await state(http)
    parameters = [one for one in OPERATIONS[name].declaration.get("parameters", ()) if one["in"] == "query"]
    lists = {one["name"] for one in parameters if one["schema"].get("type") == "array"}
    given = {**asked.url.params, **dict.fromkeys(lists, "orders")}

    async def refused(parameter: str, *values: str) -> tuple[int, list[str]]:
        others = [pair for pair in given.items() if pair[0] != parameter]
        query = urlencode([*others, *((parameter, value) for value in values)])
        asked.url = asked.url.copy_with(query=query.encode())
        answer = await http.send(asked)
        return answer.status_code, [one["parameter"] for one in answer.json()["errors"]]

    assert await refused("colour", "red") == (400, ["colour"])
    for one in parameters:
        if one["name"] in lists | {TICKET}:
            continue
        assert await refused(one["name"], "1", "1") == (422, [one["name"]])
        for text in ruled_out_texts(one["schema"]):
            assert await refused(one["name"], text) in ((400, [one["name"]]), (422, [one["name"]])), text
    assert await state(http) == before


# Bodies whose members are right, each by itself, and do not go together; or are wrong for what is there.
TOGETHER: Final[Sequence[tuple[str, Json, str]]] = [
    ("claimEntries", {**CLAIM, "idle_ms": 1, "time_ms": 1}, "/idle_ms"),
    ("createRevocation", {}, ""),
    ("createRevocation", {"token": "000000000000", "jti": "x"}, ""),
    ("createRevocation", {"token": "root00000000"}, ""),
    ("createRevocation", {"jti": "x", "issued_before_ms": 1}, "/issued_before_ms"),
    ("createToken", {"grants": [{"actions": ["fly"]}]}, "/grants/0/actions/0"),
    ("createToken", {"grants": [{"actions": []}]}, "/grants/0/actions"),
    ("createToken", {"grants": [{"actions": ["read"], "stream": "s"}]}, "/grants/0/stream"),
    ("plan", {}, "/streams"),
    ("plan", {"streams": {}}, "/streams"),
    ("plan", {"streams": {"a": "$"}}, "/streams/a"),
    ("plan", {"streams": {"a": 5}}, "/streams/a"),
    ("plan", {"streams": {"a": "0"}, "end": {"b": "0"}}, "/end/b"),
    ("plan", {"pattern": "é" * 256 + "*"}, "/pattern"),
    ("putSchedule", {"in_ms": 1}, "/entry"),
    ("putSchedule", {"entry": ENTRY}, "/at"),
    ("putSchedule", {"entry": {"fields": {}}, "in_ms": 1}, "/entry/fields"),
    ("putSchedule", {"entry": {"id": "1-0", **ENTRY}, "in_ms": 1}, "/entry"),
    ("putSchedule", {"entry": ENTRY, "in_ms": 1, "every_ms": 1_000}, "/at"),
    ("putSchedule", {"entry": ENTRY, "cron": "61 * * * *"}, "/cron"),
    ("putSchedule", {"entry": ENTRY, "cron": "* * * * *", "tz": "Mars/Olympus"}, "/tz"),
    ("putSchedule", {"entry": ENTRY, "cron": "* * * * *", "tz": "right/Europe/Berlin"}, "/tz"),
    ("putSchedule", {"entry": ENTRY, "cron": "@reboot"}, "/cron"),
    ("putSchedule", {"entry": ENTRY, "in_ms": 1, "count": 1}, "/until"),
    ("putStream", {"expires_at": "2030-01-01T00:00:00Z", "expires_in_ms": 5}, "/expires_in_ms"),
    ("putStream", {"expires_at": "1969-12-31T12:00:00Z"}, ""),
    ("putStream", {"retention": {"acknowledged": True, "keep_unacknowledged": False}}, KEEP),
    ("putStream", {"retention": {"acknowledged": False}}, "/retention/acknowledged"),
    ("readGroup", {"after": "0", "wait": 5}, "/wait"),
    ("readStreams", {"streams": {}}, "/streams"),
    ("readStreams", {"streams": {"a": 1}}, "/streams/a"),
    ("readStreams", {"streams": {"a": ">"}}, "/streams/a"),
    ("readStreams", {"streams": {"a~": "x"}}, "/streams/a~0"),
    ("readStreams", {"streams": {"a": "$"}, **READER}, "/streams/a"),
    ("readStreams", {"streams": {"a": "0"}, "noack": True}, "/noack"),
    ("readStreams", {"streams": {"a": ">"}, "group": "g"}, "/consumer"),
    ("readStreams", {"streams": {"a": ">"}, "consumer": "c"}, "/group"),
    ("readStreams", {"streams": {"a": ">"}, **READER, "on_gap": "fail"}, "/on_gap"),
    ("readStreams", {"streams": {f"s{n}": "0" for n in range(1_001)}}, "/streams"),
    ("redriveDeadLetters", {"ids": ["5-0"], "filter": {}}, "/filter"),
    ("redriveDeadLetters", {"ids": ["5-0"], "count": 1}, "/count"),
    ("redriveDeadLetters", {"filter": {"end": "(0-0"}}, "/filter/end"),
    ("trimStream", {}, ""),
    ("trimStream", {"maxlen": None}, ""),
    ("trimStream", {"maxlen": 1, "minid": "1"}, "/minid"),
    ("trimStream", {"maxlen": 1, "limit": 5}, "/limit"),
    ("updateGroup", {"dead_letter": {}}, "/dead_letter/stream"),
    ("updateGroup", {"dead_letter": {"stream": "orders"}}, "/dead_letter/stream"),
    ("updateGroup", {"in_flight_per_key": 2}, ""),
    ("updateSchedule", {}, "/paused"),
    ("updateSchedule", {"paused": None}, "/paused"),
    ("updateSchedule", {"paused": False, "paused_until": "2035-01-01T00:00:00Z"}, "/paused_until"),
    ("updateSchedule", {"paused_until": "2001-01-01T00:00:00Z"}, "/paused_until"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "body", "pointer"), TOGETHER)
async def test_what_does_not_go_together_is_named(
    http: httpx.AsyncClient, name: str, body: Json, pointer: str
) -> None:
    asked, before = usual(http, name), await state(http)
    answer = await http.request(asked.method, asked.url, json=body)
    assert answer.status_code in (400, 422), answer.text
    assert [one["pointer"] for one in answer.json().get("errors", [{"pointer": ""}])] == [pointer]
    assert await state(http) == before


IN_FULL: Final = [
    sent
    for sent in EXAMPLES
    if sent.operation.method != "patch" and "$ref" in BODIES.get(id_of(sent), {}).get("schema", ())
]


@pytest.mark.parametrize("sent", IN_FULL, ids=lambda sent: f"{id_of(sent)}-{sent.key}")
async def test_a_member_that_is_null_was_not_given(http: httpx.AsyncClient, sent: Sent) -> None:
    """A serializer may write null for what it leaves out: an example with all of that is answered alike."""
    body = BODIES[id_of(sent)]
    nothing = dict.fromkeys(SCHEMAS[body["schema"]["$ref"].rpartition("/")[2]]["properties"])
    asked = request_of(http, sent.operation, sent.key)
    answer = await http.request(asked.method, asked.url, json=nothing | body["examples"][sent.key]["value"])
    assert (answer.status_code, settled(answer.json())) == (sent.status, settled(sent.answer))


MISSING: Final = {
    f"{{{what}}}": f"no_{'entry' if what == 'id' else what}"
    for what in ("stream", "group", "consumer", "schedule", "id", "token")
}
# What is made where it is not, or shown as nothing; or what is missing first.
SERVED: Final = {
    *("putStream", "addEntries", "addEntryBatch", "addEntriesNdjson", "addRawEntry", "readEntries"),
    *("readColumns", "closeStream", "putSchedule", "ensureGroup", "explainGroup"),
    *("createConsumer of a consumer", "readGroup of a consumer"),
}
UNLIKE: Final = {"getEntry of a stream": "no_entry", "readGroup of a stream": "no_group"}
ENDLESS: Final = {"tailStream", "tailStreams", "consumeGroup"}


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in ENDLESS | SERVED])
async def test_what_is_not_there_is_404(http: httpx.AsyncClient, name: str) -> None:
    """With the code of what is missing, stream, group or another thing; nothing is made by asking."""
    asked, before = usual(http, name), await state(http)
    names = asked.url.path.split("/")
    for at, step in enumerate(OPERATIONS[name].path.split("/")):
        code = MISSING.get(step)
        place = f"{name} of a {step[1:-1]}"
        if code is None or place in SERVED:
            continue
        missing = "9-9" if step == "{id}" else "missing00000"
        asked.url = asked.url.copy_with(path="/".join([*names[:at], missing, *names[at + 1 :]]))
        assert refusal(await http.send(asked)) == (404, UNLIKE.get(place, code)), place
    assert await state(http) == before
