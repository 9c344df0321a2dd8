"""A gateway of several processes as an operator runs it: TLS, certificates, other ports, systemd, metrics."""

import json
import os
import shutil
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest
import redis
from cryptography import x509
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from app.auth import token_file, tokens
from app.auth.grants import Grant
from app.lifespan import FAILED
from tests.app.metrics import parse, value
from tests.certificates import Authority, Pair
from tests.fronts.processes import CONNECTIONS, FRONTS, Fronted, add
from tests.server import free_port
from tests.waiting import until

SECONDS_MAX: Final = 15.0
BILLING: Final = "spiffe://example.com/billing"
ENTRIES: Final = "/v1/streams/orders/entries"
# Time enough for a process to start on a busy machine.
WATCHDOG_S: Final = 6.0


class World(NamedTuple):
    """A gateway with every port over TLS, the files that it reads, and who signs for it and its clients."""

    server: Fronted
    pair: Pair
    tokens: Path
    servers: Authority
    client: Pair
    token: str
    admin_port: int
    resp_port: int
    resp_socket: Path

    @property
    def context(self) -> ssl.SSLContext:
        return self.servers.trust(self.client)

    def connect(self) -> ClientConnection:
        return connect(self.server.url.replace("https", "wss") + "/v1/ws", ssl=self.context)

    def redis(self, **options: Any) -> redis.Redis:
        return redis.Redis(password=self.token, **options)

    def lines(self, event: str) -> int:
        """How many times this was logged."""
        return [line["event"] for line in self.server.log_lines()].count(event)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    servers, clients = Authority(tmp_path, "Server CA"), Authority(tmp_path, "Client CA")
    made, path, pair = tokens.create((Grant.parse("*:*"),)), tmp_path / "tokens.toml", servers.issue("server")
    mapped = f'[[certificates]]\nidentity = "uri:{BILLING}"\ngrants = ["*:*"]\n'
    path.write_text(token_file.write(made.token) + mapped)
    files = {"tls_certificate": pair.certificate, "tls_key": pair.key, "tls_client_ca": clients.file}
    settings = [f"{name}={file}" for name, file in {**files, "tokens_file": path}.items()]
    admin_port, resp_port, resp_socket = free_port(), free_port(), tmp_path / "redis.sock"
    ports = [
        "--admin-listen",
        str(admin_port),
        "--resp-listen",
        f"127.0.0.1:{resp_port},unix:{resp_socket}",
    ]
    server = Fronted(tmp_path / "data", *[word for one in settings for word in ("--set", one)], *ports)
    server.trust = servers.trust()
    client = clients.issue("billing", uri=BILLING)
    with server:
        yield World(server, pair, path, servers, client, made.text, admin_port, resp_port, resp_socket)
        server.kill_all()


def serials(world: World, port: int) -> set[int]:
    """The numbers of the certificates that new connections get."""
    found = set()
    for _ in range(CONNECTIONS):
        with (
            socket.create_connection(("127.0.0.1", port), SECONDS_MAX) as plain,
            world.context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            shown = connection.getpeercert(binary_form=True)
        assert shown is not None
        found.add(x509.load_der_x509_certificate(shown).serial_number)
    return found


def test_every_port_is_served_and_named_at_the_start(world: World) -> None:
    """HTTP by fronts; the admin port, Redis clients over TCP and a Unix socket by the engine's process."""
    url = f"https://127.0.0.1:{world.admin_port}"
    said = world.server.serving()
    for place in (
        ("API", f"{world.server.url}/v1"),
        ("data", f"{world.server.data} (fsync everysec)"),
        ("metrics", f"{url}/metrics"),
        ("Redis", f"rediss://127.0.0.1:{world.resp_port}"),
        ("Redis", f"redis+unix://{world.resp_socket}"),
    ):
        assert said.count(place) == 1
    for _ in range(CONNECTIONS):
        with httpx.Client(base_url=world.server.url, verify=world.context) as http:
            assert http.post(ENTRIES, json={"fields": {"a": "1"}}).status_code == 201
            assert http.get("/metrics").status_code == 404
    with httpx.Client(base_url=url, verify=world.context) as http:
        assert http.get("/metrics").status_code == 200
        assert http.get("/v1/admin/tokens").status_code == 200
        assert http.get(ENTRIES).status_code == 404
    trusted = {"port": world.resp_port, "ssl": True, "ssl_ca_certs": str(world.servers.file)}
    for options in (trusted, {"unix_socket_path": str(world.resp_socket)}):
        with world.redis(**options) as client:
            assert client.xlen("orders") == CONNECTIONS
    os.kill(world.server.engine_pid, signal.SIGKILL)
    # Its socket is taken over from the process that was killed.
    until(lambda: world.lines("ready") == 2)
    with world.redis(unix_socket_path=str(world.resp_socket)) as client:
        assert client.xlen("orders") == CONNECTIONS


def test_sighup_renews_the_certificate_of_every_process_and_sockets_stay(world: World) -> None:
    ports = (world.server.port, world.admin_port, world.resp_port)
    with ExitStack() as opened:
        sockets = [opened.enter_context(world.connect()) for _ in range(CONNECTIONS)]
        before = {port: serials(world, port) for port in ports}
        renewed = world.servers.issue("renewed")
        shutil.copy(renewed.certificate, world.pair.certificate)
        shutil.copy(renewed.key, world.pair.key)
        world.server.signal(signal.SIGHUP)
        until(lambda: world.lines("the certificate was read again") == FRONTS + 1)
        for port in ports:
            assert len(serials(world, port)) == 1
            assert not serials(world, port) & before[port]
        for one in sockets:
            one.send(json.dumps({"op": "ping", "ref": 7}))
            while json.loads(one.recv(SECONDS_MAX)).get("ref") != 7:
                pass


def drain(one: ClientConnection) -> None:
    while True:
        one.recv(SECONDS_MAX)


def test_a_certificate_that_leaves_the_file_is_refused_by_every_process(world: World) -> None:
    """Sockets that it has opened end within a second of it; without any certificate it is a stranger."""
    with httpx.Client(base_url=world.server.url, verify=world.servers.trust()) as stranger:
        assert stranger.get(ENTRIES).status_code == 401
    with ExitStack() as opened:
        sockets = [opened.enter_context(world.connect()) for _ in range(CONNECTIONS)]
        kept = [
            opened.enter_context(httpx.Client(base_url=world.server.url, verify=world.context))
            for _ in range(CONNECTIONS)
        ]
        assert {http.get("/v1/streams").status_code for http in kept} == {200}
        world.tokens.write_text(world.tokens.read_text().replace(BILLING, "spiffe://example.com/other"))
        world.server.signal(signal.SIGHUP)
        until(lambda: world.lines("tokens were read again") == FRONTS + 1)
        began_s = time.monotonic()
        for one in sockets:
            with pytest.raises(ConnectionClosed):
                drain(one)
        assert time.monotonic() - began_s < 1
        assert {http.get("/v1/streams").status_code for http in kept} == {401}


def test_a_port_that_is_taken_ends_all_processes(tmp_path: Path) -> None:
    """As with one process."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        for option in ("--resp-listen", "--admin-listen"):
            refused = Fronted(tmp_path / option, option, str(other.getsockname()[1]))
            refused.launch()
            assert refused.exit_code() == FAILED
            assert "cannot listen" in refused.data.with_name(f"{option}.log").read_text()


def test_fronts_are_counted(tmp_path: Path) -> None:
    """One that does not answer is not up, until it answers again."""
    port = free_port()
    with Fronted(tmp_path / "data", "--admin-listen", str(port)) as server:

        def count(state: str) -> float:
            found = parse(httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30).text)
            return value(found, "weir_fronts", state=state)

        assert (count("wanted"), count("up")) == (FRONTS, FRONTS)
        stopped = server.front_pids[0]
        os.kill(stopped, signal.SIGSTOP)
        assert (count("up"), count("wanted")) == (FRONTS - 1, FRONTS)
        os.kill(stopped, signal.SIGCONT)
        until(lambda: count("up") == FRONTS)
        assert server.stop() == 0


@pytest.fixture
def notified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """What systemd would read from."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(2 * WATCHDOG_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listener


def heard(listener: socket.socket) -> str:
    return listener.recv(4_096).decode()


def test_systemd_sees_one_service(notified: socket.socket, tmp_path: Path) -> None:
    """It is ready once, when all processes are; what happens to one of them is no news."""
    with Fronted(tmp_path / "data") as server:
        assert heard(notified) == "READY=1"
        killed = {server.front_pids[0], server.engine_pid}
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        # A process that the supervisor has not seen die is still listed.
        until(lambda: len(set(server.processes().values()) - killed) == FRONTS + 1)
        server.wait_until_ready()
        server.signal(signal.SIGHUP)
        assert [heard(notified), heard(notified)] == ["RELOADING=1", "READY=1"]
        assert server.stop() == 0
        assert heard(notified) == "STOPPING=1"


def test_a_reload_while_a_process_starts_ends_none(notified: socket.socket, tmp_path: Path) -> None:
    """The signal waits until the process can handle it."""
    with Fronted(tmp_path / "data") as server:
        assert heard(notified) == "READY=1"
        os.kill(server.engine_pid, signal.SIGKILL)

        def is_ready_again() -> bool:
            server.signal(signal.SIGHUP)
            return [line["event"] for line in server.log_lines()].count("ready") == 2

        until(is_ready_again)
        died = [line for line in server.log_lines() if line["event"] == "a process has died"]
        assert [(line["process"], line["exit_code"]) for line in died] == [("engine", -signal.SIGKILL)]
        # Each front is ready for itself.
        server.wait_until_ready()
        assert add(server)[0] == 201


def test_the_watchdog_ends_a_front_that_hangs(
    notified: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others serve on, and systemd hears from the engine's process all the time."""
    monkeypatch.setenv("WATCHDOG_USEC", f"{WATCHDOG_S * 1e6:.0f}")
    with Fronted(tmp_path / "data") as server:
        hanging, *others = server.front_pids
        engine_pid = server.engine_pid
        os.kill(hanging, signal.SIGSTOP)
        until(lambda: hanging not in server.processes().values())
        until(lambda: len(server.front_pids) == FRONTS)
        assert set(others) < set(server.front_pids)
        assert server.engine_pid == engine_pid
        said = [line for line in server.log_lines() if line["event"] == "a process hangs"]
        assert {line["process"] for line in said} == {"front 1"}
        # What is stopped takes no SIGABRT, so it took two signals.
        assert len(said) == 2
        # Nor does it end while it runs: twice the time, with a beat in each half of it.
        heard_words = [heard(notified) for _ in range(4)]
        assert set(heard_words) <= {"READY=1", "WATCHDOG=1"}
        assert server.stop() == 0
