"""Room that is kept for the day on which the disk is full: a rewrite that could free it needs room to begin.

Knows: a file without content, for which the file system keeps room.
Must never know: what the room is used for.

The file may be lost, emptied or made at any moment: it holds no data, and nothing refers to it. So it is
never synced. A directory without it is complete, and where the disk has less room, it takes less.
"""

from contextlib import suppress
from typing import Final

from engine.storage import Storage

BALLAST: Final = "ballast"
# A smaller one would not help.
_BYTES_MIN: Final = 64 << 10


def take_ballast(storage: Storage, bytes_max: int) -> int:
    """Keep room for up to `bytes_max`, a half or a quarter … of it on a disk that has less. Returns how much
    there is.

    Best effort: never raises `OSError`. What an earlier call has kept counts.
    """
    with suppress(OSError):
        handle = storage.open(BALLAST) if BALLAST in storage.names() else storage.create(BALLAST)
        try:
            size = bytes_max
            while size >= min(_BYTES_MIN, bytes_max):
                with suppress(OSError):
                    handle.preallocate(size)
                    return size
                size //= 2
        finally:
            handle.close()
    return 0


def give_ballast_back(storage: Storage) -> bool:
    """Let the room be used for something else. Returns whether there was any. Raises `OSError`."""
    if BALLAST not in storage.names():
        return False
    storage.unlink(BALLAST)
    return True
