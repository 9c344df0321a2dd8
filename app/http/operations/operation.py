"""Operations: FastAPI routes that are bound and answered by this package, over ASGI and on the fast path.

Knows: which action a route asks for, which refusals it may answer with, how its result becomes an answer.
Must never know: what an operation does.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypedDict, TypeVar, Unpack

from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.auth import Access, Rule
from app.errors import RefusalError
from app.http import media
from app.http.calls import Answer, Call
from app.http.media import JSON
from app.http.operations.binder import Binder, Endpoint
from app.http.operations.refusals import problem, refusals

E = TypeVar("E", bound=Endpoint)
Json = dict[str, Any]
Handler = Callable[[Call], Awaitable[Answer]]

_PREFER_DURABILITY: Final = "`durability=fsync`: the answer leaves when the change is on disk"
_DURABILITY: Final = "`fsync`: the change is on disk; `os`: the operating system has it"
_PATH_NAME: Final = re.compile(r"\{(\w+)")
_ENTRY_ID: Final = re.compile(r"/entries/\{id\}")


class Options(TypedDict, total=False):
    """What an operation declares beside its signature.

    `model` describes the answer, `status` is its status, `also` are further statuses of the same answer.
    `refusals` are the codes of its own, beside those that every operation of its kind may answer with.
    `writes`: it changes something; it takes `Prefer: durability=fsync` and answers `Weir-Durability`.
    `prefer`: what else Prefer may say. `fast`: it is served on the fast path too; `coalesced`:
    single entries that come together are published as one command. `hidden`: not described.
    `offers` are the media types of its answers where server-sent events are among them; `end` makes the
    answer to an EventSource of a refusal that will pass.
    `forms` answer instead where Accept asks for their media types, which the document leaves out.
    `body` replaces the description of the request's body, `answers` that of the successful answer;
    `described` are the models that it refers to.
    `refused` is the shape of some answers with status 400 beside the problem. `bodiless`: it takes no body,
    or an object without members.
    """

    model: type[Any] | None
    status: int
    also: Mapping[int, str]
    refusals: Sequence[str]
    writes: bool
    prefer: str
    fast: bool
    coalesced: bool
    hidden: bool
    offers: Sequence[str]
    end: Callable[[RefusalError], Answer]
    forms: Mapping[str, Handler]
    headers: Mapping[str, str]
    body: Json
    answers: Json
    described: Sequence[type[BaseModel]]
    refused: type[BaseModel]
    bodiless: bool


class Operation(APIRoute):
    """One method of one path. `rule` is what its caller has to be allowed."""

    operation_id: str

    def __init__(
        self, method: str, path: str, rule: Rule, endpoint: Endpoint, tag: str, options: Options
    ) -> None:
        self.method = method
        self.template = path
        self.rule = rule
        self.fast = options.get("fast", False)
        self.coalesced = options.get("coalesced", False)
        self.hidden = options.get("hidden", False)
        self._forms = options.get("forms", {})
        self.end = options.get("end")
        self.offers = (JSON, *self._forms) if self._forms else options.get("offers", ())
        names = frozenset(_PATH_NAME.findall(path))
        # Browsers and probes add parameters of their own to pages that are open to all.
        lenient, bodiless = rule is Access.OPEN, options.get("bodiless", False)
        self.binder = Binder(endpoint, names, lenient=lenient, bodiless=bodiless)
        own_body = self.binder.own_body
        self.described = (*options.get("described", ()), *(own_body.models if own_body else ()))
        summary, _, description = inspect.cleandoc(endpoint.__doc__ or "").partition("\n\n")
        super().__init__(
            # `…/entries/delete` is a path of its own for every method: no entry has this ID.
            _ENTRY_ID.sub("/entries/{id:entry}", path),
            endpoint,
            methods=[method],
            operation_id=_camel(endpoint.__name__),
            summary=" ".join(summary.split()),
            description=description.strip() or " ",
            tags=[tag],
            status_code=options.get("status", 200),
            response_model=options.get("model"),
            response_description="Done",
            # The one has a body of JSON, the other none but what `answers` says.
            response_class=Response if options.get("model") is None else JSONResponse,
            include_in_schema=not self.hidden,
            responses=_responses(rule, options, self.binder),
            openapi_extra=_extra(options, own_body.content if own_body else None),
        )

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's own would bind and validate a second time, ten times as slowly."""
        from app.http.operations.routing import endpoint_of  # noqa: PLC0415 - it serves both kinds of routes

        return endpoint_of(self)

    async def handler(self, call: Call) -> Answer:
        """Bind, run, and make an answer of what comes back."""
        if self._forms:
            accepted = media.accepted(call.headers.get(b"accept", b""), self.offers)
            if accepted in self._forms:
                return await self._forms[accepted](call)
        result = await self.endpoint(**await self.binder.bind(call))
        if isinstance(result, Answer):
            return result
        return Answer(self.status_code or 200, result.__pydantic_serializer__.to_json(result))


class Router:
    """The operations of one resource."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.operations: list[Operation] = []

    def get(self, path: str, rule: Rule, **options: Unpack[Options]) -> Callable[[E], E]:
        """Serve GET and HEAD of `path`."""
        return self._add("GET", path, rule, options)

    def post(self, path: str, rule: Rule, **options: Unpack[Options]) -> Callable[[E], E]:
        """Serve POST of `path`."""
        return self._add("POST", path, rule, options)

    def put(self, path: str, rule: Rule, **options: Unpack[Options]) -> Callable[[E], E]:
        """Serve PUT of `path`."""
        return self._add("PUT", path, rule, options)

    def patch(self, path: str, rule: Rule, **options: Unpack[Options]) -> Callable[[E], E]:
        """Serve PATCH of `path`."""
        return self._add("PATCH", path, rule, options)

    def delete(self, path: str, rule: Rule, **options: Unpack[Options]) -> Callable[[E], E]:
        """Serve DELETE of `path`."""
        return self._add("DELETE", path, rule, options)

    def _add(self, method: str, path: str, rule: Rule, options: Options) -> Callable[[E], E]:
        def add(endpoint: E) -> E:
            self.operations.append(Operation(method, path, rule, endpoint, self.tag, options))
            if method == "GET":
                hidden: Options = {**options, "hidden": True}
                self.operations.append(Operation("HEAD", path, rule, endpoint, self.tag, hidden))
            return endpoint

        return add


def bound(path: str, endpoint: Endpoint) -> Handler:
    """The endpoint as a form of what this path answers."""
    binder = Binder(endpoint, frozenset(_PATH_NAME.findall(path)))

    async def handler(call: Call) -> Answer:
        answer: Answer = await endpoint(**await binder.bind(call))
        return answer

    return handler


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.title, rest))


def _extra(options: Options, content: Mapping[str, Any] | None) -> Json:
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


def _responses(rule: Rule, options: Options, binder: Binder) -> dict[int | str, Json]:
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
