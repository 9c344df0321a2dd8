"""The one list of routes: each with its action, its handler, its description; and the two ways to serve it.

Knows: how a route is authorised and how its refusals become answers. Must never know: what a handler does.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request

from app.auth import Access, Action, Rule
from app.errors import RefusalError
from app.gateway import ClientLeftError, Gateway
from app.http.calls import Answer, Call, Nothing, refused
from app.http.media import JSON, MERGE_PATCH
from app.http.operations import Operation
from app.http.request_id import as_refusal
from app.live.sse.tails import end_with
from app.openapi import document

Handler = Callable[[Call], Awaitable[Answer]]

# With 415 for a patch: what it may be (RFC 5789, 2.2).
_ACCEPT_PATCH: Final = (b"accept-patch", f"{MERGE_PATCH}, {JSON}".encode())


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path. `hot` routes are also served without FastAPI, `hidden` ones are not
    described. `offers` are the media types of its answers, where server-sent events are among them.
    """

    method: str
    path: str
    rule: Rule
    handler: Handler
    operation_id: str
    hot: bool = False
    hidden: bool = False
    offers: Sequence[str] = ()

    @property
    def coalesced(self) -> bool:
        """Whether single entries that come together are published as one command."""
        return self.operation_id == "addEntries"

    @property
    def template(self) -> str:
        """The path as it is documented."""
        return self.path


class Routes:
    """A list of routes, filled by decorators."""

    def __init__(self) -> None:
        self.all: list[Route] = []

    def get(
        self,
        path: str,
        rule: Rule,
        operation_id: str,
        *,
        hot: bool = False,
        hidden: bool = False,
        offers: Sequence[str] = (),
    ) -> Callable[[Handler], Handler]:
        """Serve GET and HEAD of `path`."""
        return self._add("GET", path, rule, operation_id, hot=hot, hidden=hidden, offers=offers)

    def post(
        self, path: str, rule: Rule, operation_id: str, *, hot: bool = False, hidden: bool = False
    ) -> Callable[[Handler], Handler]:
        """Serve POST of `path`."""
        return self._add("POST", path, rule, operation_id, hot=hot, hidden=hidden)

    def put(
        self, path: str, rule: Rule, operation_id: str, *, hot: bool = False, hidden: bool = False
    ) -> Callable[[Handler], Handler]:
        """Serve PUT of `path`."""
        return self._add("PUT", path, rule, operation_id, hot=hot, hidden=hidden)

    def patch(
        self, path: str, rule: Rule, operation_id: str, *, hot: bool = False, hidden: bool = False
    ) -> Callable[[Handler], Handler]:
        """Serve PATCH of `path`."""
        return self._add("PATCH", path, rule, operation_id, hot=hot, hidden=hidden)

    def delete(
        self, path: str, rule: Rule, operation_id: str, *, hot: bool = False, hidden: bool = False
    ) -> Callable[[Handler], Handler]:
        """Serve DELETE of `path`."""
        return self._add("DELETE", path, rule, operation_id, hot=hot, hidden=hidden)

    def any(self, methods: Sequence[str], path: str, handler: Handler) -> None:
        """Serve `methods` of `path` outside of the described API."""
        for method in methods:
            self.all.append(
                Route(
                    method=method,
                    path=path,
                    rule=Access.OPEN,
                    handler=handler,
                    operation_id=f"{method} {path}",
                    hidden=True,
                )
            )

    def _add(
        self,
        method: str,
        path: str,
        rule: Rule,
        operation_id: str,
        *,
        hot: bool,
        hidden: bool,
        offers: Sequence[str] = (),
    ) -> Callable[[Handler], Handler]:
        def added(handler: Handler) -> Handler:
            route = Route(
                method=method,
                path=path,
                rule=rule,
                handler=handler,
                operation_id=operation_id,
                hot=hot,
                hidden=hidden,
                offers=offers,
            )
            self.all.append(route)
            return handler

        return added


async def answer(route: Route | Operation, called: Callable[[], Call], request_id: str) -> Answer:
    """Authorise, run the handler, and turn whatever it raises into an answer."""
    call = None
    try:
        call = called()
        if isinstance(route.rule, Action):
            call.require(route.rule, call.names.get("stream"))
        if route.rule is not Access.OPEN:
            # Before the body is read: what is starting or stopping takes none.
            call.check_ready()
        return await route.handler(call)
    except ClientLeftError:
        return Nothing()
    except Exception as error:  # noqa: BLE001 - every exception has an answer, see `as_refusal`
        return _refused(route, call, as_refusal(error, request_id), request_id)


def _refused(route: Route | Operation, call: Call | None, refusal: RefusalError, request_id: str) -> Answer:
    if refusal.retryable and call is not None and call.asks_for_events(route.offers):
        return end_with(refusal)
    if route.rule is Access.PER_COMMAND:
        # SDKs of the command door look for `error`.
        refusal.members["error"] = refusal.members.get("redis_error") or f"ERR {refusal.detail}"
    answer = refused(refusal, request_id)
    if route.method == "PATCH" and refusal.code == "unsupported_media_type":
        answer.raw_headers.append(_ACCEPT_PATCH)
    return answer


class _EntryId(StringConvertor):
    """`…/entries/delete` is a call of its own, whatever the method: no entry has this ID."""

    regex = "(?!delete$)[^/]+"


register_url_convertor("entry", _EntryId())


def add_to(api: FastAPI, routes: Sequence[Route | Operation]) -> None:
    """Serve the routes with FastAPI, which describes them. A request's state has the gateway it is for."""
    for route in routes:
        if isinstance(route, Operation):
            api.router.routes.append(route)
            continue
        endpoint = endpoint_of(route)
        told = {} if route.hidden else document.arguments(route.operation_id, route.path)
        path = route.path.replace("/entries/{id}", "/entries/{id:entry}")
        api.add_api_route(
            path,
            endpoint,
            methods=[route.method],
            include_in_schema=not route.hidden,
            operation_id=route.operation_id,
            summary=(route.handler.__doc__ or "").strip(),
            response_model=None,
            **told,
        )
        if route.method == "GET":
            api.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False, response_model=None)


def endpoint_of(route: Route | Operation) -> Callable[[Request], Coroutine[Any, Any, Answer]]:
    """The route for FastAPI."""

    async def endpoint(request: Request) -> Answer:
        gateway: Gateway = request.scope["state"]["gateway"]
        called = partial(Call, gateway, request.scope, request.receive, request.path_params)
        return await answer(route, called, request.scope["state"]["request_id"])

    return endpoint


class RouteTable:
    """The hot routes by the shape of their paths: no FastAPI, no pattern matching, the same handlers.

    It finds a route or it does not; what it does not find goes the normal way.
    """

    def __init__(self, routes: Sequence[Route | Operation]) -> None:
        self._routes: Final[dict[tuple[str, int, str], list[_Shape]]] = {}
        for route in routes:
            if route.hot:
                shape = _Shape(route)
                for method in (
                    ("GET", "HEAD") if route.method == "GET" and isinstance(route, Route) else (route.method,)
                ):
                    self._routes.setdefault((method, len(shape.words), shape.words[-1] or ""), []).append(
                        shape
                    )

    def find(
        self, method: str, segments: Sequence[str]
    ) -> "tuple[Route | Operation, Mapping[str, str]] | None":
        """The hot route of a request, by the decoded segments of its path, and its names."""
        if not segments:
            return None
        for shape in self._routes.get((method, len(segments), segments[-1]), ()):
            if all(
                word is None or word == segment for word, segment in zip(shape.words, segments, strict=True)
            ):
                return shape.route, {name: segments[place] for name, place in shape.names}
        return None


class _Shape:
    """A route's path in segments: words, and None where a name stands."""

    __slots__ = ("names", "route", "words")

    def __init__(self, route: Route | Operation) -> None:
        self.route = route
        pieces = route.template[1:].split("/")
        self.words = [None if piece.startswith("{") else piece for piece in pieces]
        self.names = [(piece[1:-1], place) for place, piece in enumerate(pieces) if piece.startswith("{")]
