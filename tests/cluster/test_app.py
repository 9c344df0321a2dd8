"""The gateway's own tests, over a server: they hold, but for what docs/scale.md lists."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.app.conftest import app_on, calling
from tests.cluster.clusters import BACKENDS, primaries
from tests.cluster.differences import differences
from tests.cluster.engines import AdjustedClock, opened
from tests.cluster.servers import Backend, BackendServer
from tests.server import Server, call
from tests.waiting import completed, until, until_async

BASE: Final = "http://127.0.0.1:8080"
TESTS: Final = Path(__file__).parent.parent
APP: Final = TESTS / "app"
FILES: Final = (
    "claims",
    "closed_streams",
    "conditional",
    "deferring",
    "durable",
    "durable_generations",
    "entries",
    "groups",
    "pending",
    "read",
    "redrive",
    "schedules",
    "slashes",
    "streams",
)
# The same of other folders, for which the page lists nothing.
BESIDE: Final = (
    "app/websocket/test_ends_of_streams.py",
    "client/test_closed_streams.py",
    "client/test_worker.py::test_what_is_to_be_tried_later_comes_back_then",
    "client/test_worker.py::test_a_worker_with_a_backoff_gives_back_later_and_later",
)


@pytest.mark.no_cover
@pytest.mark.parametrize("kind", BACKENDS)
def test_the_contract_holds_over_a_server(kind: str) -> None:
    """A test that the page lists and that holds fails here too: the table has nothing that is not so."""
    words = ["-q", "-n", "0", "--no-cov", "-p", "no:cacheprovider", f"--backend={kind}"]
    files = [str(APP / f"test_{name}.py") for name in FILES] + [str(TESTS / file) for file in BESIDE]
    ran = completed([sys.executable, "-m", "pytest", *words, *files])
    assert ran.returncode == 0, ran.stdout[-4_000:]
    assert "skipped" not in ran.stdout.splitlines()[-1]


def test_the_table_names_tests_that_exist() -> None:
    """And only of the files that run."""
    for test in differences("redis"):
        file, _, name = test.partition("::")
        assert file.removeprefix("test_").removesuffix(".py") in FILES
        assert f"def {name}(" in (APP / file).read_text(encoding="utf-8")


async def test_the_status_names_the_server_and_what_it_lacks(backend: Backend) -> None:
    """While it answers, the gateway is ready; when it has not for 3 s, requests and readiness say so."""
    clock = AdjustedClock()
    async with opened(backend, 0.3, clock) as engine, calling(app_on(engine, clock=clock)) as http:
        status = (await http.get("/v1/status")).json()
        assert status["backend"].split()[0] == ("Redis" if backend.kind.startswith("redis") else "Valkey")
        assert "quotas" in status["missing"]
        assert (status["log"], status["durability"]) == (None, {"fsync": None, "answers": "memory"})
        assert status["memory"]["resident_bytes"] > 0
        assert "weir_log_" not in (await http.get("/metrics")).text
        assert (await http.get("/v1")).json()["missing"] == status["missing"]
        assert "missing" not in (await http.get("/")).json()
        assert (await http.get("/healthz/ready")).status_code == 200
        backend.pause()
        try:
            refused = await http.get("/v1/streams/s/entries")
            assert (refused.status_code, refused.json()["code"]) == (503, "backend_unavailable")
            assert "retry-after" in refused.headers
            clock.ahead_s = 3.0
            await until_async(lambda: engine.figures().outage is not None)
            ready = await http.get("/healthz/ready")
            assert (ready.status_code, ready.json()["status"]) == (503, "backend_unavailable")
            assert (await http.get("/healthz/live")).status_code == 200
        finally:
            backend.resume()


def test_the_start_names_the_backend(own_server: BackendServer, tmp_path: Path) -> None:
    """And no directory of data, since nothing is kept in one."""
    server = Server(
        tmp_path / "data", "--backend", own_server.url, "--set", "backend_durability=replicated:1"
    )
    server.start()
    server.stop()
    serving = server.serving()
    assert ("backend", f"{own_server.url} (durability replicated:1)") in serving
    assert "data" not in dict(serving)


def test_a_gateway_runs_over_a_cluster(tmp_path: Path) -> None:
    """Where nothing else is said, a write without a replica is not acknowledged, nor tried again."""
    with primaries(tmp_path) as cluster:
        server = Server(tmp_path / "data", "--backend", cluster.url, "--set", "backend_timeout_ms=1000")
        with server, httpx.Client(base_url=server.url, timeout=30) as http:
            refused = http.post("/v1/streams/s/entries", json={"fields": {"a": "1"}})
            assert (refused.status_code, refused.json()["code"]) == (503, "not_replicated")
            assert len(http.get("/v1/streams/s/entries").json()["entries"]) == 1
    assert ("backend", f"{cluster.url} (durability replicated:1)") in server.serving()


@pytest.mark.parametrize(
    "backend",
    [
        "redis://user:secret@127.0.0.1:1",
        "rediss://:secret@127.0.0.1:1/0",
        "redis+cluster://127.0.0.1:1,user:secret@127.0.0.1:2",
        "redis+sentinel://:secret@127.0.0.1:1/orders",
    ],
)
def test_a_password_in_the_url_is_refused_and_not_shown(backend: str) -> None:
    """So no line that names the backend can show it."""
    words = [str(Path(sys.executable).parent / "weir"), "serve", "--backend", backend]
    ran = completed(words)
    assert ran.returncode == 2
    assert "the password is in a file, which backend_password_file names" in ran.stderr
    assert "secret" not in ran.stderr + ran.stdout


def test_a_wait_listens_to_the_database_that_has_the_streams(
    own_server: BackendServer, tmp_path: Path
) -> None:
    """Otherwise it would end with its next look."""
    backend = own_server.url.removesuffix("/0") + "/3"
    with Server(tmp_path / "data", "--backend", backend) as server, ThreadPoolExecutor() as pool:
        waiting = pool.submit(call, server, "GET", "/v1/streams/s/entries?after=0&wait=20000")
        until(lambda: b"__keyspace@3__:s" in own_server.call("PUBSUB", "CHANNELS"))
        assert call(server, "POST", "/v1/streams/s/entries", {"fields": {"n": "1"}})[0] == 201
        assert len(waiting.result()[1]["entries"]) == 1


def test_fronts_do_not_go_with_a_backend() -> None:
    """Refused at the start, as wrong usage."""
    words = ["--fronts", "1", "--backend", "redis://127.0.0.1:1", "--port", "0"]
    ran = completed([Path(sys.executable).parent / "weir", "serve", *words])
    assert ran.returncode == 2
    assert "fronts share an embedded engine" in ran.stderr
