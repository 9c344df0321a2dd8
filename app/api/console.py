"""The console: a page for people, from files of this package alone.

Knows: the page's files, the policy it runs under.
Must never know: what the page shows; it uses the public API like any other client.
"""

import asyncio
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from app.auth import Access
from app.errors import RefusalError
from app.http import files as web
from app.http.files import File, fresh, is_shown
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.responses import Response

router: Final = Router("gateway")

_VENDORED: Final = {"uplot.js": "uPlot.esm.js", "uplot.css": "uPlot.min.css"}
# Trusted types without any policy: no script can turn a string into markup or code.
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    b"require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", _POLICY),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)


@router.get("/console", Access.OPEN, hidden=True)
async def get_console(request: RequestParameter) -> Response:
    """The page."""
    return fresh(request, (await asyncio.to_thread(_files))["index.html"], _HEADERS)


@router.get("/console/{file:path}", Access.OPEN, hidden=True)
async def get_console_file(request: RequestParameter, file: str) -> Response:
    """A module, a style sheet or the icon of the page."""
    content = (await asyncio.to_thread(_files)).get(file)
    if content is None:
        raise RefusalError("no_route", "the console has no such file")
    return fresh(request, content, _HEADERS)


@cache
def _files() -> Mapping[str, File]:
    """The files by path, read once: a few hundred kilobytes."""
    bodies = dict(_read(files("app").joinpath("console")))
    vendored = files("app").joinpath("vendor", "uplot")
    bodies |= {name: vendored.joinpath(published).read_bytes() for name, published in _VENDORED.items()}
    return {name: web.file(name, body) for name, body in bodies.items()}


def _read(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    """The path and the content of each file in a folder and its subfolders."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _read(entry, f"{prefix}{entry.name}/")
        elif is_shown(entry.name):
            yield prefix + entry.name, entry.read_bytes()
