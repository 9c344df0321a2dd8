"""What the connections of one port share of its application: how heads are judged.

Must never know: sockets, what is asked.
"""

from typing import Protocol

from app.auth.certificates import ClientCertificate
from app.doors.http.heads import Heads
from app.gateway import Gateway
from app.http.client_address import TrustedProxies
from app.http.middleware.request_id import RequestIds
from app.http.operations.plans import Planner


class Application(Protocol):
    """The application that is served, as `app.main` has it."""

    gateway: Gateway
    request_ids: RequestIds
    proxies: TrustedProxies | None


class Serving:
    """That of one port of an application."""

    def __init__(self, app: Application, plans: Planner) -> None:
        self.gateway = app.gateway
        self.plans = plans
        self.request_ids = app.request_ids
        self.proxies = app.proxies
        self.monotonic = app.gateway.clock.monotonic
        self.new_id, self.id_of = app.request_ids.new_id, app.request_ids.id_of
        self.heads = self.new_heads()

    def new_heads(self, certificate: ClientCertificate | None = None) -> Heads:
        """Heads of requests, or of those of a connection with a certificate, which is in no head."""
        gateway = self.gateway
        return Heads(gateway.stamp, gateway.settings.head_bytes_max, self.plans.make, certificate)
