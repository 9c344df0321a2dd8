"""The proxies of deploy/, real ones, in front of a real gateway."""

import contextlib
import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.proof.machine import needs
from tests.server import Server, free_port, server_of

DEPLOY: Final = Path(__file__).parents[1] / "deploy"
SECONDS_MAX: Final = 30.0
OPTIONS: Final = (
    *("--set", "trusted_proxies=127.0.0.1"),
    *("--set", "rate_requests=1/s burst 1000"),
)
PROGRAMS: Final = {"nginx": "/usr/sbin/nginx", "caddy": "/usr/bin/caddy"}


class Proxy(NamedTuple):
    """A proxy in front of a gateway; `trust` is for its certificate, None for plain http."""

    port: int
    trust: ssl.SSLContext | None

    @property
    def origin(self) -> str:
        return f"{'http' if self.trust is None else 'https'}://localhost:{self.port}"

    def connect(self, source: str = "127.0.0.9") -> http.client.HTTPConnection:
        """A connection from another address of loopback than the proxy's own."""
        place, address = ("localhost", self.port), (source, 0)
        if self.trust is None:
            return http.client.HTTPConnection(*place, timeout=SECONDS_MAX, source_address=address)
        return http.client.HTTPSConnection(
            *place, timeout=SECONDS_MAX, source_address=address, context=self.trust
        )


def recipe(name: str, **replaced: str) -> str:
    """A file of deploy/ with other places; each of them is in it."""
    text = (DEPLOY / name).read_text()
    for old, new in {"weir.example": "localhost", **replaced}.items():
        assert old in text
        text = text.replace(old, new)
    return text


@contextmanager
def running(command: list[str], port: int, folder: Path) -> Iterator[None]:
    """A program until the end; it listens on the port."""
    environment = {**os.environ, "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    log = folder / "proxy.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait(SECONDS_MAX)


@contextmanager
def nginx(folder: Path, gateway_port: int, **replaced: str) -> Iterator[Proxy]:
    """Debian's nginx with the configuration of deploy/."""
    port = free_port()
    places = {
        "listen 80": f"listen 127.0.0.1:{port}",
        "127.0.0.1:8080": f"127.0.0.1:{gateway_port}",
        "/var/log/nginx": str(folder),
    }
    (folder / "weir.conf").write_text(recipe("nginx.conf", **places, **replaced))
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; events {{}}\n"
        f"http {{ access_log off; {temporary} include {folder}/weir.conf; }}\n"
    )
    command = [PROGRAMS["nginx"], "-e", "stderr", "-c", str(folder / "nginx.conf")]
    with running(command, port, folder):
        yield Proxy(port, None)


@contextmanager
def caddy(folder: Path, gateway_port: int) -> Iterator[Proxy]:
    """Debian's Caddy with the configuration of deploy/, with certificates of its own authority."""
    port = free_port()
    text = recipe(
        "Caddyfile", **{"# tls internal": "tls internal", "127.0.0.1:8080": f"127.0.0.1:{gateway_port}"}
    )
    text = text.replace("localhost {", f"localhost:{port} {{\n\tbind 127.0.0.1")
    for_tests = "{\n\tadmin off\n\tskip_install_trust\n\tauto_https disable_redirects\n\tlog {"
    assert "{\n\t# Of what" in text
    (folder / "Caddyfile").write_text(re.sub(r"{\n\t#[^\n]*\n\tlog {", for_tests, text, count=1))
    command = [PROGRAMS["caddy"], "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
    with running(command, port, folder):
        root = folder / "caddy/pki/authorities/local/root.crt"
        trust = ssl.create_default_context(cafile=str(root))
        yield Proxy(port, trust)


def missing(name: str) -> str | None:
    """Why a proxy cannot run here."""
    return None if Path(PROGRAMS[name]).exists() else f"needs {name}"


gateway = server_of("module", *OPTIONS)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(nginx, id="nginx", marks=needs(lambda: missing("nginx"))),
        pytest.param(caddy, id="caddy", marks=needs(lambda: missing("caddy"))),
    ],
)
def proxy(
    request: pytest.FixtureRequest, gateway: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxy]:
    with request.param(tmp_path_factory.mktemp("proxy"), gateway.port) as made:
        yield made


def publish(
    connection: http.client.HTTPConnection, stream: str, body: bytes, **headers: str
) -> tuple[int, bytes]:
    connection.request(
        "POST", f"/v1/streams/{stream}/entries", body, {"content-type": "application/json", **headers}
    )
    answer = connection.getresponse()
    return answer.status, answer.read()


def one(value: str) -> bytes:
    return json.dumps({"fields": {"a": value}}).encode()


@pytest.mark.skipif(missing("caddy") is not None, reason="needs caddy")
def test_caddy_logs_no_ticket(tmp_path: Path) -> None:
    """Of a request that fails, since no gateway is there."""
    with caddy(tmp_path, free_port()) as made:
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            # Its certificate is made after it listens.
            with contextlib.suppress(ssl.SSLError), closing(made.connect()) as connection:
                connection.request("GET", "/v1/streams/a/tail?ticket=secret&after=0")
                assert connection.getresponse().status == 502
                break
            assert time.monotonic() < deadline
            time.sleep(0.02)
    log = (tmp_path / "proxy.log").read_text()
    assert "/v1/streams/a/tail?after=0" in log
    assert "secret" not in log


@pytest.mark.skipif(missing("nginx") is not None, reason="needs nginx")
def test_nginx_logs_no_query(gateway: Server, tmp_path: Path) -> None:
    """Which may have a ticket; of a gateway that answers, and of one that is not there."""
    for name, port, status in (("there", gateway.port, 401), ("away", free_port(), 502)):
        folder = tmp_path / name
        folder.mkdir()
        with nginx(folder, port) as made, closing(made.connect()) as connection:
            for path in ("/v1/streams/a%20b/tail", "/v1/ws"):
                connection.request("GET", f"{path}?ticket=secret", headers={"accept": "text/event-stream"})
                answer = connection.getresponse()
                answer.read()
                assert answer.status in (status, 426)
        lines = (folder / "weir.log").read_text()
        assert '"GET /v1/streams/a%20b/tail"' in lines
        logs = "".join(log.read_text() for log in folder.glob("*.log"))
        assert "secret" not in logs


def test_bodies_up_to_the_gateways_own_limit_pass(proxy: Proxy) -> None:
    entries = [{"fields": {"a": "x" * 1_000_000}}] * 8
    with closing(proxy.connect()) as connection:
        status, answer = publish(connection, "large", json.dumps({"entries": entries}).encode())
        assert status == 201, answer
        connection.request("GET", "/v1/streams/large/entries")
        assert len(json.loads(connection.getresponse().read())["entries"]) == 8


def test_a_slash_in_a_name_stays_encoded(proxy: Proxy) -> None:
    """In a path, whose head was seen or not; another encoding in it is not decoded twice."""
    with closing(proxy.connect()) as connection:
        assert publish(connection, "acme%2Forders%252F", one("slash"))[0] == 201
        for method, path in (("GET", ""), ("PUT", "/groups/eu%2Fbilling"), ("GET", "/groups/eu%2Fbilling")):
            connection.request(
                method, f"/v1/streams/acme%2Forders%252F{path}", b"{}" if method == "PUT" else None
            )
            answer = connection.getresponse()
            assert answer.status in (200, 201)
            name = json.loads(answer.read())["name"]
            assert name == ("eu/billing" if path else "acme/orders%2F")


@pytest.mark.skipif(missing("nginx") is not None, reason="needs nginx")
def test_nginx_with_a_path_behind_the_gateways_address_decodes_slashes(
    gateway: Server, tmp_path: Path
) -> None:
    """As the recipe warns: `proxy_pass http://weir/;` makes one segment two."""
    with (
        nginx(tmp_path, gateway.port, **{"proxy_pass http://weir;": "proxy_pass http://weir/;"}) as decoding,
        closing(decoding.connect()) as connection,
    ):
        status, answer = publish(connection, "acme%2Forders", one("slash"))
        assert (status, json.loads(answer)["code"]) == (404, "no_route")


def test_a_socket_follows_through_a_proxy(proxy: Proxy) -> None:
    """An upgrade is passed on, and frames in both directions."""
    target = proxy.origin.replace("http", "ws") + "/v1/ws"
    with connect(target, ssl=proxy.trust, origin=Origin(proxy.origin)) as ws:
        assert json.loads(ws.recv(SECONDS_MAX))["op"] == "hello"
        ws.send(json.dumps({"op": "subscribe", "ref": 1, "sub": "s", "streams": {"followed": "$"}}))
        assert json.loads(ws.recv(SECONDS_MAX))["op"] == "ok"
        with closing(proxy.connect()) as connection:
            assert publish(connection, "followed", one("live"))[0] == 201
        while (frame := json.loads(ws.recv(SECONDS_MAX)))["op"] != "entries":
            pass
    assert frame["entries"][0]["fields"] == {"a": "live"}


def test_an_event_arrives_while_its_response_is_open(proxy: Proxy) -> None:
    """No proxy holds events back until there are more."""
    with closing(proxy.connect()) as tail, closing(proxy.connect()) as connection:
        tail.request("GET", "/v1/streams/events/tail", headers={"accept": "text/event-stream"})
        answer = tail.getresponse()
        assert answer.status == 200
        for number in range(3):
            assert publish(connection, "events", one(str(number)))[0] == 201
            while b'"fields"' not in (line := answer.readline()):
                assert line
            assert json.loads(line.removeprefix(b"data:"))["fields"] == {"a": str(number)}


def test_a_page_of_the_proxys_name_is_the_gateways_own(proxy: Proxy) -> None:
    """Host is passed on with its port; another origin is refused."""
    with closing(proxy.connect()) as connection:
        assert publish(connection, "pages", one("own"), origin=proxy.origin)[0] == 201
    for foreign in ("https://elsewhere.example", proxy.origin + "1"):
        with closing(proxy.connect()) as connection:
            status, answer = publish(connection, "pages", one("foreign"), origin=foreign)
            assert (status, json.loads(answer)["code"]) == (403, "origin_refused")


def left(connection: http.client.HTTPConnection, **headers: str) -> int:
    connection.request("GET", "/v1/streams/none/entries", headers=headers)
    answer = connection.getresponse()
    answer.read()
    found = re.search(r"r=(\d+)", answer.headers["ratelimit"])
    assert found is not None
    return int(found[1])


def test_each_client_has_its_own_limit_and_cannot_invent_addresses(proxy: Proxy) -> None:
    """The proxy says which address called it; what a client writes into the header has no effect."""
    with closing(proxy.connect("127.0.0.77")) as connection:
        invented = [left(connection, **{"x-forwarded-for": f"198.51.100.{n}"}) for n in range(60)]
    assert invented[-1] < invented[0] - 20
    with closing(proxy.connect("127.0.0.78")) as connection:
        assert left(connection) > invented[-1] + 20


def test_a_long_poll_is_waited_for(proxy: Proxy) -> None:
    with closing(proxy.connect()) as connection:
        connection.request("GET", "/v1/streams/quiet/entries?after=$&wait=3000")
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["entries"]) == (200, [])


@needs(lambda: missing("nginx"))
def test_nginx_waits_as_long_as_its_recipe_says(gateway: Server, tmp_path: Path) -> None:
    """The setting is in the right place: nginx's default is 60 seconds, and with one second it gives up."""
    with (
        nginx(tmp_path, gateway.port, **{"proxy_read_timeout 1h": "proxy_read_timeout 1s"}) as impatient,
        closing(impatient.connect()) as connection,
    ):
        connection.request("GET", "/v1/streams/quiet/entries?after=$&wait=3000")
        assert connection.getresponse().status == 504


@needs(lambda: missing("nginx"))
def test_a_larger_body_is_refused_by_the_gateway_not_by_nginx(gateway: Server, tmp_path: Path) -> None:
    """With a problem document, before the body is sent; Caddy has no limit of its own."""
    with nginx(tmp_path, gateway.port) as proxy, closing(proxy.connect()) as connection:
        connection.putrequest("POST", "/v1/streams/large/entries")
        connection.putheader("content-length", str((8 << 20) + 1))
        connection.putheader("content-type", "application/json")
        connection.endheaders()
        refused = connection.getresponse()
        assert (refused.status, json.loads(refused.read())["code"]) == (413, "body_too_large")
