"""What there is to say of the operations on streams and entries.

Knows: their parameters, bodies, answers and refusals. Must never know: how anything is served.
"""

from collections.abc import Mapping
from typing import Final

from app.http.media import COLUMNS
from app.openapi import schemas, schemas_streams
from app.openapi.operation import (
    DURABILITY,
    EVENTS,
    WRITES,
    Json,
    Operation,
    bound,
    cursor,
    number,
    switch,
    text,
    word,
)
from app.openapi.operation import entry_id as an_id

_REFS: Final = word(
    "what becomes of references to them in pending lists: they stay, go too, or forbid the removal",
    ("keep", "delete", "acked"),
)
# Without defaults, where one that is sent does not go with others: generated clients send defaults.
_RANGE: Final[Mapping[str, Json]] = {
    "start": bound("`-` (the default), an ID, or `(` and an ID that is not meant"),
    "end": bound("`+` (the default), an ID, or `(` and an ID that is not meant"),
    "since": text("`start` as a time (RFC 3339)", format="date-time"),
    "until": text("`end` as a time (RFC 3339)", format="date-time"),
    "reverse": switch("from the end to the start"),
    "count": number("at most so many entries, 100 by default", least=1, maximum=10_000),
    "after": cursor("a cursor: an ID, `0` or `$` (what comes from now on)"),
    "wait": number("milliseconds to wait for entries after the cursor", maximum=60_000),
    "on_gap": word("`fail`: 410 where entries after the cursor were lost", ("report", "fail"), "report"),
    "max_bytes": number("at most so many bytes of entries, but one entry", least=1, maximum=8 << 20),
    "last": number("the newest entries, so many, in order", least=1, maximum=10_000),
    "fields": text("only these fields, names between commas", pattern="^[^,]+(,[^,]+)*$"),
}
_WHERE: Final = {
    "Weir-Next-Id": "where to go on: `after=<next>`, in reverse `end=(<next>`",
    "Weir-More": "whether a limit, not the end, ended the page",
    "Weir-First-Available": "with a gap, with `after` and `end`, on exports and columns: the first entry",
    "Weir-Generation": "with `after` and `end`, on exports and columns: new each time the stream is created",
    "Weir-Removed-Upto": "on columns: a cursor other than 0-0 below it has missed entries",
}
_LINES: Final = {
    "application/x-ndjson": {
        "schema": {
            "type": "string",
            "description": 'one entry a line; a line `{"gap": …}` where entries were removed meanwhile',
        }
    }
}

_COLUMNS: Final = {COLUMNS: {"schema": {"$ref": "#/components/schemas/Columns"}}}


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
    "deleteEntry": Operation(
        tag="entries",
        status=204,
        query={"refs": _REFS},
        headers=WRITES,
        refusals=("malformed_id", "no_stream", "no_entry", "trim_guarded"),
        writes=True,
    ),
    "deleteEntries": Operation(
        tag="entries",
        answer=schemas_streams.Deleted,
        body=schemas_streams.Deletion,
        headers={"Prefer": f"`return=minimal`: without `results`; {DURABILITY}"},
        refusals=("malformed_id", "no_stream"),
        writes=True,
    ),
    "addEntries": Operation(
        tag="entries",
        status=201,
        answer=schemas.Added,
        body=schemas.NewEntry,
        query={
            "nomkstream": switch("refuse where the stream is missing", default=False),
            "maxlen": number("trim to so many entries", maximum=(1 << 63) - 1, format="int64"),
            "minid": an_id("trim entries with smaller IDs"),
            "approx": switch("trim whole nodes only, which costs less; true by default"),
            "limit": number("trim at most so many; 0 is no limit", maximum=(1 << 63) - 1, format="int64"),
            "refs": _REFS,
        },
        headers={
            "If-Match": 'the stream\'s last ID in quotation marks; `"0-0"` for an empty or missing stream',
            "Idempotency-Key": "a repeated request with the same key and body answers as the first time",
            "Prefer": f"`return=minimal`: without `ids`; {DURABILITY}",
        },
        refusals=(
            "malformed_id", "no_stream", "id_not_increasing", "stream_exhausted", "last_id_mismatch",
            "entry_too_large", "too_many_entries", "idempotency_mismatch",
        ),
        writes=True,
    ),
    "readEntries": Operation(
        tag="entries",
        answer=schemas.Page,
        query=_RANGE,
        headers={"Prefer": "`wait=<seconds>`, where the query has no `wait`"},
        answer_headers=_WHERE,
        media={**_LINES, **_COLUMNS, **EVENTS},
        description=(
            "A range (`start`, `end`, or times), what comes after a cursor (`after`, with `wait` for what "
            "is not there yet), or the newest (`last`). With `Accept: application/x-ndjson` a range of any "
            "length, one entry a line, as fast as it is read; its end is fixed when it starts. With "
            "`Accept: text/event-stream` it is `tailStream`. With `Accept: "
            "application/vnd.weir.columns+json` a page of flat lists, for readers of millions of entries: at "
            "most 100000 of them, and 4 MiB unless `max_bytes` says otherwise; docs/bulk.md tells the rest."
        ),
        refusals=("malformed_id", "gap", "too_many_waiters", "not_acceptable"),
    ),
    "getEntry": Operation(
        tag="entries", answer=schemas.Entry, refusals=("malformed_id", "no_entry", "not_acceptable")
    ),
}  # fmt: skip
