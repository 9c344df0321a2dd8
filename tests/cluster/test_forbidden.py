"""What a server does not let the gateway's user do is forbidden, and listed nowhere; it is no outage."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from app.settings import Settings
from engine import SystemClock
from engine.cluster import ClusterEngine, ClusterTopology, ServerAccess, Standalone, parse_durability
from engine.cluster.topology import Topology
from engine.commands.types import DbSize, ListStreams
from engine.commands.weir_commands import StreamInfos
from engine.replies import Listing, StreamPage
from tests.app.conftest import app_on, calling
from tests.cluster.clusters import BACKENDS, BackendCluster, opened_backend
from tests.cluster.servers import Backend, BackendServer
from tests.engine.asking import reply_of, reply_to

USER: Final = ServerAccess(user="weir", password="secret")
RIGHTS: Final = ("on", ">secret", "~open*", "~weir/*", "&*", "+@all", "-xtrim")
# In order of names the hidden ones are first, in between and last.
OPEN: Final = [f"open{number}" for number in range(5)]
HIDDEN: Final = ["a", "o", "oz", "z"]
HIDDEN_MANY: Final = [f"p{number:03}" for number in range(150)]
ENTRY: Final = {"fields": {"n": "1"}}
TIMEOUT_S: Final = 5.0


def servers(backend: Backend) -> list[BackendServer]:
    """All servers of it."""
    if isinstance(backend, BackendCluster):
        return list(backend.servers)
    assert isinstance(backend, BackendServer)
    return [backend]


@pytest.fixture(params=BACKENDS)
def restricted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """Streams of which the gateway's user may use some."""
    with opened_backend(tmp_path, request.param) as backend:
        for server in servers(backend):
            server.call("ACL", "SETUSER", USER.user, *RIGHTS)
        for name in [*OPEN, *HIDDEN, *HIDDEN_MANY]:
            backend.call("XADD", name, "5-1", "n", "1")
        yield backend


def topology(backend: Backend) -> Topology:
    first = servers(backend)[0].address
    if isinstance(backend, BackendCluster):
        return ClusterTopology([first], USER, TIMEOUT_S)
    return Standalone(first, USER, TIMEOUT_S)


@asynccontextmanager
async def opened(backend: Backend) -> AsyncIterator[tuple[ClusterEngine, httpx.AsyncClient]]:
    """The engine, and a gateway over it."""
    engine = ClusterEngine(topology(backend), SystemClock())
    await engine.start()
    try:
        async with calling(app_on(engine, Settings(log_requests="none", metrics_streams=("*",)))) as http:
            yield engine, http
    finally:
        await engine.close()


async def test_listings_leave_out_what_may_not_be_read(restricted: Backend) -> None:
    """Names, what is said of each, how many there are; also page by page, whose ends name no hidden one."""
    async with opened(restricted) as (engine, http):
        assert await reply_to(engine, ListStreams()) == Listing(OPEN)
        assert await reply_to(engine, DbSize()) == len(OPEN)
        for limit in (1, 2, 5, 6):
            found: list[str] = []
            after = None
            while True:
                page = await reply_of(engine, Listing, ListStreams(after=after, limit=limit))
                infos = await reply_of(engine, StreamPage, StreamInfos(after=after, limit=limit))
                assert ([name for name, _ in infos.streams], infos.next) == (page.names, page.next)
                found += page.names
                if (after := page.next) is None:
                    break
                assert after in OPEN
            assert found == OPEN
        listed = (await http.get("/v1/streams")).json()
        assert [one["name"] for one in listed["streams"]] == OPEN
        for words in (["KEYS", "*"], ["SCAN", "0", "COUNT", "1000"]):
            names = (await http.post("/v1/commands", json=words)).json()["result"]
            assert sorted(names if words[0] == "KEYS" else names[1]) == OPEN
        planned = (await http.post("/v1/plan", json={"pattern": "*"})).json()
        assert sorted(planned["streams"]) == OPEN
        shown = (await http.get("/metrics")).text
        assert [f'stream="{name}"' in shown for name in (*OPEN, *HIDDEN)] == [True] * 5 + [False] * len(
            HIDDEN
        )


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/streams/z", None),
        ("GET", "/v1/streams/z/entries", None),
        ("GET", "/v1/streams/z/groups", None),
        ("POST", "/v1/streams/z/entries", ENTRY),
        ("POST", "/v1/publish", {"streams": {"z": [ENTRY]}}),
        ("PUT", "/v1/streams/z/groups/g", {}),
        ("POST", "/v1/streams/z/groups/g/consumers/c/read", {}),
        ("DELETE", "/v1/streams/z", None),
    ],
)
async def test_one_stream_is_forbidden(restricted: Backend, method: str, path: str, body: Any) -> None:
    """It is no outage, and trying again does not help."""
    async with opened(restricted) as (_, http):
        refused = await http.request(method, path, json=body)
        problem = refused.json()
        assert (refused.status_code, problem["code"]) == (403, "backend_forbidden"), problem
        assert problem["retryable"] is False
        assert "retry-after" not in refused.headers
        assert "let the user that `backend` names use this key" in problem["detail"]
        ready = await http.get("/healthz/ready")
        assert ready.status_code == 200


async def test_a_command_is_forbidden(restricted: Backend) -> None:
    """Within a script too: nothing of it has changed the stream."""
    async with opened(restricted) as (_, http):
        refused = await http.post("/v1/streams/open1/trim", json={"maxlen": 0})
        assert (refused.status_code, refused.json()["code"]) == (403, "backend_forbidden"), refused.text
        command = await http.post("/v1/commands", json=["XLEN", "z"])
        assert (command.status_code, command.json()["code"]) == (403, "backend_forbidden")
        assert command.json()["redis_error"].startswith("NOPERM ")
    assert restricted.call("XLEN", "open1") == 1


async def test_without_limits_nothing_is_tried(backend: Backend) -> None:
    """One question says that all may be read."""
    for name in HIDDEN_MANY:
        backend.call("XADD", name, "5-1", "n", "1")
    engine = ClusterEngine(backend.topology(TIMEOUT_S, parse_durability("memory")), SystemClock())
    await engine.start()
    try:
        before = sum(engine.backend_figures.requests["read"].values())
        assert await reply_to(engine, ListStreams()) == Listing(HIDDEN_MANY)
        assert sum(engine.backend_figures.requests["read"].values()) == before
    finally:
        await engine.close()
