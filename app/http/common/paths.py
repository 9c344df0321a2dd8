"""Names out of raw paths: split, each segment decoded once, strictly; so no two names collapse into one.

Knows: percent-encoding. Must never know: which segment is a name and which a word of the route.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from app import names
from app.errors import RefusalError

_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9a-fA-F]{2})")
_CACHED_BYTES_MAX: Final = 512


def segments(raw_path: bytes) -> Sequence[str]:
    """The segments of a path, `()` for the root. Raises `invalid_name`, `no_route` for a slash at the end."""
    if raw_path in (b"", b"/"):
        return ()
    if not raw_path.startswith(b"/"):
        raise RefusalError("no_route", "a path begins with a slash")
    if _BAD_ESCAPE.search(raw_path):
        raise RefusalError("invalid_name", "the path is not percent-encoded")
    pieces = raw_path[1:].split(b"/")
    if not pieces[-1]:
        raise RefusalError("no_route", "no path here ends with a slash")
    return tuple(names.check(unquote_to_bytes(piece), "segment of a path") for piece in pieces)


_remembered = lru_cache(maxsize=4_096)(segments)


def decoded(raw_path: bytes) -> Sequence[str]:
    """The same, remembered for paths that are not long."""
    return _remembered(raw_path) if len(raw_path) <= _CACHED_BYTES_MAX else segments(raw_path)
