"""The seam to disk: one directory of named files, as an append-only log needs it.

Knows: files that grow at the end, what is synced and what is not, replacing a file as a whole, the lock.
Must never know: frames, records, or what a name stands for.

Two versions keep the same promises, checked by one test suite: `storage.file` on a real directory and
`storage.memory`, which models what a power cut leaves. Every call blocks. A failing operation raises
`OSError` with the system's errno; nothing here tries again, since a second fsync after a failed one
may report success for lost data.
"""

import errno
from abc import ABC, abstractmethod
from collections.abc import Iterable

TEMPORARY = ".tmp"  # what `replace` writes first is called after its file, with this behind


class StorageRefusedError(Exception):
    """The directory cannot be used at all: missing, not a directory, another user's, not writable."""


class TargetRefusedError(StorageRefusedError):
    """No new directory can have this path: something is there already, or its parent is missing."""


class StorageLockedError(Exception):
    """Another process works in the directory; `holder` is its process id, None where that is unreadable."""

    def __init__(self, directory: str, holder: int | None) -> None:
        by = "another process" if holder is None else f"process {holder}"
        super().__init__(f"{directory} is in use by {by}")
        self.holder = holder


class NotAFileError(OSError):
    """Something else than a regular file has the name: a pipe, a directory, a link. It was not used."""

    remedy = "put the file back in its place"

    def __init__(self, name: str, kind: str) -> None:
        super().__init__(errno.EINVAL, f"is {kind}, not a regular file", name)


class Handle(ABC):
    """A file open for appending. `append` and `sync` may run in different threads at the same time."""

    @abstractmethod
    def append(self, content: bytes) -> None:
        """Write all of `content` at the end; after an error an unknown part of it is there."""

    @abstractmethod
    def sync(self) -> None:
        """Return once everything appended before the call would survive a power cut."""

    @property
    def descriptor(self) -> int | None:
        """What the kernel can be asked to sync instead of a call of `sync`; None where only that syncs."""
        return None

    @abstractmethod
    def size(self) -> int:
        """Return the file's length in bytes."""

    @abstractmethod
    def preallocate(self, upto_bytes: int) -> None:
        """Make the disk keep room for the file to grow to `upto_bytes`, its length unchanged; or ENOSPC.

        Some file systems only say whether they have it now, and others may take it.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the file. Idempotent; syncs nothing."""


class Reader(ABC):
    """A file held open for reading: it can be read to its end even after its name is gone."""

    @abstractmethod
    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes at `offset`, fewer only where the file ends."""

    @abstractmethod
    def size(self) -> int:
        """Return the file's length in bytes."""

    @abstractmethod
    def close(self) -> None:
        """Close the file. Idempotent."""


class Storage(ABC):
    """One directory. Names are plain file names; new names and renames are safe after `sync_directory`."""

    @abstractmethod
    def lock(self) -> None:
        """Keep every other process out until `unlock` or the end of this one.

        Raises `StorageLockedError` where another process has it.

        What this storage has locked stays locked.
        """

    @abstractmethod
    def unlock(self) -> None:
        """Let others in. Idempotent."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all files, in order."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Return the length in bytes, or raise `FileNotFoundError`."""

    @abstractmethod
    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return `length` bytes at `offset`, fewer only where the file ends."""

    @abstractmethod
    def reader(self, name: str) -> Reader:
        """Open a file for reading, or raise `FileNotFoundError`."""

    @abstractmethod
    def create(self, name: str) -> Handle:
        """Open a file that must not exist yet (`FileExistsError`)."""

    @abstractmethod
    def open(self, name: str) -> Handle:
        """Open a file that exists."""

    @abstractmethod
    def overwrite(self, name: str, offset: int, content: bytes) -> None:
        """Overwrite with `content`; safe after the next `sync` of a handle of the file."""

    @abstractmethod
    def truncate(self, name: str, size: int) -> None:
        """Cut the file to `size`, and give back room preallocated beyond; safe after the next `sync`."""

    @abstractmethod
    def rename(self, old: str, new: str) -> None:
        """Rename a file in one step, replacing the file that had the new name."""

    @abstractmethod
    def unlink(self, name: str) -> None:
        """Remove a file."""

    def is_in_place(self, name: str, handle: Handle) -> bool:
        """Whether the next process would find the open file under its name; True where that is not known."""
        return True

    @abstractmethod
    def sync_directory(self) -> None:
        """Return once every name given or taken before the call would survive a power cut."""

    def replace(self, name: str, chunks: Iterable[bytes]) -> None:
        """Put `chunks` in the place of a file: after a crash at any moment it is the old one or the new one.

        The order is the point: content before name, name before return. Renames without the directory's
        sync were lost in Redis (#10737) and etcd (#6368).
        """
        temporary = name + TEMPORARY
        if temporary in self.names():
            self.unlink(temporary)
        handle = self.create(temporary)
        try:
            for chunk in chunks:
                handle.append(chunk)
            handle.sync()
        finally:
            handle.close()
        self.rename(temporary, name)
        self.sync_directory()
