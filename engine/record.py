"""What every change of the log has in common, and how its fields are marked.

Knows: the base of records. Must never know: any of them, the keyspace, files, frames.

A record is resolved: explicit IDs, absolute times, exact cuts; never `*`, `~` or "now".
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec

# How `engine.records.payload` writes a field that MessagePack has no form for.
Id = Annotated[int, "id"]
# All IDs below it: 2^128 is one too.
Bound = Annotated[int, "bound"]
IdList = Annotated[Sequence[int], "ids"]
TextList = Annotated[Sequence[bytes], "texts"]
IdsInTexts = Annotated[Sequence[int], "in the texts"]


class Record(msgspec.Struct, frozen=True):
    """The base of all. `stream`, where there is one, is the name that the change touches."""

    # For good, and no other kind's; from 64 on of snapshots alone. docs/operations.md has each one's version.
    number: ClassVar[int]
    # The event that the change is in keyspace notifications, None for a change that is none.
    event: ClassVar[str | None] = None
    # Whether those who watch the stream see no change: it is what consumers do with entries, or where these
    # are kept.
    is_of_consumers: ClassVar[bool] = False

    def apply(self, keyspace: Any) -> None:  # noqa: ANN401 - records of parts see less of it than others
        """Do the change. Never fails: what could be wrong was checked before the record was made."""
        raise AssertionError("each record has its own")
