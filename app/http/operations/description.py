"""What FastAPI's description of an operation needs beside its signature.

Knows: the headers and refusals that follow from an operation's options. Must never know: how a request is
served.
"""

from collections.abc import Mapping
from typing import Any, Final

from app.auth import Access, Rule
from app.http.operations.binder import Binder
from app.http.operations.options import Json, Options
from app.http.operations.refusals import describe_header, problem, refusals

_PREFER_DURABILITY: Final = "`durability=fsync`: the answer leaves when the change is on disk"
_DURABILITY: Final = "`fsync`: the change is on disk; `os`: the system has it; else `backend_durability`"

_ETAG: Final = "the entity tag of what is shown, for If-None-Match and If-Match"


def describe_extra(options: Options, content: Mapping[str, Any] | None) -> Json:
    """Describe headers and the body where signatures do not name them."""
    prefer = [options["prefer"]] if "prefer" in options else []
    if options.get("writes"):
        prefer.append(_PREFER_DURABILITY)
    headers = {"Prefer": "; ".join(prefer)} if prefer else {}
    if options.get("conditional"):
        headers["If-None-Match"] = "entity tags that the client has; the answer is 304 if it has one of them"
    extra: Json = {}
    if headers:
        schema = {"type": "string"}
        extra["parameters"] = [
            {"name": name, "in": "header", "description": text, "schema": schema}
            for name, text in headers.items()
        ]
    if content is not None:
        extra["requestBody"] = {"required": True, "content": dict(content)}
    if "body" in options:
        extra["requestBody"] = options["body"]
    return extra


def describe_responses(rule: Rule, options: Options, binder: Binder) -> dict[int | str, Json]:
    """Describe the responses of an operation by status."""
    headers = dict(options.get("headers", {}))
    if options.get("writes"):
        headers["Weir-Durability"] = _DURABILITY
    if options.get("conditional"):
        headers["ETag"] = _ETAG
    done: Json = {"description": "Done", **options.get("answers", {})}
    if headers:
        done["headers"] = {name: describe_header(text) for name, text in headers.items()}
    model = options.get("model")
    also: dict[int | str, Json] = {}
    for status, words in options.get("also", {}).items():
        also[status] = {**done, "description": words} | ({"model": model} if model is not None else {})
    if options.get("conditional"):
        also[304] = {"description": "The client has it already", "headers": {"ETag": describe_header(_ETAG)}}
    codes = refusals(
        options.get("refusals", ()),
        is_open=rule is Access.OPEN,
        has_text=binder.has_text or "prefer" in options or bool(options.get("writes")),
        has_body=binder.has_body or options.get("bodiless", False) or "body" in options,
        writes=options.get("writes", False),
    )
    if "refused" in options:
        # A shape beside the problem: no other operation has it.
        codes[400] = {
            "description": codes[400]["description"],
            "model": options["refused"],
            **problem(("unknown_parameter",)),
        }
    return {options.get("status", 200): done, **also, **codes}
