"""The API's description: OpenAPI 3.1, as FastAPI makes it of the operations, and what it still needs.

Knows: examples, bounds that settings move, what generators of SDKs stumble over.
Must never know: how any of it is served, and a particular operation.
"""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from threading import Lock
from typing import Any, Final

import msgspec
import orjson
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from app import VERSION
from app.http.media import JSON, NDJSON
from app.http.models import described
from app.http.operations import refusals
from app.http.operations.operation import Operation
from app.openapi.problems import InvalidValue, problem_schema
from app.settings import Settings

Json = dict[str, Any]

_REF: Final = "#/components/schemas/{name}"

# What many operations have, and what it is called where it is described.
_SHARED: Final = {
    **dict.fromkeys(("stream", "group", "consumer", "hook"), "PathName"),
    "Idempotency-Key": "IdempotencyKey",
    "If-Match": "EntryTag",
}
_NAMES: Final[Mapping[str, Json]] = {
    "stream": {"description": "The stream's name", "example": "orders"},
    "group": {"description": "The group's name", "example": "billing"},
    "consumer": {"description": "The consumer's name", "example": "worker-1"},
    "schedule": {"description": "The schedule's name", "example": "nightly"},
    "hook": {"description": "The hook's name", "example": "github"},
    "token": {"description": "The token's ID", "example": "Zb3kq0VJm2aX"},
    "id": {"description": "The entry's ID", "example": "1526919030474-0"},
}
# What is a schema has one of these.
_OF_SCHEMAS: Final = frozenset(("$ref", "anyOf", "type"))
_TAGS: Final = (
    ("streams", "Streams: what there is, how much of each is kept, trimming."),
    ("entries", "Publishing and reading the entries of one stream."),
    ("schedules", "Entries for later, once or again and again."),
    ("many", "Publishing into many streams, and reading from many."),
    ("groups", "Groups of consumers that share the work of a stream: who got what, and what is done."),
    ("commands", "The same as Redis's commands, for SDKs that speak them over HTTP."),
    ("gateway", "The gateway itself."),
)
_ABOUT: Final = """\
Streams in the sense of Redis over plain HTTP: append-only logs of entries, read by ranges, by cursors that
wait, and by groups of consumers.

* An **entry** has an ID, `<ms>-<seq>`, and ordered fields; values are strings.
* **One cursor everywhere**: each read answers with `next`; go on with `after=<next>`.
* **Nothing is lost silently**: a read whose cursor is before removed entries reports it (`gap`).
* **Refusals** are `application/problem+json` with a stable `code`; `/errors/<code>` explains it.
* Every answer has `Weir-Request-Id`; a problem repeats it, and so does the gateway's log.
"""


class Document:
    """The whole description as JSON, with the limits that are set: made once, when it is first asked for."""

    def __init__(self, operations: Sequence[Operation], settings: Settings) -> None:
        self._operations = [operation for operation in operations if not operation.hidden]
        self._settings = settings
        self._lock = Lock()
        self._text: bytes | None = None

    def text(self) -> bytes:
        """The description. It takes half a second to make: ask for it in a thread."""
        with self._lock:
            if self._text is None:
                self._text = _describe(self._operations, self._settings)
            return self._text


def _describe(operations: Sequence[Operation], settings: Settings) -> bytes:
    routes, examples = [operation.documented() for operation in operations], _read_examples()
    described = get_openapi(title="Weir API", version=VERSION, routes=routes)
    for methods in described["paths"].values():
        for operation in methods.values():
            _show(operation, examples.get(operation["operationId"], {}))
    _, components = msgspec.json.schema_components([InvalidValue], ref_template=_REF)
    modelled = described.get("components", {}).get("schemas", {}) | _models(operations)
    # An enumeration of the engine's, which a type describes otherwise.
    modelled.pop("Cursor", None)
    used = {
        answer["$ref"].rpartition("/")[2]
        for methods in described["paths"].values()
        for operation in methods.values()
        for answer in operation["responses"].values()
        if "$ref" in answer
    }
    described["components"] = {
        "schemas": {**components, **modelled, "Problem": problem_schema()},
        "responses": {name: refusal for name, refusal in refusals.components().items() if name in used},
    }
    _resolve(described, settings)
    _share(described)
    described["paths"] = dict(_name_apart(path, methods) for path, methods in described["paths"].items())
    described["info"]["description"] = _ABOUT
    described["info"]["license"] = {"name": "MIT", "identifier": "MIT"}
    described["tags"] = [{"name": name, "description": words} for name, words in _TAGS]
    described["security"] = [{"bearer": []}] if settings.has_tokens else []
    if settings.has_tokens:
        described["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    described["servers"] = [{"url": "/", "description": "this gateway"}]
    return orjson.dumps(described)


def _share(described: Json) -> None:
    """Say once what many operations have: how names and entity tags are written, headers of answers, refusals
    that may have any code of their status.
    """
    components = described["components"]
    operations = [one for methods in described["paths"].values() for one in methods.values()]
    for parameter in (one for operation in operations for one in operation.get("parameters", ())):
        if (shared := _SHARED.get(parameter["name"])) is not None:
            schema = {**parameter["schema"], "description": shared}
            if components["schemas"].setdefault(shared, schema) == schema:
                parameter["schema"] = {"$ref": _REF.format(name=shared)}
    headers = components.setdefault("headers", {})
    for answer in (one for operation in operations for one in operation["responses"].values()):
        for name, header in answer.get("headers", {}).items():
            if headers.setdefault(name, header) == header:
                answer["headers"][name] = {"$ref": f"#/components/headers/{name}"}
        component = components["responses"].get(answer.get("$ref", "").rpartition("/")[2], {})
        if component.get("description") == answer["description"]:
            del answer["description"]


def _name_apart(path: str, methods: Json) -> tuple[str, Json]:
    """Call a stream's name otherwise beside an answer in lines, which generated code calls `stream`."""
    answers = [answer for operation in methods.values() for answer in operation["responses"].values()]
    if not any(NDJSON in answer.get("content", ()) for answer in answers):
        return path, methods
    for operation in methods.values():
        for parameter in operation["parameters"]:
            if parameter["name"] == "stream":
                parameter["name"] = "name"
    return path.replace("{stream}", "{name}"), methods


def _models(operations: Sequence[Operation]) -> Json:
    """The models that operations refer to in what they say of their bodies themselves."""
    models = dict.fromkeys(model for operation in operations for model in operation.described)
    _, found = models_json_schema(
        [(described(model), "validation") for model in models], ref_template=_REF.format(name="{model}")
    )
    schemas: Json = found.get("$defs", {})
    return schemas


def _resolve(value: object, settings: Settings) -> None:
    """Give every schema the bounds that are set, and drop what generated code stumbles over: titles that were
    made of names, and defaults of members.
    """
    if isinstance(value, list):
        for item in value:
            _resolve(item, settings)
    if not isinstance(value, dict):
        return
    for key in [key for key in value if key.startswith("x-") and key.endswith("-setting")]:
        value[key.removeprefix("x-").removesuffix("-setting")] = getattr(settings, value.pop(key))
    for key in ("minimum", "maximum"):
        # FastAPI writes them as floats.
        if isinstance(value.get(key), float):
            value[key] = int(value[key])
    if value.get("type") == "integer":
        # Without it typed languages take 32 bits, in which no time in milliseconds fits.
        value.setdefault("format", "int64")
    if not _OF_SCHEMAS.isdisjoint(value) and isinstance(value.get("title"), str):
        del value["title"]
    for member in value.get("properties", {}).values():
        _say_default(member)
    for name, item in value.items():
        if name != "examples":
            _resolve(item, settings)


def _say_default(member: Json) -> None:
    """Put a member's default into words: generators of types take what has a default for always there."""
    default = member.pop("default", None)
    if default is not None:
        words = f"`{default if isinstance(default, str) else orjson.dumps(default).decode()}` by default"
        # What may be null too is described among its alternatives.
        described = (option["description"] for option in member.get("anyOf", ()) if "description" in option)
        said = member.get("description") or next(described, "")
        if words not in said:
            member["description"] = f"{said}; {words}" if said else words


def _read_examples() -> dict[str, dict[str, Json]]:
    """The examples of each operation, by names: requests and their answers, as they are sent and received.

    `given` are path and query parameters; a path parameter that is not given has its usual value. `media` is
    what is accepted, JSON where it is not given. `status` is the answer's, where it is not the usual one.
    They are about a gateway with streams `orders` and `payments`, and a group `billing`; a test sends each.
    """
    examples: dict[str, dict[str, Json]] = {}
    for file in files("app").joinpath("openapi", "examples").iterdir():
        examples |= orjson.loads(file.read_bytes())
    return examples


def _show(described: Json, examples: Mapping[str, Json]) -> None:
    """Put the examples in: FastAPI would drop what is null in them."""
    done = min(status for status in described["responses"] if status.startswith("2"))
    if not described.get("description", "").strip():
        # The sentence says it all; readers of documents and linters look here.
        described["description"] = described["summary"]
    for status, answer in described["responses"].items():
        for media, kind in answer.get("content", {}).items():
            kind["schema"].pop("title", None)
            shown = {
                key: {"summary": example["summary"], "value": example["answer"]}
                for key, example in examples.items()
                if str(example.get("status", done)) == status and example.get("media", JSON) == media
            }
            if shown:
                kind["examples"] = shown
    bodies = {
        key: {"summary": example["summary"], "value": example["body"]}
        for key, example in examples.items()
        if "body" in example
    }
    for kind in described.get("requestBody", {}).get("content", {}).values():
        # A body that may be left out is not one that is always there.
        kind["schema"].pop("default", None)
    if "requestBody" in described and bodies:
        next(iter(described["requestBody"]["content"].values()))["examples"] = bodies
    for parameter in described.get("parameters", ()):
        _show_parameter(parameter, examples)


def _show_parameter(parameter: Json, examples: Mapping[str, Json]) -> None:
    name = parameter["name"]
    parameter["schema"] = _without_null(parameter["schema"])
    words = parameter["schema"].pop("description", "")
    values = {
        key: {"value": example["given"][name]}
        for key, example in examples.items()
        if name in example.get("given", ())
    }
    if parameter["in"] == "path":
        words = _NAMES[name]["description"]
        values = values or {"usual": {"value": _NAMES[name]["example"]}}
    parameter.setdefault("description", words)
    if values:
        parameter["examples"] = values


def _without_null(schema: Json) -> Json:
    """The schema of a parameter, which is there or is not, and is never null."""
    schema.pop("title", None)
    kinds = [kind for kind in schema.pop("anyOf", ()) if kind != {"type": "null"}]
    assert len(kinds) <= 1, "no parameter is a union"
    return {**kinds[0], **schema} if kinds else schema
