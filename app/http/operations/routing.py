"""How an operation is served: authorised, run, and answered, whichever way its request came.

Knows: how refusals become answers, and how a path leads to an operation without FastAPI.
Must never know: what an operation does.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request

from app.auth import Access, Action
from app.errors import RefusalError
from app.gateway import ClientLeftError, Gateway
from app.http.calls import Answer, Call, Nothing, refused
from app.http.media import JSON, MERGE_PATCH
from app.http.middleware.request_id import as_refusal
from app.http.operations.operation import Operation

# With 415 for a patch: what it may be (RFC 5789, 2.2).
_ACCEPT_PATCH: Final = (b"accept-patch", f"{MERGE_PATCH}, {JSON}".encode())


async def answer(route: Operation, called: Callable[[], Call], request_id: str) -> Answer:
    """Authorise, run the operation, and turn every exception into an answer."""
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


def _refused(route: Operation, call: Call | None, refusal: RefusalError, request_id: str) -> Answer:
    is_passing = refusal.retryable and call is not None and call.asks_for_events(route.offers)
    if is_passing and route.end is not None:
        return route.end(refusal)
    if route.rule is Access.PER_COMMAND:
        # SDKs of the command door look for `error`.
        refusal.members["error"] = refusal.members.get("redis_error") or f"ERR {refusal.detail}"
    answer = refused(refusal, request_id)
    if route.method == "PATCH" and refusal.code == "unsupported_media_type":
        answer.raw_headers.append(_ACCEPT_PATCH)
    return answer


class _EntryId(StringConvertor):
    """`…/entries/delete` is a path of its own for every method: no entry has this ID."""

    regex = "(?!delete$)[^/]+"


register_url_convertor("entry", _EntryId())


def endpoint_of(route: Operation) -> Callable[[Request], Coroutine[Any, Any, Answer]]:
    """The route for FastAPI."""

    async def endpoint(request: Request) -> Answer:
        gateway: Gateway = request.scope["state"]["gateway"]
        called = partial(Call, gateway, request.scope, request.receive, request.path_params)
        return await answer(route, called, request.scope["state"]["request_id"])

    return endpoint


class RouteTable:
    """The operations of the fast path by the shape of their paths, without pattern matching. What it does not
    find is FastAPI's to route.
    """

    def __init__(self, routes: Sequence[Operation]) -> None:
        self._routes: Final[dict[tuple[str, int, str], list[_Shape]]] = {}
        for route in routes:
            if route.fast:
                shape = _Shape(route)
                key = route.method, len(shape.words), shape.words[-1] or ""
                self._routes.setdefault(key, []).append(shape)

    def find(self, method: str, segments: Sequence[str]) -> tuple[Operation, Mapping[str, str]] | None:
        """The operation of a request, by the decoded segments of its path, and its names."""
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

    def __init__(self, route: Operation) -> None:
        self.route = route
        pieces = route.template[1:].split("/")
        self.words = [None if piece.startswith("{") else piece for piece in pieces]
        self.names = [(piece[1:-1], place) for place, piece in enumerate(pieces) if piece.startswith("{")]
