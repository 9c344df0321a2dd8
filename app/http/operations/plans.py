"""Plans: what follows from the head of a request alone, and holds for equal ones.

    head ─► Host, Origin ─► path ─► route ─► caller, right ─► arguments ─► Plan
               │               │      │
               └───────────────┴──────┴─► refused, 404, 405, OPTIONS: answered without an operation

Knows: the order in which a head is judged, and under which stamp the judgement holds.
Must never know: bytes, bodies, what an operation does.

What passes with each request is no part of a plan: the length of its body, conditions, keys, counts of
producers, traces. An equal head has the same plan for as long as the stamp is the same.
"""

from collections.abc import Sequence
from typing import Final

from app.auth import Access, Action, Resource
from app.errors import RefusalError
from app.gateway import Gateway
from app.http.common import codings
from app.http.common.origins import PREFLIGHT, Origins
from app.http.common.paths import decoded
from app.http.operations.operation import ACCEPT_PATCH, Operation
from app.http.operations.router import RouteTable
from app.http.plan import PASSING, HeadPlan
from app.http.requests import join, shown_certificate
from app.http.responses import CERTIFICATE_EXTENSION, Scope
from engine import EngineError

_HEALTH: Final = "healthz"
_OF_ADMIN: Final = (("metrics",), ("v1", "admin"))


class Planner:
    """Makes the plans of one port of an application."""

    def __init__(self, gateway: Gateway, operations: Sequence[Operation], *, is_admin: bool = False) -> None:
        self.gateway = gateway
        self._routes = RouteTable(operations)
        self._origins = Origins(gateway.settings)
        self._methods = ", ".join(sorted({"OPTIONS", *(one.method for one in operations)})).encode()
        self._has_admin_port = bool(gateway.settings.admin_listen)
        self._is_admin = is_admin

    def make(self, scope: Scope) -> HeadPlan:
        """Judge a head. Raises nothing: what is refused has a plan too."""
        lines = scope["headers"]
        headers = join(lines)
        is_single = len(headers) == len(lines)
        lasting = {name: value for name, value in headers.items() if name not in PASSING}
        plan = HeadPlan(scope["method"], scope["raw_path"], scope["query_string"], lasting)
        plan.coding = codings.accepted(headers.get(b"accept-encoding", b""))
        try:
            plan.origin = self._origins.judge(scope)
            if plan.origin.is_preflight:
                plan.allows = PREFLIGHT
            else:
                self._route(plan, scope)
            if plan.operation is not None and is_single:
                self._judge(plan, plan.operation, scope)
                # A probe under a foreign Host learns nothing that lasts.
                plan.is_lasting &= not plan.origin.is_stranger
        except (RefusalError, EngineError) as refusal:
            plan.refusal = refusal
        return plan

    def _route(self, plan: HeadPlan, scope: Scope) -> None:
        if plan.path == b"*" and plan.method == "OPTIONS":
            # About the server: the one request whose target is no path.
            plan.allows = [(b"allow", self._methods)]
            return
        segments = decoded(plan.path)
        if self._has_admin_port:
            _check_port(segments, is_admin=self._is_admin)
        found = self._routes.find(segments)
        if scope["type"] == "websocket":
            return
        operation = None if found is None else found.operations.get(plan.method)
        if found is not None and operation is not None:
            plan.operation, plan.names = operation, found.names
        elif found is not None and plan.method == "OPTIONS":
            methods = found.operations.keys()
            patch = [ACCEPT_PATCH] if "PATCH" in methods else []
            plan.allows = [(b"allow", ", ".join(sorted({*methods, "OPTIONS"})).encode()), *patch]
        elif found is not None:
            allow = ", ".join(sorted(found.operations))
            raise RefusalError("method_not_allowed", f"here there is {allow}", headers={"allow": allow})
        else:
            is_stream = plan.path.startswith(b"/v1/streams/")
            hint = "; a / in a stream's name is written %2F" if is_stream else ""
            raise RefusalError("no_route", f"there is nothing at this path; /v1 has links{hint}")

    def _judge(self, plan: HeadPlan, operation: Operation, scope: Scope) -> None:
        """Find out who asks and what for, as far as that is known without waiting. What is refused here is
        refused by the operation again, behind what comes first there.
        """
        certificate = shown_certificate(plan.headers, scope.get("extensions", {}).get(CERTIFICATE_EXTENSION))
        gateway, stamp = self.gateway, self.gateway.stamp.value
        try:
            principal = None
            if operation.rule is not Access.OPEN and not operation.takes_ticket(plan.query):
                principal = gateway.access.policy.recognise(plan.headers, certificate)
            if principal is None and operation.rule is not Access.OPEN:
                return
            if isinstance(operation.rule, Action) and principal is not None:
                names = plan.names.get
                resource = Resource(names("stream"), names("group"), names("consumer"))
                principal.require(operation.rule, resource)
            plan.form = operation.form(plan.headers)
            if plan.form is None:
                plan.arguments = operation.binder.bind_head(
                    plan.names, plan.query, plan.headers, gateway.settings
                )
            is_plain = principal is not None and not principal.quotas and not principal.prefix
            if is_plain and plan.origin.exposed_to is None:
                plan.raw = operation.raw(plan.names, plan.headers, plan.query, gateway)
        except Exception:  # noqa: BLE001 - it fails in the operation again, which answers
            plan.form = plan.arguments = None
            return
        plan.principal, plan.stamp = principal, stamp
        plan.is_lasting = scope.get("http_version") == "1.1"
        if principal is not None:
            gateway.stamp.end_with(principal.expires_s)


def _check_port(segments: Sequence[str], *, is_admin: bool) -> None:
    """Raise `no_route` for what the other port serves."""
    if segments[:1] != (_HEALTH,) and is_admin != (tuple(segments[:2]) in _OF_ADMIN):
        port = "port" if is_admin else "admin_listen"
        raise RefusalError("no_route", f"this is served at the other port: see the setting {port}")
