"""Who may call from a browser: the Origin, Host and Sec-Fetch-Site checks, before anything else, and CORS for
those on the list.

Knows: this host, the allow lists, which paths are pages and probes. Must never know: routes, tokens.

Without it any web page could post to an open local gateway, take entries from a group with an image, or read
everything by letting its own name resolve to 127.0.0.1.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from app.errors import RefusalError
from app.http.plan import NO_VERDICT, OriginVerdict
from app.http.requests import is_own
from app.http.responses import Header, Scope
from app.settings import Settings, host_is_loopback

# What a page's script may read of an answer, beside what browsers always show.
EXPOSED: Final = (
    b"Location, Retry-After, WWW-Authenticate, Weir-Request-Id, Weir-Durability, Weir-Next-Id, Weir-More, "
    b"Weir-First-Available, Weir-Generation, Weir-Removed-Upto, Preference-Applied, ETag, "
    b"Accept-Patch, RateLimit, RateLimit-Policy, Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, "
    b"Stream-Closed, Stream-TTL, Stream-Expires-At, Stream-SSE-Data-Encoding, Producer-Epoch, Producer-Seq, "
    b"Producer-Expected-Seq, Producer-Received-Seq"
)
_METHODS: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE"
_HEADERS: Final = (
    b"Authorization, Content-Encoding, Content-Type, Idempotency-Key, If-Match, If-None-Match, "
    b"Last-Event-ID, Prefer, Upstash-Encoding, Weir-Chunk, Weir-Encoding, Weir-Epoch, Weir-Producer, "
    b"Weir-Request-Id, Stream-Seq, Stream-TTL, Stream-Expires-At, Stream-Closed, Stream-Forked-From, "
    b"Stream-Fork-Offset, Stream-Fork-Sub-Offset, Producer-Id, Producer-Epoch, Producer-Seq"
)
# What a page of another origin may send, for ten minutes.
PREFLIGHT: Final = (
    (b"access-control-allow-methods", _METHODS),
    (b"access-control-allow-headers", _HEADERS),
    (b"access-control-max-age", b"600"),
)
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\s\[\]:@/?#,]+)(?::[0-9]{0,5})?")
_SITE: Final = b"sec-fetch-site"
_CHECKED: Final = frozenset({b"host", b"origin", _SITE, b"sec-fetch-mode", b"sec-fetch-dest"})
# What a link on any page may lead to: these paths take and change nothing.
_PAGES: Final = frozenset({b"/", b"/console", b"/docs"})
_ERROR_PAGES: Final = b"/errors/"
# Probes address a machine, not a name: they come with any Host, and HTTP/1.0 has none.
_PROBES: Final = b"/healthz/"
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})

Checked = Mapping[bytes, Sequence[bytes]]


def exposed(headers: Sequence[Header], origin: bytes) -> list[Header]:
    """The headers of an answer, with those that let a page of this origin read it."""
    return [
        *headers,
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", EXPOSED),
        (b"vary", b"Origin"),
    ]


class Origins:
    """Refuses foreign origins and sites and, on loopback or with a list, foreign hosts."""

    def __init__(self, settings: Settings) -> None:
        self._hosts = frozenset(settings.allowed_hosts)
        self._origins = frozenset(settings.allowed_origins)
        self._loopback = settings.is_loopback

    def judge(self, scope: Scope) -> OriginVerdict:
        """The verdict on a request. Raises `malformed_request`, `origin_refused`."""
        found: dict[bytes, list[bytes]] = defaultdict(list)
        for name, value in scope["headers"]:
            if name in _CHECKED:
                found[name].append(value)
        host, is_stranger = self._host(scope, found[b"host"])
        origins = found[b"origin"]
        if len(origins) > 1:
            raise RefusalError("origin_refused", "a request has at most one Origin")
        if not origins:
            _check_site(scope, found)
            return OriginVerdict(is_stranger=True) if is_stranger else NO_VERDICT
        origin = origins[0].decode("latin-1").lower()
        if is_own(origin, host):
            return OriginVerdict(is_stranger=is_stranger)
        if "*" not in self._origins and origin not in self._origins:
            raise RefusalError(
                "origin_refused", "pages of this origin may not call the API: see the setting allowed_origins"
            )
        asked = any(name == b"access-control-request-method" for name, _ in scope["headers"])
        is_preflight = asked and scope["method"] == "OPTIONS"
        return OriginVerdict(origins[0], is_preflight=is_preflight, is_stranger=is_stranger)

    def _host(self, scope: Scope, hosts: Sequence[bytes]) -> tuple[str, bool]:
        """The Host of a request, if it may be meant for this gateway, and whether it is a stranger's. Raises
        `malformed_request`, `origin_refused`.
        """
        probes = scope["raw_path"].startswith(_PROBES) and scope["method"] in _SAFE_METHODS
        if probes and not hosts and scope.get("http_version") == "1.0":
            return "", True
        if len(hosts) != 1:
            raise RefusalError("malformed_request", "a request has one header Host")
        host = hosts[0].decode("latin-1").lower()
        is_served = self._is_served(host)
        if not is_served and not probes:
            raise RefusalError(
                "origin_refused", "this Host is not served here: see the setting allowed_hosts"
            )
        return host, not is_served

    def _is_served(self, host: str) -> bool:
        """Whether a Host is loopback's or on the list. No attacker's name resolves to one of these."""
        name = _host_name(host)
        if host_is_loopback(name) or name in self._hosts or host in self._hosts:
            return True
        return not self._loopback and not self._hosts


def _host_name(host: str) -> str:
    """A Host header without its port; empty if it is none."""
    match = _HOST.fullmatch(host)
    return match[1] if match else ""


def _check_site(scope: Scope, found: Checked) -> None:
    """Refuse what a page elsewhere makes a browser send without an Origin: images, scripts, frames, forms.

    A link may lead to a page. Browsers do not say where a request comes from over plain http to other
    machines: there only a token helps.
    """
    if all(site in (b"same-origin", b"none") for site in found[_SITE]):
        return
    path, navigates = scope["raw_path"], found[b"sec-fetch-mode"] == [b"navigate"]
    is_page = path in _PAGES or path.startswith(_ERROR_PAGES)
    if (
        is_page
        and navigates
        and found[b"sec-fetch-dest"] == [b"document"]
        and scope["method"] in _SAFE_METHODS
    ):
        return
    raise RefusalError(
        "origin_refused", "pages of other sites may not call or embed this: see the setting allowed_origins"
    )
