"""Composition: settings, routes and middleware become one ASGI application.

Knows: what stands in front of what. Must never know: business rules, and how a server is run.
"""

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from fastapi import FastAPI
from starlette import requests
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.routing import Route as StarletteRoute

from app import logs
from app.api import (
    backup,
    commands,
    console,
    docs,
    health,
    metrics,
    multi_stream,
    plan,
    revocations,
    root,
    schedules,
    socket,
    streams,
    tickets,
    tokens,
)
from app.api.entries import closing, columns, entries, export, tail
from app.api.groups import claims, consumers, dead_letters, groups, pending
from app.auth import AccessPolicy
from app.doors.durable import door
from app.doors.http.fast_path import FastPath
from app.errors import RefusalError
from app.gateway import Gateway, Receive
from app.http.client_address import TrustedProxies
from app.http.middleware.codings import Codings
from app.http.middleware.origins import OriginCheck
from app.http.middleware.paths import Paths
from app.http.middleware.request_id import RequestIds, counted
from app.http.operations.operation import ACCEPT_PATCH, Operation
from app.http.operations.table import RouteTable
from app.http.requests import Request
from app.http.responses import ROUTE_STATE, Response, Scope, Send, refuse
from app.lifespan import EngineLife, check_exposure, prepare, serve_lifespan
from app.metrics.tracing import Tracer
from app.openapi import document
from app.policies import policy_of
from app.settings import Settings, SettingsError, load
from engine import Clock, SystemClock

ROUTES: Final[Sequence[Operation]] = [
    *root.router.operations,
    *docs.router.operations,
    *console.router.operations,
    *health.router.operations,
    *commands.router.operations,
    *streams.router.operations,
    *entries.router.operations,
    *closing.router.operations,
    *schedules.router.operations,
    *export.router.operations,
    *columns.router.operations,
    *tail.operations,
    *multi_stream.router.operations,
    *plan.router.operations,
    *groups.router.operations,
    *consumers.router.operations,
    *pending.router.operations,
    *claims.router.operations,
    *dead_letters.router.operations,
    *backup.router.operations,
    *socket.router.operations,
    *tickets.router.operations,
    *metrics.router.operations,
    *tokens.router.operations,
    *revocations.router.operations,
]
# What there is anywhere: the answer to `OPTIONS *`, which asks about the server (RFC 9110, 9.3.7).
_ALLOW: Final = (
    b"allow",
    ", ".join(sorted({"HEAD", "OPTIONS", *(route.method for route in ROUTES)})).encode(),
)


def _routes(settings: Settings) -> Sequence[Operation]:
    return [*ROUTES, *door.OPERATIONS] if settings.durable_streams else ROUTES


# A process has one application; its tests have thousands, with a few settings between them.
_APIS_MAX: Final = 8


# In a request's state: it came over the admin port.
_ADMIN: Final = "is_admin"
_HEALTH: Final = "healthz"
_OF_ADMIN: Final = (("metrics",), ("v1", "admin"))


class App:
    """The ASGI application. `gateway.open(engine)` makes it ready; until then it answers 503 `starting`."""

    def __init__(self, gateway: Gateway, *, fast_path: bool) -> None:
        self.gateway = gateway
        self.api = _api(gateway.settings)
        self._sockets = socket.Sockets(gateway)
        self._hot = RouteTable(_routes(gateway.settings) if fast_path else ())
        origins = OriginCheck(Codings(Paths(self._inside)), gateway.settings)
        self._outermost = RequestIds(origins, gateway)
        networks = gateway.settings.trusted_proxies
        self._proxies = TrustedProxies(networks) if networks else None
        # For the server's connections; None where FastAPI serves every request.
        self.fast_path = (
            FastPath(gateway, self._hot, origins, self._outermost, self._proxies) if fast_path else None
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request, one WebSocket, or the lifespan, which opens and closes the engine."""
        if self._proxies is not None and scope["type"] != "lifespan":
            scope["client"] = self._proxies.resolve(scope)
        if scope["type"] == "http":
            await self._outermost(scope, receive, send)
        elif scope["type"] == "websocket":
            scope["method"] = "GET"
            await self._outermost(scope, receive, socket.upgrading(send))
        elif scope["type"] == "lifespan":
            await serve_lifespan(EngineLife(self.gateway, self.flush_logs), receive, send)
            self.flush_logs()
            await asyncio.to_thread(self.gateway.access.audit.flush)

    async def serve_admin(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application of the admin port: metrics, administration, health, and nothing else."""
        scope.setdefault("state", {})[_ADMIN] = True
        await self(scope, receive, send)

    def refuse(self, refusal: RefusalError) -> Response:
        """The answer to what the server could not read as a request."""
        return self._outermost.refuse(refusal)

    def flush_logs(self) -> None:
        """Write the lines of requests that are not written yet."""
        self._outermost.flush()

    async def _inside(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.gateway.settings.admin_listen:
            _check_port(scope)
        if scope["type"] == "websocket":
            await self._sockets(scope, receive, send)
            return
        if scope["method"] == "OPTIONS" and scope["raw_path"] == b"*":
            await Response(204, headers=[_ALLOW])(scope, receive, send)
            return
        found = self._hot.find(scope["method"], scope["state"]["segments"])
        if found is None:
            scope["state"]["gateway"] = self.gateway
            await self.api(scope, receive, send)
            return
        route, names = found
        scope["state"][ROUTE_STATE] = route.label
        ready = await route.respond(Request(self.gateway, scope, receive, names))
        await ready(scope, receive, send)


def _check_port(scope: Scope) -> None:
    """Raise `no_route` for what the other port serves."""
    segments, is_admin_port = scope["state"]["segments"], _ADMIN in scope["state"]
    if segments[:1] != (_HEALTH,) and is_admin_port != (segments[:2] in _OF_ADMIN):
        port = "port" if is_admin_port else "admin_listen"
        raise RefusalError("no_route", f"this is served at the other port: see the setting {port}")


def create_app(
    settings: Settings,
    clock: Clock | None = None,
    *,
    fast_path: bool = True,
    policy: AccessPolicy | None = None,
) -> App:
    """The application for these settings. `fast_path=False` sends every request through FastAPI."""
    clock = clock or SystemClock()
    gateway = Gateway(settings, clock, policy or policy_of(settings, clock))
    if settings.tracing:
        gateway.reports.tracer = _tracer()
    return App(gateway, fast_path=fast_path)


def _tracer() -> Tracer:
    try:
        return Tracer.create()
    except ImportError as error:
        raise SettingsError(f"tracing: {error}: install weir-gateway[otel]") from None


def __getattr__(name: str) -> App:
    """`uvicorn app.main:app`: the application for the settings of environment and file, made when it is asked
    for.
    """
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    settings, _ = load({})
    check_exposure(settings)
    logs.configure(settings.log_level, settings.log_format)
    prepare()
    return create_app(settings, fast_path=False)


@lru_cache(_APIS_MAX)
def _api(settings: Settings) -> FastAPI:
    """The routes and their description, which the settings decide alone: requests bring their gateway."""
    api = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={HTTPException: _answer_path},
    )
    # Directly: what `include_router` adds is made again for the first request, and costs more with each.
    api.router.routes.extend(_routes(settings))
    api.state.document = document.Document(ROUTES, settings)
    return api


async def _answer_path(incoming: requests.Request, error: Exception) -> Response:
    """404, 405 and the answer to OPTIONS, which the router itself finds."""
    gateway: Gateway = incoming.scope["state"]["gateway"]
    request = Request(gateway, incoming.scope, incoming.receive, {})
    methods = _methods(incoming)
    if not methods:
        hint = (
            "; a / in a stream's name is written %2F" if incoming.url.path.startswith("/v1/streams/") else ""
        )
        refusal = RefusalError("no_route", f"there is nothing at this path; /v1 has links{hint}")
        return counted(request, refuse(refusal, request.request_id))
    if incoming.method == "OPTIONS":
        patch = [ACCEPT_PATCH] if "PATCH" in methods else []
        return Response(204, headers=[(b"allow", ", ".join(sorted({*methods, "OPTIONS"})).encode()), *patch])
    allowed = ", ".join(sorted(methods))
    refusal = RefusalError("method_not_allowed", f"here there is {allowed}", headers={"allow": allowed})
    return counted(request, refuse(refusal, request.request_id))


def _methods(request: requests.Request) -> set[str]:
    """Every method that the path has, over all of its routes."""
    routes = [route for route in request.app.router.routes if isinstance(route, StarletteRoute)]
    matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return {method for route in matching for method in route.methods or ()}
