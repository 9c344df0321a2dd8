"""A refusal's body, as both documents have it.

Knows: its members. Must never know: when anything is refused.
"""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from app.errors import CODES


class InvalidValue(Struct):
    """Where a value is wrong: in the body, by a JSON pointer (RFC 6901), in a parameter or in a header."""

    detail: str
    pointer: str | UnsetType = UNSET
    parameter: str | UnsetType = UNSET
    header: str | UnsetType = UNSET


def problem_schema() -> dict[str, Any]:
    """A refusal's body; it refers to the schema `InvalidValue`."""
    text = {"type": "string"}
    return {
        "type": "object",
        "description": "A refusal (RFC 9457). What else it has depends on its code: IDs, counts, names.",
        "required": ["type", "title", "status", "code", "detail", "retryable", "request_id"],
        "properties": {
            "type": {**text, "format": "uri-reference", "description": "a page about this code"},
            "title": text,
            "status": {"type": "integer"},
            "code": {**text, "enum": list(CODES), "description": "stable: what programs look at"},
            "detail": {**text, "description": "for people"},
            "retryable": {"type": "boolean", "description": "whether the same request may work later"},
            "request_id": text,
            "redis_error": {**text, "description": "what Redis would have answered"},
            "outcome": {
                **text,
                "description": "of a request refused with 502 or 503: `not done`, or `unknown` where it may "
                "have been done",
            },
            "errors": {"type": "array", "items": {"$ref": "#/components/schemas/InvalidValue"}},
        },
        "additionalProperties": True,
    }
