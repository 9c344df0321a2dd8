"""What there is to say of the operations on groups, consumers and pending entries.

Knows: their parameters, bodies, answers and refusals. Must never know: how anything is served.
"""

from collections.abc import Mapping
from typing import Final

from app.openapi import schemas
from app.openapi import schemas_groups as shapes
from app.openapi.operation import WRITES, Json, Operation, bound, number, text
from app.openapi.schemas import NAME_CHARACTERS, NOT_DOTS

_PAGE: Final[Mapping[str, Json]] = {
    "after": text("the name to go on after, an answer's `next`"),
    "limit": number("at most so many", least=1, maximum=10_000, default=10_000),
}
# No defaults: any parameter that is sent asks for the list instead of the summary.
_PENDING: Final[Mapping[str, Json]] = {
    "start": bound("`-` (the default), an ID, or `(` and an ID that is not meant"),
    "end": bound("`+` (the default), an ID, or `(` and an ID that is not meant"),
    "count": number("at most so many entries, 100 by default", least=1, maximum=10_000),
    "consumer": text(
        "those of this consumer alone", minLength=1, maxLength=512, pattern=f"^{NOT_DOTS}{NAME_CHARACTERS}+$"
    ),
    "min_idle_ms": number("those idle for so many milliseconds alone", maximum=(1 << 53) - 1),
}
_NO_GROUP: Final = ("no_stream", "no_group")
_IDS: Final = ("malformed_id", *_NO_GROUP)
_CREATED: Final = {201: "Made"}
_WAITS: Final = {"Prefer": f"`wait=<seconds>`; {WRITES['Prefer']}"}

OPERATIONS: Final[Mapping[str, Operation]] = {
    "listConsumers": Operation(tag="groups", answer=shapes.ConsumerPage, query=_PAGE, refusals=_NO_GROUP),
    "getConsumer": Operation(tag="groups", answer=shapes.Consumer, refusals=(*_NO_GROUP, "no_consumer")),
    "createConsumer": Operation(
        tag="groups",
        also=_CREATED,
        answer=shapes.Consumer,
        headers=WRITES,
        refusals=_NO_GROUP,
        writes=True,
    ),
    "deleteConsumer": Operation(
        tag="groups",
        answer=shapes.RemovedConsumer,
        query={
            "pending": text(
                "what becomes of the entries it holds: `refuse`, `drop` or `transfer:<consumer>`",
                default="refuse",
                pattern=f"^(refuse|drop|transfer:{NOT_DOTS}{NAME_CHARACTERS}{{1,512}})$",
            )
        },
        headers=WRITES,
        refusals=(*_NO_GROUP, "no_consumer", "consumer_has_pending"),
        writes=True,
    ),
    "readGroup": Operation(
        tag="groups",
        answer=schemas.Deliveries,
        body=schemas.GroupRead,
        body_required=False,
        headers=_WAITS,
        refusals=("malformed_id", "no_group", "too_many_waiters"),
        writes=True,
        description=(
            "New entries go to one consumer of the group each, and are pending until they are acknowledged. "
            "With `after` the consumer reads again what it holds: begin with `0`, go on with `next`. "
            "With `claim_min_idle_ms` it first gets what was given back or held for so long."
        ),
    ),
    "redriveDeadLetters": Operation(
        tag="groups",
        answer=shapes.Redriven,
        body=shapes.Redrive,
        body_required=False,
        headers={
            "Idempotency-Key": "a repeated request with the same key and body answers as the first time",
            **WRITES,
        },
        refusals=(*_IDS, "stream_exhausted", "idempotency_mismatch"),
        writes=True,
        description=(
            "Each copy is a new entry with the fields of the one that died, and `weir-redriven-from`, the "
            "ID of that one; its delivery count begins at 0, and every group of the stream reads it. The "
            "copies are appended and the dead letters deleted at once, so that none is lost or doubled. A "
            "call takes at most 100 dead letters and 4 MiB: where `next` is not null, call again with "
            "`filter.start` `(<next>`. Dead letters of other groups and streams are passed over."
        ),
    ),
}
