"""Operations: FastAPI routes that are bound and answered by this package, over ASGI and on the fast path.

Knows: how an operation is authorised, run and answered, and how refusals become answers.
Must never know: what an operation does.
"""

import inspect
import re
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from fastapi.routing import APIRoute
from starlette import requests, responses
from starlette.convertors import StringConvertor, register_url_convertor

from app.auth import Access, Action, Rule
from app.errors import RefusalError
from app.gateway import ClientLeftError, Gateway
from app.http import media
from app.http.conditional import revalidate, tag_of
from app.http.media import JSON, MERGE_PATCH
from app.http.middleware.request_id import as_refusal
from app.http.operations.binder import Binder, Endpoint
from app.http.operations.description import describe_extra, describe_responses
from app.http.operations.options import Handler, Options
from app.http.requests import Request
from app.http.responses import NoResponse, Response, refuse

_PATH_NAME: Final = re.compile(r"\{(\w+)")
_ENTRY_ID: Final = re.compile(r"/entries/\{id\}")
# What a patch may be: with 415 and OPTIONS (RFC 5789, 2.2 and 3.1).
ACCEPT_PATCH: Final = (b"accept-patch", f"{MERGE_PATCH}, {JSON}".encode())


class _EntryId(StringConvertor):
    """`…/entries/delete` is a path of its own for every method: no entry has this ID."""

    regex = "(?!delete$)[^/]+"


register_url_convertor("entry", _EntryId())


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
        self._is_conditional = options.get("conditional", False)
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
            response_class=responses.Response if options.get("model") is None else responses.JSONResponse,
            include_in_schema=not self.hidden,
            responses=describe_responses(rule, options, self.binder),
            openapi_extra=describe_extra(options, own_body.content if own_body else None),
        )

    def get_route_handler(self) -> Callable[[requests.Request], Coroutine[Any, Any, responses.Response]]:
        """FastAPI's own would bind and validate a second time, ten times as slowly."""

        async def endpoint(incoming: requests.Request) -> Response:
            gateway: Gateway = incoming.scope["state"]["gateway"]
            called = partial(Request, gateway, incoming.scope, incoming.receive, incoming.path_params)
            return await self.respond(called, incoming.scope["state"]["request_id"])

        return endpoint

    async def respond(self, called: Callable[[], Request], request_id: str) -> Response:
        """Authorise, run the operation, and turn every exception into an answer."""
        request = None
        try:
            request = called()
            if self.rule is not Access.OPEN:
                await request.authenticate(tickets=request.query_tickets if self.end is not None else ())
                if isinstance(self.rule, Action):
                    names = request.names.get
                    request.require(self.rule, names("stream"), names("group"), names("consumer"))
                # Before the body is read: a gateway that is starting or stopping takes none.
                request.check_ready()
            return await self.handler(request)
        except ClientLeftError:
            return NoResponse()
        except Exception as error:  # noqa: BLE001 - every exception has an answer, see `as_refusal`
            return self._refused(request, as_refusal(error, request_id), request_id)

    def _refused(self, request: Request | None, refusal: RefusalError, request_id: str) -> Response:
        is_passing = refusal.retryable and request is not None and request.asks_for_events(self.offers)
        if is_passing and self.end is not None:
            return self.end(refusal)
        if self.rule is Access.PER_COMMAND:
            # SDKs of the command API look for `error`.
            refusal.members["error"] = refusal.members.get("redis_error") or f"ERR {refusal.detail}"
        response = refuse(refusal, request_id)
        if self.method == "PATCH" and refusal.code == "unsupported_media_type":
            response.raw_headers.append(ACCEPT_PATCH)
        return response

    async def handler(self, request: Request) -> Response:
        """Bind, run, and make an answer of what comes back."""
        if self._forms:
            accepted = media.accepted(request.headers.get(b"accept", b""), self.offers)
            if accepted in self._forms:
                return await self._forms[accepted](request)
        result = await self.endpoint(**await self.binder.bind(request))
        if not isinstance(result, Response):
            result = Response(self.status_code or 200, result.__pydantic_serializer__.to_json(result))
        if self._is_conditional:
            return revalidate(request, result, result.tag or tag_of(result.body))
        return result


def bound(path: str, endpoint: Endpoint) -> Handler:
    """The endpoint as a form of what this path answers."""
    binder = Binder(endpoint, frozenset(_PATH_NAME.findall(path)))

    async def handler(request: Request) -> Response:
        response: Response = await endpoint(**await binder.bind(request))
        return response

    return handler


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.title, rest))
