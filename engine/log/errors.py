"""The three ways in which the log says no.

Knows: what each error means for the caller. Must never know: the caller.
"""

REPAIR = "run `weir log repair` to see what can be saved"


class LogRefusedError(Exception):
    """The files cannot be served as they are, and nothing was touched. Names the file and the offset."""

    def __init__(
        self, file: str, reason: str, *, offset: int | None = None, repairable: bool = False
    ) -> None:
        place = file if offset is None else f"{file}, offset {offset}"
        super().__init__(f"{place}: {reason}" + (f"; {REPAIR}" if repairable else ""))
        self.file = file
        self.offset = offset
        self.reason = reason


class LogPoisonedError(Exception):
    """A write or a sync failed, so it is unknown what the disk holds.

    Nothing may be written or promised until a restart has read it again.
    """


class StorageFullError(Exception):
    """The disk has no room for the reserve. Nothing has changed; asking again later may succeed."""
