"""The description is true: each example is sent, and what comes back is what it shows.

The examples are about the gateway of `tests.app.orders`.
"""

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import httpx
import jsonschema_rs
import msgspec
import pytest

from app.errors import CODES
from app.http.entries.values import FIELDS_SCHEMA
from app.main import App, create_app
from app.openapi.document import _NAMES
from app.settings import Settings
from engine import SystemClock
from tests.app.orders import client_of, open_gateway

Json = dict[str, Any]

IDS = {
    *("getRoot", "getVersion", "isLive", "isReady", "runCommand", "runPipeline", "runTransaction"),
    *("listStreams", "getStream", "putStream", "updateStream", "deleteStream", "setLastId", "trimStream"),
    *("addEntries", "addEntriesNdjson", "addEntryBatch", "addRawEntry", "closeStream", "readEntries"),
    *("exportEntries", "readColumns", "getEntry", "deleteEntry", "deleteEntries", "readStreams", "publish"),
    *("plan", "tailStream", "tailStreams", "consumeGroup"),
    *("startBackup", "getBackup", "startRewrite", "getRewrite", "getStatus"),
    *("listGroups", "createGroup", "ensureGroup", "getGroup", "updateGroup", "deleteGroup"),
    *("listConsumers", "getConsumer", "createConsumer", "deleteConsumer", "readGroup", "ackEntries"),
    *("nackEntries", "listPending", "claimEntries", "extendEntries", "autoclaimEntries", "deadLetterEntries"),
    *("redriveDeadLetters", "createTicket", "getCaller", "createToken", "listTokens", "getToken"),
    *("deleteToken", "createRevocation", "listRevocations", "listSchedules", "getSchedule", "putSchedule"),
    *("deleteSchedule", "fireSchedule", "updateSchedule", "listAllSchedules", "explainGroup"),
    *("listHooks", "confirmHook", "receiveHook"),
}


def _document() -> Json:
    app = create_app(Settings(log_requests="none"), SystemClock())
    document: Json = msgspec.json.decode(app.gateway.document())
    return document


DOCUMENT = _document()
SCHEMAS: Json = DOCUMENT["components"]["schemas"]
REFUSALS: Json = DOCUMENT["components"]["responses"]


def _resolved(answer: Json) -> Json:
    """With what its component says, unless it says otherwise."""
    component: Json = REFUSALS.get(answer.get("$ref", "").rpartition("/")[2], {})
    return component | answer


class DocumentedOperation(NamedTuple):
    method: str
    path: str
    declaration: Json


OPERATIONS = {
    result["operationId"]: DocumentedOperation(method, path, result)
    for path, methods in DOCUMENT["paths"].items()
    for method, result in methods.items()
}


class Sent(NamedTuple):
    """An example as the document has it."""

    operation: DocumentedOperation
    key: str
    status: int
    media: str
    answer: Any


def _examples() -> Iterator[Sent]:
    for operation in OPERATIONS.values():
        for status, answer in operation.declaration["responses"].items():
            if status.startswith("2"):
                for media, content in answer.get("content", {}).items():
                    for key, example in content.get("examples", {}).items():
                        yield Sent(operation, key, int(status), media, example["value"])


EXAMPLES = list(_examples())


def id_of(sent: Sent) -> str:
    name: str = sent.operation.declaration["operationId"]
    return name


@pytest.fixture
async def orders() -> AsyncIterator[App]:
    """The gateway that the examples are about."""
    app, engine = await open_gateway()
    yield app
    engine.check()
    await engine.close()


def request_of(
    http: httpx.AsyncClient, operation: DocumentedOperation, key: str, media: str = "application/json"
) -> httpx.Request:
    path, query = operation.path, {}
    for parameter in operation.declaration.get("parameters", []):
        examples = parameter.get("examples", {})
        example = examples.get(key) or (examples.get("usual") if parameter["in"] == "path" else None)
        if parameter["in"] == "path":
            value = (
                example["value"] if example else _NAMES.get(parameter["name"], _NAMES["stream"])["example"]
            )
            path = path.replace(f"{{{parameter['name']}}}", value)
        elif example is not None:
            value = example["value"]
            query[parameter["name"]] = str(value).lower() if isinstance(value, bool) else value
    bodies = operation.declaration.get("requestBody", {}).get("content", {})
    kind = next(iter(bodies), "application/json")
    body = bodies.get(kind, {}).get("examples", {}).get(key, {}).get("value")
    sent: Json = {"headers": {"accept": media}, "json": body}
    if isinstance(body, str):
        sent = {"headers": {"accept": media, "content-type": kind}, "content": body}
    return http.build_request(operation.method.upper(), path, params=query, **sent)


@pytest.mark.parametrize("sent", EXAMPLES, ids=lambda sent: f"{id_of(sent)}-{sent.key}")
async def test_an_example_is_true(orders: App, sent: Sent) -> None:
    """Its status and its answer, up to what is random or moves; and the shapes of both are kept."""
    async with client_of(orders) as http:
        answer = await http.send(request_of(http, sent.operation, sent.key, sent.media))
    assert answer.status_code == sent.status, answer.text
    found = settled(answer.json())
    assert found == settled(sent.answer)
    schema = sent.operation.declaration["responses"][str(sent.status)]["content"][sent.media]["schema"]
    assert list(_faults(found, schema, "")) == []
    body = sent.operation.declaration.get("requestBody", {}).get("content", {}).get("application/json", {})
    if sent.key in body.get("examples", {}):
        assert list(_faults(body["examples"][sent.key]["value"], body["schema"], "")) == []


# Of the process, and of the moment.
OF_THE_MACHINE = {"rows": "python", "syncs": "thread"}
FIGURES = {
    *("uptime_ms", "unsynced_bytes", "used_bytes", "data_bytes", "resident_bytes", "bytes_soft"),
    "bytes_max",
}


def settled(value: Any) -> Any:
    """Without what is random, and what moves."""
    if isinstance(value, dict):
        found = {key: settled(one) for key, one in value.items()}
        found |= {key: "" for key in found if key in ("generation", "ticket")}
        found |= {key: word for key, word in OF_THE_MACHINE.items() if key in found}
        if "token" in found:
            found |= {"token": "", "id": "0" * 12}
        return found | {key: 1 for key in found if key in FIGURES}
    return [settled(one) for one in value] if isinstance(value, list) else value


@pytest.mark.early
def test_each_operation_with_an_answer_has_an_example() -> None:
    """Nothing is left to guessing."""
    shown = set(map(id_of, EXAMPLES))
    empty = {
        name
        for name, one in OPERATIONS.items()
        if "content" not in one.declaration["responses"].get("204", {"content": 1})
    }
    live = {
        name
        for name, one in OPERATIONS.items()
        if "text/event-stream" in one.declaration["responses"].get("200", {}).get("content", {})
    } | {"exportEntries", "confirmHook"}
    assert shown | empty | live == set(OPERATIONS), "examples stand in app/openapi/examples"


async def test_what_answers_nothing_answers_nothing(orders: App) -> None:
    """204 for the usual names."""
    async with client_of(orders) as http:
        for name in ("deleteEntry", "deleteSchedule", "deleteStream"):
            answer = await http.send(request_of(http, OPERATIONS[name], "usual"))
            assert (answer.status_code, answer.content) == (204, b"")


# ---- the document itself


@pytest.mark.early
def test_the_operations_are_those_of_the_contract() -> None:
    """Their IDs are what SDKs call their functions."""
    assert set(OPERATIONS) == IDS, "a new operation is entered in IDS; no other one changes"
    assert DOCUMENT["openapi"].startswith("3.1")


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_told_in_words(name: str) -> None:
    """A sentence, a known tag, a description of each parameter and refusal."""
    result = OPERATIONS[name].declaration
    assert re.fullmatch(r"[A-Z0-9][^\n]*(?:\n[^\n]*)*\.", result["summary"])
    assert result["description"].strip()
    assert set(result["tags"]) <= {tag["name"] for tag in DOCUMENT["tags"]}
    assert all(parameter["description"] for parameter in result.get("parameters", []))
    assert all(_resolved(answer)["description"] for answer in result["responses"].values())


@pytest.mark.parametrize("name", OPERATIONS)
def test_refusals_are_problems_with_their_codes(name: str) -> None:
    """Its words name the codes; each example's code is registered with its status, and is a problem."""
    for status, reference in OPERATIONS[name].declaration["responses"].items():
        if not status.startswith(("2", "3")):
            answer = _resolved(reference)
            known = [code for code, kind in CODES.items() if str(kind.status) == status]
            assert status == "default" or any(f"`{code}`" in answer["description"] for code in known)
            content = answer["content"]["application/problem+json"]
            assert content["examples"]
            for code, example in content["examples"].items():
                assert status in (str(CODES[code].status), "default")
                assert example["value"]["code"] == code
                assert list(_faults(example["value"], content["schema"], "")) == []


def test_the_codes_are_an_enum() -> None:
    """The whole registry."""
    assert SCHEMAS["Problem"]["properties"]["code"]["enum"] == list(CODES)


def test_no_operation_needs_credentials() -> None:
    """There are none yet."""
    assert DOCUMENT["security"] == []


def test_the_document_is_small() -> None:
    """By operation: a refusal is described once for each status, not once for each operation."""
    assert len(msgspec.json.encode(DOCUMENT)) < 4_310 * len(OPERATIONS)


def test_no_schema_has_a_title_that_was_made_up() -> None:
    """A title that repeats a name becomes a type of its own in generated code."""
    assert [place for place, one in _schemas(DOCUMENT, "") if "title" in one] == []


def test_no_schema_is_called_as_a_constructor_of_another() -> None:
    """What is made for Go has a function `NewStream` beside the type `Stream`."""
    assert [name for name in SCHEMAS if f"New{name}" in SCHEMAS] == []


def test_integers_have_64_bits() -> None:
    """Typed languages take 32 where nothing is said: times in milliseconds and sizes do not fit."""
    found = [(place, one) for place, one in _schemas(DOCUMENT, "") if one.get("type") == "integer"]
    assert found
    assert [place for place, one in found if one.get("format") != "int64"] == []


def test_no_member_has_a_default() -> None:
    """Generators of types take it for something that is always there: words say it instead."""
    for place, one in _schemas(DOCUMENT, ""):
        for name, member in one.get("properties", {}).items():
            assert "default" not in member, f"{place}/{name}"
    start = SCHEMAS["EnsuredGroup"]["properties"]["start"]
    assert start["description"].endswith("; `$` by default")
    for operation in OPERATIONS.values():
        for parameter in operation.declaration.get("parameters", ()):
            assert not (parameter.get("required") and "default" in parameter["schema"]), parameter


def test_no_parameter_may_be_null() -> None:
    """It is there or it is not."""
    for operation in OPERATIONS.values():
        for parameter in operation.declaration.get("parameters", ()):
            assert {"type": "null"} not in parameter["schema"].get("anyOf", ()), parameter


def _schemas(value: Any, place: str) -> Iterator[tuple[str, Json]]:
    """Every schema that is an object or has another type."""
    if isinstance(value, list):
        for index, one in enumerate(value):
            yield from _schemas(one, f"{place}/{index}")
    if isinstance(value, dict):
        if isinstance(value.get("type"), str):
            yield place, value
        for name, one in value.items():
            if name not in ("examples", "example"):
                yield from _schemas(one, f"{place}/{name}")


def test_all_components_are_named_and_used() -> None:
    """References lead somewhere, and every component is referenced."""
    text = msgspec.json.encode(DOCUMENT).decode()
    for kind, components in DOCUMENT["components"].items():
        used = {piece.partition('"')[0] for piece in text.split(f"#/components/{kind}/")[1:]}
        assert used == set(components)
    assert all("description" in schema for schema in SCHEMAS.values())


# ---- a small validator, stricter than JSON Schema: what is not described may not be there


def _faults(value: Any, schema: Json, place: str) -> Iterator[str]:
    if "$ref" in schema:
        yield from _faults(value, SCHEMAS[schema["$ref"].rpartition("/")[2]], place)
    elif "anyOf" in schema:
        if all(list(_faults(value, one, place)) for one in schema["anyOf"]):
            yield f"{place}: none of the shapes"
    else:
        yield from _simple_faults(value, schema, place)


_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def _simple_faults(value: Any, schema: Json, place: str) -> Iterator[str]:
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(value, _TYPES[kind]) for kind in kinds):
        yield f"{place}: {value!r} is no {kinds}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{place}: {value!r} is not in {schema['enum']}"
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        yield f"{place}: {value!r} does not match"
    if "minimum" in schema and isinstance(value, int) and value < schema["minimum"]:
        yield f"{place}: {value!r} is too small"
    if isinstance(value, dict):
        yield from _member_faults(value, schema, place)
    if isinstance(value, list):
        for index, one in enumerate(value):
            yield from _faults(one, schema.get("items", {}), f"{place}/{index}")


def _member_faults(value: Json, schema: Json, place: str) -> Iterator[str]:
    for name in schema.get("required", []):
        if name not in value:
            yield f"{place}/{name} is missing"
    known, other = schema.get("properties", {}), schema.get("additionalProperties")
    for name, one in value.items():
        if name in known:
            yield from _faults(one, known[name], f"{place}/{name}")
        elif isinstance(other, dict):
            yield from _faults(one, other, f"{place}/{name}")
        elif not other and known:
            yield f"{place}/{name} is not described"


def test_sdks_read_and_publish_in_one_form_each() -> None:
    """One media type for each body and answer; other forms have paths of their own, as generators want it."""
    found = {
        name: list(OPERATIONS[name].declaration["responses"]["200"]["content"])
        for name in ("readEntries", "exportEntries", "readColumns")
    }
    assert found == {
        "readEntries": ["application/json"],
        "exportEntries": ["application/x-ndjson"],
        "readColumns": ["application/vnd.weir.columns+json"],
    }
    bodies = {
        name: list(one.declaration["requestBody"]["content"])
        for name, one in OPERATIONS.items()
        if "requestBody" in one.declaration and one.method == "post"
    }
    assert {name: kinds for name, kinds in bodies.items() if kinds != ["application/json"]} == {
        "addEntriesNdjson": ["application/x-ndjson"],
        "addRawEntry": ["application/octet-stream"],
        "receiveHook": ["application/octet-stream"],
    }


def test_no_body_is_one_of_several_forms() -> None:
    """Of a union some generators of clients send none of its forms, unless a member says which it is."""
    bodies = {
        name: content["schema"]
        for name, one in OPERATIONS.items()
        for content in one.declaration.get("requestBody", {}).get("content", {}).values()
    }
    assert len(bodies) > 25
    schemas = DOCUMENT["components"]["schemas"]
    for name, body in bodies.items():
        schema = schemas[body["$ref"].rpartition("/")[2]] if "$ref" in body else body
        assert "discriminator" in schema or not {"anyOf", "oneOf"} & schema.keys(), name


def test_no_parameter_is_called_as_generated_code_calls_an_answer() -> None:
    """Some generators name what they make of lines `stream`, beside the parameters of the path."""
    for operation in OPERATIONS.values():
        answers = operation.declaration["responses"].values()
        if any("application/x-ndjson" in one.get("content", ()) for one in answers):
            assert "{stream}" not in operation.path
            assert "stream" not in {one["name"] for one in operation.declaration["parameters"]}


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"a": "1", "b": 1, "c": 1.5, "d": True}, 201),
        ({"a": "1", "b": ""}, 201),
        ([["a", "1"], ["a", 2], ["b", False]], 201),
        ({}, 422),
        ([], 422),
        ({"a": None}, 422),
        ({"a": {}}, 422),
        ([["a"]], 422),
        ([["a", "b", "c"]], 422),
        ([[1, "b"]], 422),
    ],
)
async def test_fields_are_described_as_they_are_taken(
    http: httpx.AsyncClient, fields: object, status: int
) -> None:
    """Values alike in both documents; in REST's an object alone, for the generators."""
    assert jsonschema_rs.validator_for(FIELDS_SCHEMA).is_valid(fields) == (status == 201)
    is_described = status == 201 and isinstance(fields, dict)
    assert jsonschema_rs.validator_for(SCHEMAS["EntryInput"]).is_valid({"fields": fields}) == is_described
    answer = await http.post("/v1/streams/s/entries", json={"fields": fields})
    assert answer.status_code == status
