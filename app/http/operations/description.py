"""What FastAPI's description of an operation needs beside its signature.

Knows: the headers and refusals that follow from an operation's options. Must never know: how a request is
served.
"""

from collections.abc import Mapping
from typing import Any, Final

from app.auth import Access, Rule
from app.http.operations.binder import Binder
from app.http.operations.options import Json, Options
from app.http.operations.refusals import problem, refusals

_PREFER_DURABILITY: Final = "`durability=fsync`: the answer leaves when the change is on disk"
_DURABILITY: Final = "`fsync`: the change is on disk; `os`: the operating system has it"


def describe_extra(options: Options, content: Mapping[str, Any] | None) -> Json:
    """Describe the Prefer header and the body, which signatures do not name."""
    prefer = [options["prefer"]] if "prefer" in options else []
    if options.get("writes"):
        prefer.append(_PREFER_DURABILITY)
    extra: Json = {}
    if prefer:
        schema = {"type": "string"}
        extra["parameters"] = [
            {"name": "Prefer", "in": "header", "description": "; ".join(prefer), "schema": schema}
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
    done: Json = {"description": "Done", **options.get("answers", {})}
    if headers:
        done["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()
        }
    model = options.get("model")
    also: dict[int | str, Json] = {}
    for status, words in options.get("also", {}).items():
        also[status] = {**done, "description": words} | ({"model": model} if model is not None else {})
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
