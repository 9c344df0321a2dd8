"""What a gateway still holds for those that have left: it must be nothing.

Knows: where places, shares, reservations, sessions, leases and feeds are counted, and pending answers of the engine.
Must never know: what a test did.
"""

from collections.abc import Iterator
from typing import Any

from app.gateway import Gateway


def held(gateway: Gateway) -> dict[str, object]:
    """What is held, by its kind; empty once all callers have left."""
    limits, budgets = gateway.limits, gateway.limits.budgets
    found: dict[str, object] = {
        "waits": gateway.waits.count,
        "places of callers": {**gateway.waits.each._held},
        "connections of callers": {**limits.connections._held},
        "output": budgets.output.held_bytes,
        "reservations of output": len(budgets.output._all),
        "bodies": budgets.bodies.held_bytes,
        "reservations of bodies": len(budgets.bodies._all),
        "callers of pools": {**budgets.output._by_caller, **budgets.bodies._by_caller},
        "sessions": len(gateway.access.sessions.open),
        "leases": {key: [*leases] for key, leases in gateway.leases._leases.items()},
        "watchers": {key: len(events) for key, events in gateway.leases._watching.items()},
        "turns": {key: len(turns) for key, turns in limits.turns._waiting.items()},
        "ready": len(limits.requests._ready),
    }
    tenants = gateway._tenants
    if tenants is not None:
        every = [tenants.plain, *getattr(tenants, "_found", {}).values()]
        found["feeds"] = {
            f"{n}/{name}": len(feed._subscribers)
            for n, one in enumerate(every)
            for name, feed in one.feeds._feeds.items()
        }
    return {name: value for name, value in found.items() if value}
