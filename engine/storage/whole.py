"""A directory that appears under its name whole, or not at all.

Knows: that it is filled under another name beside it, and renamed at the end; whose leftovers may be removed.
Must never know: frames, records, or what a name stands for.
"""

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from engine.storage import StorageRefusedError, TargetRefusedError
from engine.storage.file import LOCK_NAME, FileStorage

_LOST_AND_FOUND: Final = "lost+found"  # in every new ext4
# What an interrupted copy leaves: these names alone are ever removed.
_OURS: Final = re.compile(r"lock|(?:manifest|base-\d+\.weir|segment-\d+\.weir|run-\d+\.weir)(?:\.tmp)?")


@contextmanager
def new_directory(path: Path, kept: Collection[str] = ()) -> Iterator[FileStorage]:
    """Give an empty directory that is called `path` once the block is left without an error. Files called as
    in `kept` may be in it, and stay.

    Until then it is a sibling called `.<name>.partial`; one that an interrupted attempt left is taken over.
    A mount point, or a directory in one that is not ours, has no sibling: it is filled as it is.
    Raises TargetRefusedError where something is in the way, StorageLockedError while another attempt runs.
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100 - a link is to be refused, not followed
    kept = {*kept, _LOST_AND_FOUND}
    _check_free(path, kept)
    if path.is_dir() and (path.is_mount() or not os.access(path.parent, os.W_OK) or any(path.iterdir())):
        with filled_in_place(path, kept) as storage:
            yield storage
        return
    partial = path.with_name(f".{path.name}.partial")
    storage = FileStorage(partial, create=True)
    try:
        storage.lock()
        with _emptied(storage, partial):
            yield storage
            storage.unlink(LOCK_NAME)
            storage.sync_directory()
            _put(partial, path)
    finally:
        storage.close()


@contextmanager
def filled_in_place(path: Path, kept: Collection[str] = (_LOST_AND_FOUND,)) -> Iterator[FileStorage]:
    """Give an empty directory itself, but for the names in `kept`.

    What counts has to be written last: half of it stays after a crash.
    """
    storage = FileStorage(path)
    try:
        storage.lock()
        try:
            yield storage
        except BaseException:
            with suppress(OSError, StorageRefusedError):
                _clear(storage, path, kept)
                storage.unlink(LOCK_NAME)
            raise
        storage.unlink(LOCK_NAME)
        storage.sync_directory()
    finally:
        storage.close()


@contextmanager
def _emptied(storage: FileStorage, partial: Path) -> Iterator[None]:
    """Empty the directory before, and remove it after an error, to give its room back."""
    _clear(storage, partial)
    try:
        yield
    except BaseException:
        # What cannot be removed is taken over by the next attempt.
        with suppress(OSError, StorageRefusedError):
            _clear(storage, partial)
            if LOCK_NAME in storage.names():
                storage.unlink(LOCK_NAME)
            partial.rmdir()
        raise


def _check_free(path: Path, kept: Collection[str]) -> None:
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise TargetRefusedError(f"{path} is there already, and is no directory")
    if path.is_dir() and any(each.name not in kept for each in path.iterdir()):
        raise TargetRefusedError(f"{path} is not empty: nothing in it is overwritten")
    if not path.parent.is_dir():
        raise TargetRefusedError(f"{path.parent} is no directory: only the last part of the path is made")


def _clear(storage: FileStorage, partial: Path, kept: Collection[str] = (_LOST_AND_FOUND,)) -> None:
    for name in storage.names():
        if name in kept:
            continue
        if not _OURS.fullmatch(name):
            raise StorageRefusedError(f"{partial} holds {name}, which no copy makes: move it away")
        if name != LOCK_NAME:
            storage.unlink(name)


def _put(partial: Path, path: Path) -> None:
    """Rename, in the place of an empty directory if there is one, safe from a power cut."""
    try:
        partial.rename(path)
    except OSError as error:
        raise StorageRefusedError(f"{path}: {error.strerror}") from error
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
