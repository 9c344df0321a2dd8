"""What there is to say of the operations on groups and consumers.

Knows: their parameters, bodies, answers, refusals and examples. Must never know: how anything is served.
"""

from collections.abc import Mapping
from typing import Final

from app import schemas
from app.operation import Operation

OPERATIONS: Final[Mapping[str, Operation]] = {
    "createGroup": Operation(
        tag="groups",
        status=201,
        answer=schemas.Group,
        body=schemas.NewGroup,
        refusals=("no_stream", "group_exists", "malformed_id"),
        writes=True,
    ),
    "readGroup": Operation(
        tag="groups",
        answer=schemas.Deliveries,
        body=schemas.GroupRead,
        body_required=False,
        refusals=("malformed_id", "no_group", "too_many_waiters"),
        writes=True,
    ),
    "ackEntries": Operation(
        tag="groups",
        answer=schemas.Acknowledged,
        body=schemas.Acknowledgement,
        refusals=("malformed_id", "no_group"),
        writes=True,
    ),
}
