"""Where a checkpoint is stored: a folder of this machine, or of what `pyarrow.fs` reaches.

Knows: how a file appears whole or not at all, and when it may be relied on after a power cut.
Must never know: what the files hold.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path, PurePosixPath
from typing import Final, Self

import pyarrow as pa
from pyarrow import fs

from pyspark_weir.errors import OptionError

# A name that ends so is a write that never ended; readers pass it over and the next writer replaces it.
UNFINISHED: Final = ".tmp"
_SCHEME: Final = "://"
# Hadoop's names for what has another elsewhere.
_HADOOP_ONLY: Final = {"s3a": "s3", "s3n": "s3"}


class Place:
    """The root of a checkpoint; every path below is relative to it, with `/`.

    On this machine a file is synced before it is renamed, and its folder after. Elsewhere renaming is the
    file system's: one step on HDFS, and on object stores an object appears when it is complete.
    """

    def __init__(self, files: fs.FileSystem, base: str, address: str) -> None:
        self.files = files
        self.base = base.rstrip("/")
        # What Spark calls it. With a scheme always, else a cluster would look on its default file system.
        self.address = address.rstrip("/")

    @classmethod
    def of(cls, root: str) -> Self:
        """A path of this machine, or an address such as `hdfs://name/folder` or `s3a://bucket/folder`.

        Raises OptionError for what pyarrow cannot reach: HDFS needs Hadoop's library on this machine.
        """
        if _SCHEME not in root:
            base = str(Path(root).absolute())
            return cls(fs.LocalFileSystem(), base, f"file://{base}")
        scheme, _, rest = root.partition(_SCHEME)
        try:
            found, base = fs.FileSystem.from_uri(f"{_HADOOP_ONLY.get(scheme, scheme)}{_SCHEME}{rest}")
        except (pa.ArrowInvalid, OSError) as error:
            raise OptionError(
                f"{root!r} is no place that can be reached from here ({error}): give a folder, "
                "or an address that pyarrow.fs understands"
            ) from None
        # What stands after a question mark is for pyarrow.
        return cls(found, base, root.partition("?")[0])

    @property
    def is_local(self) -> bool:
        """Whether files can be synced from here."""
        return isinstance(self.files, fs.LocalFileSystem)

    def path(self, name: str) -> str:
        """The path of a file for `files`."""
        return f"{self.base}/{name}" if name else self.base

    def names(self, folder: str) -> list[str]:
        """The files right in a folder, by name; none where it is missing."""
        selector = fs.FileSelector(self.path(folder), allow_not_found=True)
        found = self.files.get_file_info(selector)
        return sorted(info.base_name for info in found if info.type == fs.FileType.File)

    def size(self, name: str) -> int | None:
        """The size of a file in bytes; None where there is none."""
        info = self.files.get_file_info(self.path(name))
        return info.size if info.type == fs.FileType.File else None

    def read(self, name: str) -> bytes | None:
        """What a file holds; None where there is none."""
        try:
            with self.open(name) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def open(self, name: str) -> pa.NativeFile:
        """A file to read, at any place of it. Raises OSError."""
        return self.files.open_input_file(self.path(name))

    def write(self, name: str, content: bytes) -> None:
        """Put a file in its place, whole or not at all; it stays there through a power cut."""
        with self.writing(name) as file:
            file.write(content)

    @contextmanager
    def writing(self, name: str) -> Iterator[pa.NativeFile]:
        """A file to write that comes into its place when the block ends well, as with `write`."""
        unfinished = f"{name}{UNFINISHED}"
        self.files.create_dir(self.path(str(PurePosixPath(name).parent)), recursive=True)
        with self._output(unfinished) as file:
            yield file
        self._sync(self.path(unfinished))
        self._rename(unfinished, name)
        self._sync_folders([name])

    def _output(self, name: str) -> AbstractContextManager[pa.NativeFile]:
        output: AbstractContextManager[pa.NativeFile] = self.files.open_output_stream(self.path(name))
        return output

    def _rename(self, name: str, to: str) -> None:
        self.files.move(self.path(name), self.path(to))

    def secure(self, names: Iterable[str]) -> None:
        """Have the disk hold files that another program wrote, and the folders that lead to them."""
        written = list(names)
        for name in written:
            self._sync(self.path(name))
        self._sync_folders(written)

    def _sync_folders(self, names: Iterable[str]) -> None:
        folders = {parent for name in names for parent in PurePosixPath(name).parents}
        for folder in sorted(folders, key=lambda one: len(one.parts), reverse=True):
            self._sync(self.path("" if str(folder) == "." else str(folder)))
        # The root may be new itself.
        self._sync(str(PurePosixPath(self.base).parent))

    def _sync(self, path: str) -> None:
        if not self.is_local:
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
