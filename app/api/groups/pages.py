"""Pages of lists by name: what asks for one, and which rows are on it."""

from collections.abc import Sequence
from typing import Annotated, Protocol, TypeVar

from fastapi import Query

from app.http.models import Whole


class _Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=_Named)

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
