"""Where everything is: the root, the API's description, a page about it, a page for each refusal."""

from html import escape
from typing import Final

import msgspec

from app.auth import Access
from app.calls import HTML, Answer, Call
from app.errors import CODES, Refusal, slug
from app.routing import Routes
from app.version import VERSION

routes: Final = Routes()

_LINKS: Final = msgspec.json.encode(
    {
        "name": "weir",
        "version": VERSION,
        "links": {
            "api": "/v1",
            "streams": "/v1/streams",
            "commands": "/v1/commands",
            "docs": "/docs",
            "openapi": "/openapi.json",
            "live": "/healthz/live",
            "ready": "/healthz/ready",
        },
    }
)
_PAGE_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"referrer-policy", b"no-referrer"),
)
_STYLE: Final = b"""
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884 }
code { font-family: ui-monospace, monospace }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd } a { color: #8bf } }
"""


@routes.get("/", Access.OPEN, "getRoot")
async def root(call: Call) -> Answer:
    """Name, version, links."""
    return Answer(200, _LINKS)


@routes.get("/v1", Access.OPEN, "getVersion")
async def version(call: Call) -> Answer:
    """The same as the root."""
    return Answer(200, _LINKS)


@routes.get("/openapi.json", Access.OPEN, "getOpenApi", hidden=True)
async def openapi(call: Call) -> Answer:
    """The description of this API, OpenAPI 3.1."""
    return Answer(200, call.scope["app"].state.description)


@routes.get("/docs", Access.OPEN, "getDocs", hidden=True)
async def docs(call: Call) -> Answer:
    """What calls there are, for people."""
    document = msgspec.json.decode(call.scope["app"].state.description)
    rows = [
        f"<tr><td><code>{method.upper()}</code><td><code>{escape(path)}</code><td>{escape(told['summary'])}"
        for path, methods in document["paths"].items()
        for method, told in methods.items()
    ]
    intro = '<p>The whole description is <a href="/openapi.json">/openapi.json</a> (OpenAPI 3.1).'
    return _page("Weir's API", f"{intro}<table><tr><th>Method<th>Path<th>What it does{''.join(rows)}</table>")


@routes.get("/docs/style.css", Access.OPEN, "getStyle", hidden=True)
async def style(call: Call) -> Answer:
    """How the pages look."""
    return Answer(200, _STYLE, media_type=b"text/css; charset=utf-8")


@routes.get("/errors/{slug}", Access.OPEN, "getError", hidden=True)
async def error(call: Call) -> Answer:
    """What a problem's type means."""
    code = call.names["slug"].replace("-", "_")
    kind = CODES.get(code)
    if kind is None or slug(code) != call.names["slug"]:
        raise Refusal("no_route", "there is no such error")
    again = (
        "Trying again later may help." if kind.retry_after_s is not None else "Trying again will not help."
    )
    return _page(kind.title, f"<p>Code <code>{code}</code>, status {kind.status}. {again}")


def _page(title: str, inside: str) -> Answer:
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>"
    text = f'{head}<link rel=stylesheet href="/docs/style.css"><h1>{escape(title)}</h1>{inside}</html>\n'
    return Answer(200, text.encode(), _PAGE_HEADERS, media_type=HTML)
