"""What there is to say of the calls for bulk readers and writers.

Knows: their parameters, bodies, answers, refusals and examples. Must never know: how anything is served.
"""

from collections.abc import Mapping
from typing import Final

from app import schemas_bulk
from app.operation import Operation

OPERATIONS: Final[Mapping[str, Operation]] = {
    "plan": Operation(
        tag="many",
        answer=schemas_bulk.Plans,
        body=schemas_bulk.PlanWanted,
        headers={"Prefer": "`wait=<seconds>`, where the body has no `wait`"},
        description=(
            "What there is behind a cursor in each stream, counted without reading it, and how far to read "
            "next. With `durable_only` a range ends where a crash may take back what follows. `wait` waits "
            "while there is nothing at all. Read the ranges as pages, `readEntries` with `after` and `end`."
        ),
        refusals=("malformed_id", "too_many_waiters"),
    ),
}
