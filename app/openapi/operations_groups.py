"""What there is to say of the operations on groups, consumers and pending entries.

Knows: their parameters, bodies, answers and refusals. Must never know: how anything is served.
"""

from collections.abc import Mapping
from typing import Final

from app.openapi import schemas_groups as shapes
from app.openapi.operation import WRITES, Operation

_NO_GROUP: Final = ("no_stream", "no_group")
_IDS: Final = ("malformed_id", *_NO_GROUP)
_CREATED: Final = {201: "Made"}
_WAITS: Final = {"Prefer": f"`wait=<seconds>`; {WRITES['Prefer']}"}

OPERATIONS: Final[Mapping[str, Operation]] = {
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
