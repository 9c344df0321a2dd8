"""The console: a page for people, from files of this package alone.

Knows: the page's files, the policy it runs under, how browsers keep them fresh.
Must never know: what the page shows; it uses the public API like any other client.
"""

import asyncio
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final, NamedTuple

from app.auth import Access
from app.calls import HTML, Answer, Call
from app.errors import Refusal
from app.routing import Routes

routes: Final = Routes()

_KINDS: Final = {
    "css": b"text/css; charset=utf-8",
    "html": HTML,
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
_VENDORED: Final = {"uplot.js": "uPlot.esm.js", "uplot.css": "uPlot.min.css"}
# Besides: no string becomes markup or code, whatever a script tries (trusted types without any policy).
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    b"require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = (
    # Kept, and asked about each time: another version of the gateway is another page at once.
    (b"cache-control", b"no-cache"),
    (b"content-security-policy", _POLICY),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)


class _File(NamedTuple):
    body: bytes
    kind: bytes
    tag: bytes


@routes.get("/console", Access.OPEN, "getConsole", hidden=True)
async def console(call: Call) -> Answer:
    """The page."""
    return _fresh(call, (await asyncio.to_thread(_files))["index.html"])


@routes.get("/console/{file}", Access.OPEN, "getConsoleFile", hidden=True)
async def file(call: Call) -> Answer:
    """A module, a sheet, a picture of the page."""
    found = (await asyncio.to_thread(_files)).get(call.names["file"])
    if found is None:
        raise Refusal("no_route", "the console has no such file")
    return _fresh(call, found)


def _fresh(call: Call, found: _File) -> Answer:
    """The file, or 304 where the browser has this very one."""
    headers = [*_HEADERS, (b"etag", found.tag)]
    asked = call.headers.get(b"if-none-match", b"")
    if found.tag in [tag.strip().removeprefix(b"W/") for tag in asked.split(b",")]:
        unchanged = Answer(304, headers=headers, media_type=found.kind)
        # Its length would be taken for the file's.
        unchanged.raw_headers = [one for one in unchanged.raw_headers if one[0] != b"content-length"]
        return unchanged
    return Answer(200, found.body, headers, media_type=found.kind)


@cache
def _files() -> Mapping[str, _File]:
    """All of them, once: a few hundred kilobytes."""
    bodies = {
        one.name: one.read_bytes()
        for one in files("app").joinpath("console").iterdir()
        if one.name.rpartition(".")[2] in _KINDS
    }
    vendored = files("app").joinpath("vendor", "uplot")
    bodies |= {name: vendored.joinpath(published).read_bytes() for name, published in _VENDORED.items()}
    return {
        name: _File(body, _KINDS[name.rpartition(".")[2]], b'"%b"' % sha256(body).hexdigest()[:32].encode())
        for name, body in bodies.items()
    }
