"""What the connections of one application share: how heads are judged, how answers begin.

Knows: the order of an answer's lines. Must never know: sockets, what is asked.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, Protocol

from app.doors.http.answer_heads import CLOSE, Header, ServerHeaders, header_lines, status_line
from app.doors.http.heads import Heads
from app.gateway import Gateway
from app.http.client_address import TrustedProxies
from app.http.middleware.request_id import SAFETY, RequestIds
from app.http.operations.plans import Plans
from app.http.responses import Response

_SAFETY: Final = header_lines(SAFETY)
_SAFETY_NAMES: Final = frozenset(name for name, _ in SAFETY)
_NAME: Final = itemgetter(0)
GOODBYE: Final = header_lines([CLOSE])


class Application(Protocol):
    """The application that is served, as `app.main` has it."""

    gateway: Gateway
    plans: Plans
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
        self.new_id = app.request_ids.new_id
        self.heads = self.new_heads(state)
        # How answers begin, by status; made of the server's headers, which change with the date.
        self._headers = ServerHeaders(app.gateway.clock)
        self._starts: dict[int, bytes] = {}
        self._defaults: Sequence[Header] = ()

    def new_heads(self, state: Mapping[str, Any]) -> Heads:
        """Heads of requests that begin with this state: a client's certificate is in no head."""
        gateway = self.gateway
        return Heads(gateway.stamp, gateway.settings.head_bytes_max, self.plans.make, state)

    def id_of(self, passing: Mapping[bytes, bytes]) -> str:
        """The ID of a request with these headers."""
        return self.request_ids.id_of(passing.items())

    def start(self, status: int) -> bytes:
        """The beginning of an answer: its status and the server's headers."""
        defaults = self._headers.current or self._headers.now()
        if defaults is not self._defaults:
            self._defaults, self._starts = defaults, {}
        if status not in self._starts:
            self._starts[status] = status_line(status) + header_lines(defaults)
        return self._starts[status]

    def head(self, response: Response, request_id: str, *, is_last: bool) -> bytes:
        """The head of an answer; after the last one the connection closes."""
        given = _SAFETY_NAMES.intersection(map(_NAME, response.raw_headers))
        return b"%b%bweir-request-id: %b\r\n%b%b\r\n" % (
            self.start(response.status_code),
            header_lines(response.raw_headers),
            request_id.encode(),
            header_lines([header for header in SAFETY if header[0] not in given]) if given else _SAFETY,
            GOODBYE if is_last and CLOSE not in response.raw_headers else b"",
        )


def whole(own: bytes, limits: bytes, request_id: str, goodbye: bytes, body: bytes) -> bytes:
    """An answer. `own` is its beginning with the operation's own headers, `limits` are lines that show its
    caller's rate, `goodbye` is `GOODBYE` or nothing.
    """
    return b"".join(
        (own, limits, b"weir-request-id: %b\r\n" % request_id.encode(), _SAFETY, goodbye, b"\r\n", body)
    )
