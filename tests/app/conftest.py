"""The application on a real engine in memory, called without a network.

Knows: how an application is put together for a test. Must never know: what is tested.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import httpx
import pytest

from app.auth import AccessPolicy
from app.main import App, create_app
from app.settings import Settings
from engine import Clock, Engine, EngineProtocol, SystemClock
from engine.cluster import BackendDurability, ClusterEngine
from tests.app.conversing import close_all
from tests.bounds import bounded
from tests.cluster.clusters import backend_of_tests
from tests.cluster.differences import differences
from tests.cluster.servers import Backend
from tests.held import pytest_runtest_call, pytest_runtest_teardown  # noqa: F401 - hooks of pytest

BASE = "http://127.0.0.1:8080"
Connect = Callable[[App], httpx.AsyncClient]


def calling(
    app: App, address: str = "127.0.0.1", base_url: str = BASE, headers: Mapping[str, str] | None = None
) -> httpx.AsyncClient:
    """A client of the application, at this network address, without a network."""
    transport = httpx.ASGITransport(app, client=(address, 4_711))
    return httpx.AsyncClient(transport=transport, base_url=base_url, headers=headers)


def app_on(
    engine: EngineProtocol,
    settings: Settings | None = None,
    clock: Clock | None = None,
    policy: AccessPolicy | None = None,
) -> App:
    """An application with this engine."""
    app = create_app(settings or Settings(log_requests="none"), clock or SystemClock(), policy=policy)
    app.life.open(engine)
    return app


async def store(http: httpx.AsyncClient, stream: str, count: int, **fields: str) -> None:
    """Publish 1-0 to `count`-0, each with its number as the field `n`, and with these fields."""
    rows = [{"id": f"{n}-0", "fields": {"n": str(n), **fields}} for n in range(1, count + 1)]
    answer = await http.post(f"/v1/streams/{stream}/entries", json={"entries": rows})
    assert answer.status_code == 201, answer.text


async def call(http: httpx.AsyncClient, *words: str) -> Any:
    """A reply of the command API."""
    answer = (await http.post("/v1/commands", json=list(words))).json()
    return answer.get("result", answer.get("error"))


async def until_waiting(engine: EngineProtocol, reads: int = 1) -> None:
    """Let things happen until this number of reads waits."""
    while engine.figures().waiting < reads:  # noqa: ASYNC110 - the engine has no event for it
        await asyncio.sleep(0)


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """Its status and code."""
    return answer.status_code, answer.json()["code"]


@pytest.fixture(autouse=True)
def _worlds() -> Iterator[None]:
    """What a test has begun on loops of its own ends with it."""
    yield
    close_all()


@pytest.fixture(scope="session")
def settings() -> Settings:
    """Frozen, so one object serves thousands of tests: to validate it took a tenth of their time."""
    return bounded(
        log_requests="none",
        body_bytes_max=64 << 10,
        entry_bytes_max=8 << 10,
        entry_fields_max=16,
        batch_entries_max=100,
        waiters_max=3,
        wait_ms_max=5_000,
    )


@pytest.fixture
def closed_app(settings: Settings) -> App:
    """An application without its engine."""
    return create_app(settings, SystemClock())


@pytest.fixture(scope="session")
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Backend | None]:
    """What has the streams, None where the engine is embedded."""
    kind = request.config.getoption("--backend")
    with backend_of_tests(tmp_path_factory.mktemp("backend"), kind) as backend:
        yield backend


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Over a backend, what docs/scale.md says to be otherwise there must fail, and all else hold."""
    kind = config.getoption("--backend")
    if kind is None:
        return
    reasons = differences(kind)
    for item in items:
        name = item.nodeid.rpartition("/")[2].partition("[")[0]
        reason = reasons.get(name)
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.fixture
async def engine(backend: Backend | None) -> AsyncIterator[EngineProtocol]:
    if backend is not None:
        backend.call("FLUSHALL")
        cluster = ClusterEngine(backend.topology(5.0, BackendDurability()), SystemClock())
        await cluster.start()
        yield cluster
        await cluster.close()
        return
    async with Engine.open(None, clock=SystemClock()) as engine:
        yield engine
        engine.check()


@pytest.fixture
def app(closed_app: App, engine: EngineProtocol) -> App:
    closed_app.life.open(engine)
    return closed_app


@pytest.fixture
async def five(http: httpx.AsyncClient) -> httpx.AsyncClient:
    """A stream of 1-0 to 5-0."""
    await store(http, "s", 5, m="x")
    return http


@pytest.fixture
async def http(app: App) -> AsyncIterator[httpx.AsyncClient]:
    async with calling(app) as client:
        yield client
