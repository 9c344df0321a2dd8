"""Calls about groups: Redis has one sentence for a missing group and a missing stream, these have two codes.
And pages of lists by name.

Knows: how to distinguish the two, and which rows are on a page.
Must never know: what a request does with a group.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, NoReturn, TypeVar

from fastapi import Query

from app.auth import ANY_CONSUMER, Action, Resource
from app.http.asks import Ask, Result
from app.http.models import Whole
from app.http.requests import Request
from engine import EngineError, ids
from engine.commands.base import Command
from engine.commands.types import Exists
from engine.replies import ConsumerInfo, GroupInfo, Outcomes, Reply


def look(request: Request, command: Command, answer: Callable[[Reply], Result], *, lasts: bool = True) -> Ask:
    """Ask a command that changes nothing. Refused with `no_stream` where the stream is missing, with
    `no_group` where the group is.
    """
    return Ask([command], answer, lasts=lasts, refused=partial(_refused, request.names["stream"]))


def change(request: Request, answer: Callable[..., Result], *commands: Command, joins: bool = False) -> Ask:
    """Ask commands that change something, as one turn; the same refusals. It is on disk before the answer
    where Prefer says so.
    """
    refused = partial(_refused, request.names["stream"])
    return Ask(commands, answer, request.preferences.synced, joins, refused=refused)


def _refused(stream: str, refusal: EngineError) -> Ask:
    if refusal.code != "no_group":
        raise refusal

    def tell(exists: Reply) -> NoReturn:
        raise refusal if exists else _missing(stream, refusal)

    return Ask([Exists(streams=[stream])], tell)


def require_entries(request: Request, stream: str, group: str | None = None) -> None:
    """Raise `forbidden` unless the caller may read a stream's entries, which are carried elsewhere, in the
    group at least.
    """
    if not request.principal.may(Action.CONSUME, Resource(stream, group, ANY_CONSUMER)):
        request.require(Action.READ, stream)


def _missing(stream: str, refusal: EngineError) -> EngineError:
    """The refusal as it is for programs; Redis's sentence goes along."""
    return EngineError("no_stream", refusal.redis, f"there is no stream {stream!r}", stream=stream)


def outcomes(reply: Reply, named: Sequence[int], done: str) -> tuple[int, dict[str, Any]]:
    """With how many of the entries it was done, and the result for each; both by the word for that."""
    assert isinstance(reply, Outcomes), "it answers what became of each"
    words = dict.fromkeys(reply.done, done) | dict.fromkeys(reply.not_held, "not_held")
    return len(reply.done), {ids.format(one): words.get(one, "absent") for one in named}


T = TypeVar("T", ConsumerInfo, GroupInfo)

After = Annotated[str | None, Query(description="the name to go on after, an answer's `next`")]
Limit = Annotated[
    Annotated[int, Whole(1, "count_max")] | None,
    Query(description="maximum number of rows"),
]


def page_of(rows: Sequence[T], after: str | None, limit: int) -> tuple[Sequence[T], str | None]:
    """Rows by name after `after`, at most `limit`; and the name to go on after, None at the end."""
    found = rows if after is None else [one for one in rows if one.name > after]
    page = found[:limit]
    return page, page[-1].name if len(found) > len(page) else None
