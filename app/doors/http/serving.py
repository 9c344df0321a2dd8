"""What the connections of one application share: how heads are judged, how answers begin.

Knows: the order of an answer's lines. Must never know: sockets, what is asked.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, Protocol

from app.doors.http.answer_heads import (
    CLOSE,
    HEADER_LINE,
    Header,
    ServerHeaders,
    header_lines,
    status_line,
)
from app.doors.http.heads import Heads
from app.gateway import Gateway
from app.http.client_address import TrustedProxies
from app.http.middleware.request_id import SAFETY, RequestIds
from app.http.operations.plans import Planner
from app.http.responses import Response

_SAFETY_NAMES: Final = frozenset(name for name, _ in SAFETY)
# The lines of those headers that an answer has not, by those that it has.
_SAFE_LINES: Final[dict[frozenset[bytes], bytes]] = {}
_NAME: Final = itemgetter(0)
_GOODBYE: Final = header_lines([CLOSE])


class Application(Protocol):
    """The application that is served, as `app.main` has it."""

    gateway: Gateway
    plans: Planner
    request_ids: RequestIds
    proxies: TrustedProxies | None


class Serving:
    """That of one application."""

    def __init__(self, app: Application, state: Mapping[str, Any]) -> None:
        # The state that requests begin with.
        self.state = state
        self.gateway = app.gateway
        self.plans = app.plans
        self.request_ids = app.request_ids
        self.proxies = app.proxies
        self.monotonic = app.gateway.clock.monotonic
        self.new_id, self.id_of = app.request_ids.new_id, app.request_ids.id_of
        self.heads = self.new_heads(state)
        # How answers begin, by status; made of the server's headers, which change with the date.
        self._headers = ServerHeaders(app.gateway.clock)
        self._starts: dict[int, bytes] = {}
        self._defaults: Sequence[Header] = ()

    def new_heads(self, state: Mapping[str, Any]) -> Heads:
        """Heads of requests that begin with this state: a client's certificate is in no head."""
        gateway = self.gateway
        return Heads(gateway.stamp, gateway.settings.head_bytes_max, self.plans.make, state)

    def head(self, response: Response, request_id: str, *, is_last: bool) -> bytes:
        """The head of an answer; after the last one the connection closes."""
        defaults = self._headers.current or self._headers.now()
        if defaults is not self._defaults:
            self._defaults, self._starts = defaults, {}
        status, headers = response.status_code, response.raw_headers
        if status not in self._starts:
            self._starts[status] = status_line(status) + header_lines(defaults)
        given = _SAFETY_NAMES.intersection(map(_NAME, headers))
        if given not in _SAFE_LINES:
            lines = header_lines([header for header in SAFETY if header[0] not in given])
            _SAFE_LINES[given] = lines
        return b"%b%bweir-request-id: %b\r\n%b%b\r\n" % (
            self._starts[status],
            b"".join(map(HEADER_LINE, headers)),
            request_id.encode(),
            _SAFE_LINES[given],
            _GOODBYE if is_last and CLOSE not in headers else b"",
        )
