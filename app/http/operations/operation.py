"""Operations: routes that are bound and answered by this package, over ASGI and on the fast path.

Knows: how an operation is authorised, run and answered, how refusals become answers, and which headers and
refusals its options add to its description.
Must never know: what an operation does.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Final, cast

from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette import requests, responses
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.routing import Route

from app.auth import Access, Action, Rule
from app.auth.rate_limiter import Meter
from app.errors import invalid
from app.gateway import Phase
from app.http import media
from app.http.appends import Appends
from app.http.conditional import revalidate, tag_of
from app.http.media import JSON, MERGE_PATCH
from app.http.middleware.paths import SLASH
from app.http.middleware.request_id import as_refusal
from app.http.operations.binder import Binder, Body, Endpoint
from app.http.operations.options import Handler, Json, Options
from app.http.operations.refusals import describe_header, problem, refusals
from app.http.prepared import PreparedRead, Verdict
from app.http.requests import Request
from app.http.responses import ROUTE_STATE, NoResponse, Response, StreamingResponse, refuse
from app.live.waiting import ClientLeftError
from app.work import Work
from engine import EngineError
from engine.replies import Reply

_PREFER_DURABILITY: Final = "`durability=fsync`: the answer leaves when the change is on disk"
_DURABILITY: Final = "`fsync`: it is on disk; `os`: the system has it; else `backend_durability`"

_ETAG: Final = "the entity tag of what is shown, for If-None-Match and If-Match"


def describe_extra(options: Options, body: type[Body] | None) -> Json:
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
    if body is not None:
        extra["requestBody"] = {"required": body.required, "content": dict(body.content)}
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


_PATH_NAME: Final = re.compile(r"\{(\w+)")
_ENTRY_ID: Final = re.compile(r"/entries/\{id\}")
# Conditions of a change. One that is not looked at would be taken for fulfilled.
_CONDITIONS: Final = {b"if-match": "If-Match", b"if-none-match": "If-None-Match"}
# What a patch may be: with 415 and OPTIONS (RFC 5789, 2.2 and 3.1).
ACCEPT_PATCH: Final = (b"accept-patch", f"{MERGE_PATCH}, {JSON}".encode())


class _EntryId(StringConvertor):
    """`…/entries/delete` and others are paths of their own for every method: no entry has these IDs."""

    regex = "(?!(?:batch|delete|ndjson|raw)$)[^/]+"


register_url_convertor("entry", _EntryId())


class Operation(Route):
    """One method of one path. `rule` is what its caller has to be allowed."""

    def __init__(
        self, method: str, path: str, rule: Rule, endpoint: Endpoint, tag: str, options: Options
    ) -> None:
        self.method = method
        self.template = path
        # In metrics and traces: never a stream's name.
        self.label = f"{method} {path}"
        self.rule = rule
        self.fast = options.get("fast", False)
        self.coalesced = options.get("coalesced", False)
        self.hidden = options.get("hidden", False)
        self._is_conditional = options.get("conditional", False)
        self._forms = options.get("forms", {})
        self.end = options.get("end")
        self._is_central = options.get("central", False)
        self._audited = options.get("audited", _audited(method, rule))
        self.offers = (JSON, *self._forms) if self._forms else options.get("offers", ())
        names, lenient = frozenset(_PATH_NAME.findall(path)), rule is Access.OPEN
        self.binder = Binder(endpoint, names, lenient=lenient, bodiless=options.get("bodiless", False))
        self._unknown_conditions = (
            frozenset() if method in ("GET", "HEAD") else _CONDITIONS.keys() - self.binder.headers
        )
        own_body = self.binder.own_body
        self.described = (*options.get("described", ()), *(own_body.models if own_body else ()))
        self.operation_id = _camel(endpoint.__name__)
        self.status_code = options.get("status", 200)
        self._options = options
        self._tag = tag
        super().__init__(_ENTRY_ID.sub("/entries/{id:entry}", path), self._serve, name=self.operation_id)
        # Starlette lets GET serve HEAD, which is an operation of its own here.
        self.methods = {method}
        self.endpoint = endpoint

    def documented(self) -> APIRoute:
        """The route of FastAPI that describes it. To make all of them takes 0.1 s of processor time."""
        options, own_body = self._options, self.binder.own_body
        summary, _, description = inspect.cleandoc(self.endpoint.__doc__ or "").partition("\n\n")
        return APIRoute(
            self.path,
            self.endpoint,
            methods=[self.method],
            operation_id=self.operation_id,
            summary=" ".join(summary.split()),
            description=description.strip() or " ",
            tags=[self._tag],
            status_code=self.status_code,
            response_model=options.get("model"),
            response_description="Done",
            # Without a model there is no body but what `answers` says.
            response_class=responses.Response if options.get("model") is None else responses.JSONResponse,
            responses=describe_responses(self.rule, options, self.binder),
            openapi_extra=describe_extra(options, own_body),
        )

    async def _serve(self, incoming: requests.Request) -> Response:
        """Answer what Starlette's router has found it for."""
        state = incoming.scope["state"]
        state[ROUTE_STATE] = self.label
        names = {name: text.replace(SLASH, "/") for name, text in incoming.path_params.items()}
        return await self.respond(Request(state["gateway"], incoming.scope, incoming.receive, names))

    async def respond(self, request: Request, verdict: Verdict | None = None) -> Response:
        """Authorise, run the operation, and turn every exception into an answer. A verdict is of a request
        with the same head, and still holds.
        """
        forwarded = False
        try:
            if verdict is not None:
                request.principal = verdict.principal
                if verdict.is_metered:
                    request.take_request()
            elif self.rule is not Access.OPEN:
                await request.authenticate(tickets=self._tickets(request))
                request.take_request()
                if isinstance(self.rule, Action):
                    names = request.names.get
                    request.require(self.rule, names("stream"), names("group"), names("consumer"))
                # Before the body is read: a gateway that is starting or stopping takes none.
                request.check_ready()
            forward = request.gateway.processes.forward
            if self._is_central and forward is not None and request.gateway.phase is Phase.READY:
                forwarded = True
                response = cast("Response", await forward(self.label, request))
            else:
                response = await self.handler(request, verdict)
            # What everybody may read is made once, for all.
            if self.rule is not Access.OPEN:
                request.hold_answer(len(response.body))
            if request.meter is not None:
                response = _counted(request.meter, response)
        except ClientLeftError:
            request.take_back()
            response = NoResponse()
        except Exception as error:  # noqa: BLE001 - every exception has an answer, see `as_refusal`
            response = self._refused(request, error)
        if request.delivered:
            response.unsent = request.take_back
        if not forwarded:
            self._audit(request, response)
        return response

    def _tickets(self, request: Request) -> Sequence[str]:
        """The tickets of a request that an EventSource may send, which has no header for a token."""
        return request.query_tickets if self.end is not None else ()

    def coalesces(self, names: Mapping[str, str], headers: Mapping[bytes, bytes]) -> bool:
        """Of an operation that coalesces requests without query or condition: whether this one may be."""
        return headers.get(b"content-type") == b"application/json"

    def appends(self, names: Mapping[str, str], headers: Mapping[bytes, bytes]) -> Appends | None:
        """What it has in common with others, where it is not one of those that publish an entry."""
        common = self._options.get("appends")
        return None if common is None else common(names)

    async def run_for_front(self, request: Request) -> Response:
        """Run it for a front, which has authorised its caller."""
        try:
            response = await self.handler(request)
        except Exception as error:  # noqa: BLE001 - as above
            response = self._refused(request, error)
        self._audit(request, response)
        return response

    def _audit(self, request: Request, response: Response) -> None:
        """Have the audit log say what was done: what its handler has noted, else what its path names."""
        if not self._audited and not request.actions:
            return
        if self._audited and not request.actions:
            made = [value.decode() for name, value in response.raw_headers if name == b"location"]
            facts: dict[str, object] = {**request.names, **({"made": made[0]} if made else {})}
            request.note_action(self._audited, self.operation_id, **facts)
        request.end_actions(response.status_code, response.code)

    def _refused(self, request: Request, error: Exception) -> Response:
        refusal = as_refusal(error, request.request_id)
        if refusal.retryable and self.end is not None and request.asks_for_events(self.offers):
            return self.end(refusal)
        if self.rule is Access.PER_COMMAND:
            # SDKs of the command API look for `error`.
            refusal.members["error"] = refusal.members.get("redis_error") or f"ERR {refusal.detail}"
        response = refuse(refusal, request.request_id)
        if request.meter is not None:
            _limits_shown(request.meter, response)
        if self.method == "PATCH" and refusal.code == "unsupported_media_type":
            response.raw_headers.append(ACCEPT_PATCH)
        return response

    async def handler(self, request: Request, verdict: Verdict | None = None) -> Response:
        """Bind, run, and make an answer of what comes back."""
        if verdict is not None:
            head = verdict.arguments
        else:
            if (form := self._form(request)) is not None:
                return await form(request)
            head = request.arguments = self.binder.bind_head(request)
        result = await self.endpoint(**await self.binder.bind(request, head))
        if type(result) is PreparedRead:
            read, result = result, result.answer(*await request.run(result.commands))
            request.prepared = read
        return self._shown(request.headers, result)

    def _form(self, request: Request) -> Handler | None:
        """What answers in the form that Accept asks for, if that is another one. Raises `invalid` for a
        condition that is not looked at.
        """
        if self._forms:
            accepted = media.accepted(request.headers.get(b"accept", b""), self.offers)
            if accepted in self._forms:
                return self._forms[accepted]
        for condition in self._unknown_conditions:
            if condition in request.headers:
                raise invalid(_CONDITIONS[condition], "this operation has no such condition")
        return None

    def answer_again(
        self,
        work: Work,
        headers: Mapping[bytes, bytes],
        read: PreparedRead,
        replies: Sequence[Reply | EngineError],
    ) -> Response:
        """The answer to an equal request, of a caller who may read the same, from these replies. Raises what
        the route refuses.
        """
        found: list[Reply] = []
        for reply in replies:
            if isinstance(reply, EngineError):
                raise reply
            found.append(reply)
        work.note_arrived(*found)
        response = self._shown(headers, read.answer(*found))
        # Nothing was counted of what is refused: its route does.
        for reply in found:
            work.note_reply(None, reply)
        return response if work.meter is None else _counted(work.meter, response)

    def _shown(self, headers: Mapping[bytes, bytes], result: Response | BaseModel) -> Response:
        """What an endpoint returned, as it is answered."""
        if not isinstance(result, Response):
            result = Response(self.status_code, result.__pydantic_serializer__.to_json(result))
        if self._is_conditional:
            return revalidate(headers, result, tag_of(result.body))
        return result


def _audited(method: str, rule: Rule) -> str:
    """The action of an operation in the audit log, empty where it has no line there."""
    is_audited = method not in ("GET", "HEAD") and rule in (Action.CLOSE, Action.MANAGE, Action.ADMIN)
    return str(rule.value) if is_audited else ""


def _counted(meter: Meter, response: Response) -> Response:
    """Count the bytes of an answer against its caller's rate."""
    if isinstance(response, StreamingResponse):
        response.slow_down(meter.charge)
    else:
        meter.charge(len(response.body))
    return _limits_shown(meter, response)


def _limits_shown(meter: Meter, response: Response) -> Response:
    response.raw_headers = [*response.raw_headers, *meter.headers()]
    return response


def bound(path: str, endpoint: Endpoint) -> Handler:
    """The endpoint as a form of what this path answers."""
    binder = Binder(endpoint, frozenset(_PATH_NAME.findall(path)))

    async def handler(request: Request) -> Response:
        response: Response = await endpoint(**await binder.bind(request, binder.bind_head(request)))
        return response

    return handler


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.title, rest))
