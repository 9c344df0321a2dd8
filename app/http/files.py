"""Files of the package on the web: what they are, and how browsers keep them fresh.

Knows: types, tags. Must never know: what is in the files, under which policy they are shown.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from app.http.conditional import revalidate, tag_of
from app.http.requests import Request
from app.http.responses import HTML, Header, Response

_KINDS: Final = {
    "css": b"text/css; charset=utf-8",
    "html": HTML,
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}


class File(NamedTuple):
    """A file as it is served."""

    body: bytes
    kind: bytes
    tag: bytes


def is_shown(name: str) -> bool:
    """Whether a file of this name is for browsers."""
    return name.rpartition(".")[2] in _KINDS


def file(name: str, body: bytes) -> File:
    """The file of this name; its ending says what it is."""
    return File(body, _KINDS[name.rpartition(".")[2]], tag_of(body))


def fresh(request: Request, found: File, headers: Sequence[Header] = ()) -> Response:
    """The file, or 304 where the browser has this very one."""
    response = Response(200, found.body, headers, media_type=found.kind)
    return revalidate(request.headers, response, found.tag, is_public=True)
