"""TLS: every protocol of the gateway over it, and a certificate that changes while connections stay."""

import http.client
import json
import shutil
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import redis
from cryptography import x509
from websockets.sync.client import connect

from tests.certificates import Authority, Pair
from tests.cli.command import weir
from tests.server import Server, free_port
from tests.waiting import until
from weir import Client

SECONDS_MAX = 15.0


class Secured(NamedTuple):
    """A gateway over TLS, the files that it reads, and the authority that clients trust."""

    server: Server
    pair: Pair
    authority: Authority


@contextmanager
def secured(tmp_path: Path, *options: str) -> Iterator[Secured]:
    """A gateway with a certificate for 127.0.0.1."""
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    files = ["--set", f"tls_certificate={pair.certificate}", "--set", f"tls_key={pair.key}"]
    server = Server(tmp_path / "data", *files, *options)
    server.trust = authority.trust()
    with server:
        yield Secured(server, pair, authority)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A gateway that survives its tests."""
    with secured(tmp_path_factory.mktemp("tls")) as made:
        yield made


def serial(made: Secured) -> int:
    """The number of the certificate that a new connection gets."""
    context = made.authority.trust()
    with socket.create_connection(("127.0.0.1", made.server.port), SECONDS_MAX) as plain:  # noqa: SIM117
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            found = connection.getpeercert(binary_form=True)
    assert found is not None
    return x509.load_der_x509_certificate(found).serial_number


def replace(made: Secured, pair: Pair) -> None:
    shutil.copy(pair.certificate, made.pair.certificate)
    shutil.copy(pair.key, made.pair.key)


def wait_for_line(server: Server, event: str) -> dict[str, object]:
    def find() -> dict[str, object] | None:
        return next((line for line in server.log_lines() if line["event"] == event), None)

    return until(find, f"{event!r} was not logged", SECONDS_MAX)


def test_plain_requests_in_a_row_are_served_as_without_tls(shared: Secured) -> None:
    """Heads that were seen and new ones take turns on one connection."""
    with closing(
        http.client.HTTPSConnection("127.0.0.1", shared.server.port, context=shared.server.trust, timeout=15)
    ) as connection:
        for number in range(1, 4):
            entry = json.dumps({"id": f"{number}-0", "fields": {"n": str(number)}})
            kind = {"content-type": "application/json"}
            connection.request("POST", "/v1/streams/rows/entries", entry, kind)
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())["id"]) == (201, f"{number}-0")
            connection.request("GET", f"/v1/streams/rows/entries?count={number}")
            assert len(json.loads(connection.getresponse().read())["entries"]) == number


@pytest.mark.parametrize("size", [1, 300 << 10, 7 << 20])
def test_a_large_answer_arrives_whole(shared: Secured, size: int) -> None:
    """Answers beyond the buffers of a connection, which are written in pieces."""
    with Client(shared.server.url, verify=shared.authority.file) as client:
        parts = [{"part": "x" * (size // 16 + 1)}] * 16
        client.publish_batch(f"large-{size}", parts)
        page = client.read(f"large-{size}")
    assert [dict(entry.fields) for entry in page.entries] == parts


def test_a_socket_follows_a_stream_with_more_than_its_buffers(shared: Secured) -> None:
    """A subscription is read on whenever what was written has left."""
    with Client(shared.server.url, verify=shared.authority.file) as client:
        client.publish_batch("followed", [{"part": "x" * 100_000}] * 60)
        target = shared.server.url.replace("https", "wss") + "/v1/ws"
        with connect(target, ssl=shared.server.trust, subprotocols=["weir.v1"], max_size=None) as ws:  # type: ignore[list-item]
            subscribe = {"op": "subscribe", "ref": 1, "sub": "s", "streams": {"followed": "0"}}
            ws.send(json.dumps(subscribe))
            got = 0
            while got < 60:
                frame = json.loads(ws.recv(SECONDS_MAX))
                got += len(frame.get("entries", ()))
            client.publish("followed", {"live": "1"})
            while "entries" not in (frame := json.loads(ws.recv(SECONDS_MAX))):
                pass
    assert frame["entries"][0]["fields"] == {"live": "1"}


def test_a_new_certificate_is_for_new_connections_and_sockets_stay(tmp_path: Path) -> None:
    """SIGHUP reads the certificate again; a broken one, or half of a pair, leaves the old one in use."""
    with secured(tmp_path) as made:
        target = made.server.url.replace("https", "wss") + "/v1/ws"
        with connect(target, ssl=made.server.trust) as ws:
            assert json.loads(ws.recv(SECONDS_MAX))["op"] == "hello"
            first = serial(made)
            renewed = made.authority.issue("renewed")
            replace(made, renewed)
            made.server.signal(signal.SIGHUP)
            wait_for_line(made.server, "the certificate was read again")
            second = serial(made)
            assert second != first
            # The key of one pair beside the certificate of another.
            shutil.copy(made.authority.issue("other").key, made.pair.key)
            made.server.signal(signal.SIGHUP)
            line = wait_for_line(made.server, "the certificate was not read again")
            assert line["level"] == "error"
            assert "stays in use" in str(line["remedy"])
            assert serial(made) == second
            ready = httpx.get(f"{made.server.url}/healthz/ready", verify=made.authority.trust())
            assert ready.json() == {"status": "ready", "failing": ["certificate_stale"]}
            ws.send(json.dumps({"op": "ping", "ref": 7}))
            while (frame := json.loads(ws.recv(SECONDS_MAX))).get("ref") != 7:
                pass
            assert frame["op"] in ("pong", "ok")


def test_plain_http_and_old_versions_of_tls_are_refused(shared: Secured) -> None:
    """And what is served goes on."""
    with closing(http.client.HTTPConnection("127.0.0.1", shared.server.port, timeout=15)) as connection:
        connection.request("GET", "/healthz/live")
        with pytest.raises((http.client.HTTPException, OSError)):
            connection.getresponse()
    context = shared.authority.trust()
    with pytest.warns(DeprecationWarning, match=r"TLSv1 is deprecated"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match=r"TLSv1_1 is deprecated"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    # Otherwise the client itself would refuse to.
    context.set_ciphers("ALL:@SECLEVEL=0")
    with (
        socket.create_connection(("127.0.0.1", shared.server.port), SECONDS_MAX) as plain,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(plain, server_hostname="127.0.0.1")
    assert serial(shared)


def test_a_handshake_that_drips_ends_in_time(tmp_path: Path) -> None:
    """On each port: bytes that come do not make it longer. Others are served meanwhile."""
    ports = [free_port(), free_port()]
    options = ("--resp-listen", str(ports[0]), "--admin-listen", str(ports[1]), "--set", "request_s_max=1")
    with secured(tmp_path, *options) as made, ExitStack() as opened:
        began = time.monotonic()
        dripping = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port), SECONDS_MAX))
            for port in (made.server.port, *ports)
        ]
        # A record of a handshake that is longer than all that comes.
        hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(400)
        ended = 0
        for number in range(len(hello)):
            assert time.monotonic() - began < 5
            ended = sum(_drip(one, hello[number : number + 1]) for one in dripping)
            if ended == len(dripping):
                break
        assert ended == len(dripping)
        assert time.monotonic() - began >= 1
        assert serial(made)


def _drip(dripping: socket.socket, byte: bytes) -> bool:
    """Send one byte; whether the gateway has closed."""
    dripping.settimeout(0.02)
    try:
        dripping.sendall(byte)
        return dripping.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_an_idle_connection_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    """A peer that does not look at its connection answers no goodbye of TLS."""
    with secured(tmp_path) as made:
        with closing(
            http.client.HTTPSConnection("127.0.0.1", made.server.port, context=made.server.trust, timeout=15)
        ) as connection:
            connection.request("GET", "/healthz/live")
            connection.getresponse().read()
            made.server.signal(signal.SIGTERM)
            assert made.server.ended_within(5)
        assert made.server.exit_code() == 0


@pytest.mark.parametrize("broken", ["missing", "no key", "another's key", "key alone"])
def test_a_certificate_that_cannot_be_used_is_a_matter_of_usage(tmp_path: Path, broken: str) -> None:
    """The gateway does not start, and says which file it is."""
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    settings = {
        "missing": [f"tls_certificate={tmp_path}/none.pem"],
        "no key": [f"tls_certificate={pair.certificate}"],
        "another's key": [f"tls_certificate={pair.certificate}", f"tls_key={authority.issue('two').key}"],
        "key alone": [f"tls_key={pair.key}"],
    }[broken]
    options = [word for setting in settings for word in ("--set", setting)]
    place = ["--port", "0", "--data", str(tmp_path / "data")]
    ended = weir("", "serve", *place, *options)
    assert ended.code == 2
    assert ("tls_key" if broken == "key alone" else "tls_certificate") in ended.err


def test_redis_clients_speak_tls_too(tmp_path: Path) -> None:
    """With the same certificate; without TLS there is no reply."""
    port = free_port()
    with (
        secured(tmp_path, "--resp-listen", str(port)) as made,
        redis.Redis("127.0.0.1", port, ssl=True, ssl_ca_certs=str(made.authority.file)) as client,
        redis.Redis("127.0.0.1", port, socket_timeout=5) as plain,
    ):
        client.xadd("s", {"a": "x" * 1_000_000}, id="1-1")
        assert client.xrange("s") == [(b"1-1", {b"a": b"x" * 1_000_000})]
        with pytest.raises(redis.ConnectionError):
            plain.ping()
        assert f"rediss://127.0.0.1:{port}" in made.server.data.with_name("data.log").read_text()


def test_it_prints_https(shared: Secured) -> None:
    """Where everything is, as a client needs it."""
    printed = shared.server.data.with_name("data.log").read_text()
    assert f"https://127.0.0.1:{shared.server.port}/v1" in printed
    assert "http://" not in printed


def test_commands_trust_an_authority_that_is_named(shared: Secured, tmp_path: Path) -> None:
    """By an option or by the environment; no other authority will do."""
    other = Authority(tmp_path, "Other CA")
    command = ("publish", "words", "a=1", "--retry-for", "0")

    def code(*options: str, **environment: str) -> int:
        return weir(shared.server.url, *command, *options, also=environment).code

    assert code("--ca", str(shared.authority.file)) == 0
    assert code(WEIR_CA=str(shared.authority.file)) == 0
    assert code() == 1
    assert code("--ca", str(other.file)) == 1
    assert code("--ca", str(tmp_path / "none.pem")) == 2
