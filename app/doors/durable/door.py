"""The operations of Durable Streams: which method does what, under which right, at the paths of all streams.

Knows: how the name of a stream stands in a path, what every answer carries. Must never know: what is done.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from app import names
from app.auth import Action
from app.doors.durable import reading, writing
from app.doors.durable.appending import appends
from app.doors.durable.headers import PREFIX, SAFE, asks_for_events
from app.errors import RefusalError
from app.http.appends import Appends
from app.http.operations.operation import Operation
from app.http.operations.options import Options
from app.http.prepared import Verdict
from app.http.requests import Request
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
        options = Options(hidden=True, fast=True, coalesced=serve is writing.append)
        super().__init__(method, _PATH, rule, _endpoint, "durable", options)
        # For the audit log.
        self.operation_id = f"{serve.__name__}Durable"
        self._serve_stream = serve

    async def handler(self, request: Request, verdict: Verdict | None = None) -> Response:
        """Serve the stream that the path names. No verdict is of its requests: each looks at its head."""
        response = await self._serve_stream(request, _name(request))
        response.raw_headers.append(SAFE)
        return response

    def _tickets(self, request: Request) -> Sequence[str]:
        """The same: events are a form of GET."""
        tickets = request.query_tickets
        return tickets if tickets and self.method == "GET" and asks_for_events(request.query) else ()

    def coalesces(self, names: Mapping[str, str], headers: Mapping[bytes, bytes]) -> bool:
        """Whether a request just appends."""
        return self.appends(names, headers) is not None

    def appends(self, names: Mapping[str, str], headers: Mapping[bytes, bytes]) -> Appends | None:
        """What it has in common with others that do."""
        try:
            return appends(_checked(names["stream"]), headers)
        except (RefusalError, EngineError):
            return None

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
    DurableOperation("PUT", Action.WRITE, writing.create),
    DurableOperation("POST", Action.WRITE, writing.append),
    DurableOperation("DELETE", Action.MANAGE, writing.delete),
]
