"""The three ways in which the log says no.

Knows: what each error means for the caller. Must never know: the caller.
"""

from typing import Self

from engine.codec import Damage

REPAIR = "run `weir log repair` to see what can be saved"


class LogRefusedError(Exception):
    """The files cannot be served as they are, and nothing was touched. Names the file and the offset.

    `newer`: a later version has written them, and nothing is wrong with them.
    """

    def __init__(
        self,
        file: str,
        reason: str,
        *,
        offset: int | None = None,
        repairable: bool = False,
        newer: bool = False,
    ) -> None:
        place = file if offset is None else f"{file}, offset {offset}"
        remedy = ": run that version" if newer else f"; {REPAIR}" if repairable else ""
        super().__init__(f"{place}: {reason}{remedy}")
        self.file = file
        self.offset = offset
        self.reason = reason
        self.newer = newer

    @classmethod
    def of(cls, file: str, damage: Damage) -> Self:
        """The refusal of a file that must be whole, and is damaged or newer."""
        return cls(file, damage.reason, offset=damage.offset, repairable=not damage.newer, newer=damage.newer)


class LogPoisonedError(Exception):
    """A write or a sync failed, so it is unknown what the disk holds.

    Nothing may be written or promised until a restart has read it again.
    """


class StorageFullError(Exception):
    """The disk has no room for the reserve. Nothing has changed; asking again later may succeed."""
