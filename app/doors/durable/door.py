"""The operations of Durable Streams: which method does what, under which right, at the paths of all streams.

Knows: how the name of a stream stands in a path, what every answer carries. Must never know: what is done.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from pydantic import BaseModel

from app import names
from app.auth import Action
from app.doors.durable import reading, writing
from app.doors.durable.headers import PREFIX, SAFE, asks_for_events
from app.errors import RefusalError
from app.http.asks import Result
from app.http.operations.operation import Operation
from app.http.operations.options import Options
from app.http.requests import TICKET, Request
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

Serve = Callable[[Request, str], Awaitable[Response]]


async def _endpoint() -> Response:
    """Take part in Durable Streams."""
    raise AssertionError("the operation has a handler of its own")


class DurableOperation(Operation):
    """One method of the paths of streams. It is in no document: the protocol describes it."""

    def __init__(self, method: str, rule: Action, serve: Serve) -> None:
        super().__init__(method, _PATH, rule, _endpoint, "durable", Options(hidden=True))
        # For the audit log.
        self.operation_id = f"{serve.__name__}Durable"
        self._serve_stream = serve

    def form(self, headers: Mapping[bytes, bytes]) -> None:
        """None: each looks at its head itself."""

    def takes_ticket(self, query: bytes) -> bool:
        """Whether a query like this names its caller: events are a form of GET."""
        return TICKET in query and self.method == "GET" and asks_for_events(query)

    async def handler(self, request: Request) -> Response:
        """Serve the stream that the path names."""
        response = await self._serve_stream(request, _name(request))
        response.raw_headers.append(SAFE)
        return response

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


class AppendOperation(DurableOperation):
    """POST, which needs no task."""

    def __init__(self) -> None:
        super().__init__("POST", Action.WRITE, writing.append)
        self.is_plain = True

    def begin(self, request: Request, body: bytes) -> Result:
        """Append, or ask for it: no form is offered, and nothing is bound."""
        self.admit(request)
        stream = _name(request)
        return writing.appended(request, stream, request.read_now(writing.reading(request, stream), body))

    def finish(self, request: Request, result: Response | BaseModel) -> Response:
        """The answer, with what every one of this protocol carries."""
        assert isinstance(result, Response), "an append has no model"
        result.raw_headers.append(SAFE)
        return super().finish(request, result)


OPERATIONS: Final[Sequence[Operation]] = [
    DurableOperation("GET", Action.READ, reading.read),
    DurableOperation("HEAD", Action.READ, reading.head),
    DurableOperation("PUT", Action.WRITE, writing.create),
    AppendOperation(),
    DurableOperation("DELETE", Action.MANAGE, writing.delete),
]
