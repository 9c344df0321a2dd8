"""What there is to say of the operations on streams and entries.

Knows: their parameters, bodies, answers and refusals. Must never know: how anything is served.
"""

from collections.abc import Mapping
from typing import Final

from app.openapi import schemas_streams
from app.openapi.operation import (
    WRITES,
    Operation,
    number,
    switch,
    text,
)

OPERATIONS: Final[Mapping[str, Operation]] = {
    "listStreams": Operation(
        tag="streams",
        answer=schemas_streams.StreamPage,
        query={
            "prefix": text("only names that begin so"),
            "after": text("names above this one: the `next` of the page before"),
            "limit": number("at most so many", least=1, default=100, maximum=1_000),
        },
        refusals=("not_acceptable",),
    ),
    "getStream": Operation(
        tag="streams",
        answer=schemas_streams.StreamDetails,
        query={
            "full": switch("with entries, groups, consumers and what is pending", default=False),
            "count": number(
                "with `full`: at most so many entries, and of each pending list; 10 by default",
                least=1,
                maximum=1_000,
            ),
        },
        refusals=("no_stream", "not_acceptable"),
    ),
    "putStream": Operation(
        tag="streams",
        status=201,
        also={200: "It was there; its retention is set"},
        answer=schemas_streams.Stream,
        body=schemas_streams.NewStream,
        body_required=False,
        headers=WRITES,
        writes=True,
    ),
    "updateStream": Operation(
        tag="streams",
        answer=schemas_streams.Stream,
        body=schemas_streams.StreamChanges,
        body_required=False,
        headers=WRITES,
        refusals=("malformed_id", "no_stream"),
        writes=True,
    ),
    "deleteStream": Operation(
        tag="streams", status=204, headers=WRITES, refusals=("no_stream",), writes=True
    ),
    "setLastId": Operation(
        tag="streams",
        answer=schemas_streams.Stream,
        body=schemas_streams.NewLastId,
        headers=WRITES,
        refusals=("malformed_id", "no_stream", "last_id_too_small"),
        writes=True,
    ),
    "trimStream": Operation(
        tag="streams",
        answer=schemas_streams.Trimmed,
        body=schemas_streams.Trimming,
        headers=WRITES,
        refusals=("malformed_id", "no_stream", "trim_guarded"),
        writes=True,
    ),
}  # fmt: skip
