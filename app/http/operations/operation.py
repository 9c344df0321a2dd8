"""Operations: how they are authorised, run and answered, waiting or not.

Knows: how an operation is authorised, run and answered, how refusals become answers, and which headers and
refusals its options add to its description.
Must never know: what an operation does, sockets.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from fastapi.routing import APIRoute
from starlette import responses

from app.auth import Access, Action, Rule
from app.auth.rate_limiter import Meter
from app.errors import invalid
from app.gateway import Gateway
from app.http import media
from app.http.asks import Ask, Result
from app.http.common.exchanges import as_refusal
from app.http.conditional import revalidate, tag_of
from app.http.media import JSON, MERGE_PATCH
from app.http.models import ResponseModel
from app.http.operations.binder import Binder, Body, Endpoint
from app.http.operations.options import Handler, Json, Options
from app.http.operations.refusals import describe_header, problem, refusals
from app.http.requests import TICKET, NeedsTaskError, Request
from app.http.responses import NoResponse, Response, StreamingResponse, refuse
from app.live.budgets import FREE_BYTES
from app.live.waiting import ClientLeftError
from app.operating import Phase

_PREFER_DURABILITY: Final = "`durability=fsync`: answer once the change is on disk"
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
# Conditions of a change. One that is not looked at would be taken for fulfilled.
_CONDITIONS: Final = {b"if-match": "If-Match", b"if-none-match": "If-None-Match"}
# What a patch may be: with 415 and OPTIONS (RFC 5789, 2.2 and 3.1).
ACCEPT_PATCH: Final = (b"accept-patch", f"{MERGE_PATCH}, {JSON}".encode())


class Operation:
    """One method of one path. `rule` is what its caller has to be allowed. An endpoint that is no coroutine
    needs no task: it answers, or asks the engine.
    """

    def __init__(
        self, method: str, path: str, rule: Rule, endpoint: Endpoint, tag: str, options: Options
    ) -> None:
        self.method = method
        self.template = path
        # In metrics and traces: never a stream's name.
        self.label = f"{method} {path}"
        self.rule = rule
        self.endpoint = endpoint
        self.is_plain = not inspect.iscoroutinefunction(endpoint)
        self.hidden = options.get("hidden", False)
        self._is_conditional = options.get("conditional", False)
        self._forms = options.get("forms", {})
        self.end = options.get("end")
        self.is_central = options.get("central", False)
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

    def documented(self) -> APIRoute:
        """The route of FastAPI that describes it. To make all of them takes 0.1 s of processor time."""
        options, own_body = self._options, self.binder.own_body
        summary, _, description = inspect.cleandoc(self.endpoint.__doc__ or "").partition("\n\n")
        return APIRoute(
            self.template,
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

    # ---- for its plans

    def takes_ticket(self, query: bytes) -> bool:
        """Whether a query like this names its caller: an EventSource has no header for a token."""
        return self.end is not None and TICKET in query

    def form(self, headers: Mapping[bytes, bytes]) -> Handler | None:
        """What answers in the form that Accept asks for, if that is another one. Raises `invalid` for a
        condition that is not looked at.
        """
        if self._forms:
            accepted = media.accepted(headers.get(b"accept", b""), self.offers)
            if accepted in self._forms:
                return self._forms[accepted]
        for condition in self._unknown_conditions:
            if condition in headers:
                raise invalid(_CONDITIONS[condition], "this operation has no such condition")
        return None

    def raw(
        self, names: Mapping[str, str], headers: Mapping[bytes, bytes], query: bytes, gateway: Gateway
    ) -> Ask | None:
        """What requests with such a head ask, if their bodies may be read together."""
        ask = self._options.get("raw")
        return None if ask is None or query else ask(names, headers, gateway)

    # ---- serving

    async def respond(self, request: Request) -> Response:
        """Authorise, run the operation, and turn every exception into an answer, waiting where that is
        needed.
        """
        forwarded = False
        try:
            plan = request.plan
            # It may have waited behind others since its head was judged.
            if plan.principal is not None and plan.stamp == request.gateway.stamp.value:
                request.principal = plan.principal
                request.take_request()
            elif self.rule is not Access.OPEN:
                await request.authenticate(tickets=self._tickets(request))
                request.take_request()
                if isinstance(self.rule, Action):
                    names = request.names.get
                    request.require(self.rule, names("stream"), names("group"), names("consumer"))
            if self.rule is not Access.OPEN:
                # Before the body is read: a gateway that is starting or stopping takes none.
                request.check_ready()
            forward = request.gateway.operator.processes.forward
            if self.is_central and forward is not None and request.gateway.phase is Phase.READY:
                forwarded = True
                response = cast("Response", await forward(self.label, request))
            else:
                response = await self.handler(request)
            response = self._done(request, response)
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

    def begin(self, request: Request, body: bytes) -> Result:
        """The same of a request of a known caller, whose body is there, up to the first wait. Raises
        NeedsTaskError where it has to wait for anything else.
        """
        gateway, plan = request.gateway, request.plan
        if self.is_central and gateway.operator.processes.forward is not None:
            raise NeedsTaskError
        if self.rule is not Access.OPEN:
            if gateway.limits.rates is not None:
                request.take_request()
            request.check_ready()
        if plan.ask is not None and not request.has_conditions:
            # Asked again for an equal head.
            return cast("Ask", plan.ask)
        found = self._begin(request, body)
        if isinstance(found, Ask) and found.lasts and not body and not request.has_conditions:
            plan.ask = found = found._replace(bound=gateway.limits.commands.answer_bound(found.commands))
        return found

    def _begin(self, request: Request, body: bytes) -> Result:
        found: Result = self.endpoint(**self.binder.bind_now(request, self._head(request), body))
        return found

    def refuse(self, request: Request, error: Exception) -> Response:
        """The answer to what has failed."""
        return self._end(request, self._refused(request, error))

    def finish(self, request: Request, result: Response | ResponseModel) -> Response:
        """The answer that an endpoint's result is. Raises what `refuse` answers."""
        if not isinstance(result, Response) or self._is_conditional:
            result = self._shown(request.headers, result)
        if request.meter is not None or len(result.body) > FREE_BYTES:
            result = self._done(request, result)
        if request.delivered or request.actions or self._audited:
            return self._end(request, result)
        return result

    def _end(self, request: Request, response: Response) -> Response:
        if request.delivered:
            response.unsent = request.take_back
        self._audit(request, response)
        return response

    def _done(self, request: Request, response: Response) -> Response:
        # What everybody may read is made once, for all.
        if self.rule is not Access.OPEN:
            request.hold_answer(len(response.body))
        return response if request.meter is None else _counted(request.meter, response)

    def _tickets(self, request: Request) -> Sequence[str]:
        """The tickets of a request that an EventSource may send."""
        return request.query_tickets if self.end is not None else ()

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
        is_of_command = self.rule is Access.PER_COMMAND
        refusal = as_refusal(error, request.request_id, of_command=is_of_command)
        if refusal.retryable and self.end is not None and request.asks_for_events(self.offers):
            return self.end(refusal)
        if is_of_command:
            # SDKs of the command API look for `error`.
            refusal.members["error"] = refusal.members.get("redis_error") or f"ERR {refusal.detail}"
        response = refuse(refusal, request.request_id)
        if request.meter is not None:
            _limits_shown(request.meter, response)
        if self.method == "PATCH" and refusal.code == "unsupported_media_type":
            response.raw_headers.append(ACCEPT_PATCH)
        return response

    async def handler(self, request: Request) -> Response:
        """Bind, run, and make an answer of what comes back."""
        form = request.plan.form or self.form(request.headers)
        if form is not None:
            return await form(request)
        return await self._run(request, self._head(request))

    async def run_as_form(self, request: Request) -> Response:
        """Answer a request of another operation in the form that Accept asks for."""
        return await self._run(request, self._bind_head(request))

    async def _run(self, request: Request, head: Mapping[str, Any]) -> Response:
        found = self.endpoint(**await self.binder.bind(request, head))
        return self._shown(request.headers, await request.settle(found if self.is_plain else await found))

    def _head(self, request: Request) -> Mapping[str, Any]:
        """The arguments in the head: of the plan, unless a header that passes is one of them."""
        arguments = request.plan.arguments
        if arguments is not None and not request.has_conditions:
            return arguments
        if self._unknown_conditions:
            self.form(request.headers)
        return self._bind_head(request)

    def _bind_head(self, request: Request) -> Mapping[str, Any]:
        return self.binder.bind_head(request.names, request.query, request.headers, request.gateway.settings)

    def _shown(self, headers: Mapping[bytes, bytes], result: Response | ResponseModel) -> Response:
        """What an endpoint returned, as it is answered."""
        if not isinstance(result, Response):
            result = Response(self.status_code, result.json())
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
        head = binder.bind_head(request.names, request.query, request.headers, request.gateway.settings)
        response: Response = await endpoint(**await binder.bind(request, head))
        return response

    return handler


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.title, rest))
