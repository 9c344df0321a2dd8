"""Which fields of commands and replies hold names of streams: for engines that show a part of the names.

Knows: how a field holds names. A field without a mark holds none.
Must never know: which commands and replies there are, who is shown which names.
"""

from enum import Enum, auto
from typing import Annotated


class Mark(Enum):
    """How a field holds names."""

    NAME = auto()
    """It is one."""
    PLACE = auto()
    """The beginning of names, or where to go on in their order."""
    TEXT = auto()
    """Stored entries, joined by commas. A dead letter names the stream that it comes from."""
    BODY = auto()
    """The same of an entry that has no ID yet."""
    POLICY = auto()
    """What a group is set to, of which one is the stream for dead letters."""
    SHARED_KEY = auto()
    """An idempotency key of no stream: it gets the prefix itself, or tenants would share it."""


StreamKey = Annotated[str, Mark.NAME]
NamePlace = Annotated[str, Mark.PLACE]
StoredText = Annotated[bytes, Mark.TEXT]
Body = Annotated[bytes, Mark.BODY]
