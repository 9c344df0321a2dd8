"""What the connections of one port share of its application: how heads are judged.

Must never know: sockets, what is asked.
"""

from app.auth.certificates import ClientCertificate
from app.doors.http.heads import Heads
from app.gateway import Gateway
from app.http.client_address import TrustedProxies
from app.http.common.exchanges import Exchanges
from app.http.operations.plans import Planner


class Serving:
    """That of one port of an application."""

    def __init__(
        self, gateway: Gateway, plans: Planner, exchanges: Exchanges, proxies: TrustedProxies | None
    ) -> None:
        self.gateway = gateway
        self.plans = plans
        self.exchanges = exchanges
        self.proxies = proxies
        self.monotonic = gateway.clock.monotonic
        self.new_id, self.id_of = exchanges.new_id, exchanges.id_of
        self.heads = self.new_heads()

    def new_heads(self, certificate: ClientCertificate | None = None) -> Heads:
        """Heads of requests, or of those of a connection with a certificate, which is in no head."""
        gateway = self.gateway
        return Heads(gateway.stamp, gateway.settings.head_bytes_max, self.plans.make, certificate)
