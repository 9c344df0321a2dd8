"""Composition: settings, routes and middleware become one ASGI application.

Knows: what stands in front of what. Must never know: business rules, and how a server is run.
"""

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

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
from app.api.entries import closing, columns, entries, export, hooks, tail
from app.api.groups import claims, consumers, dead_letters, groups, pending
from app.auth import AccessPolicy
from app.doors.durable import door
from app.errors import RefusalError
from app.gateway import Gateway
from app.http.client_address import TrustedProxies
from app.http.common.exchanges import Exchanges
from app.http.operations.operation import Operation
from app.http.operations.plans import Planner
from app.http.requests import Request
from app.http.responses import EXCHANGE_EXTENSION, Receive, Response, Scope, Send
from app.life import Life
from app.lifespan import EngineLife, check_exposure, prepare, serve_lifespan
from app.metrics.tracing import Tracer
from app.openapi import document
from app.policies import policy_of
from app.settings import Settings, SettingsError, load
from engine import Clock, SystemClock

# A process has one application; its tests have thousands, with a few settings between them.
_DOCUMENTS_MAX: Final = 8

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
    *hooks.router.operations,
    *metrics.router.operations,
    *tokens.router.operations,
    *revocations.router.operations,
]


def _routes(settings: Settings) -> Sequence[Operation]:
    return [*ROUTES, *door.OPERATIONS] if settings.durable_streams else ROUTES


class App:
    """The ASGI application. `life.open(engine)` makes it ready; until then it answers 503 `starting`."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        gateway.document = document_of(gateway.settings).text
        routes = _routes(gateway.settings)
        self.plans, self.admin_plans = Planner(gateway, routes), Planner(gateway, routes, is_admin=True)
        self.exchanges = Exchanges(gateway)
        networks = gateway.settings.trusted_proxies
        self.proxies = TrustedProxies(networks) if networks else None
        self.sockets = socket.Sockets(gateway)
        self.life = Life(gateway)
        hub = self.sockets.hub
        self.life.on_drain.append(hub.drain)
        self.life.on_restart.append(hub.restart)
        self.life.on_outage.append(hub.change_outage)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request, one WebSocket, or the lifespan, which opens and closes the engine."""
        await self._serve(scope, receive, send, self.plans)

    async def serve_admin(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application of the admin port: metrics, administration, health, and nothing else."""
        await self._serve(scope, receive, send, self.admin_plans)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, plans: Planner) -> None:
        if scope["type"] == "lifespan":
            await serve_lifespan(EngineLife(self.life, self.flush_logs), receive, send)
            self.flush_logs()
            await asyncio.to_thread(self.gateway.access.audit.flush)
            return
        if scope["type"] == "websocket":
            scope["method"], send = "GET", socket.upgrading(send)
        if self.proxies is not None:
            scope["client"] = self.proxies.resolve(scope)
        exchange = scope.get("extensions", {}).get(EXCHANGE_EXTENSION)
        if exchange is None:
            exchange = self.exchanges.begin(plans.make(scope), scope)
        await self.exchanges.serve(Request(self.gateway, scope, receive, exchange), send, self._answer)

    def refuse(self, refusal: RefusalError) -> Response:
        """The answer to what the server could not read as a request."""
        return self.exchanges.refuse(refusal)

    def flush_logs(self) -> None:
        """Write the lines of requests that are not written yet."""
        self.exchanges.flush()

    async def _answer(self, request: Request) -> Response:
        plan = request.plan
        if plan.refusal is not None:
            raise plan.refusal
        if request.scope["type"] == "websocket":
            return await self.sockets.answer(request)
        if plan.operation is None:
            return Response(204, headers=plan.allows)
        request.exchange.route = plan.operation.label
        response: Response = await plan.operation.respond(request)
        return response


@lru_cache(_DOCUMENTS_MAX)
def document_of(settings: Settings) -> document.Document:
    """The API's description, which the settings decide alone."""
    return document.Document(ROUTES, settings)


def create_app(
    settings: Settings,
    clock: Clock | None = None,
    *,
    policy: AccessPolicy | None = None,
) -> App:
    """The application for these settings."""
    clock = clock or SystemClock()
    gateway = Gateway(settings, clock, policy or policy_of(settings, clock))
    if settings.tracing:
        gateway.reports.tracer = _tracer()
    return App(gateway)


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
    return create_app(settings)
