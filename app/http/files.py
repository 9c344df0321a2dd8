"""Files of the package on the web: what they are, and how browsers keep them fresh.

Knows: types, tags, 304. Must never know: what is in the files, under which policy they are shown.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final, NamedTuple

from app.http.calls import HTML, Answer, Call, Header

_KINDS: Final = {
    "css": b"text/css; charset=utf-8",
    "html": HTML,
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
# Kept, and asked about each time: another version of the gateway is another page at once.
_KEPT: Final = (b"cache-control", b"no-cache")


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
    return File(body, _KINDS[name.rpartition(".")[2]], b'"%b"' % sha256(body).hexdigest()[:32].encode())


def fresh(call: Call, found: File, headers: Sequence[Header] = ()) -> Answer:
    """The file, or 304 where the browser has this very one."""
    headers = [*headers, _KEPT, (b"etag", found.tag)]
    asked = call.headers.get(b"if-none-match", b"")
    if found.tag in [tag.strip().removeprefix(b"W/") for tag in asked.split(b",")]:
        unchanged = Answer(304, headers=headers, media_type=found.kind)
        # Its length would be taken for the file's.
        unchanged.raw_headers = [one for one in unchanged.raw_headers if one[0] != b"content-length"]
        return unchanged
    return Answer(200, found.body, headers, media_type=found.kind)
