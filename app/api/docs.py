"""The API for people: its description, a page to try it out, a page for each refusal.

Knows: the vendored page and the policy it needs; nothing is loaded from elsewhere, no script stands inline.
Must never know: what the API does.
"""

import asyncio
from functools import cache
from html import escape
from importlib.resources import files
from typing import Final

from app import errors
from app.auth import Access
from app.errors import CODES, RefusalError
from app.http.files import File, file, fresh
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.responses import HTML, Response

router: Final = Router("gateway")

# Swagger UI draws its icons from data URLs, and sets styles by script.
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS: Final = ((b"content-security-policy", _POLICY), (b"referrer-policy", b"no-referrer"))
_START: Final = b"""
window.addEventListener("load", () => {
  SwaggerUIBundle({ url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null });
});
"""
_LINKS: Final = (
    '<p>This page as data: <a href="/openapi.json">OpenAPI</a>. The WebSocket, <code>/v1/ws</code>: '
    '<a href="/asyncapi.json">AsyncAPI</a>. In a browser: <a href="/console">the console</a>.'
)
_STYLE: Final = b"""
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code { font-family: ui-monospace, monospace }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd } a { color: #8bf } }
"""


@router.get("/openapi.json", Access.OPEN, hidden=True)
async def get_open_api(request: RequestParameter) -> Response:
    """The description of this API, OpenAPI 3.1."""
    return Response(200, await asyncio.to_thread(request.gateway.document))


@router.get("/docs", Access.OPEN, hidden=True)
def get_docs() -> Response:
    """What calls there are, to read and to try."""
    head = (
        '<link rel=stylesheet href="/docs/swagger-ui.css"><script src="/docs/swagger-ui-bundle.js"></script>'
    )
    return _page(
        "Weir's API", f'{head}<script src="/docs/start.js"></script>', _LINKS + '<div id="swagger-ui"></div>'
    )


@router.get("/docs/start.js", Access.OPEN, hidden=True)
def get_start(request: RequestParameter) -> Response:
    """What the page runs when it is loaded."""
    return fresh(request, file("start.js", _START))


@router.get("/docs/style.css", Access.OPEN, hidden=True)
def get_style(request: RequestParameter) -> Response:
    """How the small pages look."""
    return fresh(request, file("style.css", _STYLE))


@router.get("/docs/swagger-ui-bundle.js", Access.OPEN, hidden=True)
async def get_docs_script(request: RequestParameter) -> Response:
    """The vendored page's script."""
    return fresh(request, await asyncio.to_thread(_vendored, "swagger-ui-bundle.js"))


@router.get("/docs/swagger-ui.css", Access.OPEN, hidden=True)
async def get_docs_style(request: RequestParameter) -> Response:
    """The vendored page's style."""
    return fresh(request, await asyncio.to_thread(_vendored, "swagger-ui.css"))


@router.get("/errors/{slug}", Access.OPEN, hidden=True)
def get_error(slug: str) -> Response:
    """What a problem's type means."""
    code = slug.replace("-", "_")
    kind = CODES.get(code)
    if kind is None or errors.slug(code) != slug:
        raise RefusalError("no_route", "there is no such error")
    again = "may" if kind.retry_after_s is not None else "will not"
    summary = f"<p>Code <code>{code}</code>, status {kind.status}. Trying again later {again} help."
    return _page(
        kind.title, '<link rel=stylesheet href="/docs/style.css">', f"<h1>{escape(kind.title)}</h1>{summary}"
    )


@cache
def _vendored(name: str) -> File:
    return file(name, files("app").joinpath("vendor", "swagger-ui", name).read_bytes())


def _page(title: str, head: str, inside: str) -> Response:
    text = (
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{escape(title)}</title>{head}</head>"
        f"<body>{inside}</body></html>\n"
    )
    return Response(200, text.encode(), _PAGE_HEADERS, media_type=HTML)
