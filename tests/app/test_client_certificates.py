"""Client certificates: who they stand for, on every way into the gateway, and when that ends."""

import http.client
import json
import shutil
import signal
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from app.auth import certificates, token_file, tokens
from app.auth.grants import Grant
from app.settings import SettingsError
from tests.app.test_tls import wait_for_line
from tests.certificates import Authority, Pair
from tests.cli.command import weir
from tests.server import Server, free_port

SECONDS_MAX: Final = 15.0
# Time enough for two handshakes on a busy machine.
_BRIEF_S: Final = 6
BILLING: Final = "uri:spiffe://example.com/billing"
ENTRIES: Final = "/v1/streams/orders/entries"
ENTRY: Final = json.dumps({"fields": {"a": "1"}})
JSON: Final = {"content-type": "application/json"}


class World(NamedTuple):
    """A gateway that asks for certificates, the files that it reads, and who signs for its clients."""

    server: Server
    tokens: Path
    authorities: Path
    servers: Authority
    clients: Authority
    token: str

    def url(self, path: str) -> str:
        return self.server.url + path

    def context(self, pair: Pair | None) -> ssl.SSLContext:
        return self.servers.trust(pair)

    def billing(self) -> Pair:
        return self.clients.issue("billing", uri=BILLING.removeprefix("uri:"))

    def get(self, pair: Pair | None, path: str, **headers: str) -> httpx.Response:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.get(self.url(path), verify=self.context(pair), headers=names)

    def connect(self, pair: Pair | None) -> ClientConnection:
        return connect(self.url("/v1/ws").replace("https", "wss"), ssl=self.context(pair))


def certificate(identity: str, *grants: str) -> str:
    return f"[[certificates]]\nidentity = {json.dumps(identity)}\ngrants = {json.dumps(grants)}\n"


MAPPED: Final = certificate(BILLING, "read,write:orders") + certificate(
    "subject:CN=reports,O=Example", "read:orders"
)


@contextmanager
def world(folder: Path, *options: str) -> Iterator[World]:
    servers, clients = Authority(folder, "Server CA"), Authority(folder, "Client CA")
    pair = servers.issue("server")
    made = tokens.create((Grant.parse("read:*"),))
    path, authorities = folder / "tokens.toml", folder / "clients.pem"
    path.write_text(token_file.write(made.token) + MAPPED)
    shutil.copy(clients.file, authorities)
    files = {"tls_certificate": pair.certificate, "tls_key": pair.key, "tls_client_ca": authorities}
    settings = [f"{name}={value}" for name, value in {**files, "tokens_file": path}.items()]
    server = Server(folder / "data", *[word for one in settings for word in ("--set", one)], *options)
    server.trust = servers.trust()
    with server:
        yield World(server, path, authorities, servers, clients, made.text)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("clients")) as made:
        yield made


@pytest.fixture
def own(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def test_a_certificate_does_what_its_identity_may_on_both_ways(shared: World) -> None:
    """Three in a row on one connection, whose head is kept; each head with `accept-charset` is new."""
    context = shared.context(shared.billing())
    with closing(
        http.client.HTTPSConnection("127.0.0.1", shared.server.port, context=context, timeout=15)
    ) as connection:
        for extra in ({}, {}, {}, {"accept-charset": "utf-8"}):
            connection.request("POST", ENTRIES, ENTRY, {**JSON, **extra})
            answer = connection.getresponse()
            assert (answer.status, answer.read()[:5]) == (201, b'{"id"')
            connection.request("POST", "/v1/streams/other/entries", ENTRY, {**JSON, **extra})
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())["code"]) == (403, "forbidden")


def test_a_subject_is_an_identity_too(shared: World) -> None:
    pair = shared.clients.issue("reports", organisation="Example")
    assert shared.get(pair, ENTRIES).status_code in (200, 404)
    assert shared.get(pair, "/v1/streams/other/entries").status_code == 403


def test_without_a_certificate_a_token_is_needed(shared: World) -> None:
    """Probes need neither."""
    refused = shared.get(None, ENTRIES)
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")
    assert shared.get(None, "/v1/streams", authorization=f"Bearer {shared.token}").status_code == 200
    assert shared.get(None, "/healthz/ready").json() == {"status": "ready"}


@pytest.mark.parametrize("uri", ["spiffe://example.com/other", "spiffe://example.com/billing/", ""])
def test_an_unknown_identity_is_unauthenticated(shared: World, uri: str) -> None:
    pair = shared.clients.issue("unknown", uri=uri)
    refused = shared.get(pair, ENTRIES)
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")
    with pytest.raises(InvalidStatus, match="401"):
        shared.connect(pair)


def test_an_identity_as_a_token_is_none(shared: World) -> None:
    """What is not secret must not be good as a secret."""
    for text in (BILLING, f"\xff{BILLING}"):
        header = {b"authorization": f"Bearer {text}".encode("latin-1")}
        refused = httpx.get(shared.url(ENTRIES), verify=shared.context(None), headers=header)
        assert refused.status_code == 401


def test_a_token_beside_a_certificate_counts_alone(shared: World) -> None:
    """It may read all and write nothing; a wrong one is not replaced by the certificate."""
    pair = shared.billing()
    good, wrong = f"Bearer {shared.token}", "Bearer wrong"
    assert shared.get(pair, "/v1/streams", authorization=good).status_code == 200
    assert shared.get(pair, ENTRIES, authorization=wrong).status_code == 401
    refused = httpx.post(
        shared.url(ENTRIES),
        content=ENTRY,
        verify=shared.context(pair),
        headers={**JSON, "authorization": good},
    )
    assert refused.status_code == 403


@pytest.mark.parametrize("kind", ["another authority", "expired"])
def test_a_certificate_that_does_not_hold_is_refused_by_tls(shared: World, tmp_path: Path, kind: str) -> None:
    """Also where no certificate would do."""
    uri = BILLING.removeprefix("uri:")
    foreign = Authority(tmp_path, "Client CA").issue("billing", uri=uri)
    pair = foreign if kind == "another authority" else shared.clients.issue("old", uri=uri, days=-1)
    with pytest.raises((httpx.TransportError, ssl.SSLError)):
        shared.get(pair, "/healthz/live")
    assert shared.get(None, "/healthz/live").status_code == 200


def test_what_a_browser_sends_for_a_page_needs_an_origin(shared: World) -> None:
    """It shows its certificate to any page's request, so that alone is not enough."""
    pair, fetched = shared.billing(), {"sec_fetch_site": "same-origin", "sec_fetch_mode": "cors"}
    assert shared.get(pair, ENTRIES, **fetched).status_code == 401
    assert shared.get(pair, ENTRIES, sec_fetch_site="none", sec_fetch_mode="navigate").status_code == 401
    assert shared.get(pair, ENTRIES, **fetched, origin=shared.server.url).status_code in (200, 404)
    assert shared.get(pair, ENTRIES, **fetched, origin="https://evil.example").status_code == 403
    token = f"Bearer {shared.token}"
    assert shared.get(pair, "/v1/streams", **fetched, authorization=token).status_code == 200
    assert shared.get(pair, "/console", **fetched).status_code == 200


def test_an_identity_that_leaves_the_file_ends_what_is_open(own: World) -> None:
    """At SIGHUP: a socket is closed, a connection that was served is refused, a new one too."""
    pair = own.billing()
    with own.connect(pair) as ws, httpx.Client(base_url=own.server.url, verify=own.context(pair)) as http:
        assert json.loads(ws.recv(SECONDS_MAX))["op"] == "hello"
        assert http.post(ENTRIES, content=ENTRY, headers=JSON).status_code == 201
        ws.send(json.dumps({"op": "subscribe", "ref": 1, "sub": "s", "streams": {"orders": "$"}}))
        wait_for(ws, "subscribed")
        own.tokens.write_text(certificate("subject:CN=reports,O=Example", "read:orders"))
        began_s = time.monotonic()
        own.server.signal(signal.SIGHUP)
        with pytest.raises(ConnectionClosed) as closed:
            drain(ws)
        assert time.monotonic() - began_s < 5
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4500
        wait_for_line(own.server, "the certificate was read again")
        assert http.post(ENTRIES, content=ENTRY, headers=JSON).status_code == 401
    with pytest.raises(InvalidStatus, match="401"):
        own.connect(pair)


def test_what_a_certificate_opened_ends_when_it_expires(shared: World) -> None:
    """A socket is closed as with a token; a connection that was served is refused."""
    uri = BILLING.removeprefix("uri:")
    pair = shared.clients.issue("brief", uri=uri, days=_BRIEF_S / 86_400)
    context = shared.context(pair)
    with shared.connect(pair) as ws, httpx.Client(base_url=shared.server.url, verify=context) as http:
        assert http.post(ENTRIES, content=ENTRY, headers=JSON).status_code == 201
        assert wait_for(ws, "expiring")["op"] == "expiring"
        with pytest.raises(ConnectionClosed) as closed:
            stay_busy(ws, http)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4002
        assert http.post(ENTRIES, content=ENTRY, headers=JSON).status_code == 401


def test_the_admin_port_takes_certificates_too(tmp_path: Path) -> None:
    """With the same authorities and the same mapping, and with no more rights than elsewhere."""
    port = free_port()
    with world(tmp_path, "--admin-listen", str(port)) as made:
        operator = made.clients.issue("operator", uri="spiffe://example.com/operator")
        made.tokens.write_text(MAPPED + certificate("uri:spiffe://example.com/operator", "*:*"))
        made.server.signal(signal.SIGHUP)
        wait_for_line(made.server, "tokens were read again")
        url = f"https://127.0.0.1:{port}"
        for pair, metrics, tokens_of_all in (
            (operator, 200, 200),
            (made.billing(), 403, 403),
            (None, 401, 401),
        ):
            with httpx.Client(base_url=url, verify=made.context(pair)) as http:
                assert http.get("/metrics").status_code == metrics
                assert http.get("/v1/admin/tokens").status_code == tokens_of_all
        stranger = Authority(tmp_path / "data", "Other CA").issue(
            "operator", uri="spiffe://example.com/operator"
        )
        with pytest.raises((httpx.TransportError, ssl.SSLError)):
            httpx.get(f"{url}/metrics", verify=made.context(stranger))


def stay_busy(ws: ClientConnection, http: httpx.Client) -> None:
    """Publish now and then, while the socket is open: an idle connection would be closed."""
    while True:
        try:
            ws.recv(1)
        except TimeoutError:
            assert http.post(ENTRIES, content=ENTRY, headers=JSON).status_code == 201


def drain(ws: ClientConnection) -> None:
    while True:
        ws.recv(SECONDS_MAX)


def wait_for(ws: ClientConnection, op: str) -> dict[str, Any]:
    for _ in range(20):
        frame: dict[str, Any] = json.loads(ws.recv(SECONDS_MAX))
        if frame["op"] in (op, "ok"):
            return frame
    raise AssertionError(f"no frame {op}")


def test_authorities_are_read_again(own: World, tmp_path: Path) -> None:
    """One that left the file is trusted no more; a broken file leaves those of before in use."""
    (tmp_path / "new").mkdir()
    new = Authority(tmp_path / "new", "New CA")
    before, after = own.billing(), new.issue("billing", uri=BILLING.removeprefix("uri:"))
    assert own.get(before, ENTRIES).status_code in (200, 404)
    with pytest.raises((httpx.TransportError, ssl.SSLError)):
        own.get(after, ENTRIES)
    shutil.copy(new.file, own.authorities)
    own.server.signal(signal.SIGHUP)
    wait_for_line(own.server, "the certificate was read again")
    assert own.get(after, ENTRIES).status_code in (200, 404)
    with pytest.raises((httpx.TransportError, ssl.SSLError)):
        own.get(before, ENTRIES)
    own.authorities.write_text("no certificate")
    own.server.signal(signal.SIGHUP)
    assert "tls_client_ca" in str(wait_for_line(own.server, "the certificate was not read again")["reason"])
    assert own.get(after, ENTRIES).status_code in (200, 404)


@pytest.mark.parametrize(
    ("found", "identity"),
    [
        ([("commonName", "a,O=b")], r"subject:CN=a\,O=b"),
        ([("commonName", "a\\")], r"subject:CN=a\\"),
        ([("commonName", " a ")], "subject:CN=\\ a\\ "),
        ([("organizationName", "b"), ("commonName", "a")], "subject:CN=a,O=b"),
        ([("organizationName", "a"), ("commonName", "b")], "subject:CN=b,O=a"),
    ],
)
def test_no_value_of_a_subject_looks_like_another_name(found: list[tuple[str, str]], identity: str) -> None:
    subject = tuple((part,) for part in found)
    read = certificates.read({"subject": subject, "notAfter": "Jan  5 09:34:43 2030 GMT"})
    assert read == certificates.ClientCertificate((identity,), 1_893_836_083.0)


def test_only_uris_of_the_alternative_names_are_identities() -> None:
    """A name of DNS or a mail address that reads like one is not."""
    names = (("DNS", "spiffe://a"), ("email", "uri:spiffe://a"), ("URI", "spiffe://b"))
    read = certificates.read({"subjectAltName": names, "notAfter": "Jan  5 09:34:43 2030 GMT"})
    assert read.identities == ("uri:spiffe://b",)


@pytest.mark.parametrize(
    "text",
    [
        certificate("uri:a", "read:*") * 2,
        certificate("dns:a", "read:*"),
        certificate("uri:", "read:*"),
        certificate("uri:a"),
        certificate("uri:" + "a" * 497, "read:*"),
    ],
)
def test_a_mapping_that_cannot_be_meant_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    with pytest.raises(SettingsError):
        token_file.read(path)


@pytest.mark.parametrize("missing", ["tls_certificate", "tokens_file"])
def test_client_certificates_need_the_other_settings(tmp_path: Path, missing: str) -> None:
    pair = Authority(tmp_path).issue("server")
    settings = {"tls_client_ca": pair.certificate, "tls_certificate": pair.certificate, "tls_key": pair.key}
    if missing == "tls_certificate":
        settings = {"tls_client_ca": pair.certificate}
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    ended = weir("", "serve", "--port", "0", "--data", str(tmp_path / "data"), *options)
    assert ended.code == 2
    assert f"tls_client_ca: it needs {missing}" in ended.err
