"""What is known of a request by its head alone.

Knows: what there is to know. Must never know: how it is found, see `app.http.operations.plans`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from app.auth import Principal
from app.errors import RefusalError
from engine import EngineError

Coding = Literal["zstd", "gzip"]

# Headers that ask for something of one request alone.
CONDITIONS: Final = frozenset({b"idempotency-key", b"if-match", b"producer-seq", b"stream-seq"})
# All that differ from request to request: no plan has them.
PASSING: Final = CONDITIONS | {
    *(b"content-length", b"traceparent", b"tracestate", b"baggage", b"weir-request-id"),
}


class OriginVerdict(NamedTuple):
    """What was found of a request by its Host and Origin. `exposed_to` is another origin, whose page may read
    the answer; a preflight is answered without an operation. A stranger came under a Host that is not
    served here, as probes may, and learns no more than whether the gateway is well.
    """

    exposed_to: bytes | None = None
    is_preflight: bool = False
    is_stranger: bool = False


NO_VERDICT: Final = OriginVerdict()


class HeadPlan:
    """What is known of a request by its head. Without an `operation` its answer is `refusal`, or has no more
    than the headers that it `allows`. `principal` and `arguments` are None where they have to be found with
    each request: the caller is not known yet, or a header that passes is an argument.
    """

    __slots__ = (
        "allows",
        "arguments",
        "ask",
        "coding",
        "form",
        "headers",
        "is_lasting",
        "method",
        "names",
        "operation",
        "origin",
        "path",
        "principal",
        "query",
        "raw",
        "reading",
        "refusal",
        "stamp",
    )

    def __init__(self, method: str, path: bytes, query: bytes, headers: Mapping[bytes, bytes]) -> None:
        self.method = method
        # As it was sent.
        self.path = path
        self.query = query
        # By their lower-case names.
        self.headers = headers
        # An `Operation`, which is above this.
        self.operation: Any = None
        self.names: Mapping[str, str] = {}
        # What OPTIONS is answered.
        self.allows: Sequence[tuple[bytes, bytes]] = ()
        self.refusal: RefusalError | EngineError | None = None
        self.origin = NO_VERDICT
        # The one that its client likes best.
        self.coding: Coding | None = None
        self.principal: Principal | None = None
        self.arguments: Mapping[str, Any] | None = None
        # What answers in the form that Accept asks for, if that is another one.
        self.form: Callable[[Any], Awaitable[Any]] | None = None
        # Which argument is its body, and how that is read: a name and a `BodyReading`.
        self.reading: Any = None
        # What its operation asks, where that follows from the head alone: an `Ask`.
        self.ask: Any = None
        # What it asks where its body may be read with those of others: an `Ask` too.
        self.raw: Any = None
        # It may be kept for equal heads, while the stamp is the same.
        self.is_lasting = False
        self.stamp = -1
