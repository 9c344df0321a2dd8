"""The refusals of operations, as the document has them: one component for each status, referenced with the
codes of the operation.

Knows: which codes come with having a query, a body, an effect. Must never know: a particular operation.
"""

from collections.abc import Sequence
from typing import Final

from app.errors import CODES, slug
from app.http.operations.options import Json

_PROBLEM: Final = "application/problem+json"
# The component of refusals whose status an operation does not name.
_OTHER: Final = "OtherRefusal"
_ANYWHERE: Final = (
    *("unknown_parameter", "invalid_name", "unauthenticated", "forbidden", "origin_refused"),
    "rate_limited",
)
_WITH_BODY: Final = (
    *("malformed_json", "malformed_encoding"),
    *("body_too_large", "unsupported_media_type", "invalid"),
)
_WITH_ENGINE: Final = (
    *("starting", "restarting", "draining", "overloaded", "storage_failed", "entries_damaged"),
    *("backend_unavailable", "backend_error", "backend_forbidden", "not_supported_by_backend"),
)
_WITH_WRITES: Final = ("not_replicated", "storage_full", "memory_full", "quota_exceeded")

_TOO_MANY: Final = 429
# What draft-ietf-httpapi-ratelimit-headers has for limits.
_LIMIT_HEADERS: Final = {
    "Retry-After": "seconds after which the request may be sent again",
    "RateLimit-Policy": 'the caller\'s limits, where it has some: `"requests";q=100;w=10` allows 100 at once '
    'and as many in each 10 seconds; `"bytes"` the same of bytes',
    "RateLimit": 'what is left of each: `"requests";r=40;t=6` allows 40 now, and all in 6 seconds',
}


def refusals(
    own: Sequence[str], *, is_open: bool, has_text: bool, has_body: bool, writes: bool
) -> dict[int | str, Json]:
    """The refusals of an operation by status, with `default` for all others."""
    codes = list(own)
    if not is_open:
        codes += [*_ANYWHERE, *_WITH_ENGINE]
    if has_body:
        codes += _WITH_BODY
    if has_text:
        codes.append("invalid")
    if writes:
        codes += _WITH_WRITES
    by_status: dict[int | str, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(CODES[code].status, []).append(code)
    found = {status: _reference(_name(status), codes) for status, codes in sorted(by_status.items(), key=str)}
    return {**found, "default": _reference(_OTHER, ())}


def describe_header(description: str) -> Json:
    """A header of an answer."""
    return {"description": description, "schema": {"type": "string"}}


def _reference(name: str, codes: Sequence[str]) -> Json:
    """A component, and which of its codes are meant here: OpenAPI 3.1 allows a description beside a
    reference.
    """
    return {"$ref": f"#/components/responses/{name}", "description": _listed(codes)}


def _listed(codes: Sequence[str]) -> str:
    return ", ".join(f"`{code}`" for code in codes) or "Any other refusal"


def _name(status: int | str) -> str:
    return f"Refused{status}"


def components() -> dict[str, Json]:
    """The refusals of each status, with an example for each of its codes."""
    found: dict[str, list[str]] = {}
    for code, kind in CODES.items():
        found.setdefault(_name(kind.status), []).append(code)
    named: dict[str, Json] = {
        name: {"description": _listed(codes), **problem(codes)} for name, codes in found.items()
    }
    named[_name(_TOO_MANY)]["headers"] = {
        name: describe_header(text) for name, text in _LIMIT_HEADERS.items()
    }
    return {**named, _OTHER: {"description": _listed(()), **problem(("internal",))}}


def problem(codes: Sequence[str]) -> Json:
    """The content of a refusal with an example for each of its codes."""
    examples = {code: {"summary": CODES[code].title, "value": problem_example(code)} for code in codes}
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"content": {_PROBLEM: {"schema": schema, "examples": examples}}}


def problem_example(code: str) -> Json:
    """What a refusal with this code looks like."""
    kind = CODES[code]
    return {
        "type": f"/errors/{slug(code)}",
        "title": kind.title,
        "status": kind.status,
        "code": code,
        "detail": "a sentence about this very request",
        "retryable": kind.retry_after_s is not None,
        "request_id": "5f3a9c1e7b20-1f",
    }
