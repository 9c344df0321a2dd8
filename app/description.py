"""The API's description: OpenAPI 3.1, from the routes and the shapes of their bodies.

Knows: parameters, bodies and answers of each operation, as words. Must never know: how any of it is served.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from fastapi import FastAPI

from app import schemas
from app.errors import CODES
from app.wire.media import JSON

Json = dict[str, Any]

_PROBLEM: Final = "application/problem+json"
_REF: Final = "#/components/schemas/{name}"


class Operation(NamedTuple):
    """What there is to say of one operation beside its sentence."""

    tag: str
    status: int
    answer: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    query: Sequence[str] = ()
    headers: Sequence[str] = ()
    refusals: Sequence[str] = ()


_QUERY: Final[Mapping[str, Json]] = {
    "nomkstream": {"type": "boolean", "default": False, "description": "refuse where the stream is missing"},
    "maxlen": {"type": "integer", "minimum": 0, "description": "trim to so many entries"},
    "minid": {"type": "string", "description": "trim entries with smaller IDs"},
    "approx": {"type": "boolean", "default": True, "description": "trim whole nodes only, which costs less"},
    "limit": {"type": "integer", "minimum": 0, "description": "trim at most so many; 0 is no limit"},
    "refs": {
        "enum": ["keep", "delete", "acked"],
        "description": "what becomes of references to trimmed entries",
    },
    "start": {"type": "string", "default": "-", "description": "`-`, an ID, or `(` and an ID"},
    "end": {"type": "string", "default": "+", "description": "`+`, an ID, or `(` and an ID"},
    "since": {"type": "string", "format": "date-time", "description": "`start` as a time"},
    "until": {"type": "string", "format": "date-time", "description": "`end` as a time"},
    "reverse": {"type": "boolean", "default": False, "description": "from the end to the start"},
    "count": {"type": "integer", "minimum": 1, "default": 100, "description": "at most so many entries"},
    "after": {"type": "string", "description": "a cursor: an ID, `0` or `$`"},
    "wait": {
        "type": "integer",
        "minimum": 0,
        "description": "milliseconds to wait for entries after the cursor",
    },
    "on_gap": {
        "enum": ["report", "fail"],
        "default": "report",
        "description": "`fail`: 410 where entries were lost",
    },
    "max_bytes": {"type": "integer", "minimum": 1, "description": "at most so many bytes, but one entry"},
}
_HEADERS: Final[Mapping[str, str]] = {
    "If-Match": 'the stream\'s last ID in quotation marks; `"0-0"` for an empty or missing stream',
    "Idempotency-Key": "a repeated request with the same key and body answers as the first time",
    "Prefer": "`return=minimal`, `durability=fsync`, `wait=<seconds>`",
    "Upstash-Encoding": "`base64`: strings of the answer are base64",
    "Weir-Encoding": "`base64`: strings of arguments and answer are base64",
}
_PUBLISH_REFUSALS: Final = (
    "malformed_json", "malformed_id", "no_stream", "id_not_increasing", "last_id_mismatch", "body_too_large",
    "unsupported_media_type", "invalid", "storage_failed", "storage_full",
)  # fmt: skip
_ENCODINGS: Final = ("Upstash-Encoding", "Weir-Encoding")

_OPERATIONS: Final[Mapping[str, Operation]] = {
    "getRoot": Operation("gateway", 200, schemas.Links),
    "getVersion": Operation("gateway", 200, schemas.Links),
    "isLive": Operation("gateway", 200, schemas.Health),
    "isReady": Operation("gateway", 200, schemas.Health),
    "runCommand": Operation("commands", 200, headers=_ENCODINGS),
    "runPipeline": Operation("commands", 200, headers=_ENCODINGS),
    "runTransaction": Operation("commands", 200, headers=_ENCODINGS),
    "addEntries": Operation(
        "entries",
        201,
        schemas.Added,
        schemas.NewEntry,
        ("nomkstream", "maxlen", "minid", "approx", "limit", "refs"),
        ("If-Match", "Idempotency-Key", "Prefer"),
        _PUBLISH_REFUSALS,
    ),
    "readEntries": Operation(
        "entries",
        200,
        schemas.Page,
        None,
        ("start", "end", "since", "until", "reverse", "count", "after", "wait", "on_gap", "max_bytes"),
        ("Prefer",),
        ("malformed_id", "gap", "invalid", "too_many_waiters"),
    ),
    "getEntry": Operation("entries", 200, schemas.Entry, refusals=("malformed_id", "no_entry")),
    "createGroup": Operation(
        "groups", 201, schemas.Group, schemas.NewGroup, refusals=("no_stream", "group_exists", "invalid")
    ),
    "readGroup": Operation(
        "groups",
        200,
        schemas.Deliveries,
        schemas.GroupRead,
        refusals=("no_group", "invalid", "too_many_waiters"),
    ),
    "ackEntries": Operation(
        "groups",
        200,
        schemas.Acknowledged,
        schemas.Acknowledgement,
        refusals=("malformed_id", "no_group", "invalid"),
    ),
}


def arguments(operation_id: str, path: str) -> Json:
    """What FastAPI is told of an operation beyond its sentence."""
    told = _OPERATIONS[operation_id]
    refusals = {code.status: code for code in (CODES[name] for name in told.refusals)}
    extra: Json = {
        "parameters": [*_in_path(path), *map(_in_query, told.query), *map(_in_header, told.headers)]
    }
    if told.tag == "commands":
        extra["requestBody"] = _commands_body(several=operation_id != "runCommand")
    elif told.body is not None:
        extra["requestBody"] = _body(told.body)
    return {
        "tags": [told.tag],
        "status_code": told.status,
        "responses": {
            told.status: {"description": "Done", "content": {JSON: {"schema": _schema(told)}}},
            **{status: _problem(code.title) for status, code in sorted(refusals.items())},
            "default": _problem("Any other refusal"),
        },
        "openapi_extra": extra,
    }


def document(api: FastAPI) -> bytes:
    """The whole description as JSON."""
    described = api.openapi()
    named = [told.answer for told in _OPERATIONS.values()] + [told.body for told in _OPERATIONS.values()]
    kinds = dict.fromkeys([kind for kind in named if kind is not None] + [schemas.NewEntries, schemas.Place])
    _, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    described["components"] = {"schemas": {**components, "Problem": _problem_schema()}}
    return msgspec.json.encode(described)


def _in_path(path: str) -> list[Json]:
    names = [piece[1:-1] for piece in path.split("/") if piece.startswith("{")]
    schema = {"type": "string", "minLength": 1, "maxLength": 512}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]


def _in_query(name: str) -> Json:
    schema = dict(_QUERY[name])
    return {"name": name, "in": "query", "description": schema.pop("description"), "schema": schema}


def _in_header(name: str) -> Json:
    return {"name": name, "in": "header", "description": _HEADERS[name], "schema": {"type": "string"}}


def _schema(told: Operation) -> Json:
    return {} if told.answer is None else _ref(told.answer)


def _ref(kind: type[msgspec.Struct]) -> Json:
    return {"$ref": _REF.format(name=kind.__name__)}


def _body(kind: type[msgspec.Struct]) -> Json:
    content: Json = {JSON: {"schema": _ref(kind)}}
    if kind is schemas.NewEntry:
        content[JSON] = {"schema": {"anyOf": [_ref(schemas.NewEntry), _ref(schemas.NewEntries)]}}
        content["application/x-ndjson"] = {"schema": {"type": "string", "description": "one entry a line"}}
        content["application/x-www-form-urlencoded"] = {"schema": {"type": "object"}}
        content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    return {"required": kind is not schemas.GroupRead, "content": content}


def _commands_body(*, several: bool) -> Json:
    words: Json = {"type": "array", "items": {"type": ["string", "number", "boolean"]}, "minItems": 1}
    schema = {"type": "array", "items": words} if several else words
    return {"required": True, "content": {JSON: {"schema": schema}}}


def _problem(title: str) -> Json:
    return {"description": title, "content": {_PROBLEM: {"schema": {"$ref": _REF.format(name="Problem")}}}}


def _problem_schema() -> Json:
    text = {"type": "string"}
    return {
        "type": "object",
        "description": "A refusal (RFC 9457)",
        "required": ["type", "title", "status", "code", "detail", "retryable", "request_id"],
        "properties": {
            "type": text,
            "title": text,
            "status": {"type": "integer"},
            "code": {"type": "string", "enum": list(CODES)},
            "detail": text,
            "retryable": {"type": "boolean"},
            "request_id": text,
            "redis_error": text,
            "errors": {"type": "array", "items": _ref(schemas.Place)},
        },
    }
