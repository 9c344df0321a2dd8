"""Cursors that name their stream's generation: a reader learns when another stream has the name by now.

Knows: what asks for them; that older gateways refuse to be asked. Must never know: how a call is sent.
"""

from dataclasses import replace
from typing import Final, TypeVar

from weir._http import Call
from weir.errors import ApiError, NoAnswerError

T = TypeVar("T")
# Asks for them, in a query.
WITH_GENERATION: Final = {"cursor": "generation"}
# Reasons of gaps after which what exists is still of the stream that was read.
STILL_THE_STREAM: Final = frozenset((None, "trimmed", "failover", "ahead"))


class Cursors:
    """What one client asks of its gateway: cursors with a generation, until that is refused."""

    def __init__(self) -> None:
        self._is_asking = True

    def apply(self, call: Call[T]) -> Call[T]:
        """The call as its gateway understands it."""
        if self._is_asking or "cursor" not in call.query:
            return call
        query = {name: value for name, value in call.query.items() if name != "cursor"}
        headers = dict(call.headers)
        if isinstance(after := query.get("after"), str):
            query["after"] = bare(after)
        if (last := headers.get("last-event-id")) is not None:
            headers["last-event-id"] = bare(last)
        return replace(call, query=query, headers=headers)

    def note(self, error: ApiError | NoAnswerError, sent: Call[T]) -> bool:
        """Whether the gateway does not know them, and refused the call for that; it is asked no more."""
        is_unknown = (
            isinstance(error, ApiError) and error.code == "unknown_parameter" and "cursor" in sent.query
        )
        if is_unknown:
            self._is_asking = False
        return is_unknown


def bare(cursor: str) -> str:
    """A cursor of one stream (`<id>.<generation>`) or of several (`<mark>.<cursor>~<cursor>`), without
    generations.
    """
    if "~" not in cursor:
        return cursor.partition(".")[0]
    mark, dot, rest = cursor.partition(".")
    return mark + dot + "~".join(one.partition(".")[0] for one in rest.split("~"))
