"""Tenants: callers whose grants carry a prefix see only the streams whose names begin with it, without it.

Knows: which commands and replies hold names of streams. Must never know: routes, tokens, bytes on the wire.

    tenant      {"orders"}  ──► TenantEngine ──► {"acme.orders"}  engine
                XLen("orders")   renaming        XLen("acme.orders")
                no_stream 'orders' ◄─ stripping ─ no_stream 'acme.orders'

A command or a reply that is in none of the tables is refused. Callers without a prefix use the engine itself.
"""

from app.tenants.tenant import Tenant, Tenants
from app.tenants.tenant_names import TenantNames

__all__ = ["Tenant", "TenantNames", "Tenants"]
