"""The admin port: metrics and administration are there alone, health is on both."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from app.auth import tokens
from app.auth.grants import Grant
from app.lifespan import ServerStoppedError, check_exposure
from app.main import create_app
from app.settings import Settings
from engine import SystemClock
from tests.cli.command import weir
from tests.server import Server, free_port


class Pair:
    """The two ports of a gateway."""

    def __init__(self, server: Server, admin_port: int) -> None:
        self.main = server.url
        self.admin = f"http://127.0.0.1:{admin_port}"
        self.server = server


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    port = free_port()
    with Server(tmp_path_factory.mktemp("admin") / "data", "--admin-listen", str(port)) as server:
        yield Pair(server, port)


@pytest.mark.parametrize(
    ("path", "main", "admin"),
    [
        ("/metrics", 404, 200),
        ("/v1/admin/backup", 404, 200),
        ("/v1/admin/none", 404, 404),
        ("/v1/admin", 404, 404),
        ("/healthz/live", 200, 200),
        ("/healthz/ready", 200, 200),
        ("/healthz/none", 404, 404),
        ("/v1/status", 200, 404),
        ("/v1/streams", 200, 404),
        ("/v1/streams/metrics/entries", 200, 404),
        ("/v1/administer", 404, 404),
        ("/", 200, 404),
        ("/console", 200, 404),
        ("/openapi.json", 200, 404),
        ("/v1/%61dmin/backup", 404, 200),
        ("/%6detrics", 404, 200),
    ],
)
def test_each_path_is_where_it_belongs(pair: Pair, path: str, main: int, admin: int) -> None:
    assert httpx.get(pair.main + path).status_code == main
    assert httpx.get(pair.admin + path).status_code == admin


def test_nothing_is_published_or_followed_over_the_admin_port(pair: Pair) -> None:
    """Heads that were seen at the other port neither, nor are WebSockets."""
    entry = {"fields": {"a": "1"}}
    for _ in range(3):
        assert httpx.post(f"{pair.main}/v1/streams/s/entries", json=entry).status_code == 201
        refused = httpx.post(f"{pair.admin}/v1/streams/s/entries", json=entry)
        assert (refused.status_code, refused.json()["code"]) == (404, "no_route")
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    upgrade["sec-websocket-key"] = "AAAAAAAAAAAAAAAAAAAAAA=="
    assert httpx.get(f"{pair.admin}/v1/ws", headers=upgrade).status_code == 404


def test_it_says_where_the_admin_port_is(pair: Pair) -> None:
    assert ("metrics", f"{pair.admin}/metrics") in pair.server.serving()


def test_both_ports_end_with_the_process(tmp_path: Path) -> None:
    """A connection that is kept open on the admin port does not hold it up."""
    port = free_port()
    with (
        Server(tmp_path / "data", "--admin-listen", str(port)) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        assert http.get("/healthz/ready").status_code == 200
        assert httpx.get(f"{server.url}/v1/status").json()["connections"]["open"] == 2
        assert server.stop() == 0


def test_a_port_in_use_is_a_clear_message(pair: Pair, tmp_path: Path) -> None:
    taken = pair.admin.rpartition(":")[2]
    ended = weir("", "serve", "--port", "0", "--admin-listen", taken, "--data", str(tmp_path / "data"))
    assert ended.code == 1
    assert f"cannot listen on 127.0.0.1:{taken}" in ended.err


def test_an_open_admin_port_beyond_loopback_needs_the_same_words() -> None:
    """A token, or --insecure with names."""
    with pytest.raises(ServerStoppedError, match=r"0\.0\.0\.0"):
        check_exposure(Settings(admin_listen="0.0.0.0:9090"))
    check_exposure(Settings(admin_listen="127.0.0.1:9090"))
    check_exposure(Settings(admin_listen="0.0.0.0:9090", root_token=SecretStr("x" * 32)))


async def test_without_the_right_to_read_everything_health_is_one_bit(tmp_path: Path) -> None:
    """Metrics need a token that may read all streams; probes need none."""
    reader = tokens.create((Grant.parse("read:*"),))
    partial = tokens.create((Grant.parse("read:orders.*"),))
    settings = Settings(log_requests="none", root_token=SecretStr("r" * 32))
    app = create_app(settings, SystemClock())
    app.gateway.access.policy.replace_tokens([reader.token, partial.token])  # type: ignore[attr-defined]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
        for token, status in (
            (reader.text, "starting"),
            (partial.text, "unavailable"),
            ("wrong", "unavailable"),
        ):
            answer = await http.get("/healthz/ready", headers={"authorization": f"Bearer {token}"})
            assert (answer.status_code, answer.json()["status"]) == (503, status)
        assert (await http.get("/healthz/ready")).json() == {"status": "unavailable"}
