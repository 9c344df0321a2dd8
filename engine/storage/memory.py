"""The storage seam in memory, with what a power cut keeps and with faults on demand.

Knows: for every file what the running system sees (live) and what the disk holds (durable); which changes of
names are not synced; how to fail or stop at the n-th operation.
Must never know: frames, records, or what a name stands for.

A failed sync is modelled as Linux has it: the pages stay readable, are no longer dirty, and a later sync that
succeeds does not write them.
"""

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock

from engine.storage import Handle, Reader, Storage, StorageLockedError

Tail = Callable[[bytes, bytes], bytes]  # (durable, live) -> what the disk holds after a power cut


class StoppedError(Exception):
    """The modelled process ended here, and does nothing any more."""


def lose_tail(durable: bytes, _live: bytes) -> bytes:
    """Keep what was synced and nothing else."""
    return durable


@dataclass
class _DiskFile:
    live: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty: list[tuple[int, int]] = field(default_factory=list)
    room: int = 0  # preallocated up to here

    def write(self, offset: int, content: bytes) -> None:
        end = offset + len(content)
        self.live[offset:end] = content
        self.dirty.append((offset, end))

    def sync(self) -> None:
        del self.durable[len(self.live) :]
        self.durable.extend(bytes(len(self.live) - len(self.durable)))
        for start, end in self.dirty:
            self.durable[start:end] = self.live[start:end]
        self.dirty.clear()

    def copy(self) -> "_DiskFile":
        return _DiskFile(bytearray(self.live), bytearray(self.durable), list(self.dirty), self.room)


@dataclass
class Disk:
    """What the directory holds: files by name, as the system sees them and as the disk has them."""

    live: dict[str, _DiskFile] = field(default_factory=dict)
    durable: dict[str, _DiskFile] = field(default_factory=dict)
    changes: list[dict[str, _DiskFile | None]] = field(default_factory=list)  # of names, not synced
    locked: bool = False
    # The engine's threads change names too.
    names_lock: Lock = field(default_factory=Lock)


@dataclass
class Fault:
    """An error that is due at the `nth` operation of this name from now."""

    operation: str
    nth: int
    code: int
    after_bytes: int


class MemoryStorage(Storage):
    """A directory that holds `files`, all synced; `space_bytes` is the size of its disk, which `keeps_room`
    or only says how much of it is free.
    """

    def __init__(
        self,
        files: Mapping[str, bytes] | None = None,
        *,
        space_bytes: int | None = None,
        keeps_room: bool = True,
        disk: Disk | None = None,
    ) -> None:
        self._disk = disk or Disk()
        self.space_bytes = space_bytes
        self.keeps_room = keeps_room
        self.operations: list[tuple[str, str]] = []  # every change asked for so far: what, and of which file
        self._faults: list[Fault] = []
        self._stop_before: int | None = None
        self.stopped = False  # whether StoppedError was raised
        self._holds_lock = False
        for name, content in (files or {}).items():
            self._disk.live[name] = self._disk.durable[name] = _DiskFile(
                bytearray(content), bytearray(content)
            )

    def fail(self, operation: str, code: int, *, nth: int = 1, after_bytes: int = 0) -> None:
        """Let the `nth` operation of this name from now on raise `OSError(code)`, once.

        An append writes `after_bytes` of its content first.
        """
        self._faults.append(Fault(operation, nth, code, after_bytes))

    def heal(self) -> None:
        """Let no fault be due any more."""
        self._faults.clear()

    def stop_before(self, nth: int) -> None:
        """Let the `nth` change from now on (0 is the next), and all after it, raise `Stopped`."""
        self._stop_before = len(self.operations) + nth

    def kill(self) -> "MemoryStorage":
        """Return the directory as the next process finds it after kill -9: nothing lost, nothing safer."""
        with self._disk.names_lock:
            copies = {id(file): file.copy() for file in self._all_files()}
            disk = Disk(
                {name: copies[id(file)] for name, file in self._disk.live.items()},
                {name: copies[id(file)] for name, file in self._disk.durable.items()},
                [
                    {name: file and copies[id(file)] for name, file in names.items()}
                    for names in self._disk.changes
                ],
            )
        return MemoryStorage(space_bytes=self.space_bytes, keeps_room=self.keeps_room, disk=disk)

    def crash(self, *, name_changes: int = 0, tail: Tail = lose_tail) -> "MemoryStorage":
        """Return the directory as it is after a power cut.

        The first `name_changes` of the unsynced changes of names had reached the disk; `tail` says of each
        file what had.
        """
        files = {name: tail(*contents) for name, contents in self.remains(name_changes).items()}
        return MemoryStorage(files, space_bytes=self.space_bytes, keeps_room=self.keeps_room)

    def remains(self, name_changes: int = 0) -> dict[str, tuple[bytes, bytes]]:
        """Return what a power cut leaves: of each file what the disk has surely, and at most.

        The first `name_changes` of the unsynced changes of names had reached the disk.
        """
        with self._disk.names_lock:
            names = dict(self._disk.durable)
            for change in self._disk.changes[:name_changes]:
                _apply(names, change)
        return {name: (bytes(file.durable), bytes(file.live)) for name, file in names.items()}

    def unsynced_name_changes(self) -> int:
        """Return how many changes of names a power cut could undo."""
        return len(self._disk.changes)

    def rival(self) -> "MemoryStorage":
        """Return the same directory as another process sees it."""
        return MemoryStorage(space_bytes=self.space_bytes, keeps_room=self.keeps_room, disk=self._disk)

    def content(self, name: str) -> bytes:
        """Return a whole file as the running system sees it."""
        return bytes(self._disk.live[name].live)

    def _all_files(self) -> list[_DiskFile]:
        changed = [file for change in self._disk.changes for file in change.values() if file]
        return [*self._disk.live.values(), *self._disk.durable.values(), *changed]

    def step(self, operation: str, name: str) -> Fault | None:
        """Count a change (also called by handles); stop if it is time, and return the fault that is due."""
        if self._stop_before is not None and len(self.operations) >= self._stop_before:
            self.stopped = True
            raise StoppedError
        self.operations.append((operation, name))
        return self._due(operation)

    def _due(self, operation: str) -> Fault | None:
        due = None
        for fault in [fault for fault in self._faults if fault.operation == operation]:
            fault.nth -= 1
            if fault.nth == 0:
                self._faults.remove(fault)
                due = fault
        return due

    def change(self, operation: str, name: str) -> None:
        """Count a change that happens whole or not at all."""
        fault = self.step(operation, name)
        if fault:
            raise OSError(fault.code, os.strerror(fault.code), name)

    def _file(self, name: str) -> _DiskFile:
        file = self._disk.live.get(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return file

    def _rename_all(self, change: dict[str, _DiskFile | None]) -> None:
        with self._disk.names_lock:
            _apply(self._disk.live, change)
            self._disk.changes.append(change)

    def free_bytes(self) -> int | None:
        """Return what is left of the disk; None where it has no end. A disk that is made smaller than what it
        holds has nothing left.
        """
        if self.space_bytes is None:
            return None
        held = sum(max(len(file.live), file.room) for file in list(self._disk.live.values()))
        return max(0, self.space_bytes - held)

    def lock(self) -> None:
        """Keep rivals out."""
        if self._disk.locked and not self._holds_lock:
            raise StorageLockedError("the directory in memory", None)
        self._disk.locked = self._holds_lock = True

    def unlock(self) -> None:
        """Let rivals in."""
        if self._holds_lock:
            self._disk.locked = self._holds_lock = False

    def names(self) -> list[str]:
        """Return the names of all files, in order."""
        self.check_fault("names", "")
        return sorted(self._disk.live)

    def size(self, name: str) -> int:
        """Return the length in bytes."""
        self.check_fault("size", name)
        return len(self._file(name).live)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return the live bytes."""
        return self.reader(name).read(offset, length)

    def reader(self, name: str) -> "MemoryReader":
        """Open a file for reading."""
        self.check_fault("open", name)
        return MemoryReader(self, name, self._file(name))

    def check_fault(self, operation: str, name: str) -> None:
        """Raise the fault that is due, of what changes nothing (also called by readers)."""
        fault = self._due(operation)
        if fault:
            raise OSError(fault.code, os.strerror(fault.code), name)

    def create(self, name: str) -> "MemoryHandle":
        """Open a new file."""
        self.change("create", name)
        if name in self._disk.live:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        self._rename_all({name: _DiskFile()})
        return self.open(name)

    def open(self, name: str) -> "MemoryHandle":
        """Open a file that exists."""
        self.check_fault("open", name)
        return MemoryHandle(self, name, self._file(name))

    def overwrite(self, name: str, offset: int, content: bytes) -> None:
        """Write over what is there."""
        self.change("overwrite", name)
        self._file(name).write(offset, content)

    def truncate(self, name: str, size: int) -> None:
        """Cut the file."""
        self.change("truncate", name)
        file = self._file(name)
        del file.live[size:]
        file.room = size

    def rename(self, old: str, new: str) -> None:
        """Give a file another name."""
        self.change("rename", old)
        self._rename_all({old: None, new: self._file(old)})

    def unlink(self, name: str) -> None:
        """Remove a file."""
        self.change("unlink", name)
        self._file(name)
        self._rename_all({name: None})

    def is_in_place(self, name: str, handle: Handle) -> bool:
        """Whether the name is still that of this file."""
        assert isinstance(handle, MemoryHandle), "it is of this storage"
        return handle.is_of(self._disk.live.get(name))

    def sync_directory(self) -> None:
        """Make all names durable."""
        self.change("sync_directory", "")
        with self._disk.names_lock:
            self._disk.durable = dict(self._disk.live)
            self._disk.changes.clear()


class MemoryReader(Reader):
    """A view of a file in a `MemoryStorage`; it stays valid when the name goes."""

    def __init__(self, storage: MemoryStorage, name: str, file: _DiskFile) -> None:
        self._storage = storage
        self._name = name
        self._file = file

    def read(self, offset: int, length: int) -> bytes:
        """Return the live bytes."""
        self._storage.check_fault("read", self._name)
        return bytes(self._file.live[offset : offset + length])

    def size(self) -> int:
        """Return the file's length in bytes."""
        return len(self._file.live)

    def close(self) -> None:
        """Let go of the file."""


class MemoryHandle(Handle):
    """An append-only view of a file in a `MemoryStorage`."""

    def __init__(self, storage: MemoryStorage, name: str, file: _DiskFile) -> None:
        self._storage = storage
        self._name = name
        self._file = file

    def is_of(self, file: _DiskFile | None) -> bool:
        """Whether it is open for this file."""
        return self._file is file

    def append(self, content: bytes) -> None:
        """Write at the end; on a full disk or on a fault only a part of it."""
        fault = self._storage.step("append", self._name)
        end = len(self._file.live)
        fits = len(content)
        free = self._storage.free_bytes()
        if free is not None:
            fits = min(fits, max(self._file.room - end, 0) + free)
        code = 0 if fits == len(content) else errno.ENOSPC
        if fault:
            fits, code = min(fits, fault.after_bytes), fault.code
        self._file.write(end, content[:fits])
        if code:
            raise OSError(code, os.strerror(code), self._name)

    def sync(self) -> None:
        """Make the content durable; when it fails, the dirty pages are forgotten."""
        fault = self._storage.step("sync", self._name)
        if fault:
            self._file.dirty.clear()
            raise OSError(fault.code, os.strerror(fault.code), self._name)
        self._file.sync()

    def size(self) -> int:
        """Return the file's length in bytes."""
        return len(self._file.live)

    def preallocate(self, upto_bytes: int) -> None:
        """Take room on the disk, or look for it."""
        self._storage.change("preallocate", self._name)
        grows = upto_bytes - max(len(self._file.live), self._file.room)
        free = self._storage.free_bytes()
        if free is not None and grows > free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._name)
        if self._storage.keeps_room:
            self._file.room = max(self._file.room, upto_bytes)

    def close(self) -> None:
        """Let go of the file."""


def _apply(names: dict[str, _DiskFile], change: Mapping[str, _DiskFile | None]) -> None:
    for name, file in change.items():
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file
