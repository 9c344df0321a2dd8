"""The storage seam on a real directory.

Knows: system calls, their partial results, file modes, flock.
Must never know: frames, records, or what a name stands for.
"""

import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from engine.storage import Handle, NotAFileError, Reader, Storage, StorageLockedError, StorageRefusedError

T = TypeVar("T")

FILE_MODE = 0o600  # payloads are other people's messages
DIRECTORY_MODE = 0o700
LOCK_NAME = "lock"
LOCK_BYTES_MAX = 32  # a process id, which only goes into a message
FALLOC_FL_KEEP_SIZE = 1  # linux/falloc.h; os.posix_fallocate would make the file longer

# Of `st_blocks`, on every file system.
_BLOCK_BYTES = 512
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS)
_NOT_OPENED = (errno.ELOOP, errno.ENXIO, errno.EISDIR)  # a link, a pipe or a socket, a directory
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)  # of the file or of a directory above it
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)
# For what the log has open at a time beside its own file: those of a rewrite, of runs, of reads.
SPARE_DESCRIPTORS = 8
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFSOCK: "a socket",
}


def write_all(write: Callable[[memoryview], int], content: bytes) -> None:
    """Call `write` until it has taken everything: it may take less (a signal, a limit, a disk nearly full).

    EINTR before the first byte is retried by the interpreter (PEP 475).
    """
    rest = memoryview(content)
    while rest:
        rest = rest[write(rest) :]


class Descriptors:
    """Those of a directory's files. `SPARE_DESCRIPTORS` are kept back, so that the log goes on where clients
    have all others: what is closed stays with it, and what is opened takes one of them.
    """

    def __init__(self, directory: int) -> None:
        self._directory = directory
        self._spare: list[int] = []
        self._keep_back()

    def open(self, name: str, flags: int) -> int:
        """Open a file of the directory."""
        return self.use(lambda: os.open(name, flags, FILE_MODE, dir_fd=self._directory))

    def use(self, work: Callable[[], T]) -> T:
        """Do what takes a descriptor."""
        try:
            while True:
                try:
                    return work()
                except OSError as error:
                    if error.errno not in _NONE_LEFT or not self._spare:
                        raise
                os.close(self._spare.pop())
        finally:
            self._keep_back()

    def close(self, descriptor: int) -> None:
        """Close one, and keep its number back if one is wanted: in between, a client could take it."""
        if self._directory >= 0 and len(self._spare) < SPARE_DESCRIPTORS:
            os.dup2(self._directory, descriptor, inheritable=False)
            self._spare.append(descriptor)
        else:
            os.close(descriptor)

    def _keep_back(self) -> None:
        with suppress(OSError):
            while len(self._spare) < SPARE_DESCRIPTORS:
                self._spare.append(os.dup(self._directory))

    def release(self) -> None:
        """Keep none back any more."""
        self._directory = -1
        while self._spare:
            os.close(self._spare.pop())


class _Descriptor:
    """A file descriptor. `close` closes it."""

    def __init__(self, descriptor: int, close: Callable[[int], None] = os.close) -> None:
        self._descriptor = descriptor
        self._close = close

    def size(self) -> int:
        """Return the file's length in bytes."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Close the descriptor, once."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._close(descriptor)


class FileHandle(_Descriptor, Handle):
    """An append-only file descriptor."""

    def append(self, content: bytes) -> None:
        """Write all of `content` at the end."""
        write_all(lambda rest: os.write(self._descriptor, rest), content)

    def sync(self) -> None:
        """Call fdatasync, which covers the length of the file as well."""
        os.fdatasync(self._descriptor)

    @property
    def descriptor(self) -> int:
        """The descriptor itself."""
        return self._descriptor

    def preallocate(self, upto_bytes: int) -> None:
        """Call fallocate with keep-size. Where the file system has none, only look whether room is left.

        What has no room is not tried: a try takes all that is left for a moment, in which others find none.
        """
        status, room = os.fstat(self._descriptor), os.fstatvfs(self._descriptor)
        size = status.st_size
        wanted = upto_bytes - size
        if wanted <= 0:
            return
        if room.f_bfree * room.f_frsize < upto_bytes - max(size, status.st_blocks * _BLOCK_BYTES):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        code = _fallocate(self._descriptor, size, wanted)
        if code in _UNSUPPORTED:
            code = errno.ENOSPC if room.f_bavail * room.f_frsize < wanted else 0
        if code:
            raise OSError(code, os.strerror(code))


class FileReader(_Descriptor, Reader):
    """A file descriptor for reading."""

    def read(self, offset: int, length: int) -> bytes:
        """Return what pread gives; not mmap, where a disk that fails to read kills the process."""
        parts = []
        while length > 0 and (part := os.pread(self._descriptor, length, offset)):
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _fallocate(descriptor: int, offset: int, length: int) -> int:
    """Return 0, or the errno of fallocate(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "fallocate"):
        return errno.ENOSYS
    arguments = (ctypes.c_int(FALLOC_FL_KEEP_SIZE), ctypes.c_int64(offset), ctypes.c_int64(length))
    while libc.fallocate(ctypes.c_int(descriptor), *arguments):
        code = ctypes.get_errno()
        if code != errno.EINTR:
            return code
    return 0


def _check_regular(name: str, found: os.stat_result) -> None:
    """Refuse what may block, or leads elsewhere."""
    if not stat.S_ISREG(found.st_mode):
        raise NotAFileError(name, _KINDS.get(stat.S_IFMT(found.st_mode), "a device"))


def _make_directory(path: Path) -> None:
    """Make the directory, safe from a power cut like everything that will be promised inside it."""
    try:
        path.mkdir(DIRECTORY_MODE)
    except FileExistsError:
        return
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


class FileStorage(Storage):
    """The directory at `path`, which must be this user's own. Files are 0600.

    With `create` a missing directory is made (0700), but not its parents: a mistyped path should not become
    an empty log somewhere. Others that want its lock find the process `holder` named, by default this one.
    Raises `StorageRefusedError`.
    """

    def __init__(self, path: str | Path, *, create: bool = False, holder: int | None = None) -> None:
        self._path = Path(path)
        self._holder = holder or os.getpid()
        self._lock: int | None = None
        try:
            if create:
                _make_directory(self._path)
            self._directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise self._refusal(error.strerror) from error
        self._descriptors = Descriptors(self._directory)
        if os.fstat(self._directory).st_uid != os.geteuid():
            self.close()
            raise self._refusal("belongs to another user")

    def _refusal(self, reason: str | None) -> StorageRefusedError:
        return StorageRefusedError(f"data directory {self._path}: {reason}")

    def close(self) -> None:
        """Unlock and close the directory. Idempotent."""
        self.unlock()
        self._descriptors.release()
        directory, self._directory = self._directory, -1
        if directory >= 0:
            os.close(directory)

    def _open(self, name: str, flags: int) -> int:
        """Open a regular file. Without O_NONBLOCK, opening a pipe would block until it has a writer."""
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = self._descriptors.open(name, flags)
        except OSError as error:
            if error.errno in _NOT_OPENED:
                self._stat(name)
            raise
        try:
            _check_regular(name, os.fstat(descriptor))
        except BaseException:
            self._descriptors.close(descriptor)
            raise
        return descriptor

    def _stat(self, name: str) -> os.stat_result:
        found = os.stat(name, dir_fd=self._directory, follow_symlinks=False)
        _check_regular(name, found)
        return found

    def lock(self) -> None:
        """Take flock on the file `lock`; the kernel releases it when the process ends in any way."""
        if self._lock is not None:
            return
        try:
            descriptor = self._open(LOCK_NAME, os.O_RDWR | os.O_CREAT)
        except NotAFileError as error:
            raise self._refusal(f"{LOCK_NAME} {error.strerror}") from error
        except OSError as error:
            raise self._refusal(error.strerror) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, LOCK_BYTES_MAX, 0).strip()
            os.close(descriptor)
            raise StorageLockedError(str(self._path), int(holder) if holder.isdigit() else None) from None
        except OSError as error:
            os.close(descriptor)
            raise self._refusal(error.strerror) from error
        self._lock = descriptor
        os.ftruncate(descriptor, 0)
        with suppress(OSError):  # the number is for a message only: a full disk must not keep readers out
            os.pwrite(descriptor, b"%d\n" % self._holder, 0)

    def unlock(self) -> None:
        """Close the lock file. It stays: removing it would let two processes lock two files of one name."""
        descriptor, self._lock = self._lock, None
        if descriptor is not None:
            os.close(descriptor)

    def names(self) -> list[str]:
        """Return the names of all files, in order."""
        # A descriptor of its own: two listings over one share its offset, and miss what the other one saw.
        descriptor = self._descriptors.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # It takes another one.
            return sorted(self._descriptors.use(lambda: os.listdir(descriptor)))  # noqa: PTH208 - no path
        finally:
            self._descriptors.close(descriptor)

    def size(self, name: str) -> int:
        """Return the length in bytes."""
        return self._stat(name).st_size

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return a part of a file."""
        reader = self.reader(name)
        try:
            return reader.read(offset, length)
        finally:
            reader.close()

    def reader(self, name: str) -> FileReader:
        """Open a file for reading."""
        return FileReader(self._open(name, os.O_RDONLY), self._descriptors.close)

    def create(self, name: str) -> FileHandle:
        """Open a new file."""
        return FileHandle(
            self._open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL), self._descriptors.close
        )

    def open(self, name: str) -> FileHandle:
        """Open a file that exists."""
        return FileHandle(self._open(name, os.O_WRONLY | os.O_APPEND), self._descriptors.close)

    def overwrite(self, name: str, offset: int, content: bytes) -> None:
        """Overwrite."""
        descriptor = self._open(name, os.O_WRONLY)
        try:
            os.lseek(descriptor, offset, os.SEEK_SET)
            write_all(lambda rest: os.write(descriptor, rest), content)
        finally:
            self._descriptors.close(descriptor)

    def truncate(self, name: str, size: int) -> None:
        """Cut the file."""
        descriptor = self._open(name, os.O_WRONLY)
        try:
            os.ftruncate(descriptor, size)
        finally:
            self._descriptors.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name."""
        os.rename(old, new, src_dir_fd=self._directory, dst_dir_fd=self._directory)

    def unlink(self, name: str) -> None:
        """Remove a file."""
        os.unlink(name, dir_fd=self._directory)

    def is_in_place(self, name: str, handle: Handle) -> bool:
        """Compare the file with what the path leads to: the descriptor of a directory follows where it is
        moved, and leads below what is mounted over it.
        """
        assert handle.descriptor is not None, "it is of this storage"
        try:
            found = (self._path / name).stat(follow_symlinks=False)
        except OSError as error:
            if error.errno in _NOT_THERE:
                return False
            raise
        return os.path.samestat(found, os.fstat(handle.descriptor))

    def sync_directory(self) -> None:
        """Call fsync on the directory."""
        os.fsync(self._directory)
