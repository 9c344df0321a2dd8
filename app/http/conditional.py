"""Conditional requests: entity tags, and 304 for what a client has already (RFC 9110, 8.8.3 and 13.1).

Knows: how tags are made and compared. Must never know: what they are tags of.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final

from app.http.common.codings import uncoded
from app.http.responses import Response

# Kept by the cache of the client, which asks about it each time: it does not know who reads it, nor whether a
# stream is still the one that it was. No cache in between has what a token allows.
_PRIVATE: Final = (b"cache-control", b"private, no-cache")
# For answers that no caller gets differently.
_PUBLIC: Final = (b"cache-control", b"no-cache")


def tag_of(body: bytes | memoryview) -> bytes:
    """The strong entity tag of a representation, in quotation marks."""
    return b'"%b"' % sha256(body).hexdigest()[:32].encode()


def matches(expected: Sequence[bytes], tag: bytes) -> bool:
    """Whether this strong tag is among those of If-Match; weak tags match nothing (RFC 9110, 13.1.1)."""
    return tag in map(uncoded, expected)


def _held(condition: bytes, tag: bytes) -> bytes | None:
    """The tag that a client has, as it sent it; None if it has another one."""
    given = [one.strip().removeprefix(b"W/") for one in condition.split(b",")]
    return next((one for one in given if uncoded(one) == tag), tag if given == [b"*"] else None)


def revalidate(
    headers: Mapping[bytes, bytes], response: Response, tag: bytes, *, is_public: bool = False
) -> Response:
    """The response to a request with these headers: with its tag, in quotation marks, and 304 without a body
    where If-None-Match has it or is `*`.

    Tags are compared weakly (RFC 9110, 13.1.2). The tag of 304 is the one that the client has.
    """
    condition = headers.get(b"if-none-match")
    held = None if condition is None else _held(condition, tag)
    response.raw_headers += [_PUBLIC if is_public else _PRIVATE, (b"etag", held or tag)]
    if held is not None:
        response.status_code, response.body = 304, b""
        # Its length would be taken for that of the representation that the client has.
        response.raw_headers = [one for one in response.raw_headers if one[0] != b"content-length"]
    return response
