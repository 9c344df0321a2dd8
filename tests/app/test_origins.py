"""Which pages may call: own ones, those on the list; on loopback only by a loopback name."""

import httpx
import pytest

from app.main import create_app
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
            answer = await http.get("/healthz/live", headers={"host": host})
            assert answer.status_code == status


async def test_elsewhere_any_host_goes_unless_there_is_a_list() -> None:
    """Behind a name of its own the gateway cannot know it."""
    async with client(host="192.0.2.1") as http:
        assert (await http.get("/healthz/live", headers={"host": "any.example"})).status_code == 200
    async with client(host="192.0.2.1", allowed_hosts=("weir.example",)) as http:
        assert (await http.get("/healthz/live", headers={"host": "weir.example:443"})).status_code == 200
        assert (await http.get("/healthz/live", headers={"host": "any.example"})).status_code == 403


async def test_two_hosts_or_origins_are_refused() -> None:
    """Which of them a proxy looked at, nobody knows."""
    async with client() as http:
        twice = [("host", "localhost"), ("host", "localhost")]
        assert (await http.get("/healthz/live", headers=twice)).status_code == 403
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
