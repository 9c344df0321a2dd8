"""What a gateway holds for its callers: nothing stays of those that have left, or whose answer was sent.

Knows: where places, shares, reservations, sessions, leases, feeds and blocked reads are counted.
Must never know: what a test does.

A `conftest.py` that imports the two hooks has them behind each of its tests: whichever step in between is
refused, cancelled or fails, what was taken for it is given back.
"""
# ruff: noqa: SLF001 - what is held is asked for by nothing else

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final

import pytest

from app.auth import AccessPolicy
from app.gateway import Gateway
from app.settings import Settings
from engine import Clock, Engine

_DONE_S_MAX: Final = 1.0
# Of all that were made since the last test.
_made: Final[list[Gateway]] = []
_begin: Final = Gateway.__init__


def _note(gateway: Gateway, settings: Settings, clock: Clock, policy: AccessPolicy | None = None) -> None:
    _begin(gateway, settings, clock, policy)
    _made.append(gateway)


Gateway.__init__ = _note  # type: ignore[method-assign,assignment]


def held_by_requests(gateway: Gateway) -> dict[str, object]:
    """What is held for requests that are under way; a reader that stays holds nothing of it."""
    limits = gateway.limits
    pools = {"answers": limits.budgets.output, "bodies": limits.budgets.bodies}
    places = sum(gateway.waits.each._held.values())
    held: dict[str, object] = {
        **{name: (pool.held_bytes, len(pool._all), pool._by_caller) for name, pool in pools.items()},
        # Each read that waits has a share of its caller's, of one kind or another.
        "shares without a place": max(0, places - gateway.waits.count),
    }
    return {name: value for name, value in held.items() if value not in (0, (0, 0, {}), {})}


def held(gateway: Gateway) -> dict[str, object]:
    """What is held for all that came."""
    engine = gateway.opened and gateway.opened.engine
    kept: dict[str, object] = {
        "turns": gateway.limits.turns._waiting,
        "connections in turn": gateway.limits.requests._ready,
        "places": gateway.waits.count,
        "shares of waits": gateway.waits.each._held,
        "shares of connections": gateway.limits.connections._held,
        "sessions": len(gateway.access.sessions.open),
        "leases": gateway.leases._leases,
        "watchers": gateway.leases._following,
        "feeds": [*_subscribed(gateway)],
        "blocked reads": engine.figures().waiting if isinstance(engine, Engine) else 0,
    }
    return held_by_requests(gateway) | {name: value for name, value in kept.items() if value}


def _subscribed(gateway: Gateway) -> Iterator[str]:
    tenants = gateway.opened and gateway.opened.tenants
    for tenant in () if tenants is None else (tenants.plain, *tenants._tenants.values()):
        yield from (name for name, feed in tenant.feeds._feeds.items() if feed._subscribers)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Every answer was sent, or its connection is gone, once a test has what it looks at."""
    outcome = yield
    if item.get_closest_marker("holding") is None:
        _assert_nothing(held_by_requests, _made)
    return outcome


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(
    item: pytest.Function, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """All have left behind a test and its fixtures; those of a module stay for its next test."""
    outcome = yield
    if nextitem is not None and nextitem.path == item.path and _has_fixtures_of_its_module(item):
        return outcome
    made, _made[:] = [*_made], []
    _assert_nothing(held, made)
    return outcome


def _assert_nothing(look: Callable[[Gateway], dict[str, object]], gateways: Sequence[Gateway]) -> None:
    """Wait a moment for servers in threads: what a client has got of them came before they were done."""
    ends_s = time.monotonic() + _DONE_S_MAX
    while (found := [*filter(None, map(look, gateways))]) and time.monotonic() < ends_s:
        time.sleep(0.01)
    assert found == [], found


def _has_fixtures_of_its_module(item: pytest.Function) -> bool:
    known = item._fixtureinfo.name2fixturedefs.values()
    return any(one.scope == "module" for fixtures in known for one in fixtures)
