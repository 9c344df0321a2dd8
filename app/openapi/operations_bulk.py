"""What there is to say of the calls for bulk readers and writers.

Knows: their parameters, bodies, answers and refusals. Must never know: how anything is served.
"""

from collections.abc import Mapping
from typing import Final

from app.openapi import schemas_streams
from app.openapi.operation import WRITES, Operation

OPERATIONS: Final[Mapping[str, Operation]] = {
    "publish": Operation(
        tag="many",
        status=201,
        answer=schemas_streams.ManyPublished,
        body=schemas_streams.ManyPublish,
        headers={
            "Idempotency-Key": "a repeated request with the same key and body answers as the first time",
            "Weir-Producer": "who publishes in chunks; with Weir-Epoch and Weir-Chunk, without a key",
            "Weir-Epoch": "the producer's run: a number, larger in each",
            "Weir-Chunk": "the number of this chunk in its run",
            **WRITES,
        },
        description=(
            "All entries are stored, or none. A chunk of a producer that was stored in its last epoch, or in "
            "the one before, is answered as the first time (`duplicate`), however much later it comes again; "
            "an older epoch is refused. docs/bulk.md tells how long what is remembered."
        ),
        refusals=(
            "malformed_id", "id_not_increasing", "stream_exhausted", "entry_too_large", "too_many_entries",
            "idempotency_mismatch", "stale_epoch",
        ),
        writes=True,
    ),
}  # fmt: skip
