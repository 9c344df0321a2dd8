"""The doors on a real engine in memory, called without a network.

Knows: how an application is put together for a test. Must never know: what is tested.
"""

from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from app.main import App, create_app
from app.settings import Settings
from engine import Engine, SystemClock

BASE = "http://127.0.0.1:8080"
Connect = Callable[[App], httpx.AsyncClient]


@pytest.fixture
def settings() -> Settings:
    return Settings(
        log_requests="none",
        body_bytes_max=64 << 10,
        entry_bytes_max=8 << 10,
        entry_fields_max=16,
        batch_entries_max=100,
        waiters_max=3,
        wait_ms_max=5_000,
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`both_ways`: once in front of FastAPI, once through it."""
    if metafunc.definition.get_closest_marker("both_ways") and "closed_app" in metafunc.fixturenames:
        metafunc.parametrize("closed_app", [True, False], ids=["hot", "fastapi"], indirect=True)


@pytest.fixture
def closed_app(request: pytest.FixtureRequest, settings: Settings) -> App:
    """An application without its engine."""
    return create_app(settings, SystemClock(), fast_path=getattr(request, "param", True))


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine.open(None, clock=SystemClock())
    await engine.start()
    yield engine
    engine.check()
    await engine.close()


@pytest.fixture
def app(closed_app: App, engine: Engine) -> App:
    closed_app.gateway.open(engine)
    return closed_app


@pytest.fixture
async def http(app: App) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE) as client:
        yield client
