"""What there is to say of the operations on streams and entries, on the gateway, and of the command door.

Knows: their parameters, bodies, answers, refusals and examples. Must never know: how anything is served.
"""

from collections.abc import Mapping
from typing import Final

from app import schemas
from app.operation import Json, Operation, number, switch, text, word
from app.operation import entry_id as an_id

_ENCODINGS: Final = {
    "Upstash-Encoding": "`base64`: strings of the answer are base64",
    "Weir-Encoding": "`base64`: strings of arguments and answer are base64",
}
_REFS: Final = word(
    "what becomes of references to them in pending lists: they stay, go too, or forbid the removal",
    ("keep", "delete", "acked"),
    "keep",
)
_RANGE: Final[Mapping[str, Json]] = {
    "start": an_id("`-`, an ID, or `(` and an ID that is not meant", default="-"),
    "end": an_id("`+`, an ID, or `(` and an ID that is not meant", default="+"),
    "since": text("`start` as a time (RFC 3339)", format="date-time"),
    "until": text("`end` as a time (RFC 3339)", format="date-time"),
    "reverse": switch("from the end to the start", default=False),
    "count": number("at most so many entries", least=1, default=100, maximum=10_000),
    "after": an_id("a cursor: an ID, `0` or `$` (what comes from now on)"),
    "wait": number("milliseconds to wait for entries after the cursor", maximum=60_000),
    "on_gap": word("`fail`: 410 where entries after the cursor were lost", ("report", "fail"), "report"),
    "max_bytes": number("at most so many bytes of entries, but one entry", least=1),
}

OPERATIONS: Final[Mapping[str, Operation]] = {
    "getRoot": Operation(tag="gateway", answer=schemas.Links),
    "getVersion": Operation(tag="gateway", answer=schemas.Links),
    "isLive": Operation(tag="gateway", answer=schemas.Health),
    "isReady": Operation(tag="gateway", answer=schemas.Health),
    "runCommand": Operation(tag="commands", headers=_ENCODINGS),
    "runPipeline": Operation(tag="commands", headers=_ENCODINGS),
    "runTransaction": Operation(tag="commands", headers=_ENCODINGS),
    "addEntries": Operation(
        tag="entries",
        status=201,
        answer=schemas.Added,
        body=schemas.NewEntry,
        query={
            "nomkstream": switch("refuse where the stream is missing", default=False),
            "maxlen": number("trim to so many entries"),
            "minid": an_id("trim entries with smaller IDs"),
            "approx": switch("trim whole nodes only, which costs less", default=True),
            "limit": number("trim at most so many; 0 is no limit"),
            "refs": _REFS,
        },
        headers={
            "If-Match": 'the stream\'s last ID in quotation marks; `"0-0"` for an empty or missing stream',
            "Idempotency-Key": "a repeated request with the same key and body answers as the first time",
            "Prefer": "`return=minimal`: without `ids`; `durability=fsync`: answer when it is on disk",
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
        refusals=("malformed_id", "gap", "too_many_waiters", "not_acceptable"),
    ),
    "getEntry": Operation(
        tag="entries", answer=schemas.Entry, refusals=("malformed_id", "no_entry", "not_acceptable")
    ),
}  # fmt: skip
