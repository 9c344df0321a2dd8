"""Heads that were seen before: their plans, found by their bytes.

Knows: which lines of a head pass with each request, and that the parser has read the others once.
Must never know: what a plan says, connections.

A head is kept when the parser has read it and it had a plan that lasts. An equal head, but for the lines that
pass, is then looked up instead of being parsed. So are its headers behind another plain line, as that of a
cursor that moves: then the plan alone is made anew. Any other head is read by the parser.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from app.auth.certificates import ClientCertificate
from app.auth.stamp import Stamp
from app.doors.http.request_parser import RequestHead
from app.http.plan import PASSING, HeadPlan
from app.http.responses import CERTIFICATE_EXTENSION, Header, Scope

T = TypeVar("T")

# A few megabytes of heads are remembered at most.
_KEPT_MAX: Final = 1_024
_KEPT_OF_ONE_MAX: Final = 16
_HEAD_BYTES_MAX: Final = 2_048
_DIGITS_MAX: Final = 9

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length"
# A line that passes: its name, and its value if that is plain.
_PASSING: Final = re.compile(
    rb"\r\n(%b):[ \t]*((?:[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)?)[ \t]*(?=\r\n|\Z)"
    % b"|".join(map(re.escape, sorted(PASSING))),
    re.IGNORECASE,
)
_METHODS: Final = frozenset({b"GET", b"POST", b"PUT", b"PATCH", b"DELETE"})
# They say how bytes go on, or what comes behind this request.
_FRAMING: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade"})
_CONNECTION: Final = b"connection"
_KEPT_ALIVE: Final = b"keep-alive"
# A line that can be read in one way only.
_LINE: Final = re.compile(
    rb"(GET|POST|PUT|PATCH|DELETE) (/[A-Za-z0-9._~%/-]+)(?:\?([A-Za-z0-9._~%+=&$(),:*-]*))? HTTP/1\.1"
)
# Lines that go on in the next one, and ends of lines that some take for one.
_ODD: Final = re.compile(rb"\r\n[ \t]|(?<!\r)\n|\r(?!\n)|\0")


class Seen(NamedTuple):
    """A request whose head was seen before. Its body is at [`body_at`, `end`), counted from its beginning;
    `passing` are its headers that pass, but for the length.
    """

    plan: HeadPlan
    passing: Mapping[bytes, bytes]
    body_at: int
    end: int


_NOTHING: Final[Mapping[bytes, bytes]] = {}


class Heads:
    """Those of one application, or of one connection with a certificate."""

    def __init__(
        self,
        stamp: Stamp,
        head_bytes_max: int,
        make: Callable[[Scope], HeadPlan],
        certificate: ClientCertificate | None,
    ) -> None:
        # Of one connection few: there may be many of them.
        self._kept_max = _KEPT_MAX if certificate is None else _KEPT_OF_ONE_MAX
        self._stamp = stamp
        self._make = make
        self._extensions = {CERTIFICATE_EXTENSION: certificate}
        self._head_max = min(_HEAD_BYTES_MAX, head_bytes_max)
        self._plans: dict[bytes, HeadPlan] = {}
        # The headers that stand behind their lines, without those that pass; and further heads with such
        # headers that came once.
        self._headers: dict[bytes, Sequence[Header]] = {}
        self._once: set[bytes] = set()
        # Whole heads, with the length of their body.
        self._seen: dict[bytes, Seen] = {}

    def find(self, received: bytes, at: int) -> Seen | None:
        """The request that begins there, whose body may be still to come; None if it is the parser's."""
        end = received.find(_END, at, at + self._head_max)
        if end < 0:
            return None
        whole = received[at:end]
        seen = self._seen.get(whole)
        return seen if seen is not None and seen.plan.stamp == self._stamp.value else self._find(whole)

    def _find(self, whole: bytes) -> Seen | None:
        pieces = _PASSING.split(whole)
        key = b"".join(pieces[::3])
        plan = self._plans.get(key)
        if plan is None or plan.stamp != self._stamp.value:
            plan = self._plan(key)
        if plan is None:
            return None
        names = [name.lower() for name in pieces[1::3]]
        passing = dict(zip(names, pieces[2::3], strict=True))
        length = passing.pop(_LENGTH, b"0")
        is_single = len(passing) + (_LENGTH in names) == len(names)
        if not is_single or not all(passing.values()) or not length.isdigit() or len(length) > _DIGITS_MAX:
            return None
        body_at = len(whole) + len(_END)
        seen = Seen(plan, passing or _NOTHING, body_at, body_at + int(length))
        if not passing and key in self._plans:
            self._keep(self._seen, whole, seen)
        return seen

    def _plan(self, key: bytes) -> HeadPlan | None:
        """The plan of a head whose headers the parser has read behind another line."""
        line, _, rest = key.partition(b"\r\n")
        headers, match = self._headers.get(rest), _LINE.fullmatch(line)
        if headers is None or match is None:
            return None
        plan = self._make(
            {
                "type": "http",
                "http_version": "1.1",
                "method": match[1].decode(),
                "raw_path": match[2],
                "query_string": match[3] or b"",
                "headers": headers,
                "extensions": self._extensions,
            }
        )
        if not plan.is_lasting:
            return None
        if key in self._once:
            self._keep(self._plans, key, plan)
        else:
            # Most cursors are sent once.
            if len(self._once) >= self._kept_max:
                self._once.clear()
            self._once.add(key)
        return plan

    def whole_of(self, received: bytes) -> bytes | None:
        """The head with which this begins, if all of it is there."""
        end = received.find(_END, 0, self._head_max)
        return None if end < 0 else received[:end]

    def keep(self, whole: bytes, head: RequestHead, plan: HeadPlan) -> None:
        """Keep the plan of this head, which the parser has read so, if equal bytes can say nothing else."""
        line = b"%b %b HTTP/1.1\r\n" % (head.method, head.target)
        names = {name for name, _ in head.headers}
        if (
            not plan.is_lasting
            or head.method not in _METHODS
            or not head.keeps_alive
            or not _FRAMING.isdisjoint(names)
            or plan.headers.get(_CONNECTION, _KEPT_ALIVE).strip().lower() != _KEPT_ALIVE
            or not whole.startswith(line)
            or whole.count(b"\r\n") != len(head.headers)
            or _ODD.search(whole)
        ):
            return
        key = b"".join(_PASSING.split(whole)[::3])
        if key.count(b"\r\n") != len(plan.headers):
            # A value that passes is not plain, and stands in the key.
            return
        self._keep(self._plans, key, plan)
        self._keep(self._headers, key.partition(b"\r\n")[2], [*plan.headers.items()])

    def _keep(self, kept: dict[bytes, T], key: bytes, value: T) -> None:
        """Keep it in the place of the oldest, where there is no room: that is made anew if it still comes."""
        if len(kept) >= self._kept_max:
            del kept[next(iter(kept))]
        kept[key] = value
