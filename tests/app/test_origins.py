"""Which pages may call: own ones, those on the list; on loopback only by a loopback name."""

from collections.abc import MutableMapping
from typing import Any

import httpx
import pytest

from app.http.responses import Send
from app.main import create_app
from app.operating import Phase, RecoveryProgress
from app.settings import Settings
from engine import SystemClock


def client(**settings: object) -> httpx.AsyncClient:
    app = create_app(Settings(log_requests="none", **settings), SystemClock())  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:8080")


OWN = "http://localhost:8080"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (OWN, 200),
        ("https://localhost:8080", 200),
        ("http://good.example", 200),
        ("HTTP://Good.Example", 200),
        ("http://good.example.evil.example", 403),
        ("http://evil-good.example", 403),
        ("https://good.example", 403),
        ("http://good.example:81", 403),
        ("http://good.example/", 403),
        ("http://localhost:8081", 403),
        ("http://localhost", 403),
        ("http://127.0.0.1:8080", 403),
        ("null", 403),
        ("", 403),
        ("localhost:8080", 403),
        ("file://localhost:8080", 403),
        ("http://localhost:8080@evil.example", 403),
    ],
)
async def test_an_origin_is_this_host_or_on_the_list(origin: str, status: int) -> None:
    """Exactly: scheme, name, port."""
    async with client(allowed_origins=("http://good.example",)) as http:
        answer = await http.get("/healthz/live", headers={"origin": origin})
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["code"] == "origin_refused"
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("http://localhost", "localhost:80", 200),
        ("http://localhost:80", "localhost", 200),
        ("https://localhost", "localhost:443", 200),
        ("http://localhost", "localhost:443", 403),
        ("https://localhost", "localhost:80", 403),
    ],
)
async def test_a_default_port_may_be_left_out(origin: str, host: str, status: int) -> None:
    """On either side; that of the other scheme is another host."""
    async with client() as http:
        answer = await http.get("/healthz/live", headers={"origin": origin, "host": host})
    assert answer.status_code == status


async def test_a_foreign_page_cannot_post_a_form() -> None:
    """The attack on an open local gateway: a simple request, no preflight, refused before the route."""
    async with client() as http:
        answer = await http.post(
            "/v1/streams/s/entries", data={"a": "1"}, headers={"origin": "http://evil.example"}
        )
    assert answer.json()["code"] == "origin_refused"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:8080", 200),
        ("127.8.9.1", 200),
        ("[::1]:8080", 200),
        ("weir.internal", 200),
        ("weir.internal:99", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:8080", 403),
        ("10.0.0.1", 403),
        ("[::2]", 403),
        ("", 403),
    ],
)
async def test_on_loopback_the_host_is_loopback_or_configured(host: str, status: int) -> None:
    """A name that resolves to 127.0.0.1 is not enough: it may be an attacker's."""
    async with client(allowed_hosts=("weir.internal",)) as http:
        for _ in range(2):
            answer = await http.get("/v1", headers={"host": host})
            assert answer.status_code == status


async def test_elsewhere_any_host_goes_unless_there_is_a_list() -> None:
    """Behind a name of its own the gateway cannot know it."""
    async with client(host="192.0.2.1") as http:
        assert (await http.get("/v1", headers={"host": "any.example"})).status_code == 200
    async with client(host="192.0.2.1", allowed_hosts=("weir.example",)) as http:
        assert (await http.get("/v1", headers={"host": "weir.example:443"})).status_code == 200
        assert (await http.get("/v1", headers={"host": "any.example"})).status_code == 403
        # No attacker's page has such a name.
        assert (await http.get("/v1", headers={"host": "localhost:8080"})).status_code == 200
        assert (await http.get("/v1", headers={"host": "127.0.0.1"})).status_code == 200


async def test_probes_come_under_any_host_and_learn_one_bit() -> None:
    """They address a machine: /healthz answers, but a stranger hears no more than ready or not."""
    app = create_app(Settings(log_requests="none", allowed_hosts=("weir.example",)), SystemClock())
    app.gateway.operator.progress = RecoveryProgress("loading", 10, 100)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://10.0.0.7:8080") as http:
        assert (await http.get("/healthz/live")).json() == {"status": "live"}
        unready = await http.get("/healthz/ready")
        assert (unready.status_code, unready.json()) == (503, {"status": "unavailable"})
        assert "progress" in (await http.get("/healthz/ready", headers={"host": "weir.example"})).json()
        for path in ("/v1", "/healthzz", "/healthz", "/v1/streams"):
            assert (await http.get(path)).json()["code"] == "origin_refused"
            assert (await http.post("/healthz/ready")).json()["code"] == "origin_refused"
        app.life.enter(Phase.READY)
        assert (await http.get("/healthz/ready")).json() == {"status": "ready"}
        foreign = await http.get("/healthz/ready", headers={"origin": "http://evil.example"})
        assert foreign.status_code == 403


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_request_without_a_host_is_malformed(version: str) -> None:
    """400, as RFC 9112 wants; a probe in HTTP/1.0, which has no Host, is answered."""
    app = create_app(Settings(log_requests="none"), SystemClock())
    statuses = {}
    for path in ("/v1", "/healthz/live"):
        sent: list[MutableMapping[str, Any]] = []
        scope = {"type": "http", "method": "GET", "raw_path": path.encode(), "path": path, "headers": []}
        await app(scope | {"query_string": b"", "http_version": version}, receive, appending(sent))
        statuses[path] = sent[0]["status"]
    assert statuses == {"/v1": 400, "/healthz/live": 200 if version == "1.0" else 400}


async def receive() -> MutableMapping[str, Any]:
    return {"type": "http.request"}


def appending(sent: list[MutableMapping[str, Any]]) -> Send:
    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    return send


SITES = ("cross-site", "same-site", "something new")
LINK = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


@pytest.mark.parametrize("site", SITES)
async def test_what_a_page_elsewhere_embeds_is_refused(site: str) -> None:
    """No Origin comes with an image, a script, a frame or a link: the browser says where they come from."""
    result = {"sec-fetch-site": site}
    image = {**result, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    frame = {**result, "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
    async with client(allowed_origins=("http://good.example",)) as http:
        for headers in (result, image, frame):
            for path in ("/v1", "/console", "/v1/streams/s/groups/g/consumers/c/stream", "/healthz/live"):
                assert (await http.get(path, headers=headers)).json()["code"] == "origin_refused"
        link = {**result, **LINK}
        for path in ("/v1/streams/s/entries", "/v1", "/consoles", "/openapi.json", "/healthz/ready"):
            assert (await http.get(path, headers=link)).json()["code"] == "origin_refused"
        for path in ("/", "/console", "/docs", "/errors/gap"):
            assert (await http.get(path, headers=link)).status_code == 200
            assert (await http.head(path, headers=link)).status_code == 200
            assert (await http.post(path, headers=link)).json()["code"] == "origin_refused"
        allowed = {**result, "origin": "http://good.example"}
        assert (await http.get("/v1", headers=allowed)).status_code == 200
        twice = [("sec-fetch-site", "same-origin"), ("sec-fetch-site", site)]
        assert (await http.get("/v1", headers=twice)).json()["code"] == "origin_refused"


@pytest.mark.parametrize("site", ["same-origin", "none"])
async def test_own_pages_and_what_people_type_are_served(site: str) -> None:
    """As are all clients that are no browser, and say nothing of it."""
    async with client() as http:
        assert (await http.get("/v1", headers={"sec-fetch-site": site})).status_code == 200
        assert (await http.get("/v1", headers={"sec-fetch-site": site, **LINK})).status_code == 200


async def test_two_hosts_or_origins_are_refused() -> None:
    """It is unknown which of them a proxy looked at."""
    async with client() as http:
        twice = [("host", "localhost"), ("host", "localhost")]
        assert (await http.get("/healthz/live", headers=twice)).status_code == 400
        twice = [("origin", OWN), ("origin", OWN)]
        assert (await http.get("/healthz/live", headers=twice)).status_code == 403


async def test_pages_on_the_list_may_see_the_answers() -> None:
    """CORS for them alone: echoed, varied, with the headers that SDKs read; never with credentials."""
    async with client(allowed_origins=("http://good.example",)) as http:
        answer = await http.get("/healthz/live", headers={"origin": "http://good.example"})
        assert answer.headers["access-control-allow-origin"] == "http://good.example"
        assert answer.headers["vary"] == "Origin"
        assert "Weir-Next-Id" in answer.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in answer.headers
        asking = {"origin": "http://good.example", "access-control-request-method": "POST"}
        preflight = await http.options("/v1/streams/s/entries", headers=asking)
        assert preflight.status_code == 204
        assert "Idempotency-Key" in preflight.headers["access-control-allow-headers"]
        foreign = await http.options(
            "/v1/streams/s/entries", headers={**asking, "origin": "http://evil.example"}
        )
        assert foreign.status_code == 403
        plain = await http.get("/healthz/live")
        assert "access-control-allow-origin" not in plain.headers
