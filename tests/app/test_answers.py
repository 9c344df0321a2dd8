"""What every answer has: an ID, safe headers, a problem from the registry."""

import re

import httpx
import pytest

from app.auth import Access
from app.errors import CODES, slug
from app.http.operations.plans import Planner
from app.http.operations.router import Router
from app.http.responses import Response
from app.main import ROUTES, create_app
from app.settings import Settings
from engine import Engine, SystemClock
from tests.app.conftest import calling

PATHS = [
    *("/", "/v1", "/docs", "/docs/style.css", "/openapi.json", "/errors/gap", "/healthz/live", "/none"),
    *("/v1/streams/s/entries", "/v1/streams/s/entries?x=1", "/v1/streams/%ff/entries", "/console/none"),
]


@pytest.mark.parametrize("path", PATHS)
async def test_every_answer_is_safe_to_show(http: httpx.AsyncClient, path: str) -> None:
    """Not sniffed, not framed, not kept unasked, no scripts, no cookies, nothing about the server."""
    answer = await http.get(path)
    assert answer.headers["x-content-type-options"] == "nosniff"
    # Files of the package may be kept, if it is asked each time whether they are still the same.
    assert answer.headers["cache-control"] == ("no-cache" if "etag" in answer.headers else "no-store")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["weir-request-id"]
    assert not {"set-cookie", "server", "x-powered-by"} & answer.headers.keys()


async def test_a_sane_request_id_is_kept(http: httpx.AsyncClient) -> None:
    """In the header and in problems; others are replaced."""
    answer = await http.get("/none", headers={"weir-request-id": "job-17.a_B"})
    assert answer.headers["weir-request-id"] == answer.json()["request_id"] == "job-17.a_B"
    for wrong in ("a b", "x" * 65, "a\u00e9", "<script>"):
        answer = await http.get("/none", headers={b"weir-request-id": wrong.encode("latin-1")})
        assert re.fullmatch(r"[0-9a-f]{12}-[0-9a-f]+", answer.headers["weir-request-id"])
    first, second = [(await http.get("/")).headers["weir-request-id"] for _ in range(2)]
    assert first != second


async def test_a_problem_has_its_registered_shape(http: httpx.AsyncClient) -> None:
    """Type, title, status, code, detail, retryable, request ID."""
    answer = await http.get("/none")
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "code", "detail", "retryable", "request_id"} == problem.keys()
    assert (problem["type"], problem["status"], problem["retryable"]) == ("/errors/no-route", 404, False)


@pytest.mark.parametrize("code", CODES)
async def test_each_type_resolves_to_a_page(http: httpx.AsyncClient, code: str) -> None:
    """A page for people, with the title."""
    answer = await http.get(f"/errors/{slug(code)}")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert f"<code>{code}</code>" in answer.text


async def test_other_errors_have_no_page(http: httpx.AsyncClient) -> None:
    """404, with underscores too."""
    assert (await http.get("/errors/none")).status_code == 404
    assert (await http.get("/errors/no_stream")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/v1/streams/s/entries", "GET, HEAD, POST"),
        ("DELETE", "/v1/commands", "POST"),
        ("POST", "/healthz/live", "GET, HEAD"),
        ("PUT", "/v1/commands", "POST"),
        ("GET", "/v1/streams/s/entries/delete", "POST"),
    ],
)
async def test_another_method_is_405_with_what_there_is(
    http: httpx.AsyncClient, method: str, path: str, allow: str
) -> None:
    """Allow names all methods of the path."""
    answer = await http.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == allow


async def test_an_unexpected_error_leaves_no_word(
    http: httpx.AsyncClient, app: object, engine: Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    """500 with the request ID; the log has the rest."""

    async def broken() -> Response:
        raise RuntimeError("secret of the house")

    # Settings of its own, so that no other test's application has this route.
    broken_app = create_app(Settings(log_requests="none", keep_alive_s=76), SystemClock())
    router = Router("gateway")
    router.get("/broken", Access.OPEN, hidden=True)(broken)
    broken_app.plans = Planner(broken_app.gateway, router.operations)
    async with calling(broken_app, base_url="http://localhost") as client:
        answer = await client.get("/broken")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text
    logged = "".join(capfd.readouterr())
    assert "secret of the house" in logged
    assert answer.json()["request_id"] in logged


def test_each_route_says_who_may() -> None:
    """What is open to all is named here; a new route has to choose."""
    open_paths = {route.template for route in ROUTES if route.rule is Access.OPEN}
    files = {"start.js", "style.css", "swagger-ui-bundle.js", "swagger-ui.css"}
    pages = {"/docs", "/openapi.json", "/errors/{slug}"} | {f"/docs/{name}" for name in files}
    pages |= {"/console", "/console/{file:path}", "/asyncapi.json", "/v1/ws"}
    assert open_paths == pages | {"/", "/v1", "/healthz/live", "/healthz/ready", "/v1/hooks/{hook}"}


# The one that shows the caller to itself is left out.
