"""A log's directory as it is at one moment, held so while others write, replace and delete in it.

Knows: which files belong to a log, and how they are opened so that they fit together.
Must never know: frames; it changes nothing on the disk.

Changes made through a view are made in memory and forgotten. So a start can be rehearsed: `Log.open` on a
view gives the same verdict as on the directory itself, and leaves no trace.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self

from engine.log.errors import LogRefusedError
from engine.log.manifest import MANIFEST, MANIFEST_BYTES_MAX, file_number
from engine.storage import Handle, NotAFileError, Reader, Storage

# An attempt fails only if a rewrite ended while the files were opened, which takes far longer than that.
_ATTEMPTS_MAX: Final = 100
_OURS: Final = ("base-", "segment-", "run-", MANIFEST)


class _HeldFile(Reader):
    """The first `length` bytes of a file, and behind them what was appended in memory."""

    def __init__(self, reader: Reader | None, length: int) -> None:
        self._reader = reader
        self._length = length
        self.appended = bytearray()

    def size(self) -> int:
        return self._length + len(self.appended)

    def read(self, offset: int, length: int) -> bytes:
        data = b""
        if self._reader is not None and offset < self._length:
            data = self._reader.read(offset, min(length, self._length - offset))
        start = offset + len(data) - self._length
        if start < 0 or len(data) == length:
            return data
        return data + bytes(self.appended[start : start + length - len(data)])

    def close(self) -> None:
        """Do nothing: the maker of the view closes what it holds."""

    def truncate(self, size: int) -> None:
        del self.appended[max(size - self._length, 0) :]
        self._length = min(size, self._length)


class _Handle(Handle):
    """Appends to a file of a view."""

    def __init__(self, file: _HeldFile) -> None:
        self._file = file

    def append(self, content: bytes) -> None:
        self._file.appended += content

    def sync(self) -> None:
        """Nothing here is ever safe."""

    def size(self) -> int:
        return self._file.size()

    def preallocate(self, upto_bytes: int) -> None:
        """Memory is not reserved."""

    def close(self) -> None:
        """Nothing is held."""


class _Held(NamedTuple):
    """Files that are open, and what has the name of one and is none."""

    readers: dict[str, Reader]
    refused: dict[str, NotAFileError]


class LogView(Storage):
    """A held directory. Made by `View.of`; to be closed, for it keeps every file of the log open."""

    def __init__(self, held: _Held, sizes: Mapping[str, int], others: frozenset[str]) -> None:
        self._held = held
        self._sizes = sizes
        self._others = others  # names of what is not ours, and of what is no file: never opened
        self._files = {name: _HeldFile(held.readers[name], size) for name, size in sizes.items()}

    @classmethod
    def of(cls, storage: Storage) -> "LogView":
        """Hold all files of the log in `storage` open, so that a running server may replace them meanwhile.

        They fit together if the manifest did not change while they were opened, for files go only after a
        manifest without them. Their lengths are taken from the newest to the oldest, for a segment gets its
        first frame after the one before got its last; those of runs come at the end, for the log refers to
        them once they are there. Raises OSError; LogRefusedError after many attempts.
        """
        for _ in range(_ATTEMPTS_MAX):
            manifest = _manifest(storage)
            names = storage.names()
            if manifest is not None and MANIFEST not in names:
                names.append(MANIFEST)  # a listing may miss what is renamed while it is made
            held = _hold(storage, [name for name in names if name.startswith(_OURS)])
            newest_first = sorted(held.readers, key=lambda name: file_number(name) or 0, reverse=True)
            sizes = {name: held.readers[name].size() for name in newest_first}
            if _manifest(storage) == manifest:
                return cls(held, sizes, frozenset(names) - frozenset(held.readers))
            _close(held.readers)
        raise LogRefusedError(MANIFEST, "changes faster than its files can be opened")

    def again(self) -> "LogView":
        """The same moment without the changes made through this view; closed together with it."""
        return LogView(self._held, self._sizes, self._others)

    def close(self) -> None:
        """Close the files. Idempotent."""
        _close(self._held.readers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def lock(self) -> None:
        """Do nothing: a memory has no other users."""

    def unlock(self) -> None:
        """Do nothing, as `lock`."""

    def names(self) -> list[str]:
        """Return the names of all files, in order."""
        return sorted([*self._files, *self._others])

    def files(self) -> list[str]:
        """Return the names of what can be read, in order."""
        return sorted(self._files)

    def _file(self, name: str) -> _HeldFile:
        try:
            return self._files[name]
        except KeyError:
            gone = FileNotFoundError(2, "No such file or directory", name)
            raise self._held.refused.get(name, gone) from None

    def size(self, name: str) -> int:
        """Return the length at the moment of the view."""
        return self._file(name).size()

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return bytes as they were at the moment of the view; the log never changes any."""
        return self._file(name).read(offset, length)

    def reader(self, name: str) -> Reader:
        """Return the file, which is held already."""
        return self._file(name)

    def create(self, name: str) -> Handle:
        """Make a file in memory."""
        self._files[name] = _HeldFile(None, 0)
        return _Handle(self._files[name])

    def open(self, name: str) -> Handle:
        """Open a file; what is appended stays in memory."""
        return _Handle(self._file(name))

    def overwrite(self, name: str, offset: int, content: bytes) -> None:
        """Do nothing: recovery only writes again what the file has already."""

    def truncate(self, name: str, size: int) -> None:
        """Cut the file for readers of this view."""
        self._file(name).truncate(size)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name."""
        self._files[new] = self._file(old)
        del self._files[old]

    def unlink(self, name: str) -> None:
        """Forget a file."""
        self._files.pop(name, None)
        self._others -= {name}

    def sync_directory(self) -> None:
        """Nothing here is ever safe."""


def _manifest(storage: Storage) -> bytes | None:
    try:
        return storage.read(MANIFEST, 0, MANIFEST_BYTES_MAX + 1)
    except FileNotFoundError:
        return None


def _hold(storage: Storage, names: list[str]) -> _Held:
    """Open the files that exist. A missing one was replaced meanwhile, or its reader reports it."""
    held = _Held({}, {})
    try:
        for name in names:
            try:
                held.readers[name] = storage.reader(name)
            except NotAFileError as error:
                held.refused[name] = error
            except FileNotFoundError:
                continue
    except BaseException:
        _close(held.readers)
        raise
    return held


def _close(held: Mapping[str, Reader]) -> None:
    for reader in held.values():
        reader.close()
