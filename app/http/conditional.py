"""Conditional requests: entity tags, and 304 for what a client has already (RFC 9110, 13).

Knows: ETag and If-None-Match. Must never know: what a tag is made of.
"""

from typing import Final

from app.http.requests import Request
from app.http.responses import Response

# Kept by caches, and asked about each time.
_KEPT: Final = (b"cache-control", b"no-cache")


def revalidate(request: Request, response: Response, tag: bytes) -> Response:
    """The answer with its tag, in quotation marks; 304 without a body where If-None-Match has it or is `*`.

    Tags are compared weakly, as GET does: an answer that was compressed has a weak one.
    """
    response.raw_headers += [_KEPT, (b"etag", tag)]
    held = [one.strip().removeprefix(b"W/") for one in request.headers.get(b"if-none-match", b"").split(b",")]
    if tag in held or held == [b"*"]:
        response.status_code, response.body = 304, b""
        # Its length would be taken for that of what is held.
        response.raw_headers = [one for one in response.raw_headers if one[0] != b"content-length"]
    return response
