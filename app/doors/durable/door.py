"""The operations of Durable Streams: which method does what, under which right, at the paths of all streams.

Knows: how the name of a stream stands in a path, what every answer carries. Must never know: what is done.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast

from app import names
from app.auth import Action
from app.doors.durable import reading, writing
from app.doors.durable.headers import PREFIX, SAFE, asks_for_events
from app.errors import RefusalError
from app.http.asks import Ask, Result
from app.http.models import ResponseModel
from app.http.operations.binder import Binder
from app.http.operations.operation import Operation
from app.http.operations.options import Options
from app.http.request_bodies import BodyReading
from app.http.requests import TICKET, NeedsTaskError, Request
from app.http.responses import Header, Response
from engine import EngineError, ids

_PATH: Final = PREFIX + "{stream:path}"
# Names that the protocol keeps for itself.
_RESERVED: Final = "__ds"
# Names that were found to be some.
_REMEMBERED_MAX: Final = 4_096
# Facts of a refusal, and the headers that say them.
_FACTS: Final = {
    "epoch": b"producer-epoch",
    "expected": b"producer-expected-seq",
    "received": b"producer-received-seq",
}


def _endpoint() -> Response:
    """Take part in Durable Streams."""
    raise AssertionError("the operation serves it itself")


class DurableOperation(Operation):
    """One method of the paths of streams. It is in no document: the protocol describes it. `read` says how
    its body is read, for `serve`.
    """

    def __init__(
        self,
        method: str,
        rule: Action,
        serve: Callable[[Request, str, Any], Ask],
        read: Callable[[Request, str], BodyReading[Any]] | None = None,
    ) -> None:
        super().__init__(method, _PATH, rule, _endpoint, "durable", Options(hidden=True))
        # Parameters of others are ignored, as the protocol has it.
        self.binder = Binder(_endpoint, frozenset(), lenient=True)
        # For the audit log.
        self.operation_id = f"{serve.__name__}Durable"
        self._serve = serve
        self._read = read

    def form(self, headers: Mapping[bytes, bytes]) -> None:
        """None: each looks at its head itself."""

    def takes_ticket(self, query: bytes) -> bool:
        """Whether a query like this names its caller: events are a form of GET."""
        return TICKET in query and self._asks_for_events(query)

    def begin(self, request: Request, body: bytes) -> Result:
        """As any other; events need a task."""
        if self._asks_for_events(request.plan.query):
            raise NeedsTaskError
        return super().begin(request, body)

    def _begin(self, request: Request, body: bytes) -> Result:
        """What the stream that the path names is to do. Nothing is bound."""
        stream = _name(request)
        return self._serve(
            request, stream, self._read and self._read(request, stream).read_now(request, body)
        )

    def finish(self, request: Request, result: Response | ResponseModel) -> Response:
        """The answer, with what every one of this protocol carries."""
        assert isinstance(result, Response), "none has a model"
        result.raw_headers.append(SAFE)
        return super().finish(request, result)

    async def handler(self, request: Request) -> Response:
        """The same, waiting where that is needed, and as events."""
        stream = _name(request)
        if self._asks_for_events(request.query):
            response = await reading.follow(request, stream)
        else:
            body = self._read and await self._read(request, stream).receive(request)
            response = cast("Response", await request.settle(self._serve(request, stream, body)))
        response.raw_headers.append(SAFE)
        return response

    def _asks_for_events(self, text: bytes) -> bool:
        return self.method == "GET" and asks_for_events(text)

    def _tickets(self, request: Request) -> Sequence[str]:
        return request.query_tickets if self.takes_ticket(request.query) else ()

    def _refused(self, request: Request, error: Exception) -> Response:
        response = super()._refused(request, error)
        response.raw_headers += [SAFE, *_facts(error)]
        return response


def _facts(error: Exception) -> list[Header]:
    """What a refusal says to programs that read headers."""
    members = error.members if isinstance(error, EngineError) else {}
    facts = [(header, str(members[name]).encode()) for name, header in _FACTS.items() if name in members]
    last_id, generation = ids.parse(str(members.get("last_id", ""))), members.get("generation")
    if last_id is not None and generation is not None:
        facts.append(reading.next_offset(last_id, str(generation)))
    is_closed = isinstance(error, EngineError) and error.code == "stream_closed"
    return [*facts, reading.CLOSED] if is_closed else facts


def _name(request: Request) -> str:
    if b"%2f" in request.scope.get("raw_path", b"").lower():
        # Rules of proxies about paths would not see which stream it is.
        raise RefusalError("invalid_name", "in the path of a stream a slash is written as it is, not as %2F")
    return _checked(request.names["stream"])


@lru_cache(_REMEMBERED_MAX)
def _checked(name: str) -> str:
    if name.partition("/")[0] == _RESERVED:
        raise RefusalError("no_route", f"{_RESERVED} is no stream: the protocol keeps this name")
    return names.check_text(name, "stream name")


OPERATIONS: Final[Sequence[Operation]] = [
    DurableOperation("GET", Action.READ, reading.read),
    DurableOperation("HEAD", Action.READ, reading.head),
    DurableOperation("PUT", Action.WRITE, writing.create, writing.read_first),
    DurableOperation("POST", Action.WRITE, writing.append, writing.read_appended),
    DurableOperation("DELETE", Action.MANAGE, writing.delete),
]
